"""Predictions of trained models for rows of a table, and their score on labelled rows that they have not seen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from accelerate import Accelerator

from pipeline.data.canonical import Unknown, canonical_rows
from pipeline.data.labels import Prediction
from pipeline.data.split import group_numbers
from pipeline.data.tables import Table, check_columns, name_of, read_input, suffix_of, write_table
from pipeline.data.task_data import load_split
from pipeline.data.tasks import Metric, Task
from pipeline.data.tokens import Cut
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.records.studies import EnsembleRecord, Member
from pipeline.runs.kept_models import ENSEMBLE, KINDS, Target, ensemble_of, find_run, parse_targets, target_of
from pipeline.runs.model import predictions_of
from pipeline.runs.outcome import overlap, seen_by
from pipeline.runs.workspace import Workspace
from pipeline.settings.parts import BOTTLENECKS
from pipeline.settings.recipe import Precision
from pipeline.stats.calibration import Surer, calibration_error, surer
from pipeline.stats.ensembling import combine
from pipeline.stats.metrics import METRICS, ClassScore, class_scores, confusion, score
from pipeline.stats.paired import score_interval
from pipeline.system.atomic import canonical_json
from pipeline.system.errors import PipelineError, make_all
from pipeline.training.devices import full_memory_explained, make_accelerator, resolve_precision
from pipeline.training.process_group import on_main_process
from stages.baselines import Baseline, baselines, beside, fitting_rows

# The recipe keys that decide an adapter's inputs and sites. Adapters with equal values can share a forward pass.
_SHARED = ("adapter", "average_orders", "drop_layers", "encoding", "max_length", "truncation")


@dataclass(frozen=True)
class PredictedTask:
    """A predicted task, and the model that predicted it."""

    task: str
    kind: str
    """The run's kind, or ``ensemble``."""
    name: str
    """The name of the run or the ensemble."""
    blank: int
    """Rows with a blank text, which have no prediction."""
    cut: Cut
    """Truncated rows among those with a prediction; for an ensemble, by the member that truncates most."""
    outside: int
    """Predicted scores outside :attr:`range`, since a regression has no bounds."""
    range: tuple[float, float] | None
    """The lowest and highest score of the task; None for classes."""

    def summary(self) -> dict[str, Any]:
        run = f"{ENSEMBLE}{self.name}" if self.kind == "ensemble" else self.name
        cut = {"cut": self.cut.rows, "max_length": self.cut.max_length}
        return {"run": run, "kind": self.kind, "task": self.task, "blank": self.blank, **cut}


@dataclass(frozen=True)
class PredictedTable:
    """The table that :func:`predict` has written."""

    tasks: tuple[PredictedTask, ...]
    rows: int
    output: Path
    passes: int
    """Forward passes over the rows."""

    def summary(self) -> dict[str, Any]:
        """What the command prints with ``--json``."""
        each, written = [task.summary() for task in self.tasks], {"rows": self.rows, "output": str(self.output)}
        if len(each) == 1:
            return {**each[0], **written}
        return {"targets": each, **written, "passes": self.passes}


