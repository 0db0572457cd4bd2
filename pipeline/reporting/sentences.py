"""The summary in plain sentences, each computed from a test or a count."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pipeline.reporting.forgetting import Change
from pipeline.reporting.fusion_gain import FusionGain
from pipeline.reporting.low_resource import Line, LowResource
from pipeline.reporting.main_table import Verdicts
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.text import count, interval_text, listed, percent, points
from pipeline.stats.paired import Comparison


def main_sentences(runs: StudyRuns, verdicts: Verdicts) -> list[str]:
    """What the tests say on the mean and on every target: each better or worse line, and the rest in one sentence.

    Sequential tuning has a line a source, which would drown the others: it is left to the tables.
    """
    study = runs.study
    labels = [label for label in runs.labels if ":" not in label and label != study.reference]
    scopes: list[str | None] = [*([None] if len(study.targets) > 1 else []), *study.targets]
    sentences = []
    for scope in scopes:
        found = {label: verdicts[label, scope] for label in labels if (label, scope) in verdicts}
        if found:
            sentences += _of_scope(runs, scope, found)
    return sentences


def forgetting_sentences(runs: StudyRuns, changes: Sequence[Change]) -> list[str]:
    """The worst loss that was measured, how many were real, and what cannot forget."""
    sentences = []
    measured = [change for change in changes if change.comparison is not None]
    for row in dict.fromkeys(change.row for change in measured):
        own = [change for change in measured if change.row == row]
        lost = [change for change in own if change.comparison and change.comparison.verdict == "worse"]
        if not lost:
            sentences.append(f"{_capital(runs.title(row))}: no significant forgetting in {_pairs(len(own))} of tasks.")
            continue
        worst = min(lost, key=lambda change: change.difference)
        assert worst.comparison is not None
        sentences.append(
            f"{_capital(runs.title(row))}: training on a second task lowered the score on the first in {len(lost)} of"
            f" {_pairs(len(own))}, most on {worst.source} after {worst.target}:"
            f" {points(worst.difference)} points ({interval_text(worst.comparison)})."
        )
    proven = list(dict.fromkeys(runs.title(change.row) for change in changes if change.proof))
    if proven:
        verb = "forgets" if len(proven) == 1 else "forget"
        sentences.append(
            f"{_capital(listed(proven))} {verb} nothing: after every such run the backbone and the other tasks'"
            " adapters had the same hash as before."
        )
    return sentences


def fusion_sentences(runs: StudyRuns, gains: Sequence[FusionGain]) -> list[str]:
    """What training added to each row of fusion, target by target."""
    sentences = []
    for row in dict.fromkeys(gain.row for gain in gains):
        clauses = [_added(gain) for gain in gains if gain.row == row]
        sentences.append(f"What training added to {runs.title(row)}: {'; '.join(clauses)}.")
    return sentences


def _added(gain: FusionGain) -> str:
    kept = f"{gain.starts_kept} of {len(gain.seeds)} {'seeds' if len(gain.seeds) > 1 else 'seed'}"
    if gain.starts_kept == len(gain.seeds):
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


def low_resource_sentences(curve: LowResource, verdicts: Mapping[tuple[Line, str | None], Comparison]) -> list[str]:
    """What the tests say of every row at every point, on the mean over the targets."""
    if not curve:
        return []
    runs, sentences = curve.runs, []
    scope = None if len(curve.targets) > 1 else curve.targets[0]
    where = f"the mean of {listed(curve.targets)}" if scope is None else scope
    against = runs.title(runs.study.reference)
    for point in curve.points:
        if point is None:
            continue
        found = {row: verdicts[(row, point), scope] for row in curve.rows if ((row, point), scope) in verdicts}
        differing = [(row, c) for row, c in found.items() if c.significant]
        parts = [
            f"{runs.title(row)} is {c.verdict} by {points(abs(c.difference), sign=False)} points ({_signed(c)})"
            for row, c in differing
        ]
        same = [runs.title(row) for row, c in found.items() if not c.significant]
        if same:
            parts.append(f"the difference is not significant for {listed(same)}")
        if parts:
            sentences.append(f"With {point:,} training rows, on {where}, against {against}: {'; '.join(parts)}.")
    return sentences


def failure_sentences(runs: StudyRuns) -> list[str]:
    failed = sum(entry.error is not None for entry in runs.result.entries)
    return [f"{failed} of {len(runs.result.entries)} cells have no run: see the notes."] if failed else []


def _of_scope(runs: StudyRuns, scope: str | None, found: Mapping[str, Comparison]) -> list[str]:
    where = f"the mean of {listed(runs.study.targets)}" if scope is None else scope
    against = runs.title(runs.study.reference)
    sentences = []
    for label, comparison in found.items():
        if not comparison.significant:
            continue
        size = points(abs(comparison.difference), sign=False)
        share = _share(runs, label)
        sentences.append(
            f"On {where}, {runs.title(label)} is {comparison.verdict} than {against} by {size} points"
            f" ({_signed(comparison)}){share}."
        )
    same = [
        f"{runs.title(label)} ({points(c.difference)} points, {interval_text(c)})"
        for label, c in found.items()
        if not c.significant
    ]
    if same:
        sentences.append(f"On {where}, the difference from {against} is not significant for {listed(same)}.")
    return sentences


def _signed(comparison: Comparison) -> str:
    """The interval of the amount that the sentence names, which is positive."""
    return interval_text(comparison if comparison.difference >= 0 else comparison.reversed())


def _share(runs: StudyRuns, label: str) -> str:
    """``, training 24 % of the parameters`` where it trains fewer than the reference."""
    trained = [
        [s.record.cost.trainable_parameters for target in runs.study.targets for s in runs.cell(name, target)]
        for name in (label, runs.study.reference)
    ]
    if not all(trained):
        return ""
    ours, theirs = (statistics.mean(numbers) for numbers in trained)
    return f", training {percent(ours / theirs)} of the parameters" if ours < 0.995 * theirs else ""


def _pairs(number: int) -> str:
    return "1 pair" if number == 1 else f"{number} pairs"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
