"""Stage three: train all rows of a study with the same data, seeds and backbone, and write the tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.records.studies import Entry, StudyResult
from pipeline.runs.workspace import Workspace
from pipeline.settings.study import Study
from pipeline.system.atomic import locked, make_folder, write_json
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process, process_count
from pipeline.system.streams import notice
from stages.compare.check import checked, shared_texts
from stages.compare.cross_task import runs_to_read, score_across, unread
from stages.compare.executors.pool import Executor
from stages.compare.jobs import Jobs
from stages.compare.plan import Job, in_order, jobs_of, plan
from stages.compare.progress import Duration, Estimate, Progress
from stages.compare.train import train
from stages.report import write_report


class PlannedRow(NamedTuple):
    """The runs of a row; runs shared with a row above count there."""

    title: str
    runs: int
    done: int
    left: Duration


@dataclass(frozen=True)
class DryRun:
    """What ``compare`` would do."""

    study: Study
    rows: tuple[PlannedRow, ...]
    total: PlannedRow
    learned_from: int
    """Finished runs on the study's backbones, from which the time is estimated."""

    def summary(self) -> dict[str, Any]:
        """For ``--json``; ``seconds`` is None if the time of some run cannot be estimated."""
        _, runs, done, left = self.total
        seconds = None if left.unknown else round(left.seconds, 1)
        return {"study": self.study.name, "runs": runs, "done": done, "to_do": runs - done, "seconds": seconds}


def dry_run(study: Study, workspace: Workspace) -> DryRun:
    """Check a study as :func:`compare` does, and count its runs without training."""
    study, _, jobs = _prepare(study, workspace)
    estimate = Estimate(jobs.workspace, jobs.jobs)
    missing, runs = set(jobs.to_train), [job for job in jobs.jobs if not job.is_choice]

    def planned(title: str, own: Sequence[Job]) -> PlannedRow:
        left = [job for job in own if job in missing]
        return PlannedRow(title, len(own), len(own) - len(left), estimate.total(left))

    rows = dict.fromkeys(job.row for job in runs)
    each = tuple(planned(study.title(row), [job for job in runs if job.row == row]) for row in rows)
    return DryRun(study, each, planned("all", runs), estimate.learned_from(runs))


def compare(
    study: Study, workspace: Workspace, *, keep_weights: bool = False, executor: Executor | None = None
) -> tuple[StudyResult, Path]:
    """Train the runs that the ledger lacks, then write ``<reports>/<study>/``.

    A failed run leaves a gap with its reason in the tables; the others go on. Commands that compare the same study at
    the same time share its runs.

    Args:
        keep_weights: keep the models of all rows, as ``keep_weights = true`` does for one.
        executor: where to train; None: in this process, one run after the other.

    Raises:
        PipelineError: a mistake that :func:`stages.compare.check.checked` finds; nothing is trained.
    """
    if executor is not None and process_count() > 1:
        raise PipelineError("--jobs and --executor start processes themselves: leave accelerate launch out")
    study, wanted, jobs = _prepare(study, workspace, keep_weights)
    progress = Progress(jobs, Estimate(jobs.workspace, jobs.jobs))
    progress.begin(study.name)
    for _ in range(2):  # a second time for runs on models that were trained again with another result
        if not jobs.missing:
            break
        if executor is None:
            train(jobs, progress)
        else:
            with executor() as pool:
                train(jobs, progress, pool)
        jobs.look_again()
    entries = tuple(_entry(cell, job, jobs) for cell, job in wanted.items())
    shared = tuple(shared_texts(study, wanted, workspace))
    result = StudyResult(study=study, backbone=workspace.backbone_name, entries=entries, shared_text=shared)
    if study.cross_task:
        for backbone, finished in runs_to_read(wanted, jobs).items():
            score_across(finished, study.targets, jobs.workspace.on(backbone))
    folder = workspace.reports / study.name
    if is_main_process():
        with locked(make_folder(folder) / ".lock"):
            write_json(folder / "study.json", result.model_dump(mode="json"))
            write_report(result, jobs.workspace.ledger, folder)
    return result, folder


def _prepare(study: Study, workspace: Workspace, keep_weights: bool = False) -> tuple[Study, dict[Entry, Job], Jobs]:
    dev_limit = study.dev_limit or workspace.dev_limit
    workspace = replace(workspace, held_out=study.targets, is_study=True, dev_limit=dev_limit, scoring=study.scoring)
    study, sizes = checked(study, workspace)
    wanted = jobs_of(study, plan(study, sizes))
    for sentence in (*shared_texts(study, wanted, workspace), study.unequal_trials):
        if sentence:
            notice(f"note: {sentence}")
    keeping = {name for name in study.methods if keep_weights or study.row(name).keep_weights}
    kept = {job for cell, job in wanted.items() if cell.line.row in keeping}
    # Their models are kept until they have been scored on other tasks.
    read = {job for cell, job in wanted.items() if study.cross_task and job.kind == "full" and cell.rows is None}
    jobs = Jobs(in_order(wanted.values()), workspace, kept, read)
    if read:
        jobs.want(unread(read, wanted, study.targets, jobs))
    return study, wanted, jobs


def _entry(cell: Entry, job: Job, jobs: Jobs) -> Entry:
    try:
        run, seconds = jobs.get(job).run, jobs.seconds(job)
    except PipelineError as error:
        return cell.model_copy(update={"error": str(error)})
    trials, of_sources = (
        tuple(dict.fromkeys(record.run for record in records))
        for records in (jobs.trials(job), jobs.source_trials(job))
    )
    found = {"run": run, "total_seconds": seconds, "trials": trials, "source_trials": of_sources}
    return cell.model_copy(update=found)
