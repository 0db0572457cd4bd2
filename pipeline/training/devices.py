"""The device and the precision to compute in."""

import os
import platform
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from accelerate.utils import parse_flag_from_env

from pipeline.settings.recipe import Precision
from pipeline.system.errors import PipelineError
from pipeline.training.process_group import process_count, process_group
from pipeline.training.sharding import set_up_sharding
from pipeline.training.tracking import check_tracker

_BF16 = {"avx512_bf16", "amx_bf16"}
"""Linux's names for the bf16 instructions of x86 processors."""

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype of autocast by precision; with fp32 there is no autocast."""


@dataclass(frozen=True)
class OneDevice:
    """One device of the calling program, with what prediction needs of an Accelerator but without its global state."""

    device: torch.device
    dtype: torch.dtype | None
    num_processes: int = 1
    process_index: int = 0

    def autocast(self) -> AbstractContextManager[object]:
        return nullcontext() if self.dtype is None else torch.autocast(self.device.type, dtype=self.dtype)


def on_gpu() -> bool:
    """Whether to compute on NVIDIA's GPUs: there is one, and ``ACCELERATE_USE_CPU`` does not forbid it.

    Accelerate trains and predicts on a Mac's GPU (MPS); :func:`pipeline.load` and the server use the CPU there.
    """
    return torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU")


def hardware(gpus: int) -> str:
    """The hardware that trains, in one line: ``gpus`` GPUs or a Mac's if they are used, else the CPU."""
    if on_gpu():
        return f"{gpus} x {torch.cuda.get_device_name(0)}"
    if torch.backends.mps.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU"):
        return "Apple GPU (MPS)"
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}"


@cache
def processor() -> str:
    """The CPU's name, if the system reports it."""
    return _cpu_info("model name") or platform.processor() or platform.machine() or "unknown"


@cache
def _cpu_info(key: str) -> str:
    """The value of ``key`` for the first core in Linux's /proc/cpuinfo; empty if there is none."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""


def resolve_precision(precision: Precision, device: str | None = None) -> Precision:
    """Resolve ``precision`` for ``device``, by default the training device; ``auto`` is bf16 where it is fast.

    Raises:
        PipelineError: the hardware does not support it.
    """
    if device is None:
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpu() else "cpu"
    gpu = device.startswith("cuda")
    if precision == "bf16" and gpu and not has_bf16(device):
        raise PipelineError("--precision bf16: this GPU does not support it; use fp16 or fp32")
    if precision == "fp16" and not gpu:
        raise PipelineError("--precision fp16 needs a GPU; use bf16 or fp32 on a CPU")
    if precision != "auto":
        return precision
    if not gpu and process_count() > 1:
        return "fp32"  # processes may run on different kinds of machines, and must agree
    return "bf16" if has_bf16(device) else "fp32"


@cache
def has_bf16(device: str) -> bool:
    """Whether ``device`` has bf16 instructions, with which matrix products take about half the time of fp32.

    Looked up, not measured: a busy machine can mislead a measurement, and the precision is part of a run's name.
    """
    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    known = _BF16.intersection(_cpu_info("flags").split())
    return bool(known) and torch.backends.cpu.get_cpu_capability().startswith("AVX512")  # users can turn it off


def make_accelerator(
    precision: Precision, tracker: str | None = None, folder: Path | None = None, *, resting: bool = False
) -> Accelerator:
    """An Accelerator for one run; ``tracker`` (such as "tensorboard", which must be installed) logs under ``folder``.

    With ``resting``, a step may leave parameters without gradients, so DDP searches for those at every step.
    """
    mixed = "no" if precision == "fp32" else precision
    # Accelerate keeps one state per process and refuses a second precision, but a study may hold two.
    if AcceleratorState._shared_state.get("_mixed_precision", mixed) != mixed:
        AcceleratorState._reset_state()
    check_tracker(tracker)
    handlers = [DistributedDataParallelKwargs(find_unused_parameters=True)] if resting else []
    process_group()
    accelerator = Accelerator(mixed_precision=mixed, log_with=tracker, project_dir=folder, kwargs_handlers=handlers)
    if accelerator.num_processes != process_count():
        raise PipelineError(
            f"{process_count()} processes were launched, but they cannot find each other: on CPUs set"
            " ACCELERATE_USE_CPU=true"
        )
    set_up_sharding(accelerator)
    return accelerator
