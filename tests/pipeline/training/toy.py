"""A regression that trains in moments: what tests of the loop, and of what is added to its loss, have in common."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.data.batches import Piece
from pipeline.settings.recipe import FLAGS, Recipe
from pipeline.training.fit import TrainingData, fit
from pipeline.training.progress import Progress
from tests.runs import Stopped

ROWS, BATCH, EPOCHS = 50, 8, 3
"""Seven steps an epoch, the last of them of two rows."""
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(0))
Y = X @ torch.arange(6.0) + 1


def make_model(dropout: float = 0.2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(dropout), nn.Linear(8, 1))


def batches(pieces: int = 1) -> Callable[[int, int], Iterator[list[Piece]]]:
    def make(epoch: int, first: int) -> Iterator[list[Piece]]:
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(epoch)).split(BATCH)
        for rows in order[first:]:
            yield [Piece({"rows": part}) for part in rows.chunk(pieces)]

    return make


def squared_error(model: nn.Module, piece: Piece) -> Tensor:
    rows = piece.batch["rows"]
    return F.mse_loss(model(X[rows]).squeeze(-1), Y[rows])


def negative_error(model: nn.Module) -> float:
    with torch.no_grad():
        return -F.mse_loss(model(X).squeeze(-1), Y).item()


def stopping(stop_at: int, loss: Any = squared_error) -> Callable[[nn.Module, Piece], Tensor]:
    """``loss``, which is :class:`Stopped` at one of its calls, counted from 1."""
    calls = itertools.count(1)

    def until(model: nn.Module, piece: Piece) -> Tensor:
        if next(calls) == stop_at:
            raise Stopped
        return loss(model, piece)

    return until


def train(
    model: nn.Module,
    pieces: int = 1,
    loss: Any = squared_error,
    seed: int = 1,
    accelerator: Any = None,
    data: TrainingData | None = None,
    **settings: Any,
) -> Progress:
    """Fit with ``settings``: keys of a recipe and arguments of :func:`fit`. Default ``data``: the regression's."""
    recipe = {"trainable": "full", "epochs": EPOCHS, "batch_size": BATCH, "learning_rate": 1e-2}
    if accelerator is None:
        AcceleratorState._reset_state()  # an earlier test may have chosen bf16
    values = {name: settings.pop(name) for name in list(settings) if name in Recipe.model_fields or name in FLAGS}
    return fit(
        model,
        recipe=Recipe.model_validate(recipe | values),
        seed=seed,
        data=data or TrainingData(batches(pieces), -(-ROWS // BATCH), values.get("epochs", EPOCHS), ROWS, 240),
        loss=loss,
        evaluate=settings.pop("evaluate", negative_error),
        metric="score",
        accelerator=accelerator or Accelerator(cpu=True),
        title="test",
        **settings,
    )


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
