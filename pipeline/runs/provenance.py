"""Where a number comes from: commit, versions, hardware."""

import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.system.version import VERSION
from pipeline.training.devices import hardware, processor
from pipeline.training.process_group import process_count


@cache
def provenance() -> dict[str, Any]:
    """The commit of this code, whether it was changed, versions and hardware, as found by a process's first call."""
    commit, dirty = commit_of(Path(__file__).parent)
    return {
        "pipeline": VERSION,
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "adapters")},
        "platform": platform.platform(),
        "hardware": hardware(process_count()),
        "processor": processor(),
        "processes": process_count(),
    }


def commit_of(folder: Path) -> tuple[str | None, bool | None]:
    """The commit of a folder's files, and whether any tracked file of the repository has changed since.

    Both are None if git tracks none of the folder's files, as in an environment within a checkout.
    """
    if not _git(folder, "ls-files", "."):
        return None, None
    return _git(folder, "rev-parse", "HEAD"), bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
