"""fit: the one training loop. It knows no method by name.

A step's random numbers are seeded by (seed, step, process) and the order of batches by (seed, epoch), so a run that
resumes from its checkpoint takes exactly the steps it would have taken.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn

from pipeline.data.batches import Piece, prefetched
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from pipeline.system.process import DeferredInterrupts
from pipeline.training.checkpoint import Companion, Progress, Resumption, Scores, trainable
from pipeline.training.memory import peak_memory_mb, reset_peak_memory
from pipeline.training.optim import OPTIMIZERS, SCHEDULES, parameter_groups, peak_rates
from pipeline.training.process_group import in_any_process
from pipeline.training.progress import TrainingProgress
from pipeline.training.sharding import copy_to_shard, whole
from pipeline.training.surgery import Surgery

Loss = Callable[[nn.Module, Piece], Tensor]
Penalty = Callable[[], Tensor]


@dataclass(frozen=True)
class TrainingData:
    """``batches(epoch, first)`` yields the epoch's batches from number ``first`` on, each as its micro-batches."""

    batches: Callable[[int, int], Iterator[list[Piece]]]
    batches_per_epoch: int
    epochs: int


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
    combine: Surgery | None = None,
    companions: Sequence[Companion] = (),
    checkpoint_file: Path | None = None,
    checkpoint_seconds: float = 60.0,
) -> Progress:
    """Train the parameters of ``model`` that require gradients; it ends with the weights of the best epoch on dev.

    Where nothing is trainable and ``recipe.score_start`` is set, the model is scored as it is.

    Args:
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
        checkpoint_file: written every ``checkpoint_seconds``, sooner in the first minutes, at the end, and before an
            interrupt is raised; if it exists, training resumes from it.

    Raises:
        PipelineError: nothing is trainable, or the loss is no longer a finite number; the checkpoint before that stays.
        KeyboardInterrupt: SIGINT, in a command SIGTERM or SIGHUP: after the step that is under way, or out of an
            evaluation.
    """
    reset_peak_memory()
    interrupts = DeferredInterrupts()
    scoring = _DevScores(evaluate, companions, interrupts, alone=accelerator.num_processes == 1)
    if not trainable(model):
        if not recipe.score_start:
            raise PipelineError(f"{title}: nothing is trainable with trainable = '{recipe.trainable}' and this head")
        progress = Progress()
        scoring.take(model.to(accelerator.device), progress, 0, None, 0.0)
        return progress
    trained = copy_to_shard(model, accelerator)
    rates = peak_rates(trained, recipe, pretrained)
    groups = parameter_groups(trained, recipe.weight_decay, without_decay, rates)
    betas = (recipe.adam_beta1, recipe.adam_beta2)
    optimizer = OPTIMIZERS[recipe.adam_correction](groups, betas=betas, eps=recipe.adam_epsilon, fused=True)
    plain, (model, prepared) = model, accelerator.prepare(trained, optimizer)
    state = Resumption(checkpoint_file, checkpoint_seconds, plain, trained, optimizer, accelerator, companions)
    total = data.epochs * data.batches_per_epoch
    parameters = list(trained.parameters())  # looked up once: it takes a millisecond, at every step
    steps = _Steps(model, parameters, prepared, recipe, seed, total, accelerator, loss, penalties, combine)
    shown = TrainingProgress(title, data.epochs, shown=accelerator.is_main_process)
    training = _Training(plain, recipe, data, steps, scoring, companions, state, interrupts, shown, metric, title)
    with shown, state.kept_if_interrupted(), interrupts:
        training.run()
    state.restore_best()
    accelerator.free_memory()
    return state.progress


