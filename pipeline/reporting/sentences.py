"""The summary in plain sentences, each computed from a test or a count."""

import statistics
from collections.abc import Iterator, Mapping

from pipeline.reporting.entries import Line
from pipeline.reporting.forgetting import changes
from pipeline.reporting.fusion_gain import FusionGain, fusion_gains
from pipeline.reporting.low_resource import low_resource
from pipeline.reporting.main_table import main_verdicts
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.text import count, interval_text, listed, percent, points
from pipeline.stats.paired import Comparison


def main_sentences(runs: StudyRuns) -> Iterator[str]:
    """What the tests say on the mean and on every target: each better or worse line, and the rest in one sentence.

    Sequential tuning has a line a source, which would drown the others: it is left to the tables.
    """
    targets, verdicts = runs.study.targets, main_verdicts(runs)
    lines = [line for line in runs.lines if not line.source]
    for scope in (*([None] if len(targets) > 1 else []), *targets):
        tested = {line: verdicts[(line, None), scope] for line in lines if ((line, None), scope) in verdicts}
        where = f"the mean of {listed(targets)}" if scope is None else scope
        yield from _of_scope(runs, where, tested)


def _of_scope(runs: StudyRuns, where: str, tested: Mapping[Line, Comparison]) -> Iterator[str]:
    against = runs.title(runs.reference)
    for line, comparison in tested.items():
        if comparison.significant:
            size = points(abs(comparison.difference), sign=False)
            yield (
                f"On {where}, {runs.title(line)} is {comparison.verdict} than {against} by {size} points"
                f" ({_signed(comparison)}){_share(runs, line)}."
            )
    same = [
        f"{runs.title(line)} ({points(c.difference)} points, {interval_text(c)})"
        for line, c in tested.items()
        if not c.significant
    ]
    if same:
        yield f"On {where}, the difference from {against} is not significant for {listed(same)}."


def low_resource_sentences(runs: StudyRuns) -> Iterator[str]:
    """What the tests say of every row at every point, on the mean over the targets."""
    curve = low_resource(runs)
    if curve is None:
        return
    scope = None if len(curve.targets) > 1 else curve.targets[0]
    where = f"the mean of {listed(curve.targets)}" if scope is None else scope
    for point in curve.points:
        if point is None:
            continue
        tested = [(row, curve.verdicts.get(((row, point), scope))) for row in curve.rows]
        titled = [(runs.study.title(row), comparison) for row, comparison in tested if comparison is not None]
        parts = [
            f"{title} is {c.verdict} by {points(abs(c.difference), sign=False)} points ({_signed(c)})"
            for title, c in titled
            if c.significant
        ]
        same = [title for title, c in titled if not c.significant]
        if same:
            parts.append(f"the difference is not significant for {listed(same)}")
        if parts:
            against = runs.title(runs.reference)
            yield f"With {point:,} training rows, on {where}, against {against}: {'; '.join(parts)}."


def fusion_sentences(runs: StudyRuns) -> Iterator[str]:
    """What training added to each row of fusion, target by target."""
    gains = fusion_gains(runs)
    for line in dict.fromkeys(gain.line for gain in gains):
        clauses = [_added(gain) for gain in gains if gain.line == line]
        yield f"What training added to {runs.title(line)}: {'; '.join(clauses)}."


def _added(gain: FusionGain) -> str:
    kept = f"{gain.starts_kept} of {len(gain.group)} {'seeds' if len(gain.group) > 1 else 'seed'}"
    if gain.starts_kept == len(gain.group):
        return f"on {gain.target} nothing, the start was kept in {kept}"
    if gain.over_start is None:
        added = "unknown, since its start was not scored"
    else:
        added = f"{points(gain.over_start, sign=False)} points over its start"
        added += f" (kept in {kept})" if gain.starts_kept else ""
    if gain.over_best is None:
        return f"on {gain.target} {added}"
    tested = f"{interval_text(gain.comparison)}, {gain.comparison.verdict}" if gain.comparison else "not tested"
    return (
        f"on {gain.target} {added}, and {points(gain.over_best)} points against its best adapter ({tested}) in"
        f" {count(gain.steps_added)} more optimiser steps"
    )


def forgetting_sentences(runs: StudyRuns) -> Iterator[str]:
    """The worst loss that was measured, how many were real, and what cannot forget."""
    measured = [(change, change.comparison) for change in changes(runs) if change.comparison is not None]
    for row in dict.fromkeys(change.row for change, _ in measured):
        own = [(change, comparison) for change, comparison in measured if change.row == row]
        lost = [(change, comparison) for change, comparison in own if comparison.verdict == "worse"]
        title, pairs = _capital(runs.study.title(row)), "1 pair" if len(own) == 1 else f"{len(own)} pairs"
        if not lost:
            yield f"{title}: no significant forgetting in {pairs} of tasks."
            continue
        worst, comparison = min(lost, key=lambda pair: pair[0].difference)
        yield (
            f"{title}: training on a second task lowered the score on the first in {len(lost)} of {pairs}, most on"
            f" {worst.source} after {worst.target}: {points(worst.difference)} points ({interval_text(comparison)})."
        )
    proven = list(dict.fromkeys(runs.study.title(change.row) for change in changes(runs) if change.proof))
    if proven:
        verb = "forgets" if len(proven) == 1 else "forget"
        yield (
            f"{_capital(listed(proven))} {verb} nothing: after every such run the backbone and the other tasks'"
            " adapters had the same hash as before."
        )


def failure_sentences(runs: StudyRuns) -> Iterator[str]:
    failed = sum(entry.error is not None for entry in runs.result.entries)
    if failed:
        yield f"{failed} of {len(runs.result.entries)} cells have no run: see the notes."


SENTENCES = (main_sentences, low_resource_sentences, fusion_sentences, forgetting_sentences, failure_sentences)


def _signed(comparison: Comparison) -> str:
    """The interval of the amount that the sentence names, which is positive."""
    return interval_text(comparison if comparison.difference >= 0 else comparison.reversed())


def _share(runs: StudyRuns, line: Line) -> str:
    """``, training 24 % of the parameters`` where it trains fewer than the reference."""
    trained = [[scored.record.cost.trainable_parameters for scored in runs.all(one)] for one in (line, runs.reference)]
    if not all(trained):
        return ""
    ours, theirs = (statistics.mean(numbers) for numbers in trained)
    return f", training {percent(ours / theirs)} of the parameters" if ours < 0.995 * theirs else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
