"""Names of the metrics by kind of task, and of the rules that join predictions. Imports nothing heavy."""

from typing import Literal, get_args

Kind = Literal["classes", "score", "labels"]
"""One class a row, a score, or any number of classes a row."""
ClassMetric = Literal["accuracy", "balanced-accuracy", "macro-f1", "matthews", "kappa"]
LabelsMetric = Literal["micro-f1", "macro-f1"]
ScoreMetric = Literal["pearson", "spearman"]
Metric = Literal[ClassMetric, LabelsMetric, ScoreMetric]

EnsembleRule = Literal["mean", "uniform", "weighted", "mode", "median"]

METRICS_OF: dict[Kind, tuple[Metric, ...]] = {
    "classes": get_args(ClassMetric),
    "score": get_args(ScoreMetric),
    "labels": get_args(LabelsMetric),
}
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.05, 20.0
"""Bounds of the temperature that calibrates probabilities."""
