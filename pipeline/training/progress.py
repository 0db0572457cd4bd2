"""Progress of a training run: counted, shown on a terminal, and kept in a file from which it resumes bit for bit."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import AdamW

from pipeline.models.backbone import hash_tensors
from pipeline.system.atomic import canonical_json, new_file, sha256_text
from pipeline.system.errors import PipelineError, shortened
from pipeline.system.streams import notice
from pipeline.training.devices import shared_as, whole

_FORMAT = 2

# Checkpoints are frequent enough that a kill loses at most _MOST_LOST of a run, and rare enough that writing them takes
# at most _MOST_WRITING of it, unless a single one takes longer than that share of ``checkpoint_seconds``.
_MOST_LOST = 0.1
_MOST_WRITING = 0.02
_SOONEST = 0.5  # seconds

Tensors = dict[str, Tensor]
Scores = float | Mapping[str, float]
"""Dev score of a model, or one per task, whose mean counts; higher is better."""

_TIMED_STEPS, _TIMED_SECONDS = 5, 3.0
"""How many steps are timed, and for how long, before the time that training takes is announced."""
PROJECT = "adapter-fusion"
"""The experiment in MLflow, and the project in Weights & Biases."""
console = Console(stderr=True, highlight=False, soft_wrap=True)


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


class TrainingProgress(Bar):
    """A bar with loss, examples per second and time left, on stderr; stdout is for results.

    Args:
        rows: training rows of an epoch.
    """

    def __init__(self, title: str, epochs: int, rows: int, *, shown: bool = True) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[measured]}"),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )
        self._title, self._epochs, self._rows, self._shown = title, epochs, rows, shown
        self._steps, self._announce_at = 0, time.monotonic() + _TIMED_SECONDS if shown else math.inf
        # Before the first step there is nothing to measure.
        self._bar = self.add_task(f"{title} starts", total=None, measured="", left="")
        self._next_refresh = 0.0

    def due(self) -> bool:
        """Whether to show this step. Reading the loss from a GPU makes the host wait, so not every step."""
        self._steps, now = self._steps + 1, time.monotonic()
        return self._is_timed(now) or (not self.disable and now >= self._next_refresh)

    def _is_timed(self, now: float) -> bool:
        return self._steps >= _TIMED_STEPS and now >= self._announce_at

    def step(self, done: int, total: int, epoch: int, loss: float, speed: float, left: float) -> None:
        """Show a step in the bar; once the first ones have been timed, print how long all take.

        Args:
            left: estimated seconds of the remaining steps and evaluations.
        """
        if self._is_timed(time.monotonic()):
            self._announce_at = math.inf
            about = f"{left / 60:.0f} min" if left >= 90 else f"{left:.0f} s"
            plan = f"{self._epochs} epochs of {self._rows:,} rows, {total:,} steps"
            console.print(f"{self._title}: {plan}, about {about} left")
        measured = f"loss {loss:.4f}  {speed:.0f} examples/s"
        self._describe(epoch, "", completed=done, total=total, measured=measured)
        self.update(self._bar, left=f"left {_time(left)}")
        self._next_refresh = time.monotonic() + 0.5

    def scoring(self, epoch: int) -> None:
        """Show that the model is being scored on dev, after ``epoch`` or, if that is 0, before the first."""
        self._describe(epoch, ", scoring dev")

    def _describe(self, epoch: int, doing: str, **values: Any) -> None:
        place = f"epoch {epoch}/{self._epochs}" if epoch else "start"
        self.update(self._bar, description=f"{self._title} {place}{doing}", **values)

    def epoch(self, epoch: int, loss: float | None, score: str, best: bool, speed: float, left: float) -> None:
        """Print a line for the end of ``epoch``, or, without a loss, for the start; ``left`` is in seconds."""
        line = f"{self._title} start: {score}"
        if loss is not None:
            line = (
                f"{self._title} epoch {epoch}/{self._epochs}: loss {loss:.4f}, {score}{' (best)' if best else ''},"
                f" {speed:.0f} examples/s, {_time(left)} left"
            )
        if self._shown:
            console.print(line)


def _time(seconds: float) -> str:
    """``0:05``, ``59:00``, ``10:58:32``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def tracking(
    accelerator: Accelerator, tracker: str | None, run: str, title: str, settings: Mapping[str, Any], reports: Path
) -> Iterator[None]:
    """Send what ``accelerator`` logs to ``tracker``, under ``title`` and with the run's ``settings``.

    TensorBoard writes to the run's folder, which is the accelerator's project folder. MLflow writes to
    ``reports/mlruns``, unless MLFLOW_TRACKING_URI names another place.

    Raises:
        PipelineError: the tracker cannot be started, for example because Weights & Biases needs a login.
    """
    if tracker is None:
        yield
        return
    values = {key: value if isinstance(value, int | float | str) else str(value) for key, value in settings.items()}
    keywords = {
        "mlflow": {"run_name": title, "tags": {"run": run}},
        "wandb": {"name": title, "id": run, "resume": "allow", "dir": str(reports)},
    }
    # MLflow 3 needs a flag to allow files; its databases need packages that mlflow-skinny lacks.
    files = {"MLFLOW_TRACKING_URI": (reports / "mlruns").absolute().as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    is_placed = tracker != "mlflow" or "MLFLOW_TRACKING_URI" in os.environ
    added = {} if is_placed else {name: value for name, value in files.items() if name not in os.environ}
    os.environ.update(added)
    try:
        try:
            accelerator.init_trackers("" if tracker == "tensorboard" else PROJECT, values, keywords)
        except Exception as error:  # trackers raise errors of many types
            reason = shortened(str(error).strip() or type(error).__name__, most=300)
            raise PipelineError(f"--track {tracker}: cannot be started: {reason}") from error
        try:
            yield
        finally:
            # Not accelerator.end_training(), which would also destroy the process group.
            for running in accelerator.trackers:
                running.finish()
            accelerator.trackers = []
    finally:
        for name in added:
            os.environ.pop(name, None)
