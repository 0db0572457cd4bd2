"""What a run costs in memory: the peak of the process or of the GPU since the run began."""

from __future__ import annotations

import gc
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

from pipeline.training.devices import on_gpu

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def reset_peak_memory() -> None:
    """Start measuring anew, so that in a study a small run after a big one does not inherit its peak."""
    gc.collect()  # a model of an earlier run may hang in a cycle of references
    if on_gpu():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        _CLEAR.write_text("5")  # Linux: sets the high-water mark VmHWM to what is resident now


def peak_memory_mb() -> float:
    """Peak in MB (2^20 bytes): of the GPU's allocated memory if one is used, else of the process's resident memory."""
    if on_gpu():
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    try:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return round(int(line.split()[1]) / 1024, 1)
    except (OSError, StopIteration):
        # Elsewhere only the peak since the process began is known.
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)
