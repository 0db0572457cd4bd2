"""Models behind HTTP: one queue before them, the addresses of the server, and the page to try them.

Nothing here knows how a model computes: :mod:`stages.serve` brings the models of a store.
"""
