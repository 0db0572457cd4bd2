"""Tables of every row: its scores, also on few training rows and by epoch; its cost, settings and choices."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from itertools import product
from operator import or_
from typing import Any

import numpy as np
import pandas as pd

from pipeline.data.tasks import read_extras
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import Line
from pipeline.reporting import report
from pipeline.reporting.report import MISSING, Cell, Table, Verdicts, count_cell, effort_cells, line_cell, share_cell
from pipeline.reporting.runs import Scored, StudyRuns, joint_titles, mean_of, peak_memory_of, records_of, runs_of
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import keys_without_effect
from pipeline.stats.metrics import THRESHOLDS, overall
from pipeline.stats.paired import LEVEL, Comparison, Verdict
from pipeline.system.reading import backbone_text

MEANS = ("mean", "mean, (r+1)/2")
"""Columns of means over targets: plain, and with correlations rescaled to the range of an accuracy."""
_SAYS = {"better": "better than", "worse": "worse than", "not significant": "not significantly different from"}


@cache
def main_verdicts(runs: StudyRuns) -> Verdicts:
    return report.against_reference(runs, [(line, None) for line in runs.lines], runs.study.targets)


def main_table(runs: StudyRuns) -> Table | None:
    targets, verdicts, rows = runs.study.targets, main_verdicts(runs), []
    for line in runs.lines:
        group = runs.all(line)
        records, epochs = records_of(group), sorted({*map(runs.epochs, group)})
        cells = report.score_cells(runs, (line, None), targets, verdicts)
        if len(targets) > 1:
            scores = {target: statistics.mean(s.value for s in own) for target, own in runs.groups(line).items()}
            rescaled = overall(scores, runs.metrics)[1] if len(scores) == len(targets) else None  # r as (r+1)/2
            cells[MEANS[1]] = Cell(report.number(rescaled), rescaled, cells["mean"].runs)
        row = {
            "method": line_cell(runs, line),
            **cells,
            "trainable parameters": count_cell(mean_of(record.cost.trainable_parameters for record in records)),
            **effort_cells(runs, line.row, group),
            "peak memory, MB": count_cell(peak_memory_of(records)),
            "epochs": Cell(", ".join(map(str, epochs)) or MISSING, max(epochs, default=None)),
        }
        rows.append(row)
    rows = report.with_best(rows, [*map(runs.column, targets), *(MEANS if len(targets) > 1 else ())])
    looks = f"{runs.study.looks} looks" if runs.study.looks > 1 else ""
    against, joint = runs.title(runs.reference), joint_titles(runs)
    return Table.of(
        "main", rows, against=against, level=LEVEL, comparisons=report.comparisons(verdicts), looks=looks, joint=joint
    )


@cache
def main_comparisons(runs: StudyRuns) -> dict[Line, Comparison]:
    """The comparison of every line on the mean over targets, highest first."""
    scope = None if len(runs.study.targets) > 1 else runs.study.targets[0]
    verdicts, lines = main_verdicts(runs), _undivided_lines(runs)
    tests = {line: test for line in lines if (test := verdicts.get(((line, None), scope))) is not None}
    return dict(sorted(tests.items(), key=lambda pair: -pair[1].difference))


def _undivided_lines(runs: StudyRuns) -> list[Line]:
    """Every line but those of sequential fine-tuning from several sources, which would outnumber the others."""
    lines = Counter(line.row for line in runs.lines)
    return [line for line in runs.lines if lines[line.row] == 1]


def which_compared(runs: StudyRuns) -> str:
    """Which methods :func:`main_comparisons` holds, such as ``those with all targets``; empty if it holds all."""
    targets, undivided = runs.study.targets, _undivided_lines(runs)
    left = [line for line in runs.lines if line not in main_comparisons(runs) and line != runs.reference]
    whole = [line for line in left if len(runs.groups(line)) == len(targets)]
    split = [line for line in whole if line not in undivided]
    which = []
    if len(whole) < len(left) and len(whole) == len(split) and len(targets) > 1:
        which.append("those with all targets")
    elif len(left) > len(split):  # some lines have no run, or lack the reference's seeds
        which.append("those that can be tested")
    if split:
        rows = {line.row: runs.study.title(line.row) for line in split}
        which.append(f"without {report.listed([*rows.values()])}, which has a line for each source")
    return ", ".join(which)


def _by_verdict(runs: StudyRuns) -> dict[Verdict, dict[str, Comparison]]:
    groups: dict[Verdict, dict[str, Comparison]] = {"better": {}, "worse": {}, "not significant": {}}
    for line, comparison in main_comparisons(runs).items():
        groups[comparison.verdict][runs.title(line)] = comparison
    return {verdict: own for verdict, own in groups.items() if own}


def main_verdict(runs: StudyRuns) -> Iterator[str]:
    """How many methods are better or worse than the reference, and which scores highest."""
    groups, against = _by_verdict(runs), runs.title(runs.reference)
    if not groups:
        return
    where, total = report.where_text(runs.study), sum(map(len, groups.values()))
    if total <= report.MOST_NAMED:
        clauses = (f"{verdict}: {'; '.join(report.amounts(own, runs.study))}" for verdict, own in groups.items())
        yield f"Compared with {against} on {where}, {'; '.join(clauses)}."
        return
    counts = report.listed([f"{len(own)} {_SAYS[verdict].rpartition(' ')[0]}" for verdict, own in groups.items()])
    means = {line: mean for line in runs.lines if (mean := runs.mean(line)) is not None}
    best = max(means, key=lambda line: means[line])
    highest = f"the highest score is {report.number(means[best])} ({runs.title(best)})"
    which, others = which_compared(runs), len(runs.lines) - 1
    methods = f"{total} of the {others} other methods ({which})" if which else f"The {total} other methods"
    yield f"{methods} compared with {against} on {where}: {counts}; {highest}."


def main_sentences(runs: StudyRuns) -> Iterator[str]:
    """A sentence per verdict on the mean, if the methods are too many for :func:`main_verdict` to name."""
    groups, against, where = _by_verdict(runs), runs.title(runs.reference), report.where_text(runs.study)
    if sum(map(len, groups.values())) > report.MOST_NAMED:
        for verdict, own in groups.items():
            methods = "; ".join(report.amounts(own, runs.study))
            yield f"{report.capital(_SAYS[verdict])} {against} on {where}: {methods}."


class LowResource:
    """The points of the curve. Sequential fine-tuning is one line, the mean over its sources."""

    def __init__(self, runs: StudyRuns) -> None:
        self.runs = runs
        on_curve = [entry for entry in runs.result.entries if entry.rows is not None]
        names, targets = {entry.line.row for entry in on_curve}, {entry.target for entry in on_curve}
        self.rows = [name for name in runs.rows if name in names]
        self.targets = [target for target in runs.study.targets if target in targets]
        self.points: list[int | None] = [*sorted({entry.rows for entry in on_curve if entry.rows is not None}), None]
        """Training rows of the target at each point; None is the main table's point."""
        self.verdicts = report.against_reference(runs, [*product(self.rows, self.points)], self.targets)

    def mean(self, row: str, targets: Sequence[str], point: int | None) -> float | None:
        """Mean over seeds, sources and targets; None if a target has no run."""
        values = [[scored.value for scored in self.runs.cell(row, target, point)] for target in targets]
        return statistics.mean(map(statistics.mean, values)) if all(values) else None

    def train_rows(self, point: int | None, targets: Sequence[str]) -> float | None:
        """Training rows of the target at a point, mean over targets."""
        if point is not None:
            return point
        groups = [self.runs.cell(row, target) for target in targets for row in self.rows]
        return mean_of(max(map(self.runs.train_rows, group)) or None for group in groups if group)