def predict(
    target: str,
    input_file: Path,
    output_file: Path,
    workspace: Workspace,
    *,
    using: str,
    batch_size: int,
    precision: Precision,
    drop_layers: tuple[int, ...] = (),
    rows: Table | None = None,
    raw: bool = False,
) -> PredictedTable:
    """Write the input's rows, in order and with all their columns, and beside them a prediction for each target.

    A prediction is a score, or the name of a class, or of all predicted labels, with its confidence and the probability
    of every class. It is empty for a row with a blank text. Labels are neither needed nor read. All formats but parquet
    have four decimals; a table that is delimited like the input has its encoding, and under the same suffix its
    delimiter.

    Args:
        target: a task, or several with commas; the columns of several are named ``<task>_prediction`` and so on.
        input_file: a table, or ``-`` for csv from standard input; where it has no ids, rows are numbered from 0.
        output_file: a table, or ``-`` for csv to standard output.
        using: ``fusion`` or ``adapter``, the best one on dev; ``auto``, the better of the two; the name of a run; or
            ``ensemble:NAME``, whose members then each predict on their own backbone. A run is for all targets if it
            was trained on all of them at once.
        drop_layers: layers whose adapters or fusion are left out: faster, without training anew.
        rows: the table in ``input_file``, if it has been read already. Several processes use that of the main one.
        raw: probabilities without the model's temperature.

    Raises:
        PipelineError: no such model, unfit rows, an input column with the name of a prediction column, or a file that
            cannot be read or written.
    """
    tasks = parse_targets(target, using, workspace.task)
    given = on_main_process(lambda: read_input(input_file) if rows is None else rows)
    read = _rows_of(tasks, given.rows, name_of(input_file))
    kept, names = given.rows, [name for task in tasks for name in _column_names(task, len(tasks) > 1)]
    if taken := [name for name in names if name in kept]:
        raise PipelineError(
            f"the input has a column {', '.join(map(repr, taken))}, as the predictions would be called: rename it"
        )
    check_columns(kept, output_file)
    if "id" not in kept:
        kept = pd.concat([pd.Series(map(str, range(len(kept))), kept.index, name="id"), kept], axis=1)
    models = models_for(tasks, target, using, workspace, drop_layers)
    accelerator = make_accelerator(resolve_precision(precision))
    with full_memory_explained(f"predict --target {target}", "give a smaller --batch-size"):
        predicted = models.predict(read, drop_layers, batch_size, accelerator)
    if accelerator.is_main_process:
        columns = []
        for task in tasks:
            prediction = predicted[task.name][0].calibrated(1.0 if raw else models.temperature(task.name))
            decimals = None if suffix_of(output_file) == ".parquet" else _decimals(task)
            own = _columns(task, prediction, read[task.name].index, len(tasks) > 1, decimals)
            columns.append(own.reindex(kept.index))
        write_table(pd.concat([kept, *columns], axis=1), output_file, given.form)
    summaries = (
        PredictedTask(
            task.name,
            kind,
            name,
            blank=len(kept) - len(read[task.name]),
            cut=predicted[task.name][1],
            outside=_outside(task, predicted[task.name][0].values),
            range=task.range,
        )
        for task, (kind, name) in zip(tasks, models.names, strict=True)
    )
    return PredictedTable(tuple(summaries), len(kept), output_file, len(models.passes))


@dataclass(frozen=True)
class Models:
    """The models that predict: one for each task, in order, or the members of an ensemble for a single task."""

    passes: list[list[Target]]
    """Targets in groups; one forward pass over the input answers a group."""
    names: list[tuple[str, str]]
    """Kind and name of the model for each task."""
    ensemble: EnsembleRecord | None = None

    @property
    def runs(self) -> list[str]:
        """The runs whose models predict; for an ensemble, its members."""
        return [target.run for targets in self.passes for target in targets]

    def temperature(self, task: str) -> float:
        """The temperature of a task's model; 1 for an ensemble, which joins probabilities as they were trained."""
        targets = [] if self.ensemble else [target for each in self.passes for target in each]
        return next((target.temperature for target in targets if target.task.name == task), 1.0)

    def predict(
        self, rows: Mapping[str, pd.DataFrame], drop_layers: tuple[int, ...], batch_size: int, accelerator: Accelerator
    ) -> dict[str, tuple[Prediction, Cut]]:
        """The prediction for each task's rows, not calibrated, and how many of these rows are cut."""
        answers = [
            predictions_of(targets, rows[targets[0].task.name], drop_layers, batch_size, accelerator)
            for targets in self.passes
        ]
        if self.ensemble is None:
            return {
                target.task.name: (prediction, cut)
                for targets, (predictions, cut) in zip(self.passes, answers, strict=True)
                for target, prediction in zip(targets, predictions, strict=True)
            }
        weights = [member.weight for member in self.ensemble.members]
        joined = combine([prediction for (prediction,), _ in answers], weights, self.ensemble.rule)
        return {self.ensemble.task: (joined, max(cut for _, cut in answers))}


