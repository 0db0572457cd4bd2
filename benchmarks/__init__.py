"""The project's speed and memory, measured beside those of the alternatives. Nothing here is asserted.

``python -m benchmarks [names]`` from the root of the repository, or ``make bench``.
"""
