"""Serve models over HTTP: the queue of requests, the addresses, and the page to try the models.

Nothing here knows how a model computes; :mod:`stages.serve.serve` provides the models of a store.
"""
