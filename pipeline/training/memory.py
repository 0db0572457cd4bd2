"""Available memory, a run's peak memory, and an early check that training fits in memory."""

import gc
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import torch
from torch import nn

from pipeline.system.errors import PipelineError
from pipeline.training.devices import on_gpu
from pipeline.training.process_group import process_count
from pipeline.training.sharding import is_sharded

SMALLER_STEPS = "give --gradient-accumulation-steps 2, a smaller --batch-size or a smaller --max-length"
"""The remedy when training fills the memory."""

_CONTAINER = Path("/sys/fs/cgroup")
"""Where Linux reports a container's memory (cgroup v2)."""


@contextmanager
def full_memory_explained(what: str, remedy: str) -> Iterator[None]:
    """Turn a GPU's out-of-memory error into a :class:`PipelineError` that names ``what`` failed and the ``remedy``."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise PipelineError(f"{what}: the GPU's memory is full: {remedy}") from error


def reset_peak_memory() -> None:
    """Reset the peak, so that a small run after a big one does not inherit it."""
    gc.collect()  # reference cycles may keep an earlier run's model alive
    if on_gpu():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: sets the high-water mark VmHWM to what is resident now


def peak_memory_mb() -> float:
    """Peak memory in MB (2^20 bytes): allocated on the GPU if one is used, else resident in this process."""
    if on_gpu():
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    # Without /proc only the peak since the process began is known.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)


def check_memory(model: nn.Module, title: str, held: int = 0) -> None:
    """Fail early if weights, gradients and Adam's two moments do not fit in memory. Activations come on top.

    Args:
        model: already loaded, in the machine's own memory.
        held: further bytes that each step holds.
    """
    weights = sum(parameter.nbytes for parameter in model.parameters())
    trained = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    shares = process_count() if is_sharded() else 1
    parts = {
        "weights": weights + (weights // shares if is_sharded() else 0),
        "gradients": trained // shares + held,
        "Adam's moments": 2 * trained // shares,
    }
    needed, available = sum(parts.values()), free_bytes()
    if not on_gpu():
        available += weights
    if needed > available:
        listed = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in parts.items() if size)
        raise PipelineError(
            f"{title}: training needs at least {needed / 2**30:.1f} GiB ({listed}), but only"
            f" {available / 2**30:.1f} are free: train fewer tasks together, less of the model (trainable = 'adapter'),"
            " without gradient surgery, or a smaller backbone"
        )


def free_bytes() -> int:
    """Free memory where training holds its model: of the GPU if one is used, else of the machine."""
    if on_gpu():
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free_host_bytes()


def host_gb_for_each(processes: int) -> float:
    """GiB of free main memory per process, for this many ``processes`` on this machine."""
    return free_host_bytes() / 2**30 / processes


def free_host_bytes() -> int:
    """Free memory of the machine, or of the container if that is less."""
    gc.collect()  # reference cycles may keep an earlier run's model alive
    available: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # "max" is no bound
        available = min(available, int((_CONTAINER / "memory.max").read_text()) - _held_by_container())
    return available


def _held_by_container() -> int:
    """Bytes that the container's processes hold, without cached files that the kernel can reclaim."""
    cached = re.search(r"^inactive_file (\d+)$", (_CONTAINER / "memory.stat").read_text(), re.MULTILINE)
    return int((_CONTAINER / "memory.current").read_text()) - (int(cached[1]) if cached else 0)
