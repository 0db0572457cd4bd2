"""Files, streams, signals and errors: what stands between the project and the operating system."""
