"""Where and in what precision to compute."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers
from accelerate.utils import parse_flag_from_env

from pipeline.errors import PipelineError
from pipeline.recipe import Precision


def hardware() -> str:
    """One line naming what computes, for provenance."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"CPU, {torch.get_num_threads()} threads"


def process_count() -> int:
    """Processes that train together, as the launcher says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process is the one that writes and prints."""
    return int(os.environ.get("RANK", "0")) == 0


def wait_for_everyone() -> None:
    """Let the processes that train together meet here."""
    # The first to ask decides for good whether they form a group; alone, PartialState does not look at this flag.
    PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU")).wait_for_everyone()


def resolve_precision(precision: Precision) -> Precision:
    """What ``auto`` means here: bf16 where products of matrices are faster in it, measured; else fp32.

    Raises:
        PipelineError: fp16 without a GPU, bf16 on a GPU without it.
    """
    gpu = torch.cuda.is_available()
    if precision == "bf16" and gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise PipelineError("--precision bf16: this GPU has none; use fp16 or fp32")
    if precision == "fp16" and not gpu:
        raise PipelineError("--precision fp16 needs a GPU; use bf16 or fp32 on a CPU")
    if precision != "auto":
        return precision
    return "bf16" if bf16_is_faster("cuda" if gpu else "cpu") else "fp32"


@cache
def bf16_is_faster(device: str) -> bool:
    """Whether a product of matrices of a layer's size takes clearly less time in bf16 than in fp32, measured here.

    Clearly, so that noise cannot decide what a run's recipe is: hardware made for bf16 gains a factor of two or more.
    """
    if device == "cpu" and not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False  # without such instructions it is many times slower, and not worth the wait
    if device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return False
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = (torch.ones(size, device=device, dtype=dtype) for size in ((1024, 768), (768, 768)))
        seconds[dtype] = min(_seconds(left, right) for _ in range(5))
    return seconds[torch.bfloat16] < 0.7 * seconds[torch.float32]


def _seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    """Of ten products, from an idle device to an idle device."""
    if left.is_cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(10):
        left @ right
    if left.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def make_accelerator(precision: Precision, tracker: str | None = None, folder: Path | None = None) -> Accelerator:
    """An Accelerator for one run; ``tracker`` (such as "tensorboard") logs under ``folder``.

    Raises:
        PipelineError: the tracker's package is not installed, or each of several processes would train alone.
    """
    mixed = "no" if precision == "fp32" else precision
    # Accelerate keeps one state a process and refuses a second precision; a study may well hold two.
    if AcceleratorState._shared_state.get("_mixed_precision", mixed) != mixed:
        AcceleratorState._reset_state()
    if tracker is not None and tracker not in map(str, get_available_trackers()):
        # Accelerate would only mention it in its debug log, and track nothing.
        raise PipelineError(f"--track {tracker}: not installed: pip install {tracker}")
    accelerator = Accelerator(mixed_precision=mixed, log_with=tracker, project_dir=folder)
    if accelerator.num_processes != process_count():
        raise PipelineError(
            f"{process_count()} processes were launched, but they do not find each other: on CPUs set"
            " ACCELERATE_USE_CPU=true, or start with accelerate launch --cpu"
        )
    return accelerator
