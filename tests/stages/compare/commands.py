"""The real ``compare`` as a process of its own, to be killed, interrupted, or to lose what works for it."""

import os
import subprocess
import sys
import time
from pathlib import Path

from pipeline.runs.workspace import Workspace
from tests.forked import Forked

_ROOT = Path(__file__).parents[3]


def arguments(study: Path, workspace: Workspace, folder: Path, *more: str) -> list[str]:
    """``compare`` of the study in a file, with a store and reports of its own in ``folder``."""
    return [
        "compare", f"--study={study}", f"--backbone={workspace.backbone_name}", f"--data={workspace.data}",
        f"--store={folder / 'store'}", f"--reports={folder / 'reports'}", *more,
    ]  # fmt: skip


def start(*arguments: str) -> subprocess.Popen[str]:
    """The command with one thread: the last bits of a result depend on how many there are."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments],
        cwd=_ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def wait_for_a_checkpoint(process: subprocess.Popen[str] | Forked, folder: Path) -> None:
    """Return when an unfinished run has a checkpoint, or the process has ended."""
    while process.poll() is None and not list(folder.glob("reports/runs/*/checkpoint/state.safetensors")):
        time.sleep(0.005)
