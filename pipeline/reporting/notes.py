"""What a reader must know to trust or doubt the tables, computed from the records."""

from __future__ import annotations

from collections import Counter

from pipeline.records.ledger import RunRecord
from pipeline.reporting.runs import StudyRuns, row_of
from pipeline.reporting.text import backbone_text


def notes(runs: StudyRuns) -> list[str]:
    study, main = runs.study, [scored for scored in runs.scored if scored.entry.rows is None]
    backbone = backbone_text(runs.result.backbone)
    told = [
        f"Backbone {backbone}{_others(runs)}; dev scores at the epoch with the best dev score, so all are optimistic:"
        " what each row chose on the scored rows stands below the main table."
    ]
    train: dict[str, set[int]] = {target: set() for target in study.targets}
    dev: dict[str, set[int]] = {target: set() for target in study.targets}
    leaks: dict[str, int] = {}
    for scored in main:
        target, rows = scored.entry.target, scored.record.rows
        train[target].add(scored.train_rows or 0)
        dev[target].add(scored.dev_rows)
        if scored.record.task == target and rows["dev_in_train"]:
            leaks[target] = max(leaks.get(target, 0), rows["dev_in_train"])
    told.append(f"Training rows: {_sizes(train)}; dev rows: {_sizes(dev)}.")
    if main:
        told.append(f"Computed in {'; in '.join(sorted({_computed(scored.record) for scored in main}))}.")
    if leaks:
        told.append(f"Dev rows whose text also stands in train: {', '.join(f'{t} {n}' for t, n in leaks.items())}.")
    told += _added(runs)
    epochs: dict[str, set[int]] = {}
    for scored in main:
        epochs.setdefault(runs.title(row_of(scored.entry.method)), set()).add(scored.epochs)
    if len(set().union(*epochs.values())) > 1:
        listed = ", ".join(f"{method} {'/'.join(map(str, sorted(counts)))}" for method, counts in epochs.items())
        starts = ", ".join(runs.title(name) for name in runs.rows if runs.study.row(name).of)
        told.append(f"Epoch budgets differ: {listed}{f'; {starts} start from trained models' if starts else ''}.")
    told += _beginnings(runs)
    told.append(
        "Every 95 % CI is simultaneous over the comparisons of its table, as the note under the main table says."
        " The tests are about other dev examples from where these came from, for the models of these seeds; how far"
        " other seeds would move a score is what its deviation shows."
    )
    for entry in runs.result.entries:
        if entry.error is not None:
            point = f", {entry.rows} training rows" if entry.rows is not None else ""
            told.append(f"Missing: {entry.method} {entry.target} seed {entry.seed}{point}: {entry.error}")
    return told


def _computed(record: RunRecord) -> str:
    """Precision and hardware: ``auto`` may mean another precision elsewhere, and seconds are those of the hardware."""
    return f"{record.recipe.precision} by {record.provenance.get('hardware') or 'unknown hardware'}"


def _others(runs: StudyRuns) -> str:
    """The rows on another backbone than the study's, in brackets."""
    found = {runs.title(name): runs.study.row(name).backbone for name in runs.rows}
    listed = "; ".join(f"{title}: {backbone_text(own)}" for title, own in found.items() if own is not None)
    return f" ({listed})" if listed else ""


def _beginnings(runs: StudyRuns) -> list[str]:
    """What the adapters that might begin as another task's began as."""
    told = []
    for name in runs.rows:
        row = runs.study.row(name)
        if row.method != "adapter" or row.of is None:
            continue
        by_target = []
        for target in runs.study.targets:
            starts = Counter(scored.record.anchor or "fresh" for scored in runs.cell(name, target))
            if starts:
                by_target.append(f"{target}: {', '.join(f'{start} {n}' for start, n in starts.most_common())}")
        told.append(
            f"What {row.title} began as, chosen on training rows, and in how many runs: {'; '.join(by_target)}."
        )
    return told


def _added(runs: StudyRuns) -> list[str]:
    """What other tasks' rows a line was trained on beside its own, and what was left out of them: the first seed's."""
    told = []
    for label in runs.labels:
        for target in runs.study.targets:
            for scored in runs.cell(label, target)[:1]:
                for source, added in scored.added.items():
                    left_out = added.in_dev + added.in_test + added.in_other_dev
                    told.append(
                        f"{runs.title(label)} on {target}: {added.rows:,} training rows of {source} added, {left_out}"
                        f" left out because their text stands in dev or test; {added.in_train} also stand in train."
                    )
    return told


def _sizes(found: dict[str, set[int]]) -> str:
    return ", ".join(f"{target} {'/'.join(map(str, sorted(sizes))) or 'none'}" for target, sizes in found.items())
