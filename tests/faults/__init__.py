"""Real commands, killed at random and at aimed moments: the same command then ends as if it had never been killed."""
