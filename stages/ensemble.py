"""Ensembles of finished runs, from their saved predictions alone: nothing is trained and no model is run.

The command keeps an ensemble under a name. A study keeps a run for every cell of a row of method ``ensemble``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from pipeline.data.labels import EnsembleRule, Prediction, are_sets
from pipeline.data.tasks import Task, is_name
from pipeline.records.ledger import Ledger, train_again
from pipeline.records.run_record import Cost, Parameters, RunRecord, TaskScore, run_name
from pipeline.records.store import SourceRun
from pipeline.records.studies import ChosenOn, EnsembleRecord, Ensembles, Member, Scores
from pipeline.runs.outcome import get_or_train, provenance
from pipeline.runs.scoring import prediction_table
from pipeline.runs.workspace import Workspace
from pipeline.settings.kinds import JoinedBy
from pipeline.stats.ensembling import BEST, choose, combine, first_half
from pipeline.stats.metrics import score
from pipeline.system.errors import PipelineError, few, noted, raise_all
from pipeline.system.streams import notice
from pipeline.training.devices import on_main_process


def ensemble(
    task: Task,
    name: str,
    reports: Path,
    *,
    runs: Sequence[str] | None = None,
    rule: EnsembleRule = "mean",
    chosen_on: ChosenOn = "half",
    best: int | None = None,
    seed: int = 0,
) -> EnsembleRecord:
    """Select members and weights on dev, score the ensemble, and keep it under ``name``, replacing an earlier one.

    Args:
        runs: candidates. None: every finished run that trained on the task, on any backbone, and was scored on the same
            rows as most. A warning names the others.
        chosen_on: ``half`` selects members and weights on one half of dev and scores the other half, on which the
            members have only selected their epochs; ``all`` selects on all of dev. Runs with test rows apart from dev
            select on all of dev and are scored on the test rows (``dev``).
        best: number of members under ``mode`` and ``median``, the best on dev; None: five, or all of ``runs``.
        seed: draws the halves.

    Raises:
        PipelineError: a run is unfinished, damaged or of another task; runs saw different dev rows; or the rule does
            not fit the task.
    """
    raise_all(f"ensemble '{name}'", _mistakes(task, name, rule, best, Ensembles(reports)))
    ledger = Ledger(reports)
    if runs is not None:
        records = _named(runs, task, ledger)
        saved = saved_predictions(records, task, ledger)
    else:
        records, saved = _usable(task, ledger)
    chosen_on = chosen_on if saved.is_dev.all() else "dev"
    choosing = saved.is_dev if chosen_on == "dev" else _rows_to_choose_on(saved.labels, task, chosen_on, seed)
    weights, prediction = saved.join(task, choosing, rule, best or (BEST if runs is None else len(saved.by_run)))
    single = max(saved.by_run, key=lambda run: saved.score(task, saved.by_run[run], choosing))

    def scores(part: np.ndarray) -> Scores:
        alone = saved.score(task, saved.by_run[single], part)
        return Scores(rows=int(part.sum()), ensemble=saved.score(task, prediction, part), best=alone)

    about = {"run", "kind", "backbone", "seed"}
    members = tuple(
        Member(**records[run].model_dump(include=about), weight=weight, dev=records[run].score(task.name).dev)
        for run, weight in weights.items()
    )
    marks = records[single].fingerprints(task.name)
    record = EnsembleRecord(
        name=name,
        task=task.name,
        metric=task.metric,
        meaning=task.meaning,
        rule=rule,
        members=members,
        best=single,
        considered=tuple(saved.by_run),
        chosen_on=chosen_on,
        seed=seed,
        dev_rows="+".join(marks[split] for split in ("dev", "test") if split in marks),
        chosen=scores(choosing),
        held_out=None if chosen_on == "all" else scores(~choosing),
        provenance=provenance(),
    )
    table = prediction_table(saved.rows, prediction)
    table.insert(2, "chosen_on", choosing)
    ensembles = Ensembles(reports)
    before = ensembles.find(name)
    ensembles.write(record, table)
    if before is not None and (before.rule, before.members) != (record.rule, record.members):
        runs_before = ", ".join(few([member.run for member in before.members]))
        notice(f"note: ensemble {name} ({before.rule} of {runs_before}) is replaced")
    return record


def _mistakes(task: Task, name: str, rule: EnsembleRule, best: int | None, ensembles: Ensembles) -> list[str]:
    problems = []
    if not is_name(name):
        problems.append(f"--name {name}: up to 32 of a-z, 0-9, _ and -, the first a letter, for it names a folder")
    if rule == "mode" and task.kind == "score":
        problems.append(f"--rule mode is for classes; '{task.name}' has scores: use median, mean or weighted")
    if rule == "median" and task.kind != "score":
        problems.append(f"--rule median is for scores; '{task.name}' has classes: use mode, mean or weighted")
    if best is not None and rule not in ("mode", "median"):
        problems.append(f"--best is for mode and median; {rule} chooses how many take part by itself")
    if best is not None and best < 1:
        problems.append(f"--best {best}: give at least 1")
    there = ensembles.find(name) if not problems else None
    if there is not None and there.task != task.name:
        problems.append(f"the name is that of an ensemble of '{there.task}': give another with --name")
    return problems


def _named(runs: Sequence[str], task: Task, ledger: Ledger) -> dict[str, RunRecord]:
    """The runs that the user named; raises all mistakes at once."""
    problems = [f"run {run} is named more than once" for run, count in Counter(runs).items() if count > 1]
    if not runs:
        problems.append("--runs names no run: leave it out for all finished ones")
    records: dict[str, RunRecord] = {}
    for run in dict.fromkeys(runs):
        with noted(problems):
            if (record := ledger.find(run)) is not None:
                records[run] = record
                problems += _misfits(record, task)
            elif ledger.began(run):
                problems.append(f"run {run} is not finished: run its command again")
            else:
                problems.append(f"no run {run} in {ledger.root}")
    raise_all("--runs", problems)
    return records


def _usable(task: Task, ledger: Ledger) -> tuple[dict[str, RunRecord], "SavedPredictions"]:
    """Every finished run of the task with its saved predictions. Runs with unreadable predictions, or with other rows
    than most, are left out with a warning."""
    finished, damaged = ledger.records()
    records = {run: record for run, record in finished.items() if not _misfits(record, task)}
    saved, unread = readable_predictions(records.values(), task, ledger)
    for problem in few([*damaged.values(), *unread]):
        notice(f"warning: left out: {problem}")
    if saved is None:
        what = "has predictions that can be read" if records else "is finished"
        raise PipelineError(f"no run of '{task.name}' in {ledger.root} {what}: train one first")
    return records, saved


def _misfits(record: RunRecord, task: Task) -> list[str]:
    """Reasons why a run cannot take part; empty if it can."""
    if record.kind == "ensemble":
        return [f"run {record.run} is an ensemble itself"]
    if task.name not in record.trained_on:
        return [f"run {record.run} was trained for '{record.task}', not '{task.name}'"]
    if record.described(task.name)["meaning"] != task.meaning:
        return [f"run {record.run} was trained when task '{task.name}' had other classes or range"]
    return []


def _rows_to_choose_on(labels: np.ndarray, task: Task, chosen_on: ChosenOn, seed: int) -> np.ndarray:
    """Mask (n,) of the dev rows that select members and weights; the others are scored."""
    halves = chosen_on == "half"
    choosing = first_half(labels, seed) if halves else np.ones(len(labels), dtype=bool)
    parts = [choosing]
    if halves and task.kind == "score":  # a correlation is not defined where all labels are the same
        parts.append(~choosing)
    if any(part.sum() < 2 or len(set(labels[part])) < 2 for part in parts):
        remedy = "choose on half of: --choose-on all" if halves else "choose on, or all have one label"
        raise PipelineError(f"{len(labels)} dev rows of '{task.name}' are too few to {remedy}")
    return choosing


_OF_A_MEMBER = ("train_rows", "limit", "dev_in_train", "test_in_train", "added")


class EnsembleRun:
    """A run of a row of method ``ensemble``: the joint prediction of finished runs for one task.

    Validation rows select members and weights; test rows score it, as in every row.

    Args:
        members: what may take part; one that stands twice counts once.
        joined_by: how; ``vote`` is ``mode`` for classes and ``median`` for scores.
        most: how many take part at most.
    """

    def __init__(
        self,
        task: Task,
        members: Sequence[RunRecord],
        joined_by: JoinedBy,
        most: int | None,
        seed: int,
        workspace: Workspace,
    ) -> None:
        self.task, self.most, self.seed, self.workspace = task, most, seed, workspace
        self.members = {record.run: record for record in members}
        vote: EnsembleRule = "median" if task.kind == "score" else "mode"
        self.rule = vote if joined_by == "vote" else joined_by

    @cached_property
    def identity(self) -> dict[str, Any]:
        return {
            "kind": "ensemble",
            "tasks": {self.task.name: {"meaning": self.task.meaning}},
            "seed": self.seed,
            "rule": self.rule,
            "most": self.most,
            "members": list(self.members),  # whose names are hashes of all that determines them
        }

    @cached_property
    def name(self) -> str:
        return run_name(self.identity)

    @property
    def title(self) -> str:
        return f"ensemble {self.task.name} seed {self.seed}"

    def finished(self) -> RunRecord | None:
        record = self.workspace.finished(self.name, with_model=False)
        # A member that was trained again, on another machine, may answer otherwise under the same name.
        newest = max(member.finished_at for member in self.members.values())
        return record if record is not None and record.finished_at >= newest else None

    def get(self, force: bool = False) -> RunRecord:
        """The finished record; its predictions are made in a moment."""
        return get_or_train(self, force).record

    def train(self) -> RunRecord:
        """Choose, score and write; a :class:`PipelineError` if there are no test rows."""
        return on_main_process(self._join)

    def _join(self) -> RunRecord:
        ledger, task = self.workspace.ledger, self.task
        saved = saved_predictions(self.members, task, ledger)
        chooses = saved.is_dev
        if chooses.all():
            raise PipelineError(f"{self.title}: all rows of '{task.name}' select members: none is left to score it on")
        weights, prediction = saved.join(task, chooses, self.rule, self.most or BEST, self.most)
        dev, test = (saved.score(task, prediction, part) for part in (chooses, ~chooses))
        taken = [self.members[run] for run in weights]
        first = next(iter(self.members.values()))
        own, trained = first.score(task.name), sum(each.cost.trainable_parameters for each in taken)
        counts = [each.parameters.model_dump() for each in taken]
        record = RunRecord(
            run=self.name,
            kind="ensemble",
            seed=self.seed,
            identity=self.identity,
            sources=tuple(SourceRun(task=task.name, run=each.run, digest=each.run) for each in taken),
            backbone=first.backbone,
            best_epoch=0,
            scores={
                task.name: TaskScore(
                    metric=task.metric,
                    dev=dev,
                    rows=int(chooses.sum()),
                    test=test,
                    test_rows=int((~chooses).sum()),
                    recipe=own.recipe or first.recipe,
                    pair=task.is_pair,
                    **{key: getattr(own, key) for key in _OF_A_MEMBER},
                )
            },
            cost=Cost(trainable_parameters=trained, seconds=0.0, examples_per_second=0.0, peak_memory_mb=0.0),
            parameters=Parameters(**{part: sum(each[part] for each in counts) for part in Parameters.model_fields}),
            provenance=provenance(),
        )
        table = prediction_table(saved.rows, prediction).assign(split=np.where(chooses, "dev", "test"))
        curve = [{"epoch": 0, "loss": None, "dev": dev, "learning_rate": 0.0, "examples": 0, "seconds": 0.0}]
        ledger.finish(record, curve, {task.name: table})
        return record


@dataclass(frozen=True)
class SavedPredictions:
    """Predictions of several runs for the B rows that they share."""

    rows: pd.DataFrame
    """``id``, ``label`` and, where known, ``group``."""
    is_dev: np.ndarray
    """(B,): which rows are dev; the others are only scored."""
    by_run: dict[str, Prediction]

    @property
    def labels(self) -> np.ndarray:
        return self.rows["label"].to_numpy()

    def join(
        self, task: Task, choosing: np.ndarray, rule: EnsembleRule, best: int, most: int | None = None
    ) -> tuple[dict[str, float], Prediction]:
        """The weights of the runs that make an ensemble, and their joint prediction.

        :func:`choose` sees only the rows marked in ``choosing`` (B,).
        """
        runs, seen = [*self.by_run], [prediction.on(choosing) for prediction in self.by_run.values()]
        chosen = choose(seen, self.labels[choosing], task.metric, rule, best, most)
        weights = {runs[index]: weight for index, weight in chosen.items()}
        return weights, combine([self.by_run[run] for run in weights], [*weights.values()], rule)

    def score(self, task: Task, prediction: Prediction, part: np.ndarray) -> float:
        """The task's metric of a prediction on a part (B,) of the rows."""
        return score(task.metric, prediction.values[part], self.labels[part])


