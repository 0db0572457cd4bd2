"""Operating system: files, locks, streams and signals, and the errors that the user can fix."""
