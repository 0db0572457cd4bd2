"""The training loop and its inputs."""