low_resource = cache(LowResource)
"""The curve of a study; it has no rows if the study asks for none."""


def low_resource_table(runs: StudyRuns) -> Table | None:
    curve, rows = low_resource(runs), []
    for point in curve.points:
        sizes = {size for target in curve.targets if (size := curve.train_rows(point, [target])) is not None}
        largest = max(sizes, default=None)
        rows_cell = {"training rows": Cell(report.count(largest) if len(sizes) == 1 else "all", largest)}
        lines = [
            rows_cell
            | {"method": line_cell(runs, Line(row))}
            | report.score_cells(runs, (row, point), curve.targets, curve.verdicts)
            for row in curve.rows
        ]
        rows += report.with_best(lines, [*map(runs.column, curve.targets)])
    sources = "all theirs" if runs.study.limit is None else f"their {runs.study.limit:,}"
    marks = report.marks_note(f"{runs.title(runs.reference)} on as many rows", curve.verdicts)
    return Table.of("low-resource", rows, sources=sources, marks=marks)


def low_resource_sentences(runs: StudyRuns) -> Iterator[str]:
    """Test results of every row at every point, on the mean over targets."""
    curve = low_resource(runs)
    scope = curve.targets[0] if len(curve.targets) == 1 else None
    where, against = report.where_text(runs.study, curve.targets), runs.title(runs.reference)
    for point in curve.points[:-1]:
        tests = {row: test for row in curve.rows if (test := curve.verdicts.get(((row, point), scope))) is not None}
        parts = []
        for row, test in tests.items():
            if test.significant:
                amount = test if test.difference >= 0 else test.reversed()
                size, interval = report.points(amount.difference, sign=False), report.interval_text(amount, runs.study)
                parts.append(f"{runs.study.title(row)} is {test.verdict} by {size} points ({interval})")
        if same := runs.titles(Line(row) for row, test in tests.items() if not test.significant):
            parts.append(f"the difference is not significant for {same}")
        if parts:
            yield f"With {point:,} training rows, on {where}, against {against}: {'; '.join(parts)}."


