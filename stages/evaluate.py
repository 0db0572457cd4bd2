"""The score of a trained model on labelled rows that it has not seen, beside what one could use instead of it.

That is the largest class, words, and frozen vectors, fitted on the task's labelled rows that trained the model, which
its hashes tell.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from accelerate import Accelerator

from pipeline.data.canonical import Unknown, canonical_rows
from pipeline.data.labels import Prediction, as_sets, one_hot
from pipeline.data.split import group_numbers, row_hashes
from pipeline.data.tables import name_of, read_input, write_table
from pipeline.data.task_data import has_rows, load_split
from pipeline.data.tasks import Metric, Task
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.kept_models import ENSEMBLE, KINDS, Target, find_run
from pipeline.runs.outcome import overlap, seen_by
from pipeline.runs.scoring import MOST_ROWS, Scoring, solved_probe
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Precision
from pipeline.stats.metrics import (
    METRICS,
    ClassScore,
    Surer,
    best_threshold_of_labels,
    calibration_error,
    class_scores,
    confusion,
    score,
    surer,
)
from pipeline.stats.paired import paired_difference, score_interval
from pipeline.stats.probe import outputs_from_words
from pipeline.system.errors import PipelineError
from pipeline.training.devices import full_memory_explained, make_accelerator, on_main_process, resolve_precision
from stages.predict import decimals_of, models_for

_OTHER_ROWS = "give labelled rows with --input FILE, or --split dev"
_FEWEST = 20
"""Minimum number of rows that the model has not seen."""


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


@dataclass(frozen=True)
class Evaluation:
    """The result of ``evaluate``."""

    run: str
    kind: str
    task: str
    rows: int
    metric: Metric
    score: float
    interval: tuple[float, float]
    """95 % interval over examples; rows that share texts count as one."""
    classes: tuple[ClassScore, ...]
    """In the task's order; empty for scores."""
    confusion: tuple[tuple[int, ...], ...]
    """Rows of each class (first index) that are predicted as each class, in the task's order; empty if not classes."""
    temperature: float
    """The model's; 1: its probabilities are those of training."""
    calibration_error: float | None
    """Expected calibration error, 0 to 1, of the probabilities with the temperature; None if not classes."""
    raw_calibration_error: float | None
    """The same of the probabilities of training."""
    surer: tuple[Surer, ...]
    """For rising thresholds; empty for scores."""
    baselines: tuple[Baseline, ...]
    """Another model to compare with, then simple systems; empty if none were asked for."""
    mean_absolute_error: float | None
    """In units of the task's scores; None for classes."""
    seen: int
    """Rows left out because the model has seen their text; the next fields say how. If dev is scored, rows that only
    selected the model are kept."""
    trained_on: int | None
    """Rows whose text the model, or the target's adapter that it builds on, was trained on. None: unknown, since the
    model keeps no hashes."""
    selected_on: int | None
    """Rows whose text selected its epoch; None as above."""
    seen_by_sources: dict[str, int | None]
    """By task, rows whose text trained or selected a source of the model, or a task trained jointly with it; None as
    above."""
    selecting: int
    """Scored rows that selected its epoch; 0 unless the dev split is scored."""
    left_out: int
    """Rows of the file without a text or a label."""
    unknown: int
    """Rows left out because the model does not know their label."""
    outside: int
    """Rows with a label outside the task's range."""
    cut: int
    """Rows longer than ``max_length``, the number of tokens that the model reads."""
    max_length: int


