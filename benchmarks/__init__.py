"""What the project's speed and memory are, side by side with what one would use instead. Nothing here is asserted.

``python -m benchmarks [names]`` from the root of the repository, or ``make bench``.
"""