MOST_COLUMNS = 20
"""The most epochs that the table shows: beyond it, evenly spaced ones and every line's last. The figure and its CSV
have all."""


@cache
def epoch_scores(runs: StudyRuns) -> pd.DataFrame:
    """Every score of the main table's runs: ``method``, a :class:`Line`, ``target``, ``seed``, ``epoch``, ``loss``,
    ``dev``, ``train``; the last is NaN where training rows were not scored.

    A model that learned tasks in turn has scores for the last task alone, because its curve covers only that task.
    """
    parts = []
    for line, target, group in runs.cells():
        for scored in group:
            curve, dev = runs.curve(scored.record.run), runs.dev_curve(scored)
            if dev is None:
                continue
            scores = {
                "epoch": curve["epoch"].astype(int),
                "loss": curve.get("loss", np.nan),
                "dev": dev,
                "train": curve.get(f"train_{target}", np.nan),
            }
            parts.append(pd.DataFrame({"method": line, "target": target, "seed": scored.entry.seed, **scores}))
    columns = ["method", "target", "seed", "epoch", "loss", "dev", "train"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def epoch_table(runs: StudyRuns) -> Table | None:
    """Means over seeds: one line per main-table line and target, and another if training rows were scored.

    None without runs.
    """
    scores = epoch_scores(runs)
    if scores.empty:
        return None
    means = scores.groupby(["method", "target", "epoch"])[["dev", "train"]].mean()
    trained = scores["train"].notna().any()
    epochs = sorted(scores["epoch"].unique())
    last = scores.groupby(["method", "target"])["epoch"].max()
    shown = sorted({*epochs[:: -(-len(epochs) // MOST_COLUMNS)], *last})
    rows = []
    for line, target, group in runs.cells():
        for part in ("dev", "train") if trained else ("dev",):
            own = means[part].dropna()
            values = {f"epoch {epoch}": own.get((line, target, epoch)) for epoch in shown}
            if any(value is not None for value in values.values()):
                cells = {name: Cell(report.number(value), value) for name, value in values.items()}
                where = {"rows": Cell(part)} if trained else {}
                task = Cell(target, target, runs_of(group))
                rows.append({"method": line_cell(runs, line), "task": task, **where, **cells})
    return Table.of("epochs", rows)


StoredParts = dict[str, int]
"""Parameter count of every part that a model needs, by the part's identity, so that shared parts count once."""


def stored_parts(record: RunRecord, ledger: Ledger) -> StoredParts | None:
    """The parts of a run's model; None if they do not follow from its record and those that it builds on.

    A run that trains or continues a trained backbone stores a whole model. Other runs and static second encoders share
    the pretrained backbone, and fusions share adapters. An ensemble consists of its members, which may have different
    pretrained backbones.
    """
    kind = KINDS[record.kind]
    if kind.is_ensemble:
        return _parts_together((ledger.find(source.run) for source in record.sources), ledger)
    backbone, trained, recipe = record.parameters.backbone, record.cost.trainable_parameters, record.recipe
    own, parts = f"run {record.run}", StoredParts()
    pretrained = f"backbone {record.backbone_weights}"
    if recipe.trainable in ("full", "full+adapter"):
        # The model includes frozen embeddings, and the modules and layers of several tasks on top of the backbone.
        parts[own] = record.parameters.model - (backbone if recipe.pretrained.second_encoder == "static" else 0)
    elif kind.combines and kind.artifact == "adapter" and not trained:
        # A merged adapter is as large as its sources, and has the head of the target's adapter.
        adapter = next((ledger.find(source.run) for source in record.sources if source.task == record.task), None)
        if adapter is None:
            return None
        parts |= {pretrained: backbone, own: adapter.cost.trainable_parameters}
    elif record.sources and kind.artifact is None:
        parts[own] = backbone + trained
    else:
        parts |= {pretrained: backbone, own: trained}
    if recipe.pretrained.second_encoder == "static":
        parts[pretrained] = backbone
    for source in record.sources if kind.takes == "fusion" else ():
        adapter = ledger.find(source.run)
        if adapter is None:
            return None
        # A fusion does not use the heads of its adapters.
        parts[f"adapter {source.run}"] = adapter.cost.trainable_parameters - adapter.parameters.head
    return parts


def _parts_together(records: Iterable[RunRecord | None], ledger: Ledger) -> StoredParts | None:
    """The parts of several models; None if one is unknown."""
    parts = [stored_parts(record, ledger) if record is not None else None for record in records]
    known = [own for own in parts if own is not None]
    return reduce(or_, known, StoredParts()) if len(known) == len(parts) else None


def backbone_size(record: RunRecord, ledger: Ledger) -> int | None:
    """Parameters of the pretrained encoder of a run's model; None if unknown.

    The record of an ensemble sums over members; here it is the size of one member, if all members agree.
    """
    if not KINDS[record.kind].is_ensemble:
        return record.parameters.backbone
    members = [ledger.find(source.run) for source in record.sources]
    sizes = {backbone_size(member, ledger) if member is not None else None for member in members}
    return sizes.pop() if len(sizes) == 1 else None


def stored(records: Iterable[RunRecord], ledger: Ledger) -> int | None:
    """Parameters to store for the models of all ``records`` together."""
    parts = _parts_together(records, ledger)
    return sum(parts.values()) if parts is not None else None


def cost_table(runs: StudyRuns) -> Table:
    rows, tasks = list[dict[str, Cell]](), len(runs.study.targets)
    for row in runs.rows:
        group, groups = runs.all(row), [runs.cell(row, target) for target in runs.study.targets]
        records = records_of(group)
        trained = mean_of(record.cost.trainable_parameters for record in records)
        backbone = next((size for record in records if (size := backbone_size(record, runs.ledger)) is not None), None)
        seeds = set.intersection(*({scored.entry.seed for scored in own} for own in groups))
        chosen = [next(scored for scored in own if scored.entry.seed == min(seeds)) for own in groups] if seeds else []
        every = stored(records_of(chosen), runs.ledger) if chosen else None
        together = {
            f"stored, {tasks} tasks": count_cell(every, runs_of(chosen)),
            "stored per task, of the backbone": share_cell(every, backbone, tasks),
        }
        cells = {
            "method": line_cell(runs, Line(row)),
            "trainable parameters": count_cell(trained, runs_of(group)),
            "of the backbone": share_cell(trained, backbone),
            "stored, one task": count_cell(mean_of(stored([record], runs.ledger) for record in records)),
            **(together if tasks > 1 else {}),
            **effort_cells(runs, row, group),
            "examples/s": count_cell(mean_of(record.cost.examples_per_second or None for record in records)),
            "peak memory, MB": count_cell(peak_memory_of(records)),
        }
        rows.append(cells)
    shown = (tuple(cells.values()) for row, cells in zip(runs.rows, rows, strict=True) if runs.all(row))
    return Table.named("cost", next(iter(rows), {}), shown, joint=joint_titles(runs))


# The row's name or the main table already shows these.
_LEFT_OUT = {"trainable", "epochs", "min_steps"}


def settings_table(runs: StudyRuns) -> Table | None:
    """A column per setting in which the main table's runs differ; None if all agree."""
    groups = defaultdict[str, list[tuple[str, dict[str, Any]]]](list)
    for row in runs.rows:
        for scored in runs.all(row) if not runs.study.row(row).kind.is_ensemble else ():
            recipe = runs.recipe_of(scored)
            without = keys_without_effect(recipe)
            values = {key: value for key, value in recipe.flat().items() if key not in without}
            groups[row].append((scored.entry.target, values))
    recipes = [values for group in groups.values() for _, values in group]
    usual = {key: value for key, value in Recipe().flat().items() if key not in _LEFT_OUT}
    # A key without effect counts as one at its default.
    keys = [key for key, value in usual.items() if len({str(recipe.get(key, value)) for recipe in recipes}) > 1]
    backbones = {row: runs.study.row(row).backbone or runs.result.backbone for row in groups}
    differ = len(set(backbones.values())) > 1
    if not keys and not differ:
        return None
    rows = [
        {
            "method": line_cell(runs, Line(row), runs_of(runs.all(row))),
            **({"backbone": Cell(backbone_text(backbones[row]))} if differ else {}),
            **{key.replace("_", " "): Cell(_value(group, key)) for key in keys},
        }
        for row, group in groups.items()
    ]
    return Table.of("settings", rows)


def _value(group: list[tuple[str, dict[str, Any]]], key: str) -> str:
    """One value, or several with their tasks."""
    tasks = defaultdict[str, dict[str, None]](dict)
    for target, recipe in group:
        value = recipe.get(key)
        if isinstance(value, Mapping):  # only extra data is a table
            value = ", ".join(map(str, read_extras(value))) or None
        tasks[MISSING if value is None else str(value)][target] = None
    return "; ".join(f"{value} ({', '.join(names)})" if len(tasks) > 1 else value for value, names in tasks.items())


def choices_table(runs: StudyRuns) -> Table | None:
    """One line per line of the main table; None if every target has test rows separate from its validation rows.

    ``epoch (4), anchor (sts 2)``: tasks are named only if they differ in having the choice or in its options.
    """
    if runs.scored and all(scored.score.test is not None for scored in runs.scored):
        return None
    rows = []
    for line in runs.lines:
        by_target = {  # each choice with the most options that a seed had
            target: reduce(or_, (_choices(runs, line.row, scored) for scored in group))
            for target, group in runs.groups(line).items()
            if group[0].score.test is None
        }
        parts = []
        for kind in dict.fromkeys(kind for choices in by_target.values() for kind in choices):
            sizes = {target: choices[kind] for target, choices in by_target.items()}
            apart = ", ".join(f"{target} {size}" for target, size in sizes.items() if size)
            parts.append(f"{kind} ({apart if len({*sizes.values()}) > 1 else max(sizes.values())})")
        rows.append((line_cell(runs, line), Cell(", ".join(parts) or ("nothing" if by_target else MISSING))))
    return Table.named("choices", ("method", "choices, and from how many"), rows)


def _choices(runs: StudyRuns, row: str, scored: Scored) -> Counter[str]:
    """What was selected for one run, in order, with the number of options."""
    record, target = scored.record, scored.entry.target
    sizes = dict(_earlier_epochs(runs, record, target))
    sizes["settings"] = len(scored.trials)
    bases = [runs.study.row(base) for base in runs.study.bases_on(row, target)]
    what = "linear probe" if any(base.kind.keeps_weights for base in bases) else "own adapter"
    sizes[f"{what}'s settings"] = max((len(base.trials) for base in bases), default=0)
    sizes[what] = len(bases)
    sizes["anchor"] = len(record.anchor_candidates)
    if KINDS[record.kind].is_ensemble:
        sizes["members"] = len(record.identity["members"])
    elif target in record.trained_on:
        if record.recipe_of(target).cosine_threshold == "tuned":
            sizes["threshold"] = min(record.score(target).rows, THRESHOLDS)
        epochs = runs.curve(record.run)["epoch"]
        what = "epoch for all its tasks" if KINDS[record.kind].is_joint else "epoch"
        sizes[f"{what} or start" if (epochs == 0).any() else what] = len(epochs)
    return Counter({kind: size for kind, size in sizes.items() if size > 1})


def _earlier_epochs(runs: StudyRuns, record: RunRecord, target: str) -> Iterator[tuple[str, int]]:
    """The ancestors of a run whose epoch was selected on the target's rows, with their number of epochs."""
    for source in record.continued:
        before = runs.ledger.find(source.run)
        if before is None:
            continue
        if target in before.trained_on:
            what = "own adapter's epoch" if KINDS[before.kind].is_one_adapter else "earlier epoch"
            yield what, len(runs.curve(before.run))
        yield from _earlier_epochs(runs, before, target)
