"""fit: the training loop. There is one; it knows no method by name.

A step's random numbers are seeded by (seed, step, process) and the order of batches by (seed, epoch), so a run that
was killed and goes on from its checkpoint takes exactly the steps it would have taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import AdamW

from pipeline.data.batches import Batch
from pipeline.data.prefetch import prefetched
from pipeline.errors import PipelineError
from pipeline.recipe import Recipe
from pipeline.training.checkpoint import Checkpoint, Progress, load_checkpoint, save_checkpoint
from pipeline.training.cost import peak_memory_mb, reset_peak_memory
from pipeline.training.optim import linear_schedule, parameter_groups
from pipeline.training.progress import TrainingProgress

Loss = Callable[[nn.Module, Batch], Tensor]
Penalty = Callable[[], Tensor]


@dataclass(frozen=True)
class TrainingData:
    """``batches(epoch, first)`` yields the epoch's batches from number ``first`` on, each as its micro-batches."""

    batches: Callable[[int, int], Iterator[list[Batch]]]
    batches_per_epoch: int
    epochs: int


@dataclass(frozen=True)
class Fitted:
    """What training came to. The model holds the weights of ``best_epoch`` when ``fit`` returns."""

    curve: list[dict[str, float]]
    best_epoch: int
    best_score: float
    seconds: float
    """Training and evaluation, over all resumptions, without start-up."""
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
    evaluate: Callable[[nn.Module], float],
    metric: str,
    accelerator: Accelerator,
    title: str,
    penalties: Sequence[Penalty] = (),
    without_decay: Collection[str] = (),
    checkpoint_file: Path | None = None,
    checkpoint_seconds: float = 60.0,
) -> Fitted:
    """Train the parameters of ``model`` that require gradients; keep the epoch with the best dev score.

    Args:
        recipe: a resolved recipe.
        loss: ``loss(model, batch)``, the mean over the batch's rows; weighted by rows over micro-batches and
            processes, so the gradient is that of the whole batch however it is cut.
        evaluate: the dev score of the model, higher is better; called in evaluation mode after each epoch.
        penalties: terms added to the loss once a step, such as a regulariser of weights.
        without_decay: names of parameters that weight decay leaves alone.
        checkpoint_file: where the state is kept, after each epoch and every ``checkpoint_seconds``; training goes on
            from it when it is there.

    Raises:
        PipelineError: nothing is trainable, or the loss is no longer a finite number; the checkpoint before that stays.
    """
    assert recipe.learning_rate is not None
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise PipelineError(f"{title}: nothing is trainable with trainable = '{recipe.trainable}' and this head")
    reset_peak_memory()
    optimizer = AdamW(parameter_groups(model, recipe.weight_decay, without_decay), lr=recipe.learning_rate, fused=True)
    plain, (model, prepared) = model, accelerator.prepare(model, optimizer)
    progress, best_weights = Progress(), dict[str, Tensor]()
    resumed = load_checkpoint(checkpoint_file) if checkpoint_file is not None else None
    if resumed is not None and resumed.weights.keys() == _trainable(plain).keys():
        progress, best_weights = resumed.progress, resumed.best_weights
        _load_weights(plain, resumed.weights)
        _load_optimizer(optimizer, resumed.optimizer)
        if accelerator.scaler is not None and resumed.scaler:
            accelerator.scaler.load_state_dict(resumed.scaler)

    def keep() -> None:
        # Every process holds the same weights; one of them writes.
        if checkpoint_file is not None and accelerator.is_main_process:
            scaler = accelerator.scaler.state_dict() if accelerator.scaler is not None else {}
            weights = {name: tensor.detach() for name, tensor in _trainable(plain).items()}
            save_checkpoint(
                checkpoint_file, Checkpoint(progress, weights, best_weights, _optimizer_state(optimizer), scaler)
            )

    total = data.epochs * data.batches_per_epoch
    last_kept = time.monotonic()
    with TrainingProgress(title, data.epochs, shown=accelerator.is_main_process) as shown:
        while not progress.done:
            model.train()
            # Summed on the device and read seldom: reading makes the host wait for a GPU.
            loss_sum = torch.tensor(progress.loss_sum, device=accelerator.device)
            broken_at = torch.full((), -1, dtype=torch.int64, device=accelerator.device)
            started = time.perf_counter()
            batches = data.batches(progress.epoch, progress.batch)
            for pieces in prefetched(batches) if accelerator.device.type == "cuda" else batches:
                torch.manual_seed(_step_seed(seed, progress.step, accelerator.process_index))
                factor = linear_schedule(progress.step, total, recipe.warmup_ratio)
                for group in optimizer.param_groups:
                    group["lr"] = recipe.learning_rate * factor
                step_loss = _backward(model, pieces, loss, penalties, accelerator)
                norm = accelerator.clip_grad_norm_(plain.parameters(), recipe.max_grad_norm)
                prepared.step()
                prepared.zero_grad()
                loss_sum += step_loss
                # Under fp16 a gradient may overflow: the scaler then skips the step and lowers its scale.
                fine = torch.isfinite(step_loss) & (torch.isfinite(norm) if accelerator.scaler is None else True)
                broken_at = torch.where((broken_at < 0) & ~fine, progress.step, broken_at)
                progress.step += 1
                progress.batch += 1
                progress.loss_count += 1
                progress.examples += sum(_rows(piece) for piece in pieces)
                if shown.due():
                    spent = progress.train_seconds + time.perf_counter() - started
                    mean = loss_sum.item() / progress.loss_count
                    shown.step(progress.step, total, progress.epoch, mean, progress.examples / spent)
                if time.monotonic() - last_kept >= checkpoint_seconds:
                    _check_finite(broken_at, data.batches_per_epoch, title)
                    progress.train_seconds += time.perf_counter() - started
                    progress.loss_sum = loss_sum.item()
                    keep()
                    started = time.perf_counter()
                    last_kept = time.monotonic()
            _check_finite(broken_at, data.batches_per_epoch, title)
            progress.train_seconds += time.perf_counter() - started
            mean_loss = loss_sum.item() / progress.loss_count
            started = time.perf_counter()
            # The module itself, not its distributed wrapper: that one synchronises buffers at each forward pass, and a
            # process without a dev batch would not take part. Mixed precision is part of the module.
            plain.eval()
            score = evaluate(plain)
            progress.evaluation_seconds += time.perf_counter() - started
            progress.peak_memory_mb = max(progress.peak_memory_mb, peak_memory_mb())
            _close_epoch(
                progress, data.epochs, recipe.early_stopping_patience, mean_loss, score, optimizer.param_groups[0]["lr"]
            )
            if progress.best_epoch == progress.epoch - 1:
                best_weights = {name: tensor.detach().cpu().clone() for name, tensor in _trainable(plain).items()}
            keep()
            last_kept = time.monotonic()
            spent = progress.train_seconds + progress.evaluation_seconds
            left = spent / (progress.epoch - 1) * (data.epochs - progress.epoch + 1)
            shown.epoch(
                progress.epoch - 1,
                mean_loss,
                f"dev {metric} {score:.4f}",
                progress.best_epoch == progress.epoch - 1,
                progress.examples / progress.train_seconds,
                0.0 if progress.done else left,
            )
            accelerator.log({"loss": mean_loss, f"dev_{metric}": score}, step=progress.step)
    _load_weights(plain, best_weights)
    accelerator.free_memory()
    return Fitted(
        curve=progress.curve,
        best_epoch=progress.best_epoch,
        best_score=progress.best_score,
        seconds=progress.train_seconds + progress.evaluation_seconds,
        examples_per_second=progress.examples / progress.train_seconds,
        peak_memory_mb=progress.peak_memory_mb,
    )


