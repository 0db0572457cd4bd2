"""Resume an interrupted training from the checkpoint that it writes now and then."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import AdamW

from pipeline.training.checkpoint import Checkpoint, Progress, load_checkpoint, save_checkpoint


class Companion(Protocol):
    """What goes along with a training and has a state of its own, such as a running mean of the weights.

    Its methods are called in the order in which they stand here.
    """

    def start(self, kept: Mapping[str, Tensor]) -> None:
        """The model stands on its device with the weights it goes on from; ``kept`` is an earlier :meth:`state`.

        ``kept`` is empty when training starts from its beginning. Its tensors are on the CPU.
        """
        ...

    def after_step(self, step: int, total: int) -> None:
        """Optimiser step ``step`` (from 1) of ``total`` is done."""
        ...

    def measured(self) -> dict[str, float | None]:
        """Columns for the curve: what was seen since the last call; None where nothing was."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What :meth:`start` needs to go on; the checkpoint keeps it."""
        ...


class Resumption:
    """Loads model, optimiser and companions from the checkpoint ``file`` when made, and writes them there later.

    Args:
        file: the checkpoint; None keeps nothing, and a missing file leaves everything at the start.
        seconds: how long until the state is :attr:`due` to be kept again.
        model: unwrapped.
        companions: must be the same ones in the same order each time.
    """

    def __init__(
        self,
        file: Path | None,
        seconds: float,
        model: nn.Module,
        optimizer: AdamW,
        accelerator: Accelerator,
        companions: Sequence[Companion] = (),
    ) -> None:
        self._file, self._seconds = file, seconds
        self._model, self._optimizer, self._accelerator = model, optimizer, accelerator
        self._companions = companions
        self.progress = Progress()
        self._best: dict[str, Tensor] = {}
        states: dict[int, dict[str, Tensor]] = {}
        resumed = load_checkpoint(file) if file is not None else None
        if resumed is not None and _fits(resumed, model):
            self.progress, self._best, states = resumed.progress, resumed.best_weights, resumed.companions
            _load_weights(model, resumed.weights)
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": resumed.optimizer, "param_groups": groups})
            if accelerator.scaler is not None and resumed.scaler:
                accelerator.scaler.load_state_dict(resumed.scaler)
        for index, companion in enumerate(companions):
            companion.start(states.get(index, {}))
        self._kept_at = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() - self._kept_at >= self._seconds

    def keep(self) -> None:
        """Write the state. Every process holds the same; one of them writes."""
        if self._file is not None and self._accelerator.is_main_process:
            scaler = self._accelerator.scaler.state_dict() if self._accelerator.scaler is not None else {}
            weights = {name: tensor.detach() for name, tensor in trainable(self._model).items()}
            optimizer = {index: dict(state) for index, state in self._optimizer.state_dict()["state"].items()}
            held = {index: companion.state() for index, companion in enumerate(self._companions)}
            save_checkpoint(self._file, Checkpoint(self.progress, weights, self._best, optimizer, scaler, held))
        self._kept_at = time.monotonic()

    def remember_best(self) -> None:
        """Keep a copy of the weights as the best so far."""
        self._best = {name: tensor.detach().cpu().clone() for name, tensor in trainable(self._model).items()}

    def restore_best(self) -> None:
        """Load the best weights into the model."""
        _load_weights(self._model, self._best)


def trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _fits(checkpoint: Checkpoint, model: nn.Module) -> bool:
    """Whether a checkpoint's weights are those that train in ``model``; there may be no best epoch yet."""
    own = _shapes(trainable(model))
    return _shapes(checkpoint.weights) == own and _shapes(checkpoint.best_weights) in (own, {})


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in trainable(model).items():
            parameter.copy_(weights[name])
