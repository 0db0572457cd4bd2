"""The executors by name. What only one of them needs is imported when that one is chosen."""

import os
import sys
from functools import partial
from pathlib import Path

from pipeline.settings.study import ExecutorName, Resources
from pipeline.system.errors import PipelineError
from stages.compare.executors.pool import Executor
from stages.compare.executors.processes import check_jobs, processes


def executor_of(
    name: ExecutorName, jobs: int | None, address: str | None, resources: Resources, reports: Path
) -> Executor | None:
    """The executor called ``name``; None: this process is enough.

    Raises:
        PipelineError: the options do not fit each other, or the executor's extra is not installed.
    """
    if address is not None and name != "ray":
        raise PipelineError(f"--address {address}: only --executor ray connects to a cluster")
    if jobs is not None:
        check_jobs(jobs)
    if name == "local":
        return None if jobs in (None, 1) else partial(processes, jobs, resources.retries)
    module, extra = {"ray": ("ray", "ray"), "slurm": ("submitit", "slurm")}[name]
    try:
        if name == "ray":
            # Read when it is imported: every line of a cell is wanted, in colour only on a terminal; no reports home.
            quiet = {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
            colour = {} if sys.stderr.isatty() else {"RAY_COLOR_PREFIX": "0"}
            os.environ.update({key: value for key, value in (quiet | colour).items() if key not in os.environ})
            from stages.compare.executors.on_ray import ray_cluster

            return partial(ray_cluster, resources, address, jobs)
        from stages.compare.executors.on_slurm import slurm_jobs, slurm_parameters

        slurm_parameters(resources)  # refuses what cannot be before anything is read
        return partial(slurm_jobs, resources, reports, jobs)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        install = f"pip install 'adapter-fusion-pipeline[{extra}]'"
        raise PipelineError(f"--executor {name}: {module} is not installed: {install}") from None
