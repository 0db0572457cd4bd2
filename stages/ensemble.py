"""Ensembles of finished runs, from their saved predictions alone: nothing is trained and no model is run."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.data.tasks import Task, is_name
from pipeline.records.ensembles import QUALIFICATION, ChosenOn, EnsembleRecord, Ensembles, Member, Scores
from pipeline.records.ledger import Ledger, RunRecord
from pipeline.runs.scoring import prediction_table
from pipeline.runs.workspace import provenance
from pipeline.settings.recipe import check_seed
from pipeline.stats.ensembling import BEST, Rule, choose, combine, first_half, value_of
from pipeline.stats.metrics import Prediction
from pipeline.system.errors import PipelineError, raise_all


def ensemble(
    task: Task,
    name: str,
    reports: Path,
    *,
    runs: Sequence[str] | None = None,
    rule: Rule = "mean",
    chosen_on: ChosenOn = "half",
    best: int | None = None,
    seed: int = 0,
) -> EnsembleRecord:
    """Choose members and weights on dev, score them, and keep the ensemble under ``name``.

    Args:
        runs: what to choose from; None is every finished run that trained on the task, whatever its backbone, of
            those with different dev rows the largest group.
        chosen_on: ``half`` chooses members and weights on one half of dev and scores on the other, on which only the
            members' own runs chose, their epochs for one; ``all`` chooses on all of it.
        best: how many of the best on dev take part under ``mode`` and ``median``; None is five, or all of ``runs``.
        seed: of the halves.

    Raises:
        PipelineError: a run is unfinished or of another task, runs saw different dev rows, or the rule does not fit.
    """
    check_seed(seed)
    raise_all(f"ensemble '{name}'", _mistakes(task, name, rule, best, Ensembles(reports)))
    ledger = Ledger(reports)
    records = _named(runs, task, ledger) if runs is not None else _finished(task, ledger)
    tables = _tables(records, task, ledger)
    labels = next(iter(tables.values()))["label"].to_numpy()
    predictions = [_prediction(table) for table in tables.values()]
    names = list(tables)

    choosing = _rows_to_choose_on(labels, task, chosen_on, seed)
    there = [_rows(prediction, choosing) for prediction in predictions]
    size = best or (len(names) if runs is not None else BEST)
    weights = choose(there, labels[choosing], task.metric, rule, size)
    alone = [value_of(prediction, labels[choosing], task.metric) for prediction in there]
    single = int(np.argmax(alone))
    together = combine([predictions[index] for index in weights], list(weights.values()), rule)

    def scores(rows: np.ndarray) -> Scores:
        return Scores(
            rows=int(rows.sum()),
            ensemble=value_of(_rows(together, rows), labels[rows], task.metric),
            best=value_of(_rows(predictions[single], rows), labels[rows], task.metric),
        )

    record = EnsembleRecord(
        name=name,
        task=task.name,
        metric=task.metric,
        meaning=task.meaning,
        rule=rule,
        members=tuple(_member(records[names[index]], task, weight) for index, weight in weights.items()),
        best=names[single],
        considered=tuple(names),
        chosen_on=chosen_on,
        seed=seed,
        dev_rows=_dev_rows(records[names[0]], task),
        chosen=scores(choosing),
        held_out=scores(~choosing) if chosen_on == "half" else None,
        provenance=provenance(),
    )
    table = prediction_table(next(iter(tables.values()))[["id", "label"]], together)
    table.insert(2, "chosen_on", choosing)
    Ensembles(reports).write(record, table)
    return record


def _rows_to_choose_on(labels: np.ndarray, task: Task, chosen_on: ChosenOn, seed: int) -> np.ndarray:
    """Which of dev's rows (n,) members and weights are chosen on; the rest is scored on."""
    halves = chosen_on == "half"
    choosing = first_half(labels, seed) if halves else np.ones(len(labels), dtype=bool)
    parts = [choosing]
    if halves and task.kind == "score":  # a correlation is not defined where all labels are the same
        parts.append(~choosing)
    if any(part.sum() < 2 or np.ptp(labels[part]) == 0 for part in parts):
        told = "choose on half of: --choose-on all" if halves else "choose on, or all have one label"
        raise PipelineError(f"{len(labels)} dev rows of '{task.name}' are too few to {told}")
    return choosing


