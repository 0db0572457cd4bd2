"""The loop: a batch is a batch however it is cut, and a run that was stopped ends as if it never was."""

import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.data.batches import Piece
from pipeline.system.errors import PipelineError
from pipeline.system.process import SIGNALS
from pipeline.training.fit import TrainingData, _seed
from pipeline.training.progress import Progress, TrainingProgress
from pipeline.training.surgery import Surgery, weighting_of
from tests.pipeline.training.toy import (
    BATCH,
    EPOCHS,
    ROWS,
    X,
    Y,
    batches,
    equal,
    make_model,
    negative_error,
    squared_error,
    stopping,
    train,
    weights,
)
from tests.runs import Stopped


def comparable(curve: list[dict[str, float | None]]) -> list[dict[str, float | None]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in curve]


@pytest.mark.parametrize("score_start", [False, True])
@pytest.mark.parametrize("stop_at", [1, 2, 5, 7, 8, 20])
def test_a_run_stopped_at_any_step_ends_bit_for_bit_as_one_never_stopped(
    stop_at: int, score_start: bool, tmp_path: Path
) -> None:
    file = tmp_path / "checkpoint" / "state.safetensors"
    settings: dict[str, Any] = {"checkpoint_file": file, "score_start": score_start}
    with pytest.raises(Stopped):
        train(make_model(), loss=stopping(stop_at), checkpoint_seconds=0.0, **settings)
    whole, resumed = make_model(), make_model()
    expected, found = train(whole, score_start=score_start), train(resumed, **settings)
    assert equal(weights(resumed), weights(whole))
    assert comparable(found.curve) == comparable(expected.curve)


