"""The loop: a batch is a batch however it is cut, and a run that was stopped ends as if it never was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.data.batches import Batch
from pipeline.errors import PipelineError
from pipeline.recipe import Recipe
from pipeline.training.fit import Fitted, TrainingData, fit

ROWS, BATCH, EPOCHS = 50, 8, 3
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(0))
Y = X @ torch.arange(6.0) + 1


class Stopped(Exception):
    """Stands for a kill at a chosen step."""


def make_model(dropout: float = 0.2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(dropout), nn.Linear(8, 1))


def batches(pieces: int = 1) -> Callable[[int, int], Iterator[list[Batch]]]:
    def make(epoch: int, first: int) -> Iterator[list[Batch]]:
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(epoch)).split(BATCH)
        for rows in order[first:]:
            yield [{"rows": part} for part in rows.chunk(pieces)]

    return make


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(X[batch["rows"]]).squeeze(-1), Y[batch["rows"]])


def negative_error(model: nn.Module) -> float:
    with torch.no_grad():
        return -F.mse_loss(model(X).squeeze(-1), Y).item()


def train(model: nn.Module, pieces: int = 1, loss: Any = squared_error, **settings: Any) -> Fitted:
    recipe = {"trainable": "full", "epochs": EPOCHS, "batch_size": BATCH, "learning_rate": 1e-2}
    values = {name: settings.pop(name) for name in list(settings) if name in Recipe.model_fields}
    return fit(
        model,
        recipe=Recipe.model_validate(recipe | values),
        seed=1,
        data=TrainingData(batches(pieces), -(-ROWS // BATCH), EPOCHS),
        loss=loss,
        evaluate=settings.pop("evaluate", negative_error),
        metric="score",
        accelerator=Accelerator(cpu=True),
        title="test",
        **settings,
    )


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("stop_at", [1, 5, 7, 8, 20])
def test_a_run_stopped_at_any_step_ends_bit_for_bit_as_one_never_stopped(stop_at: int, tmp_path: Path) -> None:
    whole = make_model()
    expected = train(whole)
    steps = 0

    def stopping(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == stop_at:
            raise Stopped
        return squared_error(model, batch)

    file = tmp_path / "checkpoint" / "state.safetensors"
    with pytest.raises(Stopped):
        train(make_model(), loss=stopping, checkpoint_file=file, checkpoint_seconds=0.0)
    resumed = make_model()
    found = train(resumed, checkpoint_file=file)
    assert equal(weights(resumed), weights(whole))
    same = [{key: row[key] for key in ("epoch", "loss", "dev", "examples")} for row in expected.curve]
    assert [{key: row[key] for key in ("epoch", "loss", "dev", "examples")} for row in found.curve] == same


def test_a_finished_checkpoint_trains_nothing_more(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    first = make_model()
    train(first, checkpoint_file=file)

    def never(model: nn.Module, batch: Batch) -> Tensor:
        raise AssertionError("trained again")

    second = make_model()
    train(second, loss=never, checkpoint_file=file)
    assert equal(weights(first), weights(second))


def test_an_unreadable_checkpoint_starts_the_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "state.safetensors"
    file.write_bytes(b"half a file")
    whole, again = make_model(), make_model()
    train(whole)
    train(again, checkpoint_file=file)
    assert "starts from its beginning" in capsys.readouterr().err
    assert equal(weights(whole), weights(again))


@pytest.mark.parametrize("pieces", [2, 3, 8])
def test_micro_batches_add_up_to_the_batch(pieces: int) -> None:
    whole, cut = make_model(dropout=0.0), make_model(dropout=0.0)
    one, other = train(whole), train(cut, pieces=pieces)
    for a, b in zip(weights(whole), weights(cut), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    assert one.best_score == pytest.approx(other.best_score, rel=1e-4)


def test_the_epoch_with_the_best_score_is_kept() -> None:
    scores = iter([0.1, 0.9, 0.5])
    seen: list[list[Tensor]] = []

    def evaluate(model: nn.Module) -> float:
        seen.append(weights(model))
        return next(scores)

    model = make_model()
    fitted = train(model, evaluate=evaluate)
    assert (fitted.best_epoch, fitted.best_score) == (2, 0.9)
    assert equal(weights(model), seen[1])


def test_early_stopping_waits_for_its_patience() -> None:
    scores = iter([0.5, 0.4, 0.6])
    assert len(train(make_model(), evaluate=lambda _: next(scores), early_stopping_patience=1).curve) == 2


def test_frozen_parameters_do_not_move() -> None:
    model = make_model()
    model[0].requires_grad_(False)  # type: ignore[union-attr]
    before = weights(model)
    train(model)
    assert equal(weights(model)[:2], before[:2])
    assert not equal(weights(model)[2:], before[2:])


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(PipelineError, match="nothing is trainable"):
        train(make_model().requires_grad_(False))


def test_a_broken_loss_stops_with_its_step_and_keeps_the_last_good_state(tmp_path: Path) -> None:
    steps = 0

    def breaking(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal steps
        steps += 1
        return squared_error(model, batch) * (float("nan") if steps > 9 else 1.0)

    file = tmp_path / "state.safetensors"
    with pytest.raises(PipelineError, match=r"step 10 \(epoch 2, batch 3\)"):
        train(make_model(), loss=breaking, checkpoint_file=file, checkpoint_seconds=1e9)
    resumed, whole = make_model(), make_model()
    train(resumed, checkpoint_file=file)
    train(whole)
    assert equal(weights(resumed), weights(whole))


def test_a_penalty_is_added_once_a_step_however_the_batch_is_cut() -> None:
    whole, cut = make_model(0.0), make_model(0.0)
    for model, pieces in ((whole, 1), (cut, 4)):
        train(model, pieces=pieces, penalties=[lambda model=model: 0.5 * model[0].weight.square().sum()])  # type: ignore[misc]
    plain = make_model(0.0)
    train(plain)
    torch.testing.assert_close(whole[0].weight, cut[0].weight, atol=1e-5, rtol=1e-4)  # type: ignore[index]
    assert whole[0].weight.norm() < plain[0].weight.norm()  # type: ignore[index]
