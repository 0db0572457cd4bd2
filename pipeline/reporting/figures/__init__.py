"""Figures of a study, as SVG and PNG, each with a CSV of its numbers."""
