"""Stage three: every method on the same rows, seeds and backbone, and the tables that compare them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pipeline.atomic import write_json
from pipeline.errors import PipelineError
from pipeline.ledger import Ledger, RunRecord
from pipeline.reporting.entries import Entry, StudyResult
from pipeline.store import Artifact
from pipeline.study import Method, Study
from pipeline.training.devices import is_main_process
from stages.fuse import fusion_run
from stages.report import write_report
from stages.request import RunRequest
from stages.run import Run
from stages.workspace import Workspace


@dataclass(frozen=True)
class Cell:
    """One run of a study: a method on a target with a seed; ``source`` for sequential tuning."""

    method: Method
    target: str
    seed: int
    source: str | None = None

    @property
    def label(self) -> str:
        return f"{self.method}:{self.source}" if self.source else self.method


def plan(study: Study) -> list[Cell]:
    """Every cell of a study, seed by seed, so that a study stopped half way has whole seeds."""
    cells = []
    for seed in study.seeds:
        for method in study.methods:
            for target in study.targets:
                sources = [t for t in study.targets if t != target] if method == "sequential" else [None]
                cells += [Cell(method, target, seed, source) for source in sources]
    return cells


class Plan:
    """The runs of a study's cells, made when asked for and once: cells share adapters and starting points."""

    def __init__(self, study: Study, workspace: Workspace) -> None:
        self.study, self.workspace = study, workspace
        self._records: dict[tuple[str, str, int, int | None], RunRecord | PipelineError] = {}

    def check(self) -> None:
        """Everything that can be known to be wrong before training: tasks, recipes, data, backbone."""
        for target in (*self.study.targets, *self.study.sources):
            task = self.workspace.task(target)
            for seed in self.study.seeds:
                for limit in {self.study.limit, self._target_limit}:
                    self.workspace.task_data(task, limit, seed)
        for method, target in product(self.study.methods, self.study.targets):
            # Making a run resolves its recipe for the task and the backbone, and trains nothing.
            Run(RunRequest(method, target, self.study.recipe_for(method), self.study.seeds[0]), self.workspace)

    def record(self, cell: Cell) -> RunRecord:
        """The finished run of a cell, trained now if need be."""
        if cell.method == "fusion":
            adapters = [self._adapter(task, cell.seed, own=task == cell.target) for task in self._fused(cell.target)]
            recipe = self.study.recipe_for("fusion")
            run = fusion_run(cell.target, recipe, self.workspace, adapters, seed=cell.seed, limit=self._target_limit)
            return run.get()
        if cell.source is not None:
            start = self._get("full", cell.source, cell.seed, self.study.limit)
            recipe = self.study.recipe_for("sequential")
            # With a new head (Phang et al. 2019): the source's stays behind.
            request = RunRequest("sequential", cell.target, recipe, cell.seed, self._target_limit, start=start)
            return Run(request, self.workspace).get()
        return self._get(cell.method, cell.target, cell.seed, self._target_limit)

    def total_seconds(self, record: RunRecord) -> float:
        """Training time of a run with all it is built on."""
        needed = [self.workspace.ledger.find(source.run) for source in record.sources]
        return record.cost.seconds + sum(source.cost.seconds for source in needed if source is not None)

    @property
    def _target_limit(self) -> int | None:
        return self.study.target_limit or self.study.limit

    def _fused(self, target: str) -> list[str]:
        return sorted({target, *self.study.targets, *self.study.sources})

    def _adapter(self, task: str, seed: int, own: bool) -> Artifact:
        record = self._get("adapter", task, seed, self._target_limit if own else self.study.limit)
        artifact = self.workspace.store.find(record.run)
        assert artifact is not None
        return artifact

    def _get(self, method: Method, task: str, seed: int, limit: int | None) -> RunRecord:
        key = (method, task, seed, limit)
        if key not in self._records:
            try:
                request = RunRequest(method, task, self.study.recipe_for(method), seed, limit)
                self._records[key] = Run(request, self.workspace).get()
            except PipelineError as error:
                self._records[key] = error
        found = self._records[key]
        if isinstance(found, PipelineError):
            raise found
        return found


def compare(study: Study, workspace: Workspace) -> tuple[StudyResult, Path]:
    """Run what the ledger does not have, then write ``<reports>/<study>/``.

    A run that fails leaves a hole with its reason in the tables; the rest goes on.
    """
    # Aliases resolved, and checked again: sts and stsb are one target.
    names = {key: [workspace.task(name).name for name in getattr(study, key)] for key in ("targets", "sources")}
    study = Study.parse(study.model_dump() | names, f"study {study.name}")
    work = Plan(study, workspace)
    work.check()
    cells = plan(study)
    entries = []
    for number, cell in enumerate(cells, start=1):
        try:
            record = work.record(cell)
        except PipelineError as error:
            print(
                f"[{number}/{len(cells)}] {cell.label} {cell.target} seed {cell.seed} failed: {error}", file=sys.stderr
            )
            entries.append(Entry(method=cell.label, target=cell.target, seed=cell.seed, error=str(error)))
            continue
        print(
            f"[{number}/{len(cells)}] {cell.label} {cell.target} seed {cell.seed}: {record.metric} {record.dev:.4f}",
            file=sys.stderr,
        )
        entries.append(
            Entry(
                method=cell.label,
                target=cell.target,
                seed=cell.seed,
                run=record.run,
                total_seconds=work.total_seconds(record),
            )
        )
    result = StudyResult(study=study, backbone=workspace.backbone_name, entries=tuple(entries))
    folder = workspace.reports / study.name
    if is_main_process():
        write_json(folder / "study.json", result.model_dump(mode="json"))
        write_report(result, Ledger(workspace.reports), folder)
    return result, folder
