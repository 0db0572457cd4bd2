"""What one could use instead of a model, on the rows that it is scored on: the largest class, words, frozen vectors.

They are fitted on the task's labelled rows that trained the model, which its hashes tell.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from accelerate import Accelerator

from pipeline.data.labels import as_sets, one_hot
from pipeline.data.split import group_numbers, row_hashes
from pipeline.data.task_data import has_rows
from pipeline.data.tasks import Task
from pipeline.runs.kept_models import Target
from pipeline.runs.scoring import MOST_ROWS, Scoring, solved_probe
from pipeline.runs.workspace import Workspace
from pipeline.stats.metrics import best_threshold_of_labels, score
from pipeline.stats.paired import paired_difference, score_interval
from pipeline.stats.probe import outputs_from_words
from pipeline.system.errors import PipelineError
from pipeline.training.process_group import on_main_process


@dataclass(frozen=True)
class Baseline:
    """A simple system, or another model, on the rows that a model is scored on."""

    name: str
    skipped: str = ""
    """Why it was not fitted; empty if it was."""
    score: float | None = None
    interval: tuple[float, float] | None = None
    """95 % confidence interval; None for a constant answer, except under accuracy and for label sets."""
    gain: float | None = None
    """The model's score minus this one."""
    gain_interval: tuple[float, float] | None = None
    """95 % interval of this paired difference."""


def fitting_rows(
    task: Task, seen: pd.DataFrame, workspace: Workspace, is_split: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The task's labelled rows in the workspace that trained and that selected a model with these ``seen`` rows.

    Empty if unknown.

    Args:
        is_split: whether the task's splits are read anyway; otherwise nothing is downloaded for them.
    """
    rows = pd.DataFrame({"label": []})
    hashes = np.zeros(0, np.uint64)
    with suppress(PipelineError):  # unreadable rows must not prevent a score
        if is_split or any(has_rows(task, folder) for folder in workspace.splits.folders):
            data = workspace.splits.published(task)
            rows = pd.concat([data.train, data.dev], ignore_index=True)
            hashes = row_hashes(rows)
    used = (seen.loc[(seen["task"] == task.name) & (seen["use"] == use), "hash"] for use in ("trained", "selected"))
    train, selecting = (rows[np.isin(hashes, one)].reset_index(drop=True) for one in used)
    return train, selecting


def baselines(
    values: np.ndarray,
    rows: pd.DataFrame,
    train: pd.DataFrame,
    selecting: pd.DataFrame,
    target: Target,
    accelerator: Accelerator,
) -> tuple[Baseline, ...]:
    """The baselines fitted on ``train``, scored on ``rows`` (B,), for which ``target`` predicts ``values`` (B,).

    Without rows to train on, the largest class or mean is that of ``rows``. For label sets, the rows that selected the
    model also tune the threshold of the baselines, as they did the model's.
    """
    task = target.task
    is_score, known = task.kind == "score", (rows if train.empty else train)["label"].to_numpy()
    usual = known.mean() if is_score else one_hot(known, len(task.classes)).sum(axis=0).argmax()
    always = f"{usual:.4g}, the mean" if is_score else task.classes[int(usual)]
    usual = as_sets(np.arange(len(task.classes)) == usual) if task.kind == "labels" else usual
    regression = "ridge" if is_score else "logistic"
    skipped = f"{len(train):,} rows would take minutes" if len(train) > MOST_ROWS else ""
    skipped = "its training rows are not here" if train.empty else skipped

    def scored(name: str, fit: Callable[[], np.ndarray], skipped: str = skipped) -> Baseline:
        if skipped:
            return Baseline(name, skipped)
        try:
            return beside(name, fit(), values, rows, task)
        except ValueError as error:  # texts without a word
            return Baseline(name, str(error))

    def of_words() -> np.ndarray:
        classes, asked = None if is_score else len(task.classes), _texts(selecting) + _texts(rows)
        outputs = on_main_process(lambda: outputs_from_words(_texts(train), known, asked, classes))
        tuning, outputs = outputs[: len(selecting)], outputs[len(selecting) :]
        if task.kind != "labels":
            return outputs if is_score else outputs.argmax(axis=1)
        chosen = best_threshold_of_labels(tuning, selecting["label"].to_numpy(), task.metric) if len(tuning) else 0
        return as_sets(outputs > chosen)

    def of_vectors() -> np.ndarray:
        recipe = target.workspace.resolve(target.recipe.as_probe, task)
        backbone = target.workspace.backbone_for(recipe)
        model = solved_probe(task, train, recipe, backbone, accelerator)
        if len(selecting):
            Scoring(task, selecting, recipe, backbone, accelerator).choose_threshold(model)
        return Scoring(task, rows, recipe, backbone, accelerator).predict(model).values

    constant = scored(f"always {always}", lambda: np.full(len(rows), usual), "")
    if task.metric != "accuracy" and task.kind != "labels":
        # The interval allows for another answer to a few rows, which this system never gives.
        constant = replace(constant, interval=None)
    return (
        constant,
        scored(f"words (TF-IDF), {regression} regression", of_words),
        scored(f"frozen vectors, {regression} regression", of_vectors),
    )


def beside(name: str, answers: np.ndarray, values: np.ndarray, rows: pd.DataFrame, task: Task) -> Baseline:
    """A system that gives ``answers`` (B,) for ``rows``, for which the model predicts ``values`` (B,)."""
    labels, groups = rows["label"].to_numpy(), group_numbers(rows)
    value, interval = score(task.metric, answers, labels), score_interval(task.metric, answers, labels, groups)
    gain = paired_difference(task.metric, [values], [answers], labels, groups=groups).comparison()
    return Baseline(name, "", value, interval, gain.difference, gain.interval)


def _texts(rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return []
    texts = rows["text_a"] + " " + rows["text_b"] if "text_b" in rows else rows["text_a"]
    return texts.tolist()
