"""Metrics, paired tests and the arithmetic of ensembles."""
