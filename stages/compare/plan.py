"""The cells of a study, and the training jobs behind them: cells share jobs, and jobs build on jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from typing import Any

from pipeline.data.tasks import Task
from pipeline.records.studies import Entry, Line
from pipeline.runs.workspace import Part, Workspace
from pipeline.settings.kinds import KINDS, JoinedBy, Method, Row, point_text
from pipeline.settings.study import Study
from pipeline.system.atomic import sha256_text


@dataclass(frozen=True)
class Job:
    """A training run before its identity is known, which takes the finished runs that it builds on.

    Equal jobs are one run, whatever rows and cells they serve.
    """

    kind: Method
    parts: tuple[Part[str], ...]
    """The one task, or for joint training all of them by name."""
    seed: int
    needs: tuple[Job, ...] = ()
    """Jobs that it builds on. Several may be adapters of a fusion's target, which takes the best one on dev."""
    backbone: str | None = None
    """If it is not the study's."""
    trials: tuple[Job, ...] = field(default=(), repr=False)
    """The best of them on dev gives this job its recipes; those of ``parts`` stand in until that is known."""
    rule: JoinedBy = "mean"
    """How an ensemble joins what it needs."""
    most: int | None = None
    in_turn: bool = False
    """An adapter starts as that of the one job it needs, without a choice."""
    tested: bool = True
    """An adapter starts from a source only if that helps significantly."""
    reshuffle: int = 0
    """The number of this run among several that differ only in the order of batches and in dropout. Only the first of
    them has trials."""
    row: str = field(default="", compare=False)
    """The row that asked for it first."""
    tuned: str = field(default="", compare=False)
    """A trial's values of what the row tunes."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> str:
        """A hash of what identifies it. Jobs are looked up over and over, and a recipe has dozens of settings."""
        compared = [each.name for each in fields(self) if each.compare and each.name not in ("needs", "trials")]
        own = [getattr(self, name) for name in compared]
        return sha256_text(repr((own, [need._key for need in self.needs], [trial._key for trial in self.trials])))

    @property
    def task(self) -> str:
        return "+".join(part.task for part in self.parts)

    def is_of(self, task: str) -> bool:
        """Whether it trains on ``task``, alone or beside others."""
        return any(part.task == task for part in self.parts)

    def parts_in(self, workspace: Workspace) -> tuple[Part[Task], ...]:
        """Its parts with their tasks, as the workspace has them."""
        again = {"reshuffle": self.reshuffle} if self.reshuffle else {}
        return tuple(Part(workspace.task(task), recipe.changed(again), limit) for task, recipe, limit in self.parts)

    @property
    def title(self) -> str:
        source = f" from {self.needs[0].task}" if KINDS[self.kind].is_by_source or self.in_turn else ""
        again = f" again ({self.reshuffle})" if self.reshuffle else ""
        return f"{self.row}{f' ({self.tuned})' if self.tuned else ''} {self.task}{source} seed {self.seed}{again}"

    @property
    def is_choice(self) -> bool:
        """Whether one of its trials is its run, or it joins other runs, so that it trains nothing itself."""
        is_trial = not self.reshuffle and any(trial.seed == self.seed for trial in self.trials)
        return KINDS[self.kind].is_ensemble or is_trial

    @property
    def takes_models_of(self) -> tuple[Job, ...]:
        """The jobs whose models it starts from, takes in or reads; of the others that it names their scores are enough.

        A model that learns tasks in turn is scored on the earlier ones by the heads that it had there, or begins with
        these.
        """
        if KINDS[self.kind].is_ensemble:
            return ()
        earlier = (each for need in self.needs if KINDS[need.kind].is_by_source for each in need.takes_models_of)
        return (*self.needs, *earlier)

    @property
    def built_on(self) -> tuple[Job, ...]:
        """All jobs that must have finished or failed before it can run."""
        return tuple(dict.fromkeys((*self.needs, *self.takes_models_of, *self.trials)))

    def with_best(self, dev: Mapping[Job, float]) -> Job:
        """The job with the recipes of its best trial by the ``dev`` scores of those that finished, of equal ones the
        first."""
        best = max((trial for trial in self.trials if trial in dev), key=dev.__getitem__)
        return replace(best, seed=self.seed, needs=self.needs, reshuffle=self.reshuffle)


def plan(study: Study, sizes: Mapping[str, int] | None = None) -> list[Entry]:
    """Every cell of a study, without its run, seed by seed: a study stopped half way has whole seeds.

    ``sizes`` are the training rows that the targets have: a point of the curve with as many is the main table's cell.
    """
    places = [(row, target, None) for row in study.methods for target in study.targets_of(row)] + [
        (row, target, point)
        for row, targets in study.curve_rows().items()
        for target in targets
        for point in study.curve_points
        if not sizes or target not in sizes or point < sizes[target]
    ]
    cells = [
        Entry(method=str(line), target=target, seed=study.seeds[0], rows=rows)
        for row, target, rows in places
        for line in _lines(study, row, target)
    ]
    return [cell.model_copy(update={"seed": seed}) for seed in study.seeds for cell in cells]


def _lines(study: Study, row: str, target: str) -> list[Line]:
    return [Line(row, source) for source in study.partners(row, target)] if study.row(row).by_source else [Line(row)]


def jobs_of(study: Study, cells: Iterable[Entry]) -> dict[Entry, Job]:
    """:func:`job_of` each cell. What cells have in common but for their seed is worked out once."""
    of_first_seed, first = cache(partial(job_of, study)), {"seed": study.seeds[0]}
    known: dict[Job, Job] = {}

    @cache
    def seeded(job: Job, seed: int, own: int, target: str) -> Job:
        # What other tasks give may be given once, as if it came from a hub; runs on the target have its ``own`` seed.
        others = own if study.source_seed is None else study.source_seed
        needs = tuple(seeded(need, own if need.is_of(target) else others, own, target) for need in job.needs)
        of_trials = (seed, own) if study.tune_on == "each seed" else (study.seeds[0], study.seeds[0])
        trials = tuple(seeded(trial, *of_trials, target) for trial in job.trials)
        # Equal jobs of several targets are one object.
        made = replace(job, needs=needs, seed=seed, trials=trials)
        return known.setdefault(made, made)

    return {
        cell: seeded(of_first_seed(cell.model_copy(update=first)), cell.seed, cell.seed, cell.target) for cell in cells
    }


def job_of(study: Study, cell: Entry) -> Job:
    """What has to be trained for a cell: the target on its own number of rows, everything else on the study's.

    Trials have the seed of the cell: see :func:`jobs_of`.
    """
    return _Planner(study, cell).job()


@dataclass(frozen=True)
class _Planner:
    """Plans the job of one cell, with all that it builds on."""

    study: Study
    cell: Entry

    @property
    def target(self) -> str:
        return self.cell.target

    @property
    def name(self) -> str:
        """The name of the cell's row."""
        return self.cell.line.row

    @cached_property
    def row(self) -> Row:
        return self.study.row(self.name)

    def job(self) -> Job:
        row, kind = self.row, self.row.kind
        if kind.is_ensemble:
            return self._ensemble()
        if kind.is_by_source:
            turn = self.study.turn(self.name, self.target) or (self.cell.line.source, self.target)
            return self._through(turn, row.of, self.name)
        tasks = sorted({self.target, *self.study.partners(self.name, self.target)})
        if kind.is_joint:
            return self._train(self.name, tasks, [self._through(row.after, row.of, row.of)] if row.after else [])
        if kind.combines:
            return self._train(self.name, [self.target], self._fused(tasks))
        return self._alone(self.name, self.target)

    def _ensemble(self) -> Job:
        row, study = self.row, self.study
        members = [name for name in row.members if self.target in study.targets_of(name)]
        jobs = (job_of(study, self.cell.model_copy(update={"method": name})) for name in members)
        needs = tuple(expert for job in jobs for expert in _experts(job, row.experts or 1))
        part = self._part(members[0], self.target, {})
        return Job(
            row.method, (part,), self.cell.seed, needs, row.backbone, row=self.name, rule=row.rule, most=row.most
        )

    def _fused(self, tasks: Sequence[str]) -> Iterator[Job]:
        """What a fusion or a merged adapter takes: an adapter of each task, of the target all that may be chosen."""
        row = self.row
        if row.experts:
            yield from _experts(self._alone(row.of, self.target), row.experts)
            return
        for task in tasks:
            is_own = task == self.target
            if is_own and not self.study.fuses_own(self.name, task, self.cell.rows is not None):
                continue
            for name in row.own if is_own and row.own else (row.of,):
                yield self._alone(name, task)

    def _alone(self, name: str | None, task: str) -> Job:
        """One task by row ``name``. What that is built on: for an adapter the sources' there, else the task itself.

        A source is built on nothing that the target would not take from directly, least of all the target itself.
        """
        assert name is not None
        study, row = self.study, self.study.row(name)
        without = {self.target, *study.apart.get(self.target, ())} if task != self.target else set[str]()
        if row.method == "adapter" and row.through:
            return self._through([each for each in study.turn(name, task) if each not in without], row.of, name)
        sources = sorted({*study.partners(name, task)} - without) if row.method == "adapter" else [task]
        built_on = [self._alone(row.of, source) for source in sources] if row.of is not None else []
        return self._train(name, [task], built_on)

    def _through(self, tasks: Sequence[str], base: str | None, name: str | None) -> Job:
        """One model, or one adapter, that learns the first of ``tasks`` by row ``base`` and the others in turn.

        A model learns these by row ``name``, an adapter only the last of them, and those before by ``base`` too.
        """
        assert base is not None and name is not None
        is_adapter = self.study.row(name).method == "adapter"
        if is_adapter and len(tasks) == 1:
            return self._train(name, tasks)
        tuned = self._alone(base, tasks[0])
        for task in tasks[1:]:
            by = base if is_adapter and task != tasks[-1] else name
            tuned = self._train(by, [task], [tuned], "adapter" if is_adapter else "sequential", in_turn=is_adapter)
        return tuned

    def _train(
        self,
        name: str,
        tasks: Sequence[str],
        needs: Iterable[Job] = (),
        kind: Method | None = None,
        in_turn: bool = False,
    ) -> Job:
        """Training on ``tasks`` by the recipes of row ``name``, in trials if it tunes."""
        row, built_on = self.study.row(name), tuple(needs)
        jobs = [
            Job(
                kind=kind or row.method,
                parts=tuple(self._part(name, task, trial) for task in tasks),
                seed=self.cell.seed,
                needs=built_on,
                backbone=row.backbone,
                in_turn=in_turn,
                tested=row.tested,
                row=name,
                tuned=point_text(trial) if len(row.trials) > 1 else "",
            )
            for trial in row.trials
        ]
        return jobs[0] if len(jobs) == 1 else replace(jobs[0], trials=tuple(jobs), tuned="")

    def _part(self, name: str, task: str, trial: Mapping[str, Any]) -> Part[str]:
        study, is_own, rows = self.study, task == self.target, self.cell.rows
        # A source is trained as in the main table, whichever point of the curve it serves, unless beside the target.
        is_beside = name == self.name and self.row.kind.is_joint
        on_curve = rows is not None and (is_own or is_beside)
        recipe = study.recipe_for(name, task, on_curve, trial)
        return Part(task, recipe, (rows or study.rows_of_target) if is_own else study.limit)


def _experts(job: Job, count: int) -> Iterator[Job]:
    """``count`` runs of a job; the job itself is the first."""
    return (replace(job, reshuffle=number) for number in range(count))


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Each job once, after its trials and those it needs."""
    ordered: dict[Job, None] = {}

    def add(job: Job) -> None:
        # A job and its trials need the same jobs, which are walked through once.
        if job not in ordered:
            for other in (*job.needs, *job.trials):
                add(other)
            ordered[job] = None

    for job in jobs:
        add(job)
    return list(ordered)
