"""Names of the metrics by kind of task. Tasks and records need no more, and this file imports nothing heavy."""

from typing import Literal, get_args

Kind = Literal["classes", "score"]
ClassMetric = Literal["accuracy", "balanced-accuracy", "macro-f1", "matthews"]
ScoreMetric = Literal["pearson", "spearman"]
Metric = Literal[ClassMetric, ScoreMetric]

METRICS_OF: dict[Kind, tuple[Metric, ...]] = {"classes": get_args(ClassMetric), "score": get_args(ScoreMetric)}
