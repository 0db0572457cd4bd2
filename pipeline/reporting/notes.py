"""What a reader must know to trust or doubt the tables, computed from the records."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from pipeline.records.ledger import RunRecord
from pipeline.reporting.entries import Line
from pipeline.reporting.runs import Scored, StudyRuns
from pipeline.reporting.text import backbone_text


def _backbone(runs: StudyRuns) -> Iterator[str]:
    others = [(runs.study.title(name), runs.study.row(name).backbone) for name in runs.rows]
    listed = "; ".join(f"{title}: {backbone_text(own)}" for title, own in others if own is not None)
    yield (
        f"Backbone {backbone_text(runs.result.backbone)}{f' ({listed})' if listed else ''}; scores are on dev, at the"
        " epoch with the best dev score, so all of them are optimistic. The table below the main one lists what each"
        " row selected on these rows."
    )


def _rows(runs: StudyRuns) -> Iterator[str]:
    train = _by_target(runs, lambda scored: scored.score.train_rows)
    dev = _by_target(runs, lambda scored: scored.score.rows)
    yield f"Training rows: {_sizes(train)}; dev rows: {_sizes(dev)}."


def _computed(runs: StudyRuns) -> Iterator[str]:
    """Precision and hardware: ``auto`` may mean another precision elsewhere, and seconds are those of the hardware."""

    def place(record: RunRecord) -> str:
        return f"{record.recipe.precision} by {record.provenance.get('hardware') or 'unknown hardware'}"

    if places := sorted({place(scored.record) for scored in _main(runs)}):
        yield f"Computed in {'; in '.join(places)}."


def _leaks(runs: StudyRuns) -> Iterator[str]:
    leaks: dict[str, int] = {}
    for scored in _main(runs):
        target, leaked = scored.entry.target, scored.score.dev_in_train
        if leaked:
            leaks[target] = max(leaks.get(target, 0), leaked)
    if leaks:
        yield f"Dev rows whose text is also in train: {', '.join(f'{t} {n}' for t, n in leaks.items())}."


def _added(runs: StudyRuns) -> Iterator[str]:
    """The rows of other tasks that a line was trained on, and how many were left out, as of the first seed."""
    for line, target, group in runs.cells():
        for source, added in group[0].score.added.items():
            left_out = added.in_dev + added.in_test + added.in_other_dev
            yield (
                f"{runs.title(line)} on {target}: {added.rows:,} training rows of {source} added, {left_out} left out"
                f" because their text is in dev or test; {added.in_train} are also in train."
            )


def _budgets(runs: StudyRuns) -> Iterator[str]:
    epochs: dict[str, set[int]] = {}
    for scored in _main(runs):
        epochs.setdefault(runs.study.title(scored.entry.line.row), set()).add(scored.epochs)
    if len(set().union(*epochs.values())) > 1:
        starts = ", ".join(runs.study.title(name) for name in runs.rows if runs.study.row(name).of)
        yield f"Epoch budgets differ: {_sizes(epochs)}{f'; {starts} start from trained models' if starts else ''}."


def _starts(runs: StudyRuns) -> Iterator[str]:
    """The tasks from which adapters were warm-started."""
    for name in runs.rows:
        row = runs.study.row(name)
        if row.method != "adapter" or row.of is None:
            continue
        by_target = []
        for target, group in runs.groups(Line(name)).items():
            starts = Counter(scored.record.anchor or "fresh" for scored in group)
            by_target.append(f"{target}: {', '.join(f'{start} {n}' for start, n in starts.most_common())}")
        yield f"Start of {row.title}, selected on training rows, with the number of runs: {'; '.join(by_target)}."


def _intervals(runs: StudyRuns) -> Iterator[str]:
    yield (
        "Every 95 % CI is simultaneous over the comparisons of its table, as the note under the main table explains."
        " The tests ask whether a difference would hold on other dev examples from the same source, for the models of"
        " these seeds. The standard deviation shows how much a score varies between seeds."
    )


NOTES = (_backbone, _rows, _computed, _leaks, _added, _budgets, _starts, _intervals)


def missing(runs: StudyRuns) -> Iterator[str]:
    """The cells without a run, each with the reason."""
    for entry in runs.result.entries:
        if entry.error is not None:
            point = f", {entry.rows} training rows" if entry.rows is not None else ""
            yield f"{entry.method} {entry.target} seed {entry.seed}{point}: {entry.error}"


def _main(runs: StudyRuns) -> list[Scored]:
    return [scored for scored in runs.scored if scored.entry.rows is None]


def _by_target(runs: StudyRuns, size: Callable[[Scored], int]) -> dict[str, set[int]]:
    return {t: {size(scored) for scored in _main(runs) if scored.entry.target == t} for t in runs.study.targets}


def _sizes(sizes: Mapping[str, Collection[int]]) -> str:
    return ", ".join(f"{name} {'/'.join(map(str, sorted(own))) or 'none'}" for name, own in sizes.items())