def told(record: EnsembleRecord) -> str:
    """The ensemble in lines for a person: its members, and its score beside the best single model's."""
    lines = [f"ensemble {record.name} ({record.rule}) of {record.task}, {len(record.members)} of"
             f" {len(record.considered)} runs"]  # fmt: skip
    lines += [
        f"  {member.weight:.3f}  {member.run}  {member.kind} seed {member.seed} on {member.backbone},"
        f" dev {record.metric} {member.dev:.4f}"
        for member in sorted(record.members, key=lambda member: -member.weight)
    ]
    for what, scores in (("rows chosen on", record.chosen), ("other half of dev", record.held_out)):
        if scores is not None:
            lines.append(
                f"{what} ({scores.rows}): {record.metric} {scores.ensemble:.4f},"
                f" best single run {scores.best:.4f} ({record.best})"
            )
    if record.drop is None:
        lines.append("chosen and scored on the same rows, which flatters it: --choose-on half flatters less")
    else:
        lines.append(f"drop from the half chosen on to the other half: {record.drop:.4f}")
        lines.append(f"the other half is {QUALIFICATION}")
    return "\n".join(lines)


def _mistakes(task: Task, name: str, rule: Rule, best: int | None, ensembles: Ensembles) -> list[str]:
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
    found: dict[str, RunRecord] = {}
    for run in dict.fromkeys(runs):
        record = ledger.find(run)
        if record is None:
            problems.append(
                f"run {run} is not finished: run the command that began it again"
                if ledger.began(run)
                else f"no run {run} in {ledger.root}"
            )
            continue
        try:
            _dev_rows(record, task)
            found[run] = record
        except PipelineError as error:
            problems.append(str(error))
    if not problems and len({_dev_rows(record, task) for record in found.values()}) > 1:
        groups = Counter(_dev_rows(record, task) for record in found.values())
        usual = groups.most_common(1)[0][0]
        problems += [
            f"run {run} was scored on other dev rows ({record.scores[task.name].rows}) than the rest: leave it out"
            for run, record in found.items()
            if _dev_rows(record, task) != usual
        ]
    raise_all("--runs", problems)
    return found


def _finished(task: Task, ledger: Ledger) -> dict[str, RunRecord]:
    """Every finished run that trained on the task and was scored on the same dev rows as most."""
    groups: dict[str, dict[str, RunRecord]] = {}
    for record in filter(None, map(ledger.find, ledger.names())):
        try:
            rows = _dev_rows(record, task)
        except PipelineError:
            continue
        groups.setdefault(rows, {})[record.run] = record
    if not groups:
        raise PipelineError(f"no finished run of '{task.name}' in {ledger.root}: train some first")
    rows, chosen = max(groups.items(), key=lambda group: (len(group[1]), group[0]))
    left_out = sum(len(group) for group in groups.values()) - len(chosen)
    if left_out:
        some = next(iter(chosen.values()))
        print(
            f"{task.name}: {left_out} runs were scored on other dev rows than these {len(chosen)}"
            f" ({some.scores[task.name].rows} rows, {rows[:8]}) and are left out; --runs names others",
            file=sys.stderr,
        )
    return chosen


def _dev_rows(record: RunRecord, task: Task) -> str:
    """The fingerprint of the dev rows of ``task`` that a run was scored on.

    Raises:
        PipelineError: it did not train on the task, or the task had another meaning then.
    """
    if task.name not in record.trained_on:
        raise PipelineError(f"run {record.run} was trained for '{record.task}', not '{task.name}'")
    described = record.described(task.name)
    data = described.get("data")
    if not isinstance(data, dict) or "dev" not in data:
        raise PipelineError(f"run {record.run} does not say which dev rows it was scored on: train it again")
    if described.get("meaning") != task.meaning:
        raise PipelineError(f"run {record.run} was trained when task '{task.name}' had other classes or range")
    return str(data["dev"])


def _tables(records: dict[str, RunRecord], task: Task, ledger: Ledger) -> dict[str, pd.DataFrame]:
    """The saved predictions of each run, which are of the same rows in the same order."""
    tables = {run: ledger.predictions(run, task.name) for run in records}
    first = next(iter(tables.values()))
    problems = [
        f"{ledger.folder(run)}: its predictions are not of the rows it was scored on: train it again with --force"
        for run, table in tables.items()
        if table["id"].tolist() != first["id"].tolist() or table["label"].tolist() != first["label"].tolist()
    ]
    raise_all("saved predictions", problems)
    return tables


def _prediction(table: pd.DataFrame) -> Prediction:
    columns = [name for name in table if str(name).startswith("probability_")]
    probabilities = table[columns].to_numpy() if columns else None
    return Prediction(table["prediction"].to_numpy(), probabilities)


def _rows(prediction: Prediction, rows: np.ndarray) -> Prediction:
    probabilities = prediction.probabilities
    return Prediction(prediction.values[rows], None if probabilities is None else probabilities[rows])


def _member(record: RunRecord, task: Task, weight: float) -> Member:
    return Member(
        run=record.run,
        kind=record.kind,
        backbone=record.backbone,
        seed=record.seed,
        weight=weight,
        dev=record.score(task.name).dev,
    )