def saved_predictions(records: Mapping[str, RunRecord], task: Task, ledger: Ledger) -> SavedPredictions:
    """The predictions of all runs; a :class:`PipelineError` if one cannot be read or is for other rows."""
    saved, problems = readable_predictions(records.values(), task, ledger)
    raise_all("saved predictions", problems)
    assert saved is not None
    return saved


def readable_predictions(
    records: Iterable[RunRecord], task: Task, ledger: Ledger
) -> tuple[SavedPredictions | None, list[str]]:
    """The predictions of the runs that are readable and are for the same rows as most; and why the others are left out.

    On a tie, the rows of the runs that come first.
    """
    tables, rows = dict[str, pd.DataFrame](), dict[str, tuple[Any, ...]]()
    by_run, problems = dict[str, Prediction](), list[str]()
    for record in records:
        with noted(problems):
            table = tables[record.run] = _table_of(record.run, task, ledger)
            marks = record.fingerprints(task.name)
            same = table[["id", "label", "is_dev"]].itertuples(index=False, name=None)
            rows[record.run] = (marks.get("dev"), marks.get("test"), *same)
    usual = Counter(rows.values()).most_common(1)[0][0] if rows else ()
    for run, table in tables.items():
        if rows[run] == usual:
            probabilities, values = table.filter(regex=_PROBABILITIES), table["prediction"].to_numpy()
            values = values.astype(str) if are_sets(values) else values
            by_run[run] = Prediction(values, probabilities.to_numpy() if task.classes else None)
        else:
            problem = "its predictions are of other rows than those of most runs: leave it out, or"
            problems.append(f"{ledger.folder(run)}: {problem} {train_again(run)}")
    if not by_run:
        return None, problems
    first = tables[next(iter(by_run))]
    return SavedPredictions(first.filter(["id", "label", "group"]), first["is_dev"].to_numpy(), by_run), problems


_PROBABILITIES = "^probability_"


def _table_of(run: str, task: Task, ledger: Ledger) -> pd.DataFrame:
    """Read a run's saved predictions, with ``is_dev``; a :class:`PipelineError` if they do not fit ``task``."""
    parts = {split: ledger.predictions(run, task.name, split) for split in ("dev", "test")}
    marked = [table.assign(is_dev=split == "dev") for split, table in parts.items() if len(table)]
    if not marked:
        raise PipelineError(f"{ledger.folder(run)}: its predictions have no rows: {train_again(run)}")
    table = pd.concat(marked, ignore_index=True)
    probabilities = table.filter(regex=_PROBABILITIES)
    is_numeric = all(map(is_numeric_dtype, probabilities.dtypes)) and np.isfinite(probabilities.to_numpy(float)).all()
    if [*probabilities] != [f"probability_{number}" for number in range(len(task.classes))] or not is_numeric:
        raise PipelineError(
            f"{ledger.folder(run)}: its probabilities are not those of the {len(task.classes)} classes of"
            f" '{task.name}': {train_again(run)}"
        )
    return table