def evaluate(
    target: str,
    workspace: Workspace,
    *,
    using: str = "auto",
    against: str | None = None,
    input_file: Path | None = None,
    split: Literal["dev", "test"] = "dev",
    batch_size: int = 64,
    precision: Precision = "auto",
    raw: bool = False,
    errors_file: Path | None = None,
    with_baselines: bool = False,
    unknown: Unknown = "error",
) -> Evaluation:
    """Score a model on the labelled rows of a file, or of a split of the task.

    Args:
        using, raw: as for ``predict``.
        against: another model, named likewise, that is compared on the same rows, which neither has seen.
        errors_file: a table to write of the rows with a wrong class, surest first; for scores of all rows, largest
            error first.
        with_baselines: fit the simple systems too, in seconds to a minute.
        unknown: "ignore" leaves out rows with a label that the task, or the run that ``using`` names, does not know.

    Raises:
        PipelineError: no such model, unfit or unlabelled rows, or fewer than 20 rows that the model has not seen.
    """
    task, left_out, form = workspace.task(target), 0, ""
    if unknown == "ignore" and task.kind != "classes":
        raise PipelineError(f"--unknown ignore: is for one class a row, unlike task '{task.name}'")
    if unknown == "ignore" and using not in KINDS and not using.startswith(ENSEMBLE):
        task = _as_known(task, find_run(using, task.name, workspace.store, workspace.reports))
    scores_selected = input_file is None and split == "dev"
    if input_file is not None:
        given = read_input(input_file)
        table, form = given.rows.drop(columns="id", errors="ignore"), given.form
        rows = canonical_rows(
            task, table, name_of(input_file), source=task.files, leave_out_blank=True, is_scored=True, unknown=unknown
        )
        # The table of errors numbers rows as messages and spreadsheet programs do.
        rows, left_out = rows.assign(id=rows.index).reset_index(drop=True), len(table) - len(rows)
    elif scores_selected and unknown == "error":
        rows = workspace.splits.published(task).dev
    else:
        folder = workspace.splits.folder_of(task)
        rows = load_split(task, folder, split, _OTHER_ROWS, is_scored=True, unknown=unknown)
    are_unknown = rows["label"] == -1 if task.kind == "classes" else np.zeros(len(rows), bool)
    rows = rows[~are_unknown].reset_index(drop=True)
    both = [models_for([task], target, each, workspace, ()) for each in (using, against) if each]
    seen_by_each = [pd.concat([seen_by(task.name, run, workspace) for run in each.runs]) for each in both]
    models, known = both[0], seen_by_each[0]
    left, seen = _seen(rows, task, pd.concat(seen_by_each), scores_selected=scores_selected)
    rows = rows[~left].reset_index(drop=True)
    _check_scorable(rows["label"], task)
    accelerator = make_accelerator(resolve_precision(precision))
    with full_memory_explained(f"evaluate --target {target}", "give a smaller --batch-size"):
        trained, cut = models.predict({task.name: rows}, (), batch_size, accelerator)[task.name]
        calibrated = trained.calibrated(models.temperature(task.name))
        prediction, compared = trained if raw else calibrated, tuple[Baseline, ...]()
        if with_baselines and task == workspace.task(target):  # else train has rows of classes that are unknown
            fitting = _fitting_rows(task, known, workspace, is_split=input_file is None)
            compared = _baselines(prediction.values, rows, *fitting, models.passes[0][0], accelerator)
        for other in both[1:]:
            answers = other.predict({task.name: rows}, (), batch_size, accelerator)[task.name][0].values
            compared = _beside(" ".join(other.names[0]), answers, prediction.values, rows, task), *compared
    if errors_file is not None and accelerator.is_main_process:
        write_table(_errors(task, rows, prediction), errors_file, form)
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
        confusion=confusion(values, labels, len(task.classes)) if task.classes else (),
        temperature=models.temperature(task.name),
        calibration_error=calibration_error(calibrated, labels) if task.kind == "classes" else None,
        raw_calibration_error=calibration_error(trained, labels) if task.kind == "classes" else None,
        surer=surer(prediction, labels) if task.classes else (),
        baselines=compared,
        mean_absolute_error=None if task.classes else float(np.abs(values - labels).mean()),
        **seen,
        left_out=left_out,
        unknown=int(are_unknown.sum()),
        outside=0 if task.range is None else int(((labels < low) | (labels > high)).sum()),
        cut=cut.rows,
        max_length=cut.max_length,
    )


def _errors(task: Task, rows: pd.DataFrame, prediction: Prediction) -> pd.DataFrame:
    """The table of ``evaluate --errors``, with the task's names of columns; see :func:`evaluate`."""
    texts = dict(zip(("text_a", "text_b"), task.text, strict=False))
    labels, values = rows["label"].to_numpy(), prediction.values
    table = rows[["id", *texts]].rename(columns=texts)
    if not task.classes:
        values, error = (np.round(each, decimals_of(task)) for each in (values, np.abs(values - labels)))
        table = table.assign(**{task.label: labels, "prediction": values, "error": error})
        return table.sort_values("error", ascending=False, kind="stable")
    table[task.label], table["prediction"] = ([*map(task.shown, each)] for each in (labels, values))
    table["confidence"] = prediction.confidence.astype(np.float64).round(4)
    return table[labels != values].sort_values("confidence", ascending=False, kind="stable")


def _as_known(task: Task, trained: Artifact | RunRecord) -> Task:
    """``task`` with the classes that a model was trained for, which may have been others."""
    if isinstance(trained, Artifact):
        classes = tuple(trained.manifest.meaning["classes"])
    else:
        classes = tuple(trained.described(task.name)["meaning"]["classes"])
    names = {raw: task.classes[int(number)] for raw, number in task.files.labels.items()}
    labels = {raw: float(classes.index(name)) for raw, name in names.items() if name in classes}
    return task.model_copy(update={"classes": classes, "files": task.files.model_copy(update={"labels": labels})})


def _check_scorable(labels: pd.Series, task: Task) -> None:
    """Raise a :class:`PipelineError` if the metric is not defined on ``labels``."""
    if len(labels) < 2:
        raise PipelineError(
            f"rows of {task.name} to score: {len(labels)}; an interval needs two or more: give more rows"
        )
    if labels.nunique() < 2 and METRICS[task.metric].worst < 0:
        raise PipelineError(
            f"all {len(labels)} rows of {task.name} have one label: {task.metric} is not defined: add rows with others"
        )


def _seen(
    rows: pd.DataFrame, task: Task, known: pd.DataFrame, *, scores_selected: bool
) -> tuple[np.ndarray, dict[str, Any]]:
    """Which ``rows`` (n,) to leave out because a model has seen their text (``known``), and how many were seen how.

    Raises:
        PipelineError: fewer than :data:`_FEWEST` rows are left.
    """
    overlaps = overlap(rows, known)
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


def _fitting_rows(
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


def _baselines(
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
            return _beside(name, fit(), values, rows, task)
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


def _beside(name: str, answers: np.ndarray, values: np.ndarray, rows: pd.DataFrame, task: Task) -> Baseline:
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
