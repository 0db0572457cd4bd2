"""The state of an unfinished run in one safetensors file, from which it resumes bit for bit."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import AdamW

from pipeline.models.backbone import hash_tensors
from pipeline.system.atomic import canonical_json, new_file, sha256_text
from pipeline.system.errors import PipelineError
from pipeline.system.streams import notice
from pipeline.training.process_group import shared_as, whole

_FORMAT = 2

# Checkpoints are frequent enough that a kill loses at most _MOST_LOST of a run, and rare enough that writing them takes
# at most _MOST_WRITING of it, unless a single one takes longer than that share of ``checkpoint_seconds``.
_MOST_LOST = 0.1
_MOST_WRITING = 0.02
_SOONEST = 0.5  # seconds

Tensors = dict[str, Tensor]
Scores = float | Mapping[str, float]
"""Dev score of a model, or one per task, whose mean counts; higher is better."""


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
    best_epoch: int = 0  # 0 is the start, before any step
    best_score: float = float("-inf")
    done: bool = False
    curve: list[dict[str, float | None]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds of training and evaluation over all resumptions, without start-up."""
        return self.train_seconds + self.evaluation_seconds

    @property
    def examples_per_second(self) -> float:
        """The rate of the training steps, without evaluation."""
        return self.examples / self.train_seconds if self.examples else 0.0

    def add_point(
        self, epoch: int, loss: float | None, scores: Scores, rate: float, measured: Mapping[str, float | None]
    ) -> bool:
        """Append the scores after ``epoch`` to the curve; returns whether their mean is better than all before."""
        by_task = {f"dev_{name}": value for name, value in scores.items()} if isinstance(scores, Mapping) else {}
        score = sum(scores.values()) / len(scores) if isinstance(scores, Mapping) else scores
        best = not self.curve or score > self.best_score
        if best:
            self.best_score, self.best_epoch = score, epoch
        point = {"epoch": epoch, "loss": loss, "dev": score, **by_task, "learning_rate": rate, **measured}
        self.curve.append({**point, "examples": self.examples, "seconds": round(self.seconds, 3)})
        return best


@dataclass(frozen=True)
class Checkpoint:
    """Everything a step depends on. Random numbers need no state: every step is seeded."""

    progress: Progress
    weights: Tensors
    best_weights: Tensors
    optimizer: dict[int, Tensors]
    scaler: dict[str, Any]
    companions: dict[int, Tensors] = field(default_factory=dict)


def save_checkpoint(file: Path, checkpoint: Checkpoint) -> None:
    """Write by rename: a kill at any moment leaves either the old file or the new one, complete."""
    parts = {"weights": checkpoint.weights, "best": checkpoint.best_weights}
    for part, states in (("optimizer", checkpoint.optimizer), ("companions", checkpoint.companions)):
        parts |= {f"{part}/{index}": state for index, state in states.items()}
    progress = asdict(checkpoint.progress)
    # JSON has no infinity: before the first evaluation there is no best score.
    progress["best_score"] = progress["best_score"] if checkpoint.progress.curve else None
    metadata = {"format": str(_FORMAT), "progress": json.dumps(progress), "scaler": json.dumps(checkpoint.scaler)}
    # Hashing and writing both need the tensors on the CPU: copy them from a GPU once.
    tensors = {
        f"{part}/{name}": value.contiguous().cpu() for part, held in parts.items() for name, value in held.items()
    }
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
            raise ValueError("damaged: its sha256 does not match")
        progress = json.loads(metadata["progress"])
        if progress["best_score"] is None:
            progress["best_score"] = float("-inf")
        return Checkpoint(
            Progress(**progress),
            _part(tensors, "weights"),
            _part(tensors, "best"),
            _numbered(tensors, "optimizer"),
            json.loads(metadata["scaler"]),
            _numbered(tensors, "companions"),
        )
    except (SafetensorError, ValueError, KeyError, TypeError, OSError) as error:
        notice(f"warning: {file} cannot be read ({error}): this run starts from its beginning")
        return None


def _part(tensors: Tensors, part: str) -> Tensors:
    """The tensors whose names start with ``part/``, under the rest of their names."""
    return {key.removeprefix(f"{part}/"): tensor for key, tensor in tensors.items() if key.startswith(f"{part}/")}


def _numbered(tensors: Tensors, part: str) -> dict[int, Tensors]:
    numbered = _part(tensors, part)
    return {int(index): _part(numbered, index) for index in {key.partition("/")[0] for key in numbered}}


class Companion(Protocol):
    """Follows a training run and has state of its own; its methods are called in this order."""

    def start(self, kept: Mapping[str, Tensor]) -> None:
        """The model has its weights; ``kept`` is the :meth:`state` to resume from, on the CPU; empty in a new run."""
        return

    def after_step(self, step: int, total: int) -> None:
        """Optimiser step ``step`` (from 1) of ``total`` is done."""
        return

    def measured(self) -> dict[str, float | None]:
        """Columns for the curve, measured since the last call; None: not measured."""
        return {}

    def state(self) -> Tensors:
        """What :meth:`start` needs to resume; the checkpoint keeps it."""
        return {}


