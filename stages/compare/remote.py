"""A job for another process: pickled with the names of the runs that it builds on; answers with its run's name.

Everything else goes through the ledger and the store.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.records.ledger import RunBusy
from pipeline.records.run_record import RunRecord
from pipeline.runs.workspace import Workspace
from pipeline.system.errors import PipelineError
from stages.compare.jobs import Known
from stages.compare.plan import Job

POLL_SECONDS = 0.5
"""Between two looks at what other processes do."""
_APPEARS_SECONDS = 60.0
"""How long a network file system may take to show what another machine has written."""


class Ended(NamedTuple):
    """What a pool's worker answers: the run of a job, which it has finished, or which another command is training."""

    run: str
    title: str
    is_busy: bool = False


@dataclass(frozen=True)
class RemoteJob:
    """A job for another process, with the names of the runs that it builds on, or why these failed."""

    job: Job
    is_kept: bool
    built_on: Mapping[Job, str | PipelineError]
    workspace: Workspace

    def __call__(self) -> Ended:
        """Train the job, if the ledger still does not have it."""
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
    """The workspace as this process has it, with all that was read for earlier cells; of one study at a time."""
    key = repr(workspace)
    if key not in _opened:
        _opened.clear()
        _opened[key] = workspace
    return _opened[key]


def appeared(run: str, workspace: Workspace, with_model: bool) -> RunRecord:
    """A run that another process has finished, as soon as it can be seen here."""
    end = time.monotonic() + _APPEARS_SECONDS
    while (record := workspace.finished(run, with_model)) is None:
        if time.monotonic() > end:
            raise PipelineError(
                f"run {run} was finished on another machine, but {workspace.ledger.folder(run)} or its artifact in"
                f" {workspace.store_root} is not there: all machines must share --reports and --store"
            )
        time.sleep(POLL_SECONDS)
    return record
