"""Rows of dev or test whose text was trained on, by a model or by its sources: their score says less about new texts.

A study leaves such rows out of its sources' training. Adapters of a store were trained for whatever they were.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from pipeline.data.canonical import fingerprint
from pipeline.data.load import has_rows, read_test_texts
from pipeline.data.overlap import overlapping_rows
from pipeline.data.task_data import TaskData
from pipeline.data.tasks import Task
from pipeline.data.tasks.extra import Extra
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact, Manifest, SourceRun
from pipeline.runs.splits import Splits
from pipeline.runs.workspace import Workspace
from pipeline.system.errors import PipelineError, noted


class Lesson(NamedTuple):
    """What a run was trained on: rows of a task, as far as its record tells them."""

    run: str
    task: str
    seed: int
    limit: int | None
    train: str | None
    """Fingerprint of the training rows; None where nothing that can be read tells it."""
    extra: tuple[Extra, ...] = ()
    """The tasks whose rows are among them."""
    permuted: bool = False
    """Whether they have each other's labels."""
    dropped: tuple[str, ...] | None = None
    """The tasks whose validation and test rows are not among them, though the task has them; None: nothing says so."""


@dataclass(frozen=True)
class Gaps:
    """Why it cannot be known what a model was trained on."""

    problems: list[str] = field(default_factory=list)
    """What cannot be read, in words."""
    changed: list[str] = field(default_factory=list)
    """The tasks whose rows are here, but not those that a model was trained on."""


def trained_before(run: str, workspace: Workspace) -> tuple[str, ...]:
    """The tasks whose rows the models that ``run`` builds on were trained on, each once, the first to be trained first.

    What is not at hand is left out: of a run whose record is gone, all but its own task.
    """
    gaps = Gaps()  # the commands that need what cannot be read name it
    lessons = list(_lessons_before(_kept(run, workspace, gaps), workspace, gaps))
    tasks = (task for each in reversed(lessons) for task in (each.task, *(extra.task for extra in each.extra)))
    return tuple(dict.fromkeys(tasks))


def sources_seen(
    rows: pd.DataFrame, sources: Sequence[SourceRun], workspace: Workspace, target: Task, gaps: Gaps
) -> dict[str, np.ndarray | None]:
    """Which ``rows`` (n,) have a text that the sources were trained on, by their tasks.

    The training rows are drawn again from the task's data, and known by their fingerprint. None where they are not
    found there, whatever texts are there instead; and where the data or the source's record are not at hand.

    Args:
        sources: what a model builds on; what these build on counts too.
        target: the task of ``rows``; of its own adapters among the sources the answer stands under its name.
        gaps: gets why the answer is None.
    """
    return _seen_by_task(rows, _lessons(sources, workspace, gaps), workspace, target, gaps)


def others_seen(
    rows: pd.DataFrame, run: str, workspace: Workspace, target: Task, gaps: Gaps
) -> dict[str, np.ndarray | None]:
    """:func:`sources_seen` of what ``run`` builds on, and of the tasks that it was itself trained on beside ``target``.

    What it builds on is as its record or else its artifact says.
    """
    kept = _kept(run, workspace, gaps)
    beside = []
    if isinstance(kept, RunRecord):
        beside = [lesson_of(kept, name) for name in kept.trained_on if name != target.name]
    return _seen_by_task(rows, (*beside, *_lessons_before(kept, workspace, gaps)), workspace, target, gaps)


def _seen_by_task(
    rows: pd.DataFrame, lessons: Iterable[Lesson], workspace: Workspace, target: Task, gaps: Gaps
) -> dict[str, np.ndarray | None]:
    """Which ``rows`` (n,) the lessons on each task had; None where that of one cannot be known."""
    seen_of = dict[str, np.ndarray | None]()
    divided = cache(workspace.splits.changed)  # lessons that were divided alike share what is drawn of them
    for lesson in lessons:
        seen = _seen(rows, lesson, divided, workspace.ledger, target, gaps) if _is_here(lesson, workspace) else None
        seen_of[lesson.task] = either(seen, seen_of.get(lesson.task, np.zeros(len(rows), bool)))
    return seen_of


