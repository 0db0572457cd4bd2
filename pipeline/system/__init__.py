"""The operating system's side: files, locks, streams, signals, memory, and the errors that the user can fix."""
