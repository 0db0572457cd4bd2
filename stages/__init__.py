"""What each command does, in the order a reader expects: extract, fuse, baselines, compare, predict."""
