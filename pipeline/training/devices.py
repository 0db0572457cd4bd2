"""Where and in what precision to compute, and with how much memory."""

import atexit
import gc
import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed
from accelerate import Accelerator, DistributedDataParallelKwargs, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list, gather_object, parse_flag_from_env
from torch import nn

from pipeline.settings.recipe import Precision
from pipeline.system.errors import PipelineError
from pipeline.system.process import give_back_memory, is_main_process
from pipeline.training.sharding import is_sharded, load_whole, set_up_sharding
from pipeline.training.tracking import check_tracker

T = TypeVar("T")

_BF16 = {"avx512_bf16", "amx_bf16"}
"""Instructions for bf16 of x86 processors, as Linux names them."""
_CONTAINER = Path("/sys/fs/cgroup")
"""Where Linux says what memory a container has (cgroup v2)."""


@dataclass(frozen=True)
class OneDevice:
    """One device, in the calling program's own process: what an Accelerator is to predictions, without its state."""

    device: torch.device
    dtype: torch.dtype | None
    num_processes: int = 1
    process_index: int = 0

    def autocast(self) -> AbstractContextManager[object]:
        return nullcontext() if self.dtype is None else torch.autocast(self.device.type, dtype=self.dtype)


def on_gpu() -> bool:
    """Whether to compute on a GPU: there is one, and ``ACCELERATE_USE_CPU`` does not forbid it."""
    return torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU")


def hardware() -> str:
    """One line naming what computes, for provenance."""
    if on_gpu():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}"


@cache
def processor() -> str:
    """The CPU's name where the system tells it."""
    return _cpu_info("model name") or platform.processor() or platform.machine() or "unknown"


@cache
def _cpu_info(key: str) -> str:
    """What Linux says of the first core under ``key``; empty where it says nothing."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""


def process_count() -> int:
    """How many processes train together, according to the launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for_everyone() -> None:
    """Wait until every process that trains with this one is here."""
    _group().wait_for_everyone()


def on_main_process(action: Callable[[], T]) -> T:
    """Run ``action`` in the main process and broadcast its result, or its :class:`PipelineError`, to all processes.

    Files change while processes read them. If each read for itself, they could diverge and wait for each other forever.
    """
    if process_count() == 1:
        return action()
    _group()
    outcome: list[Any] = [None]
    if is_main_process():
        try:
            outcome = [action()]
        except PipelineError as error:
            outcome = [error]
    (result,) = broadcast_object_list(outcome)
    if isinstance(result, PipelineError):
        raise result
    return result


def in_any_process(accelerator: Accelerator, flag: bool) -> bool:
    """Whether one of the processes raises ``flag``; all of them ask together and get the same answer."""
    if accelerator.num_processes == 1:
        return flag
    raised: torch.Tensor = accelerator.reduce(torch.tensor(float(flag), device=accelerator.device), "sum")
    return bool(raised.item() > 0)


def same_in_all_processes(accelerator: Accelerator, value: object) -> bool:
    """Whether all processes hold an equal value; all of them ask together and get the same answer."""
    if accelerator.num_processes == 1:
        return True
    values = gather_object([value])
    return all(each == value for each in values)


def _group() -> PartialState:
    # The first call decides for good whether the processes form a group; PartialState itself does not read this flag.
    load_whole()
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
    _leave_at_exit()
    return state


@cache
def _leave_at_exit() -> None:
    """Gloo's threads must end before the interpreter does: one that still runs then can abort a finished process."""
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        atexit.register(torch.distributed.destroy_process_group)


