"""The cells of a study, and the training jobs behind them: cells share jobs, and jobs build on jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from pipeline.records.ledger import Kind
from pipeline.runs.request import Part
from pipeline.settings.study import Study


@dataclass(frozen=True)
class Cell:
    """One number of a study: a row on a target with a seed; ``source`` for sequential tuning."""

    row: str
    target: str
    seed: int
    source: str | None = None
    rows: int | None = None
    """Training rows of the target at a point of the curve; None in the main table."""

    @property
    def label(self) -> str:
        return f"{self.row}:{self.source}" if self.source else self.row


@dataclass(frozen=True)
class Job:
    """A training run before its identity is known, which takes the finished runs that it builds on.

    Equal jobs are one run, whatever rows and cells they serve.
    """

    kind: Kind
    parts: tuple[Part, ...]
    """The one task, or for joint training all of them by name."""
    seed: int
    needs: tuple[Job, ...] = ()
    """Of a fusion several may be of its target: it takes the one that is best on dev."""
    backbone: str | None = None
    """Another than the study's."""
    row: str = field(default="", compare=False)
    """The row that asked for it first."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Jobs are looked up over and over, and a recipe has dozens of settings.
        return hash((self.kind, self.parts, self.seed, self.needs, self.backbone))

    def __getstate__(self) -> dict[str, Any]:
        # Texts have another hash in another process.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @property
    def task(self) -> str:
        return "+".join(part.task for part in self.parts)

    @property
    def title(self) -> str:
        source = f" from {self.needs[0].task}" if self.kind == "sequential" else ""
        return f"{self.row} {self.task}{source} seed {self.seed}"


def plan(study: Study, sizes: Mapping[str, int] | None = None) -> list[Cell]:
    """Every cell of a study, seed by seed, so that a study stopped half way has whole seeds.

    ``sizes`` are the training rows that the targets have: a point of the curve with as many is the main table's cell.
    """
    cells: list[Cell] = []
    points, seed = study.curve_points, study.seeds[0]
    for row in study.methods:
        for target in study.targets_of(row):
            cells += _cells(study, row, target, seed, None)
    for row, targets in study.curve_rows().items():
        for target in targets:
            size = sizes.get(target) if sizes else None
            for point in points:
                if size is None or point < size:
                    cells += _cells(study, row, target, seed, point)
    return [replace(cell, seed=seed) for seed in study.seeds for cell in cells]


def _cells(study: Study, row: str, target: str, seed: int, rows: int | None) -> list[Cell]:
    found = study.row(row)
    by_source = found.method == "sequential" and found.order is None
    sources = study.partners(row, target) if by_source else [None]
    return [Cell(row, target, seed, source, rows) for source in sources]


def jobs_of(study: Study, cells: Iterable[Cell]) -> dict[Cell, Job]:
    """:func:`job_of` each cell. What cells have in common but for their seed is worked out once."""

    @cache
    def of_first_seed(cell: Cell) -> Job:
        return job_of(study, cell)

    @cache
    def seeded(job: Job, seed: int) -> Job:
        return replace(job, needs=tuple(seeded(need, seed) for need in job.needs), seed=seed)

    return {cell: seeded(of_first_seed(replace(cell, seed=study.seeds[0])), cell.seed) for cell in cells}


def job_of(study: Study, cell: Cell) -> Job:
    """What has to be trained for a cell: the target on its own number of rows, everything else on the study's."""
    row = study.row(cell.row)
    on_curve = cell.rows is not None
    own_limit = cell.rows if cell.rows is not None else study.rows_of_target

    def part(name: str, task: str) -> Part:
        own = task == cell.target
        # A source is trained as in the main table, whichever point of the curve it serves.
        recipe = study.recipe_for(name, task, on_curve and (own or row.method == "multitask"))
        return Part(task, recipe, own_limit if own else study.limit)

    def job(name: str, method: Kind, tasks: Sequence[str], needs: tuple[Job, ...] = ()) -> Job:
        parts = tuple(part(name, task) for task in tasks)
        return Job(method, parts, cell.seed, needs, study.row(name).backbone, name)

    def single(name: str | None, task: str) -> Job:
        assert name is not None
        return job(name, study.row(name).method, [task])

    def adapter(name: str | None, task: str) -> Job:
        """Of a row that is built on another, it may begin as any of the sources' adapters."""
        assert name is not None
        of = study.row(name).of
        starts = () if of is None else tuple(single(of, other) for other in sorted(study.partners(name, task)))
        return job(name, "adapter", [task], starts)

    def in_turn(tasks: Sequence[str], name: str) -> Job:
        """Full fine-tuning on the first task, then on each of the others, by the recipes of row ``name``."""
        tuned = single(row.of, tasks[0])
        for task in tasks[1:]:
            tuned = job(name, "sequential", [task], (tuned,))
        return tuned

    if row.order is not None:
        return in_turn(row.order, cell.row)
    needs: tuple[Job, ...] = ()
    tasks = sorted({cell.target, *study.partners(cell.row, cell.target)})
    if row.method == "multitask":
        if row.after:
            needs = (in_turn(row.after, row.of or cell.row),)
        return job(cell.row, "multitask", tasks, needs)
    if row.method == "sequential":
        assert cell.source is not None
        needs = (single(row.of, cell.source),)
    if row.method == "adapter":
        return adapter(cell.row, cell.target)
    if row.method == "fusion":
        rows = {task: row.own if task == cell.target and row.own else (row.of,) for task in tasks}
        needs = tuple(adapter(name, task) for task in tasks for name in rows[task])
    return job(cell.row, row.method, [cell.target], needs)


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Each job once, after those it needs."""
    return list(dict.fromkeys(job for root in jobs for job in _with_needs(root)))


def _with_needs(job: Job) -> Iterator[Job]:
    for need in job.needs:
        yield from _with_needs(need)
    yield job
