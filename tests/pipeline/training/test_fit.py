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

from pipeline.data.batches import Piece
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

    def stopping(model: nn.Module, piece: Piece) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == stop_at:
            raise Stopped
        return squared_error(model, piece)

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

    def never(model: nn.Module, piece: Piece) -> Tensor:
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

    def breaking(model: nn.Module, piece: Piece) -> Tensor:
        nonlocal steps
        steps += 1
        return squared_error(model, piece) * (float("nan") if steps > 9 else 1.0)

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


def comparable(curve: list[dict[str, float | None]]) -> list[dict[str, float | None]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in curve]


def test_scoring_the_start_changes_no_step() -> None:
    plain, scored = make_model(), make_model()
    expected, found = train(plain), train(scored, score_start=True)
    assert equal(weights(plain), weights(scored))
    start, *rest = comparable(found.curve)
    assert rest == comparable(expected.curve)
    assert start == {
        "epoch": 0, "loss": None, "dev": negative_error(make_model().eval()), "learning_rate": 0.0, "examples": 0,
    }  # fmt: skip


def test_a_start_that_is_never_beaten_is_kept() -> None:
    scores = iter([0.9, 0.5, 0.9, 0.8])
    model = make_model()
    fitted = train(model, score_start=True, evaluate=lambda _: next(scores))
    assert (fitted.best_epoch, fitted.best_score) == (0, 0.9)
    assert equal(weights(model), weights(make_model()))


def test_a_start_counts_for_early_stopping() -> None:
    scores = iter([0.9, 0.5, 0.95, 0.8])
    settings = {"score_start": True, "early_stopping_patience": 1}
    assert [row["epoch"] for row in train(make_model(), evaluate=lambda _: next(scores), **settings).curve] == [0, 1]


@pytest.mark.parametrize("stop_at", [1, 2, 8])
def test_a_resumed_run_does_not_score_its_start_again(stop_at: int, tmp_path: Path) -> None:
    steps = 0

    def stopping(model: nn.Module, piece: Piece) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == stop_at:
            raise Stopped
        return squared_error(model, piece)

    settings: dict[str, Any] = {"checkpoint_file": tmp_path / "state.safetensors", "score_start": True}
    with pytest.raises(Stopped):
        train(make_model(), loss=stopping, checkpoint_seconds=0.0, **settings)
    whole, resumed = make_model(), make_model()
    expected, found = train(whole, score_start=True), train(resumed, **settings)
    assert comparable(found.curve) == comparable(expected.curve)
    assert equal(weights(resumed), weights(whole))


def test_a_kept_start_survives_a_stop(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_file": tmp_path / "state.safetensors", "score_start": True}
    seen = 0

    def evaluate(model: nn.Module) -> float:
        nonlocal seen
        seen += 1
        if seen == 3:
            raise Stopped
        return -float(seen)

    with pytest.raises(Stopped):
        train(make_model(), evaluate=evaluate, checkpoint_seconds=0.0, **settings)
    resumed = make_model()
    assert train(resumed, evaluate=lambda _: -9.0, **settings).best_epoch == 0
    assert equal(weights(resumed), weights(make_model()))


def test_fewer_evaluations_change_no_step() -> None:
    every, last = make_model(), make_model()
    train(every, evaluate=lambda _, scores=iter(range(9)): float(next(scores)))
    fitted = train(last, evaluate=lambda _: 0.0, evaluations=1)
    assert [row["epoch"] for row in fitted.curve] == [EPOCHS]
    assert equal(weights(every), weights(last))


def test_patience_is_asked_only_where_there_is_a_score() -> None:
    """Epoch 1 of three is not scored: counted there, patience would end the run before its first score."""
    scores = iter([0.5, 0.6])
    found = train(make_model(), evaluate=lambda _: next(scores), evaluations=2, early_stopping_patience=1)
    assert [row["epoch"] for row in found.curve] == [2, 3]


def test_of_several_scores_the_mean_decides_and_all_are_in_the_curve() -> None:
    scores = iter([{"a": 0.2, "b": 0.6}, {"a": 0.9, "b": 0.1}, {"a": 0.0, "b": 0.7}])
    fitted = train(make_model(), evaluate=lambda _: next(scores))
    assert (fitted.best_epoch, fitted.best_score) == (2, 0.5)
    assert [(row["dev_a"], row["dev_b"]) for row in fitted.curve] == [(0.2, 0.6), (0.9, 0.1), (0.0, 0.7)]


def test_a_model_with_nothing_to_train_is_scored_as_it_is_where_its_start_is() -> None:
    model = make_model().requires_grad_(False)

    def never(model: nn.Module, piece: Piece) -> Tensor:
        raise AssertionError("trained")

    fitted = train(model, loss=never, score_start=True)
    assert comparable(fitted.curve) == [
        {"epoch": 0, "loss": None, "dev": negative_error(make_model().eval()), "learning_rate": 0.0, "examples": 0}
    ]
    assert (fitted.best_epoch, fitted.examples_per_second) == (0, 0.0)


@pytest.mark.parametrize("cut", [1, 3])
def test_a_step_over_two_tasks_sums_their_means(cut: int) -> None:
    """By hand: the gradient of mean(task a) + mean(task b), however many rows each has and however they are cut."""
    tasks = {"a": torch.arange(0, 6), "b": torch.arange(6, 36)}

    def step(epoch: int, first: int) -> Iterator[list[Piece]]:
        yield [Piece({"rows": part}, task) for task, rows in tasks.items() for part in rows.chunk(cut)]

    def loss(model: nn.Module, piece: Piece) -> Tensor:
        assert set(piece.batch["rows"].tolist()) <= set(tasks[piece.task].tolist())
        return squared_error(model, piece)

    model, expected = make_model(0.0), make_model(0.0)
    recipe = Recipe(trainable="full", epochs=5, learning_rate=1e-2, weight_decay=0, warmup_ratio=0, max_grad_norm=1e9)
    fitted = fit(
        model, recipe=recipe, seed=0, data=TrainingData(step, 1, 5), loss=loss, evaluate=negative_error,
        metric="score", accelerator=Accelerator(cpu=True), title="test",
    )  # fmt: skip
    optimizer = torch.optim.AdamW(expected.parameters(), weight_decay=0)
    for number in range(5):
        optimizer.param_groups[0]["lr"] = 1e-2 * (5 - number) / 5
        total = torch.stack([squared_error(expected, Piece({"rows": rows})) for rows in tasks.values()]).sum()
        assert fitted.curve[number]["loss"] == pytest.approx(total.item(), rel=1e-4)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    for a, b in zip(weights(model), weights(expected), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