def either(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    """The rows (n,) that are among ``one`` or among ``other``; None where either cannot be known."""
    return None if one is None or other is None else one | other


def seen_notes(
    target: Task, dev: pd.DataFrame, sources: Sequence[SourceRun], workspace: Workspace, option: str
) -> Iterator[str]:
    """A line for each source that was trained on texts of ``dev`` or of the target's test rows, and what to do.

    Args:
        option: what names an adapter in the command that takes the sources; unnamed, the same one may be taken again.
    """
    test = read_test_texts(target, workspace.splits.folder_of(target))
    parts = {"dev": dev} if test is None else {"dev": dev, "test": test}
    kinds = np.repeat([*parts], [len(rows) for rows in parts.values()])
    gaps = Gaps()
    for task, seen in sources_seen(pd.concat(parts.values()), sources, workspace, target, gaps).items():
        if task != target.name and seen is not None and seen.any():
            counts = (f"{seen[kinds == kind].sum()} of {len(rows)} rows of {kind}" for kind, rows in parts.items())
            yield (
                f"{' and '.join(counts)} of {target.name} also occur in the training rows of its source {task}, so its"
                f" score there says less about new texts: extract --task {task} --without-rows-of {target.name} trains"
                f" an adapter without them; then name it: {option} {task}@RUN"
            )
    yield from gaps.problems


def _lessons_before(kept: RunRecord | Artifact | None, workspace: Workspace, gaps: Gaps) -> Iterator[Lesson]:
    """What the models that ``kept`` builds on were trained on; nothing if it is not at hand."""
    return iter(()) if kept is None else _lessons(_built_on(kept, workspace), workspace, gaps)


def _lessons(sources: Sequence[SourceRun], workspace: Workspace, gaps: Gaps) -> Iterator[Lesson]:
    """What ``sources`` were trained on, and what they build on."""
    waiting, visited = list(sources), set[tuple[str, str]]()
    while waiting:
        source = waiting.pop(0)
        if (source.task, source.run) in visited:
            continue
        visited.add((source.task, source.run))
        kept = _kept(source.run, workspace, gaps)
        if kept is None:
            yield Lesson(source.run, source.task, seed=0, limit=None, train=None)
            continue
        waiting += _built_on(kept, workspace)
        if isinstance(kept, RunRecord):
            yield from (lesson_of(kept, task) for task in kept.trained_on)
        else:
            yield _of_manifest(kept.manifest)


def _built_on(kept: RunRecord | Artifact, workspace: Workspace) -> list[SourceRun]:
    """The runs whose models a run continues or reads.

    An older record may say of the adapter that the run started as no more than its task and, among the adapters that
    the run was given, its digest: then the store is searched for it. Its run is empty where the store lacks it.
    """
    if isinstance(kept, Artifact):
        return list(kept.manifest.sources)
    runs = list(kept.continued)
    if kept.anchor is not None and kept.started_from is None:
        digest = next((each["digest"] for each in kept.chosen_from if each["task"] == kept.anchor), "")
        manifests = (artifact.manifest for artifact in workspace.store.artifacts())
        start = next((each.as_source for each in manifests if each.digest == digest), None)
        runs.append(start or SourceRun(task=kept.anchor, run="", digest=digest))
    return runs


def _kept(run: str, workspace: Workspace, gaps: Gaps) -> RunRecord | Artifact | None:
    """What is left of ``run``: its record, or else its artifact; ``gaps`` gets what of it cannot be read."""
    with noted(gaps.problems):
        if (record := workspace.ledger.find(run)) is not None:
            return record
    with noted(gaps.problems):
        return workspace.store.find(run)
    return None


def lesson_of(record: RunRecord, task: str) -> Lesson:
    """What the run of ``record`` was trained on for one of the tasks that it trained on."""
    score, recipe = record.score(task), record.recipe_of(task)
    return Lesson(
        record.run,
        task,
        record.seed,
        score.limit,
        record.fingerprints(task).get("train"),
        recipe.extra,
        recipe.permute_labels,
        None if score.dropped is None else tuple(score.dropped),
    )


def _of_manifest(manifest: Manifest) -> Lesson:
    recipe = manifest.recipe
    return Lesson(
        manifest.run,
        manifest.task,
        manifest.seed,
        manifest.limit,
        manifest.train_rows,
        recipe.extra,
        recipe.permute_labels,
    )


def drawn_again(
    lesson: Lesson, divided: Callable[..., Splits], ledger: Ledger, target: Task | None = None
) -> Iterator[pd.DataFrame]:
    """The training rows that the lesson may have had, in each way in which they can be drawn again.

    Args:
        divided: as :meth:`Splits.changed`.
        target: the task that the lesson may have left out rows of, where its record does not say.
    """
    ways = _divisions(lesson, divided, target)
    for way in ways:
        with suppress(PipelineError):  # data that are gone or unfit are for the commands that need them
            data = way.of(way.task(lesson.task), lesson.limit, lesson.seed, lesson.extra)
            yield (data.permuted(lesson.seed) if lesson.permuted else data).train
    with suppress(PipelineError):
        tested = ledger.predictions(lesson.run, lesson.task, "test")["id"]
        for way in ways if len(tested) else ():  # a study may have held them out of train
            data = way.of(task := way.task(lesson.task), None, 0)
            train = data.train[~data.train["id"].isin(tested)].reset_index(drop=True)
            yield replace(data, train=train).sample(task, lesson.limit, lesson.seed, None).train


def _divisions(lesson: Lesson, divided: Callable[..., Splits], target: Task | None) -> list[Splits]:
    """The splits in each way that the lesson may have drawn its training rows from.

    With and without those that are also in dev (``--drop-overlap``), and those that other tasks hold out, if any.
    """
    if lesson.dropped is not None:
        others = tuple(name for name in lesson.dropped if name != lesson.task)
        return [divided(drop_overlap=lesson.task in lesson.dropped, held_out=others)]
    held_out = ((),) if target is None else ((), (target.name,))
    return [divided(drop_overlap=drops, held_out=names) for names in held_out for drops in (False, True)]


def _seen(
    rows: pd.DataFrame, lesson: Lesson, divided: Callable[..., Splits], ledger: Ledger, target: Task, gaps: Gaps
) -> np.ndarray | None:
    """Which of ``rows`` (n,) the lesson had, if what it had is found again."""
    is_other = False
    for train in drawn_again(lesson, divided, ledger, target):
        if fingerprint(train) == lesson.train:
            return overlapping_rows(train, rows)[1]
        is_other = True
    if is_other:
        gaps.changed.append(lesson.task)
    return None


def _is_here(lesson: Lesson, workspace: Workspace) -> bool:
    """Whether its rows have a fingerprint and are at hand; of a run without a record nobody waits for a download."""
    if lesson.train is None:
        return False
    splits = workspace.splits
    with suppress(PipelineError):  # as above
        tasks = [splits.task(name) for name in (lesson.task, *(each.task for each in lesson.extra))]
        return all(
            any(has_rows(task, folder) for folder in splits.folders)
            or (task.hub is not None and workspace.ledger.find(lesson.run) is not None)
            for task in tasks
        )
    return False


def overlap_notes(name: str, data: TaskData) -> Iterator[str]:
    """Which training rows of task ``name`` also stand in dev or test, in words, and what came of them."""
    for other, rows in data.dropped.items():
        yield f"{name}: {rows} training rows that also occur in dev or test of {other} are left out"
    for other, added in data.added.items():
        left_out = added.in_dev + added.in_test + added.in_other_dev
        yield (
            f"{name}: {added.rows} training rows of {other} are added ({added.in_train} also occur in train);"
            f" {left_out} are left out, since they occur in dev or test"
        )
    for rows, kind in ((data.dev_in_train, "rows of dev"), (data.test_in_train, "test rows")):
        if rows:
            yield f"{name}: {rows} {kind} also occur in train (--drop-overlap drops those from train)"
