"""The memory that a run needs at least, and its peak so far."""

import gc
import resource
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from torch import nn

from pipeline.system.errors import PipelineError
from pipeline.system.process import give_back_memory
from pipeline.training.devices import on_gpu

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def reset_peak_memory() -> None:
    """Reset the peak, so that a small run after a big one does not inherit it."""
    _free()
    if on_gpu():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        _CLEAR.write_text("5")  # Linux: sets the high-water mark VmHWM to what is resident now


def peak_memory_mb() -> float:
    """Peak in MB (2^20 bytes): of the GPU's allocated memory if one is used, else of the process's resident memory."""
    if on_gpu():
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    # Without /proc only the peak since the process began is known.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)


def check_memory(model: nn.Module, title: str, held: int = 0) -> None:
    """Fail early if the model's state does not fit in memory: weights, gradients and Adam's two moments.

    Activations come on top.

    Args:
        model: already loaded, in the machine's own memory.
        held: further bytes that each step holds.

    Raises:
        PipelineError: with the estimate.
    """
    weights = sum(parameter.nbytes for parameter in model.parameters())
    trained = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    needed, available = weights + 3 * trained + held, available_bytes()
    if not on_gpu():
        available += weights
    if needed > available:
        parts = {"weights": weights, "gradients": trained + held, "Adam's moments": 2 * trained}
        listed = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in parts.items() if size)
        raise PipelineError(
            f"{title}: training needs at least {needed / 2**30:.1f} GiB ({listed}), but there are"
            f" {available / 2**30:.1f}: train fewer tasks together, less of the model (trainable = 'adapter'), without"
            " gradient surgery, or a smaller backbone"
        )


def available_bytes() -> int:
    """Free memory: of the GPU if one is used, else of the machine, within the container's limit."""
    if on_gpu():
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    _free()
    available: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # "max" is no bound
        available = min(available, int(_CONTAINER.read_text()))
    return available


def _free() -> None:
    gc.collect()  # a model of an earlier run may hang in a cycle of references
    give_back_memory()
