"""A cell on its machine: in this process, or in several that train it together, one on each GPU.

``python -m stages.compare.executors.launched WORK OUTCOME`` is what ``accelerate launch`` starts in each of the latter.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from pipeline.system import process
from pipeline.system.errors import PipelineError
from stages.compare.executors.pool import Outcome, carried_out

_ENDING_SECONDS = 60.0
"""How long processes may take to end. The launcher kills them itself if they take half as long."""


def carried_out_here(work: bytes, threads: int, processes: int) -> Outcome:
    """Carry out a cell in this process, or in several where there are several GPUs for it.

    Args:
        threads: of torch, all processes together; of a single one the environment's number wins.
    """
    if processes == 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        process.set_up()
        return carried_out(work)
    with tempfile.TemporaryDirectory(prefix="cell-") as folder:
        task, outcome = Path(folder, "work"), Path(folder, "outcome")
        task.write_bytes(work)
        environment = os.environ | {"OMP_NUM_THREADS": str(max(1, threads // processes))}
        with subprocess.Popen(launch_command(processes, task, outcome), env=environment) as launcher:
            status = _ended(launcher)
        if not outcome.exists():
            return Outcome(error=PipelineError(f"accelerate launch ended with status {status}; see its output"))
        ended: Outcome = pickle.loads(outcome.read_bytes())
        return ended


def _ended(launcher: subprocess.Popen[bytes]) -> int:
    """Its exit status. If this process is asked to end, so are those that it launched, and they are waited for."""
    try:
        return launcher.wait()
    except BaseException:
        launcher.terminate()  # which it passes on; killed, it would leave them running
        with suppress(subprocess.TimeoutExpired):
            launcher.wait(_ENDING_SECONDS)
        launcher.kill()
        raise


def launch_command(processes: int, work: Path, outcome: Path) -> list[str]:
    """The command that trains the cell in the file ``work`` with so many processes, each on a GPU of its own."""
    # Every value is given: what accelerate config left on a machine must not decide.
    options = {"num_processes": processes, "num_machines": 1, "mixed_precision": "no", "dynamo_backend": "no"}
    named = [f"--{name}={value}" for name, value in options.items()]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", *named, "--main_process_port=0"]
    return [*launch, "--module", "stages.compare.executors.launched", str(work), str(outcome)]


def main() -> int:
    process.handle_signals()
    process.set_up()
    work, outcome = map(Path, sys.argv[1:])
    try:
        ended = carried_out(work.read_bytes())
    except KeyboardInterrupt as interrupt:
        return process.interrupt_status(interrupt)
    if process.is_main_process():
        outcome.write_bytes(pickle.dumps(ended))
    return 0


if __name__ == "__main__":
    sys.exit(main())
