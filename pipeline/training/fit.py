"""fit: the one training loop. It knows no method by name.

A step's random numbers are seeded by (seed, step, process) and the order of batches by (seed, epoch), so a run that
resumes from its checkpoint takes exactly the steps it would have taken.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import AdamW

from pipeline.data.batches import Piece, prefetched
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from pipeline.training.checkpoint import Progress
from pipeline.training.cost import peak_memory_mb, reset_peak_memory
from pipeline.training.curve import Scores, add_point, is_over
from pipeline.training.optim import SCHEDULES, parameter_groups, peak_rates
from pipeline.training.progress import TrainingProgress
from pipeline.training.resumption import Companion, Resumption, trainable

Loss = Callable[[nn.Module, Piece], Tensor]
Penalty = Callable[[], Tensor]


class GradientRule(Protocol):
    """Combines the gradients of a step's tasks otherwise than by adding them up."""

    def take(self) -> None:
        """Store and clear the parameters' gradient, which is that of one task's whole batch."""
        ...

    def give(self) -> None:
        """Set the parameters' gradient to the combination of all that were taken."""
        ...


@dataclass(frozen=True)
class TrainingData:
    """``batches(epoch, first)`` yields the epoch's batches from number ``first`` on, each as its micro-batches."""

    batches: Callable[[int, int], Iterator[list[Piece]]]
    batches_per_epoch: int
    epochs: int


@dataclass(frozen=True)
class Fitted:
    """The result of training. The model holds the weights of ``best_epoch`` when ``fit`` returns."""

    curve: list[dict[str, float | None]]
    best_epoch: int
    """0 is the start, before any step."""
    best_score: float
    seconds: float
    """Of training and evaluation over all resumptions, without start-up."""
    examples_per_second: float
    """Of the training steps alone."""
    peak_memory_mb: float


