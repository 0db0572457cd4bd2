"""Predictions of trained models for the rows of a table, written beside them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from accelerate import Accelerator

from pipeline.data.canonical import canonical_rows
from pipeline.data.labels import Prediction
from pipeline.data.tables import Table, check_columns, name_of, read_input, suffix_of, write_table
from pipeline.data.tasks import Task
from pipeline.data.tokens import Cut
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import EnsembleRecord, Member
from pipeline.runs.kept_models import ENSEMBLE, Target, ensemble_of, parse_targets, target_of
from pipeline.runs.model import predictions_of
from pipeline.runs.workspace import Workspace
from pipeline.settings.parts import BOTTLENECKS
from pipeline.settings.recipe import Precision
from pipeline.stats.ensembling import combine
from pipeline.system.atomic import canonical_json
from pipeline.system.errors import PipelineError, make_all
from pipeline.training.devices import full_memory_explained, make_accelerator, on_main_process, resolve_precision

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
    texts: Sequence[str] = (),
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
        texts: the input's columns of texts; empty: named as in the task's files.
        raw: probabilities without the model's temperature.

    Raises:
        PipelineError: no such model, unfit rows, an input column with the name of a prediction column, or a file that
            cannot be read or written.
    """
    tasks = parse_targets(target, using, workspace.task)
    given = on_main_process(lambda: read_input(input_file) if rows is None else rows)
    read = _rows_of(tasks, given.rows, texts, name_of(input_file))
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
            decimals = None if suffix_of(output_file) == ".parquet" else decimals_of(task)
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


def _rows_of(tasks: Sequence[Task], table: pd.DataFrame, texts: Sequence[str], where: str) -> dict[str, pd.DataFrame]:
    """The rows with all texts of a task, for every task, by the index of ``table``."""

    def rows(task: Task) -> pd.DataFrame:
        name = where if len(tasks) == 1 else f"task '{task.name}'"
        if texts and len(texts) != len(task.text):
            raise PipelineError(f"--text {','.join(texts)}: task '{task.name}' reads {len(task.text)}: name as many")
        named = task.model_copy(update={"text": tuple(texts)}) if texts else task
        # Ids are kept as they are: predictions are written in the order of the rows.
        without_ids = table.drop(columns="id", errors="ignore")
        return canonical_rows(named, without_ids, name, labelled=False, leave_out_blank=True)

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


def decimals_of(task: Task) -> int:
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