def test_a_finished_checkpoint_trains_nothing_more(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    first = make_model()
    train(first, checkpoint_file=file)
    second = make_model()
    train(second, loss=stopping(1), checkpoint_file=file)
    assert equal(weights(first), weights(second))


def test_an_unreadable_checkpoint_starts_the_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "state.safetensors"
    file.write_bytes(b"half a file")
    whole, again = make_model(), make_model()
    train(whole)
    train(again, checkpoint_file=file)
    assert "starts from its beginning" in capsys.readouterr().err
    assert equal(weights(whole), weights(again))


def drawn(seed: int = 1, accelerator: Any = None) -> list[float]:
    """A random number of each step."""
    numbers = []

    def drawing(model: nn.Module, piece: Piece) -> Tensor:
        numbers.append(torch.rand(()).item())
        return squared_error(model, piece)

    train(make_model(dropout=0.0), loss=drawing, seed=seed, accelerator=accelerator)
    return numbers


def test_random_numbers_differ_between_seeds_steps_and_processes() -> None:
    """The order of batches, which has a seed of its own, is the same in all of these runs."""
    second_process = Process(0, Group(1))
    second_process.process_index = 1
    numbers = drawn() + drawn(seed=2) + drawn(accelerator=second_process)
    assert len({*numbers}) == len(numbers) == 3 * EPOCHS * -(-ROWS // BATCH)
    assert drawn() == drawn()


def seed_of(seed: int, step: int, process: int) -> int:
    """What a step seeds the CPU's generator with."""
    _seed(seed, step, process, torch.device("cpu"))
    return torch.initial_seed()


def test_a_step_shares_its_seed_with_no_other_step_or_process() -> None:
    seeds = [seed_of(*each) for each in itertools.product(range(3), range(500), range(8))]
    assert len({*seeds}) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert 0 < seed_of(2**32, 2**40, 255) < 2**63
    assert seed_of(1, 2, 3) == 2654449033179096  # another would give every run another result


def test_a_step_is_seeded_as_torch_seeds_everything() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2654449033179096)
    expected = torch.rand(5), torch.rand(5, device=device)
    torch.rand(3)
    _seed(1, 2, 3, device)
    assert all(map(torch.equal, expected, (torch.rand(5), torch.rand(5, device=device))))


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_a_step_seeds_whatever_device_trains(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.get_device_module(kind), "manual_seed", seeded.append)
    _seed(1, 2, 3, torch.device(kind))
    assert seeded == [2654449033179096]


def test_gradients_are_clipped_by_their_norm_over_all_parameters() -> None:
    model, expected = make_model(0.0), make_model(0.0)
    train(model, max_grad_norm=20, weight_decay=0.0, warmup_ratio=0.0)
    optimizer = torch.optim.AdamW(expected.parameters(), weight_decay=0.0)
    steps = [piece for epoch in range(1, EPOCHS + 1) for (piece,) in batches()(epoch, 0)]
    norms = []
    for number, piece in enumerate(steps):
        optimizer.param_groups[0]["lr"] = 1e-2 * (len(steps) - number) / len(steps)
        optimizer.zero_grad()
        squared_error(expected, piece).backward()
        gradients = [parameter.grad for parameter in expected.parameters() if parameter.grad is not None]
        norms.append(torch.cat([gradient.flatten() for gradient in gradients]).norm().item())
        for gradient in gradients:
            gradient *= min(1, 20 / norms[-1])
        optimizer.step()
    assert min(norms) < 20 < max(norms)  # some are clipped, and some are not
    torch.testing.assert_close(weights(model), weights(expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pieces", [2, 3, 8])
def test_micro_batches_add_up_to_the_batch(pieces: int) -> None:
    whole, cut = make_model(dropout=0.0), make_model(dropout=0.0)
    one, other = train(whole), train(cut, pieces=pieces)
    torch.testing.assert_close(weights(whole), weights(cut), atol=1e-5, rtol=1e-4)
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


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(PipelineError, match="nothing is trainable"):
        train(make_model().requires_grad_(False))


@pytest.mark.parametrize("broken", ["loss", "loss alone", "gradient"])
def test_a_broken_loss_stops_with_its_step_and_keeps_the_last_good_state(broken: str, tmp_path: Path) -> None:
    steps = 0

    def breaking(model: nn.Module, piece: Piece) -> Tensor:
        nonlocal steps
        steps += 1
        value = squared_error(model, piece)
        if steps <= 9:
            return value
        if broken == "loss alone":
            return value + float("nan") * value.detach()
        # The root of zero is finite, its gradient is not.
        return value * float("nan") if broken == "loss" else value + (0 * value).sqrt()

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
        train(model, pieces=pieces, penalties=[lambda model=model: 0.5 * model[0].weight.square().sum()])
    plain = make_model(0.0)
    train(plain)
    torch.testing.assert_close(whole[0].weight, cut[0].weight, atol=1e-5, rtol=1e-4)
    assert whole[0].weight.norm() < plain[0].weight.norm()


class Group:
    """Processes that exchange values and wait for each other; threads stand for them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=30)
        self._values: list[Any] = [None] * size

    def exchanged(self, index: int, value: Any) -> list[Any]:
        self._values[index] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


class Process:
    """What the loop asks of the Accelerator of one process; as under DDP, gradients are averaged over all of them."""

    device = torch.device("cpu")
    scaler: Any = None

    def __init__(self, index: int, group: Group) -> None:
        self.process_index, self.num_processes, self.is_main_process = index, group.size, index == 0
        self._exchanged = partial(group.exchanged, index)

    def prepare(self, *prepared: Any) -> Any:
        return prepared

    def no_sync(self, model: nn.Module) -> nullcontext[None]:
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def clip_grad_norm_(self, parameters: Iterator[nn.Parameter], most: float) -> Tensor:
        own = list(parameters)
        for parameter, *gradients in zip(own, *self._exchanged([p.grad for p in own]), strict=True):
            parameter.grad = torch.stack(gradients).mean(dim=0)
        return nn.utils.clip_grad_norm_(own, most)

    def reduce(self, tensor: Tensor, how: str) -> Tensor:
        assert how == "sum"
        return torch.stack(self._exchanged(tensor)).sum(dim=0)

    def log(self, values: Any, step: int) -> None:
        pass

    def free_memory(self) -> None:
        pass


class Scaling(Process):
    """A process under fp16 whose gradients overflow in its first step."""

    scaler: Any = SimpleNamespace(state_dict=dict)

    def __init__(self) -> None:
        super().__init__(0, Group(1))
        self.norms = iter([torch.tensor(float("inf"))])

    def clip_grad_norm_(self, parameters: Iterator[nn.Parameter], most: float) -> Tensor:
        norm = super().clip_grad_norm_(parameters, most)
        return next(self.norms, norm)


@pytest.mark.parametrize("broken_at", [None, 9])
def test_under_a_scaler_gradients_may_overflow_but_losses_may_not(broken_at: int | None) -> None:
    steps = iter(range(10**9))

    def breaking(model: nn.Module, piece: Piece) -> Tensor:
        return squared_error(model, piece) * (float("nan") if next(steps) == broken_at else 1.0)

    expected = make_model()
    train(expected)
    model = make_model()
    with nullcontext() if broken_at is None else pytest.raises(PipelineError, match=r"step 10 \(epoch 2, batch 3\)"):
        train(model, loss=breaking, accelerator=Scaling())
        assert equal(weights(model), weights(expected))


def test_a_step_without_gradients_asks_nothing_of_a_scaler() -> None:
    """A batch of a task that trains nothing: torch's scaler refuses to take such a step."""
    steps, model = iter(range(10**9)), make_model()

    def idle_at_first(model: nn.Module, piece: Piece) -> Tensor:
        loss = squared_error(model, piece)
        return loss.detach() if next(steps) < 2 else loss

    class Strict(Scaling):
        def clip_grad_norm_(self, parameters: Iterator[nn.Parameter], most: float) -> Tensor:
            own = list(parameters)
            assert all(parameter.grad is not None for parameter in own)
            return super().clip_grad_norm_(iter(own), most)

    before = weights(make_model())
    found = train(model, loss=idle_at_first, accelerator=Strict())
    assert found.step == EPOCHS * -(-ROWS // BATCH)
    assert not equal(weights(model), before)


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_two_processes_train_as_one_does(pieces: int) -> None:
    """The penalty, which is of no rows, shows whether the sum over rows has its right size: Adam would not tell."""
    whole, group = make_model(0.0), Group(2)

    def penalised(model: nn.Module, **settings: Any) -> Progress:
        return train(model, penalties=[lambda: model[0].weight.square().sum()], **settings)

    expected = penalised(whole)
    parts = [make_model(0.0), make_model(0.0)]
    with ThreadPoolExecutor(2) as threads:
        fitted = list(threads.map(lambda i: penalised(parts[i], pieces=pieces, accelerator=Process(i, group)), (0, 1)))
    assert equal(weights(parts[0]), weights(parts[1]))
    torch.testing.assert_close(weights(parts[0]), weights(whole), atol=1e-5, rtol=1e-4)
    for process in fitted:
        assert [row["loss"] for row in process.curve] == pytest.approx([row["loss"] for row in expected.curve])


def test_scoring_the_start_changes_no_step() -> None:
    plain, scored = make_model(), make_model()
    expected, found = train(plain), train(scored, score_start=True)
    assert equal(weights(plain), weights(scored))
    start, *rest = comparable(found.curve)
    assert rest == comparable(expected.curve)
    assert start == {
        "epoch": 0, "loss": None, "dev": negative_error(make_model().eval()), "learning_rate": 0.0, "examples": 0,
    }  # fmt: skip


def test_a_start_that_is_never_beaten_is_kept_over_a_stop(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_file": tmp_path / "state.safetensors", "score_start": True}
    scores = iter([0.9, 0.5])
    with pytest.raises(StopIteration):
        train(make_model(), evaluate=lambda _: next(scores), checkpoint_seconds=0.0, **settings)
    resumed = make_model()
    fitted = train(resumed, evaluate=lambda _: 0.9, **settings)
    assert (fitted.best_epoch, fitted.best_score) == (0, 0.9)
    assert equal(weights(resumed), weights(make_model()))


def test_a_model_with_nothing_to_train_is_scored_as_it_is_where_its_start_is() -> None:
    fitted = train(make_model().requires_grad_(False), loss=stopping(1), score_start=True)
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
    settings: dict[str, Any] = {"epochs": 5, "weight_decay": 0, "warmup_ratio": 0, "max_grad_norm": 1e9}
    fitted = train(model, data=TrainingData(step, 1, 5), loss=loss, **settings)
    optimizer = torch.optim.AdamW(expected.parameters(), weight_decay=0)
    for number in range(5):
        optimizer.param_groups[0]["lr"] = 1e-2 * (5 - number) / 5
        total = torch.stack([squared_error(expected, Piece({"rows": rows})) for rows in tasks.values()]).sum()
        assert fitted.curve[number]["loss"] == pytest.approx(total.item(), rel=1e-4)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    torch.testing.assert_close(weights(model), weights(expected), atol=1e-5, rtol=1e-4)


class TwoTasks(nn.Module):
    """A shared layer of which each task reads features of its own, and a head a task."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(6, 8, bias=False)
        self.heads = nn.ModuleDict({task: nn.Linear(8, 1) for task in ("a", "b")})

    def forward(self, task: str, rows: Tensor, apart: bool) -> Tensor:
        x = X[rows].clone()
        if apart:  # then no weight of the shared layer has a gradient of both tasks
            x[:, slice(3, None) if task == "a" else slice(3)] = 0
        return self.heads[task](torch.relu(self.shared(x)))


def together(
    apart: bool, surgery: Any = None, pieces: int = 1, loss: Any = None, penalty: float = 0.0, **settings: Any
) -> TwoTasks:
    """A model trained on both tasks in each step; the second pulls where the first pushes, unless ``apart``."""
    model: Any = TwoTasks()

    def two_batches(epoch: int, first: int) -> Iterator[list[Piece]]:
        for step in batches(pieces)(epoch, first):
            yield [Piece(piece.batch, task) for task in ("a", "b") for piece in step]

    def own(model: nn.Module, piece: Piece) -> Tensor:
        rows, sign = piece.batch["rows"], 1.0 if piece.task == "a" else -1.0
        return F.mse_loss(model(piece.task, rows, apart).squeeze(-1), sign * Y[rows])

    train(
        model,
        data=TrainingData(two_batches, -(-ROWS // BATCH), EPOCHS),
        loss=loss(own) if loss else own,
        evaluate=lambda model: float(next(improving)),
        combine=Surgery(weighting_of(surgery, 2), model.parameters()) if surgery else None,
        penalties=[lambda: penalty * model.shared.weight.square().sum()] if penalty else [],
        **settings,
    )
    return model


improving = iter(range(10**9))  # the last epoch is kept


@pytest.mark.parametrize("surgery", ["pcgrad", "upgrad"])
def test_surgery_on_orthogonal_gradients_is_their_sum_bit_for_bit(surgery: str) -> None:
    assert equal(weights(together(True, surgery)), weights(together(True)))


@pytest.mark.parametrize("pieces", [2, 5])
def test_surgery_is_on_the_gradients_of_whole_batches(pieces: int) -> None:
    whole, cut = together(False, "pcgrad"), together(False, "pcgrad", pieces=pieces)
    torch.testing.assert_close(weights(whole), weights(cut), atol=1e-5, rtol=1e-4)


def test_a_penalty_is_no_tasks_and_surgery_leaves_it_alone() -> None:
    """Part of one task's gradient it would stand in conflict with the other's."""
    summed, operated = together(True, penalty=5.0), together(True, "pcgrad", penalty=5.0)
    torch.testing.assert_close(weights(summed), weights(operated), atol=1e-6, rtol=1e-5)
    assert operated.shared.weight.norm() < together(True, "pcgrad").shared.weight.norm()


@pytest.mark.parametrize("stop_at", [4, 25])
def test_a_stopped_run_with_surgery_ends_as_one_never_stopped(stop_at: int, tmp_path: Path) -> None:
    whole = together(False, "pcgrad")
    file = tmp_path / "state.safetensors"
    with pytest.raises(Stopped):
        together(False, "pcgrad", loss=partial(stopping, stop_at), checkpoint_file=file, checkpoint_seconds=0.0)
    assert equal(weights(together(False, "pcgrad", checkpoint_file=file)), weights(whole))


class Named(nn.Module):
    """A backbone of one layer and a head, called as the loop's models call theirs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.ModuleDict({"encoder": nn.ModuleDict({"layer": nn.ModuleList([nn.Linear(6, 8)])})})
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.backbone.encoder.layer[0](x)))


def test_the_parts_of_a_model_move_by_their_own_rates() -> None:
    """Adam's first step is the rate, whatever the gradient: the backbone moves a tenth of what the head does."""
    start, model = Named(), Named()

    def once(epoch: int, first: int) -> Iterator[list[Piece]]:
        yield [Piece({"rows": torch.arange(ROWS)})]

    settings: dict[str, Any] = {"epochs": 1, "learning_rate": 1e-3, "weight_decay": 0.0, "warmup_ratio": 0.0}
    train(model, data=TrainingData(once, 1, 1), head_learning_rate=1e-2, **settings)
    moved = {
        name: (p - q).abs().max() for (name, p), q in zip(model.named_parameters(), start.parameters(), strict=True)
    }
    assert moved["backbone.encoder.layer.0.weight"].item() == pytest.approx(1e-3, rel=1e-2)
    assert moved["head.weight"].item() == pytest.approx(1e-2, rel=1e-2)


@pytest.mark.parametrize(("checkpoint_seconds", "stop_at"), [(1e9, None), (0.0, None), (0.0, 11)])
def test_seconds_are_those_of_training_and_evaluation_over_all_resumptions(
    checkpoint_seconds: float, stop_at: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A step takes a second, an evaluation ten, and there are seven steps an epoch."""
    clock, scores, steps = SimpleNamespace(now=1000.0), iter((1, 2, 3)), 0
    monkeypatch.setattr("pipeline.training.fit.time", SimpleNamespace(perf_counter=lambda: clock.now))

    def step(model: nn.Module, piece: Piece) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == stop_at:
            raise Stopped
        clock.now += 1
        return squared_error(model, piece)

    def evaluate(model: nn.Module) -> float:
        clock.now += 10
        return float(next(scores))

    seen: list[tuple[float, ...]] = []
    monkeypatch.setattr(TrainingProgress, "due", lambda _: True)
    monkeypatch.setattr(TrainingProgress, "step", lambda _, *values: seen.append(values))

    def trained() -> Progress:
        return train(
            make_model(), loss=step, evaluate=evaluate,
            checkpoint_file=tmp_path / "state.safetensors", checkpoint_seconds=checkpoint_seconds,
        )  # fmt: skip

    if stop_at is not None:
        with pytest.raises(Stopped):
            trained()
        clock.now = 5.0  # of another process
    fitted = trained()
    assert steps == EPOCHS * 7 + (stop_at is not None)
    assert fitted.seconds == EPOCHS * (7 + 10)
    assert fitted.examples_per_second == pytest.approx(ROWS / 7)
    assert [row["seconds"] for row in fitted.curve] == [17 * epoch for epoch in range(1, EPOCHS + 1)]
    losses = [row["loss"] for row in fitted.curve]
    assert capsys.readouterr().err.splitlines() == [
        f"test epoch {epoch}/3: loss {loss:.4f}, dev score {epoch}.0000 (best), 7 examples/s, {left} left"
        for epoch, loss, left in zip((1, 2, 3), losses, ("0:34", "0:17", "0:00"), strict=True)
    ]
    # After the last step one evaluation is left, of which two were timed.
    assert seen[-1] == (21, 21, 3, pytest.approx(losses[-1]), pytest.approx(ROWS / 7), pytest.approx(10))
    if stop_at is None:
        # Until an evaluation has been timed, it is taken to cost a third of training on as many rows.
        untimed = [240 / 8] * 6 + [240 * 7 / ROWS]
        lefts = [steps + each for steps, each in zip(range(20, 13, -1), untimed, strict=True)]
        assert [values[-1] for values in seen[:8]] == pytest.approx([*lefts, 33])
    assert [values[0] for values in seen] == [*range(1, 22)]
    assert all(values[4] == pytest.approx(8) for values in seen[:6])  # the seventh batch of an epoch is smaller


@pytest.mark.covering(1)
@pytest.mark.parametrize("writing", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("step_seconds", [0.01, 1.0, 10.0])
def test_a_kill_costs_a_tenth_of_a_run_or_a_minute_and_writing_next_to_nothing(
    step_seconds: float, writing: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation takes five steps' time; after it, and at the end, nothing is scored again."""
    now, written = 0.0, [0.0]
    monkeypatch.setattr("pipeline.training.progress.time.monotonic", lambda: now)

    def save(*_: object) -> None:
        nonlocal now
        now += writing
        written.append(now)

    monkeypatch.setattr("pipeline.training.progress.save_checkpoint", save)
    at_risk = list[tuple[float, float]]()

    def step(model: nn.Module, piece: Piece) -> Tensor:
        nonlocal now
        at_risk.append((now, now - written[-1]))
        now += step_seconds
        return squared_error(model, piece)

    def evaluate(model: nn.Module) -> float:
        nonlocal now
        now += 5 * step_seconds
        return 0.0

    train(make_model(), loss=step, evaluate=evaluate, checkpoint_file=tmp_path / "state.safetensors", epochs=30)
    one = 6 * step_seconds  # no state is kept within
    assert all(lost < one + min(60, max(0.5, 0.1 * elapsed, 50 * writing)) + 1e-6 for elapsed, lost in at_risk)
    assert writing * (len(written) - 3) <= max(0.02 * now, 0.1 * now * (50 * writing > 60))  # but for first and last
    assert written[-1] == now


class Signalled:
    """``function``, in one of whose calls, counted from 1, a signal arrives."""

    def __init__(self, function: Callable[..., Any], at: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.function, self.at, self.number = function, at, number
        self.begun = self.ended = 0

    def __call__(self, *given: Any) -> Any:
        self.begun += 1
        if self.begun == self.at:
            signal.raise_signal(self.number)
        value = self.function(*given)
        self.ended += 1
        return value


@pytest.mark.covering(1)
@pytest.mark.usefixtures("command_handlers")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("stop_at", [1, 7, 8, 20])
def test_an_interrupt_keeps_the_step_that_is_under_way(
    stop_at: int, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the run that resumes ends bit for bit as one that was never interrupted."""
    monkeypatch.setattr("pipeline.training.progress._SOONEST", 1e9)  # only the interrupt keeps anything
    whole, resumed = make_model(), make_model()
    expected, interrupted = train(whole), Signalled(squared_error, stop_at, number)
    file = tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(make_model(), loss=interrupted, checkpoint_file=file)
    assert interrupted.ended == stop_at
    found = train(resumed, loss=interrupted, checkpoint_file=file)
    assert interrupted.ended == EPOCHS * 7  # none is taken twice
    assert comparable(found.curve) == comparable(expected.curve)
    assert equal(weights(resumed), weights(whole))


@pytest.mark.usefixtures("command_handlers")
def test_an_interrupt_beside_a_broken_loss_does_not_keep_what_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    breaking = Signalled(lambda *given: squared_error(*given) * float("nan"), 1)
    with pytest.raises(KeyboardInterrupt):
        train(make_model(), loss=breaking, checkpoint_file=file)
    assert not file.exists()


@pytest.mark.usefixtures("command_handlers")
@pytest.mark.parametrize("stop_at", [1, 2, 4])
def test_an_interrupt_ends_an_evaluation_and_keeps_all_steps_before_it(stop_at: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_file": tmp_path / "state.safetensors", "score_start": True}
    whole, resumed = make_model(), make_model()
    evaluate = Signalled(lambda model: weights(model)[0].sum().item(), stop_at)
    expected = train(whole, evaluate=evaluate.function, score_start=True)
    with pytest.raises(KeyboardInterrupt):
        train(make_model(), evaluate=evaluate, **settings)
    assert evaluate.ended == stop_at - 1
    found = train(resumed, evaluate=evaluate, **settings)
    assert (evaluate.begun, evaluate.ended) == (EPOCHS + 2, EPOCHS + 1)
    assert comparable(found.curve) == comparable(expected.curve)
    assert equal(weights(resumed), weights(whole))


ONCE = {"schedule": "constant", "warmup_ratio": 0.0, "learning_rate": 1e-3, "weight_decay": 0.01, "max_grad_norm": 1e6}


def stepped(slopes: list[float], **settings: Any) -> float:
    """The weight, 1 at the start, after a step on a loss of each slope."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    pieces = [[Piece({"rows": torch.tensor([0]), "slope": torch.tensor([slope])})] for slope in slopes]
    train(
        model,
        data=TrainingData(lambda epoch, first: iter(pieces[first:]), len(slopes), 1),
        loss=lambda model, piece: (piece.batch["slope"] * model(torch.ones(1, 1).double())).sum(),
        evaluate=lambda model: 0.0,
        **{"epochs": 1, "batch_size": 1} | ONCE | settings,
    )
    return model.weight.item()


def test_the_first_step_of_adamw_is_the_one_worked_out_by_hand() -> None:
    """Decay before the step, epsilon after bias correction: 1 - 1e-5 - 1e-3 * 0.5 / (0.5 + epsilon)."""
    assert stepped([0.5], adam_epsilon=1e-6) == pytest.approx(0.99899000, abs=5e-9)
    assert stepped([0.5], adam_epsilon=0.5) == pytest.approx(0.99949, abs=5e-9)
    assert stepped([0.5], adam_epsilon=1e-6, adam_correction="step") == pytest.approx(0.99899007, abs=5e-9)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.999), (0.9, 0.6), (0.0, 0.0)])
def test_betas_and_epsilon_are_those_of_the_recipe(betas: tuple[float, float]) -> None:
    weight, slopes = nn.Parameter(torch.ones(1, 1).double()), [0.5, -0.25, 2.0]
    stock = torch.optim.AdamW([weight], lr=1e-3, betas=betas, eps=1e-3, weight_decay=0.01)
    for slope in slopes:
        weight.grad = torch.full((1, 1), slope).double()
        stock.step()
    ours = stepped(slopes, adam_beta1=betas[0], adam_beta2=betas[1], adam_epsilon=1e-3)
    assert ours == pytest.approx(weight.item(), abs=1e-12)
