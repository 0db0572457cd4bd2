"""Ensembles of finished runs, from their saved predictions alone: nothing is trained and no model is run."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.metric_names import EnsembleRule
from pipeline.data.tasks import Task, is_name
from pipeline.records.ensembles import ChosenOn, EnsembleRecord, Ensembles, Member, Scores
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.runs.provenance import provenance
from pipeline.runs.saved_predictions import SavedPredictions, readable_predictions, saved_predictions
from pipeline.settings.recipe import check_seed
from pipeline.stats.ensembling import BEST, first_half
from pipeline.system.errors import PipelineError, few, noted, raise_all
from pipeline.system.streams import notice


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
    """Choose members and weights on dev, score them, and keep the ensemble under ``name``, in place of one before.

    Args:
        runs: what to choose from; None is every finished run that trained on the task, whatever its backbone, and was
            scored on the same rows as most. The others are named and left out.
        chosen_on: ``half`` chooses members and weights on one half of dev and scores on the other, on which only the
            members' own runs chose, their epochs for one; ``all`` chooses on all of it. Of runs that are scored on rows
            apart from dev, members are chosen on all of dev and the ensemble is scored on those rows (``dev``).
        best: how many of the best on dev take part under ``mode`` and ``median``; None is five, or all of ``runs``.
        seed: of the halves.

    Raises:
        PipelineError: a run is unfinished, damaged or of another task, runs saw different dev rows, or the rule does
            not fit.
    """
    check_seed(seed)
    raise_all(f"ensemble '{name}'", _mistakes(task, name, rule, best, Ensembles(reports)))
    ledger = Ledger(reports)
    if runs is not None:
        records = _named(runs, task, ledger)
        saved = saved_predictions(records, task, ledger)
    else:
        records, saved = _usable(task, ledger)
    chosen_on = chosen_on if saved.is_dev.all() else "dev"
    choosing = saved.is_dev if chosen_on == "dev" else _rows_to_choose_on(saved.labels, task, chosen_on, seed)
    joined = saved.join(task, choosing, rule, best or (BEST if runs is None else len(saved.by_run)))
    single = max(saved.by_run, key=lambda run: saved.score(task, saved.by_run[run], choosing))

    def scores(part: np.ndarray) -> Scores:
        alone = saved.score(task, saved.by_run[single], part)
        return Scores(rows=int(part.sum()), ensemble=saved.score(task, joined.prediction, part), best=alone)

    marks = records[single].fingerprints(task.name)
    record = EnsembleRecord(
        name=name,
        task=task.name,
        metric=task.metric,
        meaning=task.meaning,
        rule=rule,
        members=tuple(_member(records[run], task, weight) for run, weight in joined.weights.items()),
        best=single,
        considered=tuple(saved.by_run),
        chosen_on=chosen_on,
        seed=seed,
        dev_rows="+".join(marks[split] for split in ("dev", "test") if split in marks),
        chosen=scores(choosing),
        held_out=None if chosen_on == "all" else scores(~choosing),
        provenance=provenance(),
    )
    joined.table.insert(2, "chosen_on", choosing)
    ensembles = Ensembles(reports)
    before = ensembles.find(name)
    ensembles.write(record, joined.table)
    if before is not None and _content(before) != _content(record):
        runs_before = ", ".join(few([member.run for member in before.members]))
        notice(f"note: ensemble {name} ({before.rule} of {runs_before}) is replaced")
    return record


def _content(record: EnsembleRecord) -> dict[str, Any]:
    """The content that identifies an ensemble, without when, where and by which version it was made."""
    return record.model_dump(exclude={"finished_at", "provenance"})


def _mistakes(task: Task, name: str, rule: EnsembleRule, best: int | None, ensembles: Ensembles) -> list[str]:
    problems = []
    if not is_name(name):
        problems.append(f"--name {name}: up to 32 of a-z, 0-9, _ and -, the first a letter, for it names a folder")
    if rule == "mode" and task.kind != "classes":
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
    """The runs a person named; all mistakes at once."""
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


def _usable(task: Task, ledger: Ledger) -> tuple[dict[str, RunRecord], SavedPredictions]:
    """Every finished run of the task with its saved predictions; one whose predictions cannot be read, or are of other
    rows than those of most, is named and left out."""
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
    """Which of dev's rows (n,) members and weights are chosen on; the rest is scored on."""
    halves = chosen_on == "half"
    choosing = first_half(labels, seed) if halves else np.ones(len(labels), dtype=bool)
    parts = [choosing]
    if halves and task.kind == "score":  # a correlation is not defined where all labels are the same
        parts.append(~choosing)
    if any(part.sum() < 2 or np.ptp(labels[part]) == 0 for part in parts):
        remedy = "choose on half of: --choose-on all" if halves else "choose on, or all have one label"
        raise PipelineError(f"{len(labels)} dev rows of '{task.name}' are too few to {remedy}")
    return choosing


def _member(record: RunRecord, task: Task, weight: float) -> Member:
    about = record.model_dump(include={"run", "kind", "backbone", "seed"})
    return Member(**about, weight=weight, dev=record.score(task.name).dev)