@contextmanager
def full_memory_explained(what: str, remedy: str) -> Iterator[None]:
    """Turn a GPU out of memory into a :class:`PipelineError` that names ``what`` was done and the ``remedy``."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise PipelineError(f"{what}: the GPU's memory is full: {remedy}") from error


def resolve_precision(precision: Precision, device: str | None = None) -> Precision:
    """What ``precision`` means on ``device``, by default the one that trains; ``auto`` is bf16 where it is fast.

    Raises:
        PipelineError: the hardware has no such precision.
    """
    if device is None:
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpu() else "cpu"
    gpu = device.startswith("cuda")
    if precision == "bf16" and gpu and not has_bf16(device):
        raise PipelineError("--precision bf16: this GPU has none; use fp16 or fp32")
    if precision == "fp16" and not gpu:
        raise PipelineError("--precision fp16 needs a GPU; use bf16 or fp32 on a CPU")
    if precision != "auto":
        return precision
    if not gpu and process_count() > 1:
        return "fp32"  # they may be on machines of several kinds, and must agree
    return "bf16" if has_bf16(device) else "fp32"


@cache
def has_bf16(device: str) -> bool:
    """Whether ``device`` has instructions for bf16, with which matrix products take about half the time of fp32.

    Not measured: on a busy machine a measurement can go either way, and the precision is part of a run's name.
    """
    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    known = _BF16.intersection(_cpu_info("flags").split())
    return bool(known) and torch.backends.cpu.get_cpu_capability().startswith("AVX512")  # which one may turn off


def make_accelerator(
    precision: Precision, tracker: str | None = None, folder: Path | None = None, *, resting: bool = False
) -> Accelerator:
    """An Accelerator for one run; ``tracker`` (such as "tensorboard", which must be installed) logs under ``folder``.

    With ``resting``, a step may leave parameters without gradients, so processes look for those at every step.
    """
    mixed = "no" if precision == "fp32" else precision
    # Accelerate keeps one state per process and refuses a second precision, but a study may hold two.
    if AcceleratorState._shared_state.get("_mixed_precision", mixed) != mixed:
        AcceleratorState._reset_state()
    check_tracker(tracker)
    handlers = [DistributedDataParallelKwargs(find_unused_parameters=True)] if resting else []
    _group()
    accelerator = Accelerator(mixed_precision=mixed, log_with=tracker, project_dir=folder, kwargs_handlers=handlers)
    if accelerator.num_processes != process_count():
        raise PipelineError(
            f"{process_count()} processes were launched, but they do not find each other: on CPUs set"
            " ACCELERATE_USE_CPU=true"
        )
    set_up_sharding(accelerator)
    return accelerator


def reset_peak_memory() -> None:
    """Reset the peak, so that a small run after a big one does not inherit it."""
    _free()
    if on_gpu():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: sets the high-water mark VmHWM to what is resident now


def peak_memory_mb() -> float:
    """Peak in MB (2^20 bytes): of the GPU's allocated memory if one is used, else of the process's resident memory."""
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
    needed, available = sum(parts.values()), available_bytes()
    if not on_gpu():
        available += weights
    if needed > available:
        listed = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in parts.items() if size)
        raise PipelineError(
            f"{title}: training needs at least {needed / 2**30:.1f} GiB ({listed}), but there are"
            f" {available / 2**30:.1f}: train fewer tasks together, less of the model (trainable = 'adapter'), without"
            " gradient surgery, or a smaller backbone"
        )


def available_bytes() -> int:
    """Free memory: of the GPU if one is used, else of the machine, or what the container's limit leaves."""
    if on_gpu():
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    _free()
    available: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # "max" is no bound
        available = min(available, int((_CONTAINER / "memory.max").read_text()) - _held_by_container())
    return available


def _held_by_container() -> int:
    """Bytes that its processes hold, without cached files that the kernel gives up where it needs room."""
    cached = re.search(r"^inactive_file (\d+)$", (_CONTAINER / "memory.stat").read_text(), re.MULTILINE)
    return int((_CONTAINER / "memory.current").read_text()) - (int(cached[1]) if cached else 0)


def _free() -> None:
    gc.collect()  # a model of an earlier run may hang in a cycle of references
    give_back_memory()
