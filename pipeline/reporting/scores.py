"""Scores of every row: the main table, on few training rows of the target, and by epoch."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
import pandas as pd

from pipeline.records.studies import Line
from pipeline.reporting import report
from pipeline.reporting.report import Cell, Table, Verdicts
from pipeline.reporting.runs import StudyRuns, joint_titles, mean_of, peak_memory_of, records_of, runs_of
from pipeline.stats.metrics import overall
from pipeline.stats.paired import LEVEL, Comparison, Verdict

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
            "method": report.line_cell(runs, line),
            **cells,
            "trainable parameters": report.count_cell(mean_of(record.cost.trainable_parameters for record in records)),
            **report.effort_cells(runs, line.row, group),
            "peak memory, MB": report.count_cell(peak_memory_of(records)),
            "epochs": Cell(", ".join(map(str, epochs)) or report.MISSING, max(epochs, default=None)),
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


@cache
def low_resource(runs: StudyRuns) -> LowResource | None:
    """The curve of a study; None if it has none."""
    curve = LowResource(runs)
    return curve if curve.rows else None


def low_resource_table(runs: StudyRuns) -> Table | None:
    curve = low_resource(runs)
    if curve is None:
        return None
    rows = []
    for point in curve.points:
        sizes = {size for target in curve.targets if (size := curve.train_rows(point, [target])) is not None}
        largest = max(sizes, default=None)
        rows_cell = {"training rows": Cell(report.count(largest) if len(sizes) == 1 else "all", largest)}
        lines = [
            rows_cell
            | {"method": report.line_cell(runs, Line(row))}
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
    if curve is None:
        return
    scope = None if len(curve.targets) > 1 else curve.targets[0]
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
                rows.append({"method": report.line_cell(runs, line), "task": task, **where, **cells})
    return Table.of("epochs", rows)
