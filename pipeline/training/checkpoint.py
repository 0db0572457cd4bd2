"""The state of an unfinished run in one safetensors file, so that it resumes as if never stopped."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.models.backbone import hash_tensors
from pipeline.system.atomic import canonical_json, new_file, sha256_text

_FORMAT = 2


@dataclass
class Progress:
    """Where training stands. ``step`` counts optimiser steps over all epochs, ``batch`` those of the current one."""

    epoch: int = 1
    batch: int = 0
    step: int = 0
    examples: int = 0
    train_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    peak_memory_mb: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    best_epoch: int = 0
    best_score: float = float("-inf")
    done: bool = False
    curve: list[dict[str, float | None]] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint:
    """Everything a step depends on. Random numbers need no state: each step seeds its own."""

    progress: Progress
    weights: dict[str, Tensor]
    best_weights: dict[str, Tensor]
    optimizer: dict[int, dict[str, Tensor]]
    scaler: dict[str, Any]
    companions: dict[int, dict[str, Tensor]] = field(default_factory=dict)


def save_checkpoint(file: Path, checkpoint: Checkpoint) -> None:
    """Write by rename: a kill at any moment leaves the old file or the new one, never half of one."""
    tensors = {f"weights/{name}": tensor for name, tensor in checkpoint.weights.items()}
    tensors |= {f"best/{name}": tensor for name, tensor in checkpoint.best_weights.items()}
    for part, states in (("optimizer", checkpoint.optimizer), ("companions", checkpoint.companions)):
        for index, state in states.items():
            tensors |= {f"{part}/{index}/{key}": value.contiguous() for key, value in state.items()}
    progress = asdict(checkpoint.progress)
    # JSON has no infinity: before the first evaluation there is no best score.
    progress["best_score"] = progress["best_score"] if checkpoint.progress.curve else None
    metadata = {"format": str(_FORMAT), "progress": json.dumps(progress), "scaler": json.dumps(checkpoint.scaler)}
    # Hashing and writing both need them on the CPU: copy a GPU's once.
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    with new_file(file) as temporary:
        save_file(tensors, temporary, metadata={**metadata, "sha256": _digest(metadata, tensors)})


def _digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the metadata and over names, shapes, dtypes and bytes of the tensors."""
    return sha256_text(canonical_json([dict(metadata), hash_tensors(tensors)]))


def load_checkpoint(file: Path) -> Checkpoint | None:
    """Read a checkpoint; None if there is none, or, with a warning on stderr, if this version cannot read it."""
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            # Cloned, because the file may be replaced while its memory map is still in use.
            tensors = {key: opened.get_tensor(key).clone() for key in opened.keys()}  # noqa: SIM118  (not a dict)
        digest = metadata.pop("sha256", None)
        if metadata.get("format") != str(_FORMAT):
            raise ValueError("written by another version")
        if _digest(metadata, tensors) != digest:
            raise ValueError("damaged: its sha256 is not the one it was written with")
        progress = json.loads(metadata["progress"])
        if progress["best_score"] is None:
            progress["best_score"] = float("-inf")
        return Checkpoint(
            progress=Progress(**progress),
            weights=_part(tensors, "weights"),
            best_weights=_part(tensors, "best"),
            optimizer=_numbered(tensors, "optimizer"),
            scaler=json.loads(metadata["scaler"]),
            companions=_numbered(tensors, "companions"),
        )
    except (SafetensorError, ValueError, KeyError, TypeError, OSError) as error:
        print(f"warning: {file} cannot be read ({error}): this run starts from its beginning", file=sys.stderr)
        return None


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors whose names start with ``part/``, under the rest of their names."""
    return {key.removeprefix(f"{part}/"): tensor for key, tensor in tensors.items() if key.startswith(f"{part}/")}


def _numbered(tensors: Mapping[str, Tensor], part: str) -> dict[int, dict[str, Tensor]]:
    numbered: dict[int, dict[str, Tensor]] = {}
    for key, tensor in _part(tensors, part).items():
        index, _, name = key.partition("/")
        numbered.setdefault(int(index), {})[name] = tensor
    return numbered