@dataclass(frozen=True)
class _Training:
    """Epochs of steps, with what comes between them: scores of dev, checkpoints, interrupts and lines of progress."""

    # The module itself, not its distributed wrapper, which synchronises buffers at each forward pass: a process without
    # a dev batch would not take part. Mixed precision is part of the module.
    model: nn.Module
    recipe: Recipe
    data: TrainingData
    steps: _Steps
    scoring: _DevScores
    companions: Sequence[Companion]
    state: Resumption
    interrupts: DeferredInterrupts
    shown: TrainingProgress
    metric: str
    title: str

    def run(self) -> None:
        """Train from where the progress stands to the last epoch, or until dev no longer gains."""
        progress, recipe = self.state.progress, self.recipe
        if recipe.score_start and not progress.step and not progress.curve:
            self._take_score(0, None)
        while not progress.done:
            self._take_steps()
            if recipe.scored(progress.epoch, self.data.epochs):
                self._take_score(progress.epoch, progress.loss_sum / progress.loss_count)
            progress.epoch += 1
            progress.batch, progress.loss_sum, progress.loss_count = 0, 0.0, 0
            if progress.done or in_any_process(self.steps.accelerator, self.state.due):
                self.state.keep()
        self._end_if_interrupted()

    def _take_steps(self) -> None:
        """Take the steps of the epoch that are left."""
        progress, steps, data = self.state.progress, self.steps, self.data
        steps.model.train()
        accelerator, on_gpu = steps.accelerator, steps.accelerator.device.type == "cuda"
        # Processes ask each other, and an answer on a GPU makes its host wait for it.
        ask_every = 8 if accelerator.num_processes > 1 and on_gpu else 1
        stretch = _Stretch(progress, accelerator.device)
        batches = data.batches(progress.epoch, progress.batch)
        for pieces in prefetched(batches) if on_gpu else batches:
            step_loss, fine = steps.take(pieces, progress.step)
            stretch.add(step_loss, fine, sum(map(len, pieces)))
            for companion in self.companions:
                companion.after_step(progress.step, steps.total)
            if self.shown.due():
                mean_loss, speed, seconds = stretch.so_far()
                left, is_scored = self._seconds_left(progress.epoch, seconds), bool(progress.curve)
                self.shown.step(progress.step, steps.total, progress.epoch, mean_loss, speed, left, is_scored)
            due = self.state.due or self.interrupts.held is not None
            if progress.step % ask_every == 0 and in_any_process(accelerator, due):
                stretch.end(data.batches_per_epoch, self.title)
                self._end_if_interrupted()
                self.state.keep()
                stretch = _Stretch(progress, accelerator.device)
        stretch.end(data.batches_per_epoch, self.title)

    def _take_score(self, epoch: int, mean_loss: float | None) -> None:
        progress, epochs = self.state.progress, self.data.epochs
        patience = self.recipe.early_stopping_patience or math.inf
        rate = self.steps.learning_rate(progress.step - 1) if epoch else 0.0
        self.shown.scoring(epoch)
        self.state.gather()
        if best := self.scoring.take(self.model, progress, epoch, mean_loss, rate):
            self.state.remember_best()
        progress.done = epoch > 0 and (epoch >= epochs or epoch - progress.best_epoch >= patience)
        left = 0.0 if progress.done or not epoch else self._seconds_left(epoch + 1, progress.train_seconds)
        dev, losses = progress.curve[-1]["dev"], {} if mean_loss is None else {"loss": mean_loss}
        self.shown.epoch(epoch, mean_loss, f"dev {self.metric} {dev:.4f}", best, progress.examples_per_second, left)
        self.steps.accelerator.log({**losses, f"dev_{self.metric}": dev}, step=progress.step)

    def _seconds_left(self, epoch: int, train_seconds: float) -> float:
        """Seconds of the steps to come, and of the evaluations from that of ``epoch`` on, as long as those so far."""
        progress, epochs = self.state.progress, self.data.epochs
        evaluations = sum(self.recipe.scored(each, epochs) for each in range(epoch, epochs + 1))
        evaluation = progress.evaluation_seconds / max(len(progress.curve), 1)
        return (self.steps.total - progress.step) * train_seconds / progress.step + evaluations * evaluation

    def _end_if_interrupted(self) -> None:
        """All processes end after the same step, and each its own way; those that no signal has reached too."""
        if in_any_process(self.steps.accelerator, self.interrupts.held is not None):
            self.interrupts.end()


class _DevScores:
    """Takes the dev scores of a model; only a process ``alone`` may be interrupted meanwhile."""

    def __init__(
        self,
        evaluate: Callable[[nn.Module], Scores],
        companions: Sequence[Companion],
        interrupts: DeferredInterrupts,
        alone: bool,
    ) -> None:
        self._evaluate, self._companions, self._interrupts, self._alone = evaluate, companions, interrupts, alone

    def take(self, model: nn.Module, progress: Progress, epoch: int, mean_loss: float | None, rate: float) -> bool:
        """Score the model into the curve; returns whether it is the best so far."""
        started = time.perf_counter()
        model.eval()
        # Processes that evaluate together all stay to the end: none may wait for one that has left.
        with self._interrupts.lifted() if self._alone else nullcontext():
            scores = self._evaluate(model)
        progress.evaluation_seconds += time.perf_counter() - started
        progress.peak_memory_mb = max(progress.peak_memory_mb, peak_memory_mb())
        measured = {name: value for companion in self._companions for name, value in companion.measured().items()}
        return progress.add_point(epoch, mean_loss, scores, rate, measured)


