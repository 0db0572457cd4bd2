"""Mutation testing: which faults the tests would let through. Each is put into a file, whose tests must then fail.

``python -m tests.mutation [files] [--count 150] [--seed 0]`` from the root of the repository, or ``make mutants``.
"""
