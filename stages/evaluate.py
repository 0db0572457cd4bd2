"""The score of a kept model on labelled rows that it has not seen."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from pipeline.data.canonical import canonical_rows
from pipeline.data.load import load_split
from pipeline.data.split import group_numbers
from pipeline.data.tables import name_of, read_input
from pipeline.data.tasks import Metric, Task
from pipeline.runs.seen import overlap, seen_by
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Precision
from pipeline.stats.metrics import METRICS, ClassScore, LargestClass, class_scores, largest_class, score
from pipeline.stats.paired import score_interval
from pipeline.system.errors import PipelineError
from pipeline.training.devices import make_accelerator, resolve_precision
from pipeline.training.memory import full_memory_explained
from stages.predict import models_for

_OTHER_ROWS = "give labelled rows with --input FILE, or --split dev"
_FEWEST = 20
"""The fewest rows that must remain after leaving out those that the model has seen."""


@dataclass(frozen=True)
class Evaluation:
    """What ``evaluate`` found."""

    run: str
    kind: str
    task: str
    rows: int
    metric: Metric
    score: float
    interval: tuple[float, float]
    """95 %, over examples: rows that share texts count as one."""
    classes: tuple[ClassScore, ...]
    """In the task's order; empty for a task of scores."""
    largest_class: LargestClass | None
    """What the score is to be compared with; None for a task of scores."""
    mean_absolute_error: float | None
    """On the range of the task's scores; None for a task of classes."""
    seen: int
    """Rows that are not scored, since the model has seen their text: it is counted below. Rows of dev that selected it
    are scored where that split is asked for."""
    trained_on: int | None
    """Rows whose text is in the training rows of the model, or of the target's adapter that it builds on; None where
    that is unknown, since the model was made before models kept it."""
    selected_on: int | None
    """Rows whose text is in those that selected its epoch; None as above."""
    seen_by_sources: dict[str, int | None]
    """Rows whose text is in the training or validation rows of another task, which the model builds on or was trained
    on jointly, by task; None as above."""
    selecting: int
    """Scored rows that selected its epoch: none but where the dev split was asked for."""
    left_out: int
    """Rows of the file without a text or a label."""
    outside: int
    """Rows whose score is beyond the range of the task."""
    cut: int
    """Rows that are longer than the ``max_length`` tokens that the model reads."""
    max_length: int

    def summary(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    target: str,
    workspace: Workspace,
    *,
    using: str = "auto",
    input_file: Path | None = None,
    split: Literal["dev", "test"] = "dev",
    batch_size: int = 64,
    precision: Precision = "auto",
) -> Evaluation:
    """Score a model on the labelled rows of a file, or of a split of the task.

    Args:
        using: as for ``predict``.

    Raises:
        PipelineError: no such model, rows that are unfit or unlabelled, or fewer than 20 that the model has not seen.
    """
    task, left_out = workspace.task(target), 0
    if input_file is None:
        splits = workspace.splits
        is_test = split == "test"
        if is_test:
            rows = load_split(task, splits.folder_of(task), split, _OTHER_ROWS, is_scored=True)
        else:
            rows = splits.published(task).dev
    else:
        table = read_input(input_file).drop(columns="id", errors="ignore")
        where = name_of(input_file)
        rows = canonical_rows(task, table, where, source=task.files, leave_out_blank=True, is_scored=True)
        rows, left_out = rows.reset_index(drop=True), len(table) - len(rows)
    models = models_for([task], target, using, workspace, ())
    left, seen = _seen(rows, task, models.runs, workspace, scores_selected=input_file is None and split == "dev")
    rows = rows[~left].reset_index(drop=True)
    _check_scorable(rows["label"], task)
    accelerator = make_accelerator(resolve_precision(precision))
    with full_memory_explained(f"evaluate --target {target}", "give a smaller --batch-size"):
        prediction, cut = models.predict({task.name: rows}, (), batch_size, accelerator)[task.name]
    labels, values, (kind, run) = rows["label"].to_numpy(), prediction.values, models.names[0]
    low, high = task.range or (-np.inf, np.inf)
    return Evaluation(
        run=run,
        kind=kind,
        task=task.name,
        rows=len(rows),
        metric=task.metric,
        score=score(task.metric, values, labels),
        interval=score_interval(task.metric, values, labels, group_numbers(rows)),
        classes=class_scores(values, labels, task.classes) if task.classes else (),
        largest_class=largest_class(labels, task.classes, task.metric) if task.classes else None,
        mean_absolute_error=None if task.classes else float(np.abs(values - labels).mean()),
        **seen,
        left_out=left_out,
        outside=int(((labels < low) | (labels > high)).sum()),
        cut=cut.rows,
        max_length=cut.max_length,
    )


def _check_scorable(labels: pd.Series, task: Task) -> None:
    """Raise a :class:`PipelineError` if the metric is not defined on ``labels``."""
    if len(labels) < 2:
        raise PipelineError(f"a single row of {task.name}: an interval of its score needs two: give more rows")
    if labels.nunique() < 2 and METRICS[task.metric].worst < 0:
        raise PipelineError(
            f"all {len(labels)} rows of {task.name} have one label: {task.metric} is not defined: add rows with others"
        )


def _seen(
    rows: pd.DataFrame, task: Task, runs: Sequence[str], workspace: Workspace, *, scores_selected: bool
) -> tuple[np.ndarray, dict[str, Any]]:
    """Which ``rows`` (n,) are not scored as the models of ``runs`` have seen their text; the counts of an evaluation.

    Raises:
        PipelineError: fewer than :data:`_FEWEST` others are left.
    """
    overlaps = overlap(rows, pd.concat([seen_by(task.name, run, workspace) for run in runs]))
    none = np.zeros(len(rows), bool)

    def among(name: str, *uses: str) -> int | None:
        if (name, "unknown") in overlaps:
            return None
        return int(np.any([overlaps.get((name, use), none) for use in uses], axis=0).sum())

    selecting = overlaps.get((task.name, "selected"), none) if scores_selected else none
    left_out = np.any([none, *(seen for seen in overlaps.values() if seen is not selecting)], axis=0)
    left = int((~left_out).sum())
    if left < _FEWEST and left_out.any():
        raise PipelineError(
            f"{left_out.sum()} of these {len(rows)} rows trained or selected the model, or one that it builds on, and a"
            f" score on the other {left} says little: give at least {_FEWEST} rows that it has not seen"
        )
    sources = dict.fromkeys(name for name, _ in overlaps if name != task.name)
    return left_out, {
        "seen": int(left_out.sum()),
        "trained_on": among(task.name, "trained"),
        "selected_on": among(task.name, "selected"),
        "selecting": int((selecting & ~left_out).sum()),
        "seen_by_sources": {name: among(name, "trained", "selected") for name in sources},
    }
