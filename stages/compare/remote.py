"""A job for this or another process: it has the names of the runs that it builds on, and returns its run's name.

Everything else goes through the ledger and the store.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pipeline.records.ledger import RunBusy
from pipeline.records.run_record import RunRecord
from pipeline.runs.workspace import Workspace
from pipeline.system.errors import PipelineError
from stages.compare.jobs import Known
from stages.compare.plan import Job

POLL_SECONDS = 0.5
"""Seconds between two checks of other processes."""
_APPEARS_SECONDS = 60.0
"""How long a network file system may take to show another machine's files."""


class Ended(NamedTuple):
    """The answer of a pool's worker: the run of a job, finished, or in training by another command."""

    run: str
    title: str
    is_busy: bool = False


@dataclass(frozen=True)
class RemoteJob:
    """A job with the names of the runs that it builds on, or their errors."""

    job: Job
    is_kept: bool
    built_on: Mapping[Job, str | PipelineError]
    workspace: Workspace

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"workspace": replace(self.workspace)}  # without what this process has read

    def __call__(self) -> Ended:
        """Train the job, unless the ledger has it by now."""
        known = Known(_reopened(self.workspace), {self.job} if self.is_kept else set())
        for job, outcome in self.built_on.items():
            known.outcomes[job] = (
                outcome
                if isinstance(outcome, PipelineError)
                else appeared(outcome, known.workspace.on(job.backbone), job in self.job.takes_models_of)
            )
        run = known.run(self.job)
        try:
            return Ended(run.get().run, run.title)
        except RunBusy:
            return Ended(run.name, run.title, is_busy=True)


_opened: dict[str, Workspace] = {}


def _reopened(workspace: Workspace) -> Workspace:
    """This process's copy of the workspace, with all that it read for earlier cells; one study at a time."""
    key = repr(workspace)
    if key not in _opened:
        _opened.clear()
        _opened[key] = workspace
    return _opened[key]


def appeared(run: str, workspace: Workspace, with_model: bool) -> RunRecord:
    """Wait until this machine sees a run that another process has finished; return its record."""
    end = time.monotonic() + _APPEARS_SECONDS
    while (record := workspace.finished(run, with_model)) is None:
        if time.monotonic() > end:
            raise PipelineError(
                f"run {run} was finished on another machine, but {workspace.ledger.folder(run)} or its artifact in"
                f" {workspace.store_root} is not there: all machines must share --reports and --store"
            )
        time.sleep(POLL_SECONDS)
    return record