def fit(
    model: nn.Module,
    *,
    recipe: Recipe,
    seed: int,
    data: TrainingData,
    loss: Loss,
    evaluate: Callable[[nn.Module], Scores],
    metric: str,
    accelerator: Accelerator,
    title: str,
    penalties: Sequence[Penalty] = (),
    without_decay: Collection[str] = (),
    pretrained: Collection[str] | None = None,
    combine: GradientRule | None = None,
    companions: Sequence[Companion] = (),
    checkpoint_file: Path | None = None,
    checkpoint_seconds: float = 60.0,
) -> Fitted:
    """Train the parameters of ``model`` that require gradients; keep the epoch with the best dev score.

    Where nothing is trainable and ``recipe.score_start`` is set, the model is scored as it is.

    Args:
        recipe: a resolved recipe.
        loss: ``loss(model, piece)``, the mean over the piece's rows. Micro-batches and processes are weighted by their
            rows, so the gradient is that of the whole batch however it is cut. The loss of a step with batches of
            several tasks is the sum of theirs.
        evaluate: the dev score of the model, or one per task, of which the mean decides; higher is better. Called in
            evaluation mode after each epoch that ``recipe`` scores, and before the first step if it scores the start.
        penalties: terms added to the loss once per step, such as a regulariser of weights.
        without_decay: names of parameters that weight decay leaves alone.
        pretrained: names of the encoder's own parameters within it, as opposed to modules put into it; None: all.
        combine: combines the tasks' gradients before clipping, in one process; the pieces of a task come together.
        companions: called at the start and after every step; the checkpoint keeps their state.
        checkpoint_file: written every ``checkpoint_seconds`` and at the end; if it exists, training resumes from it.

    Raises:
        PipelineError: nothing is trainable, or the loss is no longer a finite number; the checkpoint before that stays.
    """
    assert recipe.learning_rate is not None
    reset_peak_memory()
    if not trainable(model):
        if not recipe.score_start:
            raise PipelineError(f"{title}: nothing is trainable with trainable = '{recipe.trainable}' and this head")
        return _scored_as_it_is(model.to(accelerator.device), evaluate)
    rates = peak_rates(model, recipe, pretrained)
    optimizer = AdamW(parameter_groups(model, recipe.weight_decay, without_decay, rates), fused=True)
    plain, (model, prepared) = model, accelerator.prepare(model, optimizer)
    state = Resumption(checkpoint_file, checkpoint_seconds, plain, optimizer, accelerator, companions)
    progress = state.progress
    total = data.epochs * data.batches_per_epoch
    peak, schedule = recipe.learning_rate, SCHEDULES[recipe.schedule]

    def take_score(epoch: int, mean_loss: float | None) -> None:
        # The module itself, not its distributed wrapper, which synchronises buffers at each forward pass: a process
        # without a dev batch would not take part. Mixed precision is part of the module.
        rate = peak * schedule(progress.step - 1, total, recipe.warmup_ratio) if epoch else 0.0
        measured = {name: value for companion in companions for name, value in companion.measured().items()}
        best = _score(plain, evaluate, progress, epoch, mean_loss, rate, measured)
        if best:
            state.remember_best()
        progress.done = epoch > 0 and is_over(progress, data.epochs, recipe.early_stopping_patience)
        spent, score = progress.train_seconds + progress.evaluation_seconds, progress.curve[-1]["dev"]
        left = 0.0 if progress.done or not epoch else spent / epoch * (data.epochs - epoch)
        speed = progress.examples / progress.train_seconds if epoch else 0.0
        shown.epoch(epoch, mean_loss, f"dev {metric} {score:.4f}", best, speed, left)
        losses = {} if mean_loss is None else {"loss": mean_loss}
        accelerator.log({**losses, f"dev_{metric}": score}, step=progress.step)

    with TrainingProgress(title, data.epochs, shown=accelerator.is_main_process) as shown:
        if recipe.score_start and not progress.step and not progress.curve:
            take_score(0, None)
        while not progress.done:
            model.train()
            # Summed on the device and rarely read: reading makes the host wait for a GPU.
            loss_sum = torch.tensor(progress.loss_sum, device=accelerator.device)
            broken_at = torch.full((), -1, dtype=torch.int64, device=accelerator.device)
            started = time.perf_counter()
            batches = data.batches(progress.epoch, progress.batch)
            for pieces in prefetched(batches) if accelerator.device.type == "cuda" else batches:
                torch.manual_seed(_step_seed(seed, progress.step, accelerator.process_index))
                factor = schedule(progress.step, total, recipe.warmup_ratio)
                for group in optimizer.param_groups:
                    group["lr"] = group["initial_lr"] * factor
                step_loss = _backward(model, pieces, loss, penalties, accelerator, combine)
                norm = accelerator.clip_grad_norm_(plain.parameters(), recipe.max_grad_norm)
                prepared.step()
                prepared.zero_grad()
                loss_sum += step_loss
                # Under fp16 a gradient may overflow: the scaler then skips the step and lowers its scale.
                fine = torch.isfinite(step_loss) & (torch.isfinite(norm) if accelerator.scaler is None else True)
                broken_at = torch.where((broken_at < 0) & ~fine, progress.step, broken_at)
                progress.step += 1
                for companion in companions:
                    companion.after_step(progress.step, total)
                progress.batch += 1
                progress.loss_count += 1
                progress.examples += sum(map(len, pieces))
                if shown.due():
                    spent = progress.train_seconds + time.perf_counter() - started
                    mean = loss_sum.item() / progress.loss_count
                    shown.step(progress.step, total, progress.epoch, mean, progress.examples / spent)
                if state.due:
                    _check_finite(broken_at, data.batches_per_epoch, title)
                    progress.train_seconds += time.perf_counter() - started
                    progress.loss_sum = loss_sum.item()
                    state.keep()
                    started = time.perf_counter()
            _check_finite(broken_at, data.batches_per_epoch, title)
            progress.train_seconds += time.perf_counter() - started
            if recipe.scored(progress.epoch, data.epochs):
                take_score(progress.epoch, loss_sum.item() / progress.loss_count)
            progress.epoch += 1
            progress.batch, progress.loss_sum, progress.loss_count = 0, 0.0, 0
            if progress.done or state.due:
                state.keep()
    state.restore_best()
    accelerator.free_memory()
    return _fitted(progress)


