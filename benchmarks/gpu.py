"""On a GPU: how well training uses its matrix units, and how long an epoch over Quora takes; BERT-base, bf16."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from pipeline.data.tokens import TokenisedSplit
from pipeline.runs.training_run import TrainingRun

from .backbones import BERT_BASE, NANO, backbone_folder
from .flops import flop_of
from .ours import make_run, train_epoch
from .report import Report
from .rows import generated_split, real_lengths
from .setting import Setting
from .timing import Row, Sample, interleave, milliseconds

if TYPE_CHECKING:
    from pipeline.settings.kinds import Method

EPOCH_ROWS = 283_010
"""Training pairs in Xu's (2024) split of Quora Question Pairs."""
_KINDS: tuple[Method, ...] = ("full", "adapter", "fusion")


def run(setting: Setting) -> Report:
    if not torch.cuda.is_available():
        return Report(("No GPU here: not measured.",))
    ceiling = matmul_flops(256 if setting.quick else 8192, setting.repeats)
    batches, share = (2, 0.0002) if setting.quick else (30, 0.03)
    sizes = (4, 8) if setting.quick else (32, 256)
    fixed = [row for size in sizes for row in _rows(setting, _fixed(size, batches), size, ceiling)]
    pairs = generated_split(real_lengths("quora", round(share * EPOCH_ROWS)), 2)
    epoch = _rows(setting, pairs, sizes[0], ceiling, whole_epoch=True)
    return Report(
        (
            f"{'Nano' if setting.quick else 'BERT-base'} shape, random weights, bf16 autocast, through the training"
            f" loop; adapters of bottleneck {setting.bottleneck}, fusion of four. FLOP that ran, as PyTorch"
            f" counts them; ceiling: {ceiling.median / 1e12:.0f} TFLOP/s in a bf16 product of large square matrices.",
            f"First table: {batches} steps on inputs of 128 tokens. Second: generated pairs of Quora's lengths, one"
            f" input per pair; {share:.2%} of an epoch of {EPOCH_ROWS:,} pairs ran, from which the epoch's time is"
            " extrapolated.",
            "Medians (lowest to highest) of rounds in which the methods ran in turn.",
        ),
        (fixed, epoch),
    )


def matmul_flops(size: int, repeats: int) -> Sample:
    """FLOP/s of ``size`` x ``size`` products in bf16: the most that a program can reach."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    many = 50

    def products() -> None:
        for _ in range(many):
            torch.mm(a, b)

    (taken,) = interleave({"products": milliseconds(products)}, repeats).values()
    return Sample(tuple(many * 2 * size**3 / (value / 1000) for value in taken.values))


def _rows(
    setting: Setting, split: TokenisedSplit, batch_size: int, ceiling: Sample, whole_epoch: bool = False
) -> list[Row]:
    folder = backbone_folder(setting, NANO if setting.quick else BERT_BASE)
    runs = {
        kind: make_run(
            setting,
            kind,
            folder,
            task="quora",
            **({"adapters": 4, "fusion": "standard"} if kind == "fusion" else {}),  # type: ignore[arg-type]
            batch_size=batch_size,
            precision="bf16",
        )
        for kind in _KINDS
    }
    memory: dict[str, float] = {}
    found = interleave({kind: _speed(run, split, memory) for kind, run in runs.items()}, setting.repeats)
    rows: list[Row] = []
    for kind, run in runs.items():
        sample = found[kind]
        achieved = flop_of(partial(train_epoch, run, split)) * sample.median / len(split)
        row: Row = {
            "trainable": kind,
            "batch": batch_size,
            "examples/s": sample,
            "TFLOP/s": achieved / 1e12,
            "of the ceiling, %": 100 * achieved / ceiling.median,
            "peak memory, MB": memory[kind],
        }
        if whole_epoch:
            row["epoch, s"] = Sample(tuple(EPOCH_ROWS / value for value in sample.values))
        rows.append(row)
    return rows


def _speed(run: TrainingRun, split: TokenisedSplit, memory: dict[str, float]) -> Callable[[], float]:
    def measure() -> float:
        fitted = train_epoch(run, split)
        memory[run.request.kind] = fitted.peak_memory_mb
        return fitted.examples_per_second

    return measure


def _fixed(batch_size: int, batches: int) -> TokenisedSplit:
    return generated_split(np.full(batch_size * batches, 128), 2)