def models_for(
    tasks: Sequence[Task], target: str, using: str, workspace: Workspace, drop_layers: tuple[int, ...]
) -> Models:
    """The models that ``using`` selects for ``tasks``, which the user named as ``target``."""
    if using.startswith(ENSEMBLE):
        ensemble = ensemble_of(using, tasks[0], workspace.reports)

        def of_member(member: Member) -> list[Target]:
            try:
                return [target_of(tasks[0], member.run, workspace.on(member.backbone), drop_layers)]
            except PipelineError as error:
                raise PipelineError(f"ensemble '{ensemble.name}' needs run {member.run}: {error}") from error

        members = make_all(f"--using {using}", ensemble.members, of_member)
        return Models(members, [("ensemble", using.removeprefix(ENSEMBLE))], ensemble)
    targets = make_all(f"--target {target}", tasks, lambda task: target_of(task, using, workspace, drop_layers))
    return Models(_passes(targets), [(each.kind, each.run) for each in targets])


def _rows_of(tasks: Sequence[Task], table: pd.DataFrame, where: str) -> dict[str, pd.DataFrame]:
    """The rows with all texts of a task, for every task, by the index of ``table``."""

    def rows(task: Task) -> pd.DataFrame:
        name = where if len(tasks) == 1 else f"task '{task.name}'"
        # Ids are kept as they are: predictions are written in the order of the rows.
        without_ids = table.drop(columns="id", errors="ignore")
        return canonical_rows(task, without_ids, name, labelled=False, leave_out_blank=True)

    return dict(zip((task.name for task in tasks), make_all(where, tasks, rows), strict=True))


def _column_names(task: Task, several: bool) -> list[str]:
    prefix = f"{task.name}_" if several else ""
    confidence = [f"{prefix}confidence"] if task.classes else []
    return [f"{prefix}prediction", *confidence, *(f"{prefix}probability_{name}" for name in task.classes)]


def _columns(task: Task, prediction: Prediction, index: pd.Index, several: bool, decimals: int | None) -> pd.DataFrame:
    """The prediction as columns of a table whose rows have the numbers in ``index``; None: with all decimals."""
    probabilities = prediction.probabilities
    numbers = [prediction.values] if probabilities is None else [prediction.confidence, *probabilities.T]
    if decimals is not None:
        numbers = [np.round(each.astype(np.float64), decimals) + 0.0 for each in numbers]  # no -0.0
    names = [np.array([*map(task.shown, prediction.values)], dtype=object)] if task.classes else []
    return pd.DataFrame(dict(zip(_column_names(task, several), [*names, *numbers], strict=True)), index=index)


def _decimals(task: Task) -> int:
    """Decimals to write a probability or a score with: four, more if the range of the scores is below 1."""
    low, high = task.range or (0.0, 1.0)
    return 4 + max(0, -math.floor(math.log10(high - low)))


def _passes(targets: Sequence[Target]) -> list[list[Target]]:
    """Group the targets that one forward pass over the input can answer.

    They must read the same columns in the same way with one backbone, and be either bottleneck adapters at the same
    sites or tasks of one jointly trained model without modules. Anything else needs a pass to itself: a fusion, a model
    of one task, modules of another kind, an adapter with LayerNorms, an adapter on a ModernBERT.
    """
    passes: dict[object, list[Target]] = {}
    for target in targets:
        trained, recipe = target.trained, target.recipe
        if isinstance(trained, RunRecord):
            model: str | None = target.run
            may_share = recipe.trainable in ("full", "head") and recipe.pretrained.second_encoder == "none"
        else:
            model = None
            bottleneck = trained.manifest.kind == "adapter" and recipe.adapter.kind in BOTTLENECKS
            may_share = bottleneck and not recipe.bottleneck.train_layernorm
            may_share &= target.workspace.family != "modernbert"  # there AdapterHub has no parallel adapters
        shared = canonical_json({key: recipe.flat()[key] for key in _SHARED})
        inputs = target.task.text, shared, target.workspace.backbone_name
        passes.setdefault((model, inputs) if may_share else (target.run, target.task.name), []).append(target)
    return list(passes.values())


