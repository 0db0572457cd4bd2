"""Stage three: every row of a study on the same rows of data, seeds and backbone, and the tables that compare them."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.reporting.entries import Entry, StudyResult
from pipeline.runs.workspace import Workspace
from pipeline.settings.study import Study
from pipeline.system.atomic import make_folder, write_json
from pipeline.system.errors import PipelineError
from pipeline.system.locks import locked
from pipeline.training.devices import is_main_process
from stages.compare.check import checked
from stages.compare.cross_task import score_across
from stages.compare.estimate import Duration, Estimate
from stages.compare.jobs import Jobs
from stages.compare.plan import Cell, Job, in_order, jobs_of, plan
from stages.report import write_report


@dataclass(frozen=True)
class PlannedRow:
    """The runs that a row asks for first; what it shares with a row above is counted there."""

    title: str
    runs: int
    done: int
    left: Duration


@dataclass(frozen=True)
class DryRun:
    """What ``compare`` would do."""

    study: Study
    rows: tuple[PlannedRow, ...]
    left: Duration
    learned_from: int
    """Finished runs on this backbone, from which the time is estimated."""

    def text(self) -> str:
        """A table of the rows, and how the time was estimated."""
        table = [("", "runs", "done", "to do", "time")]
        table += [(row.title, str(row.runs), str(row.done), *_left(row.runs - row.done, row.left)) for row in self.rows]
        runs, done = sum(row.runs for row in self.rows), sum(row.done for row in self.rows)
        table.append(("all", str(runs), str(done), *_left(runs - done, self.left)))
        width = max(len(line[0]) for line in table)
        lines = [f"study {self.study.name}: targets {', '.join(self.study.targets)}"]
        lines += [f"  {first:<{width}}" + "".join(f"  {cell:>6}" for cell in rest) for first, *rest in table]
        if runs > done:
            lines.append(
                f"time: from {self.learned_from} finished runs with this backbone; unknown where there are none"
            )
        return "\n".join(lines)

    def summary(self) -> dict[str, Any]:
        """The same for ``--json``; ``seconds`` is None where the time of some run cannot be told."""
        runs, done = sum(row.runs for row in self.rows), sum(row.done for row in self.rows)
        seconds = None if self.left.unknown else round(self.left.seconds, 1)
        return {"study": self.study.name, "runs": runs, "done": done, "to_do": runs - done, "seconds": seconds}


def _left(runs: int, time: Duration) -> tuple[str, str]:
    return str(runs), str(time) if runs else "-"


def dry_run(study: Study, workspace: Workspace) -> DryRun:
    """Check a study, and count its runs without training any.

    Raises:
        PipelineError: what :func:`compare` would refuse.
    """
    study, _, jobs = _prepare(study, workspace)
    missing = set(jobs.missing)
    rows = []
    for row in dict.fromkeys(job.row for job in jobs.jobs):
        own = [job for job in jobs.jobs if job.row == row]
        left = [job for job in own if job in missing]
        rows.append(PlannedRow(study.title(row), len(own), len(own) - len(left), jobs.estimate.total(left)))
    return DryRun(study, tuple(rows), jobs.estimate.total(jobs.missing), jobs.estimate.known)


def compare(study: Study, workspace: Workspace) -> tuple[StudyResult, Path]:
    """Run what the ledger does not have, then write ``<reports>/<study>/``.

    A run that fails leaves a hole with its reason in the tables; the rest goes on. Commands that compare the same study
    at the same time share its runs.

    Raises:
        PipelineError: something that can be known to be wrong before training; nothing is trained then.
    """
    study, wanted, jobs = _prepare(study, workspace)
    if is_main_process():
        missing = jobs.missing
        done = len(jobs.jobs) - len(missing)
        time = f", {jobs.estimate.total(missing)}" if missing else ""
        print(f"study {study.name}: {done} of {len(jobs.jobs)} runs done{time}", file=sys.stderr, flush=True)
    jobs.train()
    entries, by_backbone = [], dict[str | None, list[str]]()
    for cell, job in wanted.items():
        place = {"method": cell.label, "target": cell.target, "seed": cell.seed, "rows": cell.rows}
        try:
            record = jobs.get(job)
        except PipelineError as error:
            entries.append(Entry(**place, error=str(error)))
            continue
        entries.append(Entry(**place, run=record.run, total_seconds=jobs.seconds(job)))
        if cell.rows is None:
            by_backbone.setdefault(job.backbone, []).append(record.run)
    result = StudyResult(study=study, backbone=workspace.backbone_name, entries=tuple(entries))
    for backbone, finished in by_backbone.items() if study.cross_task else ():
        score_across(finished, study.targets, jobs.workspace.on(backbone))
    folder = workspace.reports / study.name
    if is_main_process():
        with locked(make_folder(folder) / ".lock"):
            write_json(folder / "study.json", result.model_dump(mode="json"))
            write_report(result, jobs.workspace.ledger, folder)
    return result, folder


def _prepare(study: Study, workspace: Workspace) -> tuple[Study, dict[Cell, Job], Jobs]:
    workspace = replace(workspace, held_out=study.targets)
    if study.dev_limit is not None:
        workspace = replace(workspace, dev_limit=study.dev_limit)
    study, sizes = checked(study, workspace)
    wanted = jobs_of(study, plan(study, sizes))
    keeping = {name for name in study.methods if study.row(name).keep_weights}
    kept = {job for cell, job in wanted.items() if cell.row in keeping}
    return study, wanted, Jobs(in_order(wanted.values()), workspace, Estimate(workspace), kept)