class Resumption:
    """Restores model, optimiser and companions from the checkpoint ``file`` when created, and saves them there later.

    Args:
        file: if None, nothing is saved; if missing, training starts from the beginning.
        seconds: the longest time between checkpoints (:attr:`due`).
        model: unwrapped; it gets the weights of ``trained`` from :meth:`gather`.
        trained: the model that the optimiser trains: ``model``, or its sharded copy.
        companions: the same ones in the same order whenever a run resumes.

    All processes must call its methods together.

    Raises:
        PipelineError: the processes do not all read the same checkpoint.
    """

    def __init__(
        self,
        file: Path | None,
        seconds: float,
        model: nn.Module,
        trained: nn.Module,
        optimizer: AdamW,
        accelerator: Accelerator,
        companions: Sequence[Companion] = (),
    ) -> None:
        self._file, self._seconds = file, seconds
        self._model, self._trained, self._optimizer, self._accelerator = model, trained, optimizer, accelerator
        self._companions = companions
        self.progress = Progress()
        self._best: Tensors = {}
        states: dict[int, Tensors] = {}
        resumed = load_checkpoint(file) if file is not None else None
        if resumed is not None and _fits(resumed, model):
            self.progress, self._best, states = resumed.progress, resumed.best_weights, resumed.companions
            _load_weights(model, resumed.weights)
            _load_weights(trained, resumed.weights)
            stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            moments = {
                index: {name: shared_as(value, stepped[index]) for name, value in state.items()}
                for index, state in resumed.optimizer.items()
            }
            optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
            if accelerator.scaler is not None and resumed.scaler:
                accelerator.scaler.load_state_dict(resumed.scaler)
        if accelerator.num_processes > 1 and len({*gather_object([self.progress.step])}) > 1:
            raise PipelineError(
                f"{file}: the processes that train together read different checkpoints: give all machines the same"
                " --reports, on shared storage"
            )
        for index, companion in enumerate(companions):
            companion.start(states.get(index, {}))
        self._began = self._kept_at = time.monotonic()
        self._cost = 0.0

    @property
    def due(self) -> bool:
        """Whether to :meth:`keep` the state now; always False in processes that do not write it."""
        if self._file is None or not self._accelerator.is_main_process:
            return False
        now = time.monotonic()
        early = max(_MOST_LOST * (now - self._began), self._cost / _MOST_WRITING, _SOONEST)
        return now - self._kept_at >= min(self._seconds, early)

    def keep(self) -> None:
        """Write the state. Every process holds the same, or its share; one of them writes."""
        if self._file is None:
            return
        started, writes = time.monotonic(), self._accelerator.is_main_process
        self.gather()
        optimizer: dict[int, Tensors] = {}
        for index, state in self._optimizer.state_dict()["state"].items():
            # One at a time: a GPU may not hold them all.
            values = ((name, whole(value)) for name, value in state.items())
            optimizer[index] = {name: value.cpu() if writes else value.new_empty(0) for name, value in values}
        if writes:
            scaler = self._accelerator.scaler.state_dict() if self._accelerator.scaler is not None else {}
            weights = {name: tensor.detach() for name, tensor in trainable(self._model).items()}
            held = {index: companion.state() for index, companion in enumerate(self._companions)}
            save_checkpoint(self._file, Checkpoint(self.progress, weights, self._best, optimizer, scaler, held))
        self._kept_at = time.monotonic()
        self._cost = self._kept_at - started

    def gather(self) -> None:
        """Copy the trained weights into the model, if its sharded copy trains."""
        if self._trained is not self._model:
            parameters = trainable(self._model)
            with torch.no_grad():
                for name, tensor in trainable(self._trained).items():
                    parameters[name].copy_(whole(tensor))

    def remember_best(self) -> None:
        self._best = {name: tensor.detach().cpu().clone() for name, tensor in trainable(self._model).items()}

    def restore_best(self) -> None:
        _load_weights(self._model, self._best)


def trainable(model: nn.Module) -> Tensors:
    """The parameters that train, by the names that they have in the model before it is sharded."""
    named = model.named_parameters()
    # FSDP's activation checkpointing puts a module between a layer and its parameters.
    return {name.replace("_checkpoint_wrapped_module.", ""): tensor for name, tensor in named if tensor.requires_grad}


def _fits(checkpoint: Checkpoint, model: nn.Module) -> bool:
    """Whether a checkpoint's weights match the trainable ones of ``model``; there may be no best epoch yet."""
    weights, best, trained = (
        {name: tensor.shape for name, tensor in tensors.items()}
        for tensors in (checkpoint.weights, checkpoint.best_weights, trainable(model))
    )
    return weights == trained and best in (trained, {})


def _load_weights(model: nn.Module, weights: Tensors) -> None:
    with torch.no_grad():
        for name, parameter in trainable(model).items():
            parameter.copy_(shared_as(weights[name], parameter))