@dataclass(frozen=True)
class _Steps:
    """The optimiser steps of a training, each with random numbers and a learning rate of its own."""

    model: nn.Module  # as accelerate has prepared it
    parameters: Sequence[nn.Parameter]
    optimizer: AcceleratedOptimizer
    recipe: Recipe
    seed: int
    total: int
    accelerator: Accelerator
    loss: Loss
    penalties: Sequence[Penalty]
    combine: Surgery | None

    def take(self, pieces: list[Piece], step: int) -> tuple[Tensor, Tensor]:
        """Take a step with one batch; returns its loss, and whether that and the gradient are finite."""
        accelerator = self.accelerator
        _seed(_step_seed(self.seed, step, accelerator.process_index), accelerator.device)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * self._factor(step)
        loss = _backward(self.model, pieces, self.loss, self.penalties, accelerator, self.combine)
        fine = torch.isfinite(loss)
        if all(parameter.grad is None for parameter in self.parameters):
            return loss, fine  # the scaler of fp16 cannot take a step without a gradient
        norm = whole(accelerator.clip_grad_norm_(self.parameters, self.recipe.max_grad_norm))
        self.optimizer.step()
        self.optimizer.zero_grad()
        # Under fp16 a gradient may overflow: the scaler then skips the step and lowers its scale.
        return loss, fine if accelerator.scaler is not None else fine & torch.isfinite(norm)

    def learning_rate(self, step: int) -> float:
        """The recipe's learning rate at a step, which some groups of parameters have a multiple of."""
        assert self.recipe.learning_rate is not None
        return self.recipe.learning_rate * self._factor(step)

    def _factor(self, step: int) -> float:
        return SCHEDULES[self.recipe.schedule](step, self.total, self.recipe.warmup_ratio)


class _Stretch:
    """Steps of an epoch, each counted into ``progress``, to which the stretch adds their losses and seconds at its end.

    Losses are summed on the device and rarely read: reading makes the host wait for a GPU.
    """

    def __init__(self, progress: Progress, device: torch.device) -> None:
        self._progress, self._started = progress, time.perf_counter()
        self._loss_sum = torch.tensor(progress.loss_sum, device=device)
        self._broken_at = torch.full((), -1, dtype=torch.int64, device=device)

    def add(self, loss: Tensor, fine: Tensor, rows: int) -> None:
        """Count a step; ``fine`` says whether its loss and gradient are finite."""
        progress = self._progress
        self._loss_sum += loss
        self._broken_at = torch.where((self._broken_at < 0) & ~fine, progress.step, self._broken_at)
        progress.step += 1
        progress.batch += 1
        progress.loss_count += 1
        progress.examples += rows

    def so_far(self) -> tuple[float, float, float]:
        """The mean loss of the epoch's steps, and the examples a second and the seconds of all steps."""
        progress, seconds = self._progress, self._progress.train_seconds + time.perf_counter() - self._started
        return self._loss_sum.item() / progress.loss_count, progress.examples / seconds, seconds

    def end(self, batches_per_epoch: int, title: str) -> None:
        """Bring the progress up to date; raises where a step's loss or gradient was not finite."""
        step = int(self._broken_at.item())
        if step >= 0:
            epoch, batch = divmod(step, batches_per_epoch)
            raise PipelineError(
                f"{title}: loss or gradient is no longer a finite number at step {step + 1}"
                f" (epoch {epoch + 1}, batch {batch + 1}); lower --learning-rate or use --precision fp32."
                " Finished runs are kept"
            )
        self._progress.train_seconds += time.perf_counter() - self._started
        self._progress.loss_sum = self._loss_sum.item()


def _backward(
    model: nn.Module,
    pieces: list[Piece],
    loss: Loss,
    penalties: Sequence[Penalty],
    accelerator: Accelerator,
    combine: Surgery | None,
) -> Tensor:
    """Accumulate the gradient of the whole batch, of which each process takes some pieces; returns the batch's loss.

    Each forward pass is followed by its backward pass, so that only one piece's activations are held at a time.
    """
    rows = Counter[str]()
    for piece in pieces:
        rows[piece.task] += len(piece)
    world = accelerator.num_processes
    mine = [(piece, len(piece) / rows[piece.task]) for piece in pieces[accelerator.process_index :: world]]
    # A batch with fewer rows leaves some processes fewer pieces. They take part with weight zero, because the others
    # wait for them in every pass.
    mine += [(pieces[0], 0.0)] * (math.ceil(len(pieces) / world) - len(mine))
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


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of ``device``, with the numbers of :func:`torch.manual_seed`.

    ``manual_seed`` also formats the stack for each kind of device that is not there: half a millisecond a step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def _step_seed(seed: int, step: int, process: int) -> int:
    """A seed for each step and process, spread by Knuth's multiplicative hashing.

    The CPU's generator uses its low 32 bits, in which those of a run are distinct.
    """
    return ((seed * 1_000_003 + step) * 2_654_435_761 + process * 97) % 2**63
