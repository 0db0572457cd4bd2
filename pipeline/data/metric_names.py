"""Names of the metrics by kind of task, and of the rules that join predictions. Imports nothing heavy."""

from typing import Literal, get_args

Kind = Literal["classes", "score"]
ClassMetric = Literal["accuracy", "balanced-accuracy", "macro-f1", "matthews", "kappa"]
ScoreMetric = Literal["pearson", "spearman"]
Metric = Literal[ClassMetric, ScoreMetric]

EnsembleRule = Literal["mean", "uniform", "weighted", "mode", "median"]

METRICS_OF: dict[Kind, tuple[Metric, ...]] = {"classes": get_args(ClassMetric), "score": get_args(ScoreMetric)}
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.05, 20.0
"""Bounds of the temperature that calibrates probabilities."""
