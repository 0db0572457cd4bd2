"""The command line, with a file per group of verbs: parse, call a stage, print its result. No logic here.

The verbs import torch and pandas locally, so that ``--help`` and the lists answer at once.
"""
