"""What made a number: commit, versions, hardware."""

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
    """The commit of this code and whether it was changed, versions, hardware."""
    here = Path(__file__).parent
    commit = _git(here, "rev-parse", "HEAD")
    return {
        "pipeline": VERSION,
        "commit": commit,
        "dirty": bool(_git(here, "status", "--porcelain")) if commit else None,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "adapters")},
        "platform": platform.platform(),
        "hardware": hardware(process_count()),
        "processor": processor(),
        "processes": process_count(),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
