"""Where and in what precision to compute."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers

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


def resolve_precision(precision: Precision) -> Precision:
    """What ``auto`` means here: bf16 on a GPU that has it, else fp32.

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
    return "bf16" if gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def make_accelerator(precision: Precision, tracker: str | None = None, folder: Path | None = None) -> Accelerator:
    """An Accelerator for one run; ``tracker`` (such as "tensorboard") logs under ``folder``.

    Raises:
        PipelineError: the tracker's package is not installed.
    """
    mixed = "no" if precision == "fp32" else precision
    # Accelerate keeps one state a process and refuses a second precision; a study may well hold two.
    if AcceleratorState._shared_state.get("_mixed_precision", mixed) != mixed:
        AcceleratorState._reset_state()
    if tracker is not None and tracker not in map(str, get_available_trackers()):
        # Accelerate would only mention it in its debug log, and track nothing.
        raise PipelineError(f"--track {tracker}: not installed: pip install {tracker}")
    return Accelerator(mixed_precision=mixed, log_with=tracker, project_dir=folder)