def _scored_as_it_is(model: nn.Module, evaluate: Callable[[nn.Module], Scores]) -> Fitted:
    progress = Progress()
    _score(model, evaluate, progress, 0, None, 0.0)
    return _fitted(progress)


def _score(
    model: nn.Module,
    evaluate: Callable[[nn.Module], Scores],
    progress: Progress,
    epoch: int,
    loss: float | None,
    learning_rate: float,
    measured: Mapping[str, float | None] = MappingProxyType({}),
) -> bool:
    """Score the model into the curve; returns whether it is the best so far."""
    started = time.perf_counter()
    model.eval()
    scores = evaluate(model)
    progress.evaluation_seconds += time.perf_counter() - started
    progress.peak_memory_mb = max(progress.peak_memory_mb, peak_memory_mb())
    return add_point(progress, epoch, loss, scores, learning_rate, measured)


def _fitted(progress: Progress) -> Fitted:
    return Fitted(
        curve=progress.curve,
        best_epoch=progress.best_epoch,
        best_score=progress.best_score,
        seconds=progress.train_seconds + progress.evaluation_seconds,
        examples_per_second=progress.examples / progress.train_seconds if progress.examples else 0.0,
        peak_memory_mb=progress.peak_memory_mb,
    )


def _backward(
    model: nn.Module,
    pieces: list[Piece],
    loss: Loss,
    penalties: Sequence[Penalty],
    accelerator: Accelerator,
    combine: GradientRule | None,
) -> Tensor:
    """Accumulate the gradient of the whole batch, of which each process takes some pieces; returns the batch's loss.

    Each forward pass is followed by its backward pass, so that only one piece's activations are held at a time.
    """
    rows = Counter[str]()
    for piece in pieces:
        rows[piece.task] += len(piece)
    world = accelerator.num_processes
    mine = [(piece, len(piece) / rows[piece.task]) for piece in pieces[accelerator.process_index :: world]]
    # A last batch smaller than the number of processes leaves some without rows. They take part with weight zero,
    # because the others wait for their gradients.
    mine = mine or [(pieces[0], 0.0)]
    total = torch.zeros((), device=accelerator.device)
    for number, (piece, weight) in enumerate(mine):
        there = {name: tensor.to(accelerator.device, non_blocking=True) for name, tensor in piece.batch.items()}
        last = number == len(mine) - 1
        with nullcontext() if last else accelerator.no_sync(model):
            value = loss(model, replace(piece, batch=there)) * weight
            total += value.detach()
            # Gradients are averaged over processes, so each share counts `world` times to make a sum.
            value = value * world
            if last and combine is None:
                value = value + _sum_of(penalties, value.device)
        # One of several tasks may train nothing: a head without weights on a frozen backbone.
        if value.requires_grad:
            accelerator.backward(value)
        if combine is not None and (last or mine[number + 1][0].task != piece.task):
            combine.take()
    if combine is not None:
        combine.give()
        if penalties:  # of no task
            accelerator.backward(_sum_of(penalties, total.device))
    return accelerator.reduce(total, "sum") if world > 1 else total


def _sum_of(penalties: Sequence[Penalty], device: torch.device) -> Tensor:
    return sum((penalty() for penalty in penalties), torch.zeros((), device=device))


def _check_finite(broken_at: Tensor, batches_per_epoch: int, title: str) -> None:
    step = int(broken_at.item())
    if step >= 0:
        epoch, batch = divmod(step, batches_per_epoch)
        raise PipelineError(
            f"{title}: loss or gradient is no longer a finite number at step {step + 1}"
            f" (epoch {epoch + 1}, batch {batch + 1}); lower --learning-rate or use --precision fp32."
            " Finished runs are kept"
        )


def _step_seed(seed: int, step: int, process: int) -> int:
    """A distinct seed for each step and process, spread over 64 bits (Knuth's multiplicative hashing)."""
    return ((seed * 1_000_003 + step) * 2_654_435_761 + process * 97) % 2**63
