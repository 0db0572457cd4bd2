"""Serve models over HTTP: the queue of requests, the addresses, and the page to try the models.

Only :mod:`stages.serve.shelf`, which provides the models of a store, knows how a model computes.
"""
