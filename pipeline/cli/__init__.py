"""The command line: a file for each group of verbs. No logic here: parse, call a stage, print its result.

Imports that load torch or pandas stand inside the verbs, so that ``--help`` and the lists answer at once.
"""