def _outside(task: Task, scores: np.ndarray) -> int:
    """Number of scores (B,) outside the task's range; 0 for a task of classes."""
    if task.range is None:
        return 0
    low, high = task.range
    slack = 1e-6 * (high - low)  # a cosine of equal vectors may exceed 1 by rounding
    return int(np.count_nonzero((scores < low - slack) | (scores > high + slack)))


_OTHER_ROWS = "give labelled rows with --input FILE, or --split dev"
_FEWEST = 20
"""Minimum number of rows that the model has not seen."""


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
        with_baselines: fit :func:`stages.baselines.baselines` too, in seconds to a minute.
        unknown: "ignore" leaves out rows with a label that the task, or the run that ``using`` names, does not know.

    Raises:
        PipelineError: no such model, unfit or unlabelled rows, or fewer than 20 rows that the model has not seen.
    """
    task, left_out, form = workspace.task(target), 0, ""
    if unknown == "ignore" and task.kind != "classes":
        raise PipelineError(f"--unknown ignore: is for one class a row, unlike task '{task.name}'")
    if unknown == "ignore" and using not in KINDS and not using.startswith(ENSEMBLE):
        task = _as_known(task, find_run(using, task.name, workspace.store, workspace.ledger))
    if input_file is None:
        splits = workspace.splits
        is_test = split == "test"
        if is_test or unknown == "ignore":
            rows = load_split(task, splits.folder_of(task), split, _OTHER_ROWS, is_scored=True, unknown=unknown)
        else:
            rows = splits.published(task).dev
    else:
        given = read_input(input_file)
        table, form = given.rows.drop(columns="id", errors="ignore"), given.form
        where = name_of(input_file)
        rows = canonical_rows(
            task, table, where, source=task.files, leave_out_blank=True, is_scored=True, unknown=unknown
        )
        # The table of errors numbers rows as messages and spreadsheet programs do.
        rows, left_out = rows.assign(id=rows.index).reset_index(drop=True), len(table) - len(rows)
    are_unknown = rows["label"] == -1 if task.kind == "classes" else np.zeros(len(rows), bool)
    rows = rows[~are_unknown].reset_index(drop=True)
    both = [models_for([task], target, each, workspace, ()) for each in (using, against) if each]
    seen_by_each = [pd.concat([seen_by(task.name, run, workspace) for run in each.runs]) for each in both]
    models, known = both[0], seen_by_each[0]
    scores_selected = input_file is None and split == "dev"
    left, seen = _seen(rows, task, pd.concat(seen_by_each), scores_selected=scores_selected)
    rows = rows[~left].reset_index(drop=True)
    _check_scorable(rows["label"], task)
    accelerator = make_accelerator(resolve_precision(precision))
    with full_memory_explained(f"evaluate --target {target}", "give a smaller --batch-size"):
        trained, cut = models.predict({task.name: rows}, (), batch_size, accelerator)[task.name]
        calibrated = trained.calibrated(models.temperature(task.name))
        prediction, compared = trained if raw else calibrated, tuple[Baseline, ...]()
        if with_baselines and task == workspace.task(target):  # else train has rows of classes that are unknown
            fitting = fitting_rows(task, known, workspace, is_split=input_file is None)
            compared = baselines(prediction.values, rows, *fitting, models.passes[0][0], accelerator)
        for other in both[1:]:
            answers = other.predict({task.name: rows}, (), batch_size, accelerator)[task.name][0].values
            compared = beside(" ".join(other.names[0]), answers, prediction.values, rows, task), *compared
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
        values, error = (np.round(each, _decimals(task)) for each in (values, np.abs(values - labels)))
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
        raise PipelineError(f"a single row of {task.name}: an interval of its score needs two: give more rows")
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