def _backward(
    model: nn.Module, pieces: list[Batch], loss: Loss, penalties: Sequence[Penalty], accelerator: Accelerator
) -> Tensor:
    """Add up the gradient of the whole batch, each process taking its share of the pieces; returns the batch's loss."""
    rows = sum(_rows(piece) for piece in pieces)
    world = accelerator.num_processes
    mine = [(piece, _rows(piece) / rows) for piece in pieces[accelerator.process_index :: world]]
    # A last batch smaller than the number of processes leaves some without rows: they take part with weight zero,
    # because the others wait for their gradients.
    mine = mine or [(pieces[0], 0.0)]
    total = torch.zeros((), device=accelerator.device)
    for number, (piece, weight) in enumerate(mine):
        piece = {name: tensor.to(accelerator.device, non_blocking=True) for name, tensor in piece.items()}
        last = number == len(mine) - 1
        with nullcontext() if last else accelerator.no_sync(model):
            value = loss(model, piece) * weight
            total += value.detach()
            # Gradients are averaged over processes, so each share counts `world` times to make a sum.
            value = value * world
            if last:
                value = value + sum((penalty() for penalty in penalties), torch.zeros((), device=value.device))
        accelerator.backward(value)
    return accelerator.reduce(total, "sum") if world > 1 else total


def _close_epoch(
    progress: Progress, epochs: int, patience: int | None, loss: float, score: float, learning_rate: float
) -> None:
    """Write the epoch into the curve, and say whether training is over."""
    progress.curve.append(
        {
            "epoch": progress.epoch,
            "loss": loss,
            "dev": score,
            "learning_rate": learning_rate,
            "examples": progress.examples,
            "seconds": round(progress.train_seconds + progress.evaluation_seconds, 3),
        }
    )
    if score > progress.best_score or progress.best_epoch == 0:
        progress.best_score, progress.best_epoch = score, progress.epoch
    progress.done = progress.epoch >= epochs or progress.epoch - progress.best_epoch >= (patience or math.inf)
    progress.epoch += 1
    progress.batch, progress.loss_sum, progress.loss_count = 0, 0.0, 0


def _check_finite(broken_at: Tensor, batches_per_epoch: int, title: str) -> None:
    step = int(broken_at.item())
    if step >= 0:
        epoch, batch = divmod(step, batches_per_epoch)
        raise PipelineError(
            f"{title}: loss or gradient is no longer a finite number at step {step + 1}"
            f" (epoch {epoch + 1}, batch {batch + 1}); lower --learning-rate or use --precision fp32."
            " Finished runs are kept"
        )


def _rows(piece: Batch) -> int:
    return len(piece["rows"])


def _step_seed(seed: int, step: int, process: int) -> int:
    """A seed of its own for each step and process, spread over 64 bits (Knuth's multiplicative hashing)."""
    return ((seed * 1_000_003 + step) * 2_654_435_761 + process * 97) % 2**63


def _trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in _trainable(model).items():
            parameter.copy_(weights[name])


def _optimizer_state(optimizer: AdamW) -> dict[int, dict[str, Tensor]]:
    return {index: dict(state) for index, state in optimizer.state_dict()["state"].items()}


def _load_optimizer(optimizer: AdamW, state: dict[int, dict[str, Tensor]]) -> None:
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
