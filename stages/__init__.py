"""What each command does, in the order a reader expects: extract, fuse, compare, predict."""
