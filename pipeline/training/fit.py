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
from pipeline.training.devices import copy_to_shard, in_any_process, peak_memory_mb, reset_peak_memory, whole
from pipeline.training.optim import OPTIMIZERS, parameter_groups, peak_rates, rate_factor
from pipeline.training.progress import Companion, Progress, Resumption, Scores, TrainingProgress, trainable
from pipeline.training.surgery import Surgery

Loss = Callable[[nn.Module, Piece], Tensor]
Penalty = Callable[[], Tensor]


@dataclass(frozen=True)
class TrainingData:
    """``batches(epoch, first)`` yields the epoch's batches from number ``first`` on, each as its micro-batches."""

    batches: Callable[[int, int], Iterator[list[Piece]]]
    batches_per_epoch: int
    epochs: int
    rows: int = 0
    """Training rows of an epoch, for messages."""
    scored_rows: int = 0
    """Dev rows of a scoring, to estimate its time before the first one."""


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
    """Train the parameters of ``model`` that require gradients, and restore the weights of the best epoch on dev.

    If nothing is trainable and ``recipe.score_start`` is set, the model is only scored.

    Args:
        loss: ``loss(model, piece)``, the mean over the piece's rows. Micro-batches and processes are weighted by their
            rows, so the gradient is that of the whole batch however it is cut. If a step has batches of several tasks,
            their losses are summed.
        evaluate: the dev score of the model, or one per task, whose mean counts; higher is better. Called in
            evaluation mode after each epoch that ``recipe`` scores, and before the first step if it scores the start.
        penalties: terms added to the loss once per step, such as a regulariser of weights.
        without_decay: names of parameters exempt from weight decay.
        pretrained: names of the pretrained parameters in the encoder; None: all.
        combine: combines the tasks' gradients before clipping; needs a single process, and a task's pieces in a row.
        companions: called at the start and after every step; the checkpoint keeps their state.
        checkpoint_file: written every ``checkpoint_seconds``, sooner in the first minutes, at the end, and before an
            interrupt is raised; if it exists, training resumes from it.

    Raises:
        PipelineError: nothing is trainable, or the loss is no longer a finite number; the checkpoint before that stays.
        KeyboardInterrupt: on SIGINT, in a command also on SIGTERM or SIGHUP: after the current step, or in the middle
            of an evaluation.
    """
    reset_peak_memory()
    interrupts = DeferredInterrupts()

    def add_point(progress: Progress, epoch: int, mean_loss: float | None, rate: float) -> bool:
        """Add the dev scores to the curve; returns whether they are the best so far."""
        started = time.perf_counter()
        # Not the distributed wrapper: it synchronises buffers at each forward pass, and a process without a dev batch
        # would not take part. Mixed precision is part of the module.
        model.eval()
        # Only a single process may be interrupted here: others would wait for it.
        with interrupts.lifted() if accelerator.num_processes == 1 else nullcontext():
            scores = evaluate(model)
        progress.evaluation_seconds += time.perf_counter() - started
        progress.peak_memory_mb = max(progress.peak_memory_mb, peak_memory_mb())
        measured = {name: value for companion in companions for name, value in companion.measured().items()}
        return progress.add_point(epoch, mean_loss, scores, rate, measured)

    if not trainable(model):
        if not recipe.score_start:
            raise PipelineError(f"{title}: nothing is trainable with trainable = '{recipe.trainable}' and this head")
        progress = Progress()
        model.to(accelerator.device)
        add_point(progress, 0, None, 0.0)
        return progress
    trained = copy_to_shard(model, accelerator)
    groups = parameter_groups(trained, peak_rates(trained, recipe, pretrained), recipe.weight_decay, without_decay)
    betas = (recipe.adam_beta1, recipe.adam_beta2)
    optimizer = OPTIMIZERS[recipe.adam_correction](groups, betas=betas, eps=recipe.adam_epsilon, fused=True)
    wrapped, stepped = accelerator.prepare(trained, optimizer)
    state = Resumption(checkpoint_file, checkpoint_seconds, model, trained, optimizer, accelerator, companions)
    parameters = list(trained.parameters())  # listed once: it takes a millisecond
    shown = TrainingProgress(title, data.epochs, data.rows, shown=accelerator.is_main_process)
    run = _Run(
        wrapped, parameters, stepped, recipe, seed, data, loss, penalties, combine, companions, add_point, state,
        interrupts, shown, metric, title, accelerator,
    )  # fmt: skip
    try:
        with shown, interrupts:
            run.train()
    except KeyboardInterrupt as interrupt:
        if interrupt.__context__ is None:  # else the state may be the cause of the error
            state.keep()
        raise
    state.restore_best()
    accelerator.free_memory()
    return state.progress


@dataclass
class _Run:
    """One training run, and what its steps use.

    Losses are summed on the device and rarely read: reading makes the host wait for a GPU.
    """

    wrapped: nn.Module  # as accelerate has prepared it
    parameters: Sequence[nn.Parameter]
    optimizer: AcceleratedOptimizer
    recipe: Recipe
    seed: int
    data: TrainingData
    loss: Loss
    penalties: Sequence[Penalty]
    combine: Surgery | None
    companions: Sequence[Companion]
    add_point: Callable[[Progress, int, float | None, float], bool]
    state: Resumption
    interrupts: DeferredInterrupts
    shown: TrainingProgress
    metric: str
    title: str
    accelerator: Accelerator

    def __post_init__(self) -> None:
        self.progress, self.device = self.state.progress, self.accelerator.device
        self.total = self.data.epochs * self.data.batches_per_epoch  # steps of all epochs

    def train(self) -> None:
        """Run the steps from the current progress to the last epoch, or until the dev score stops improving."""
        recipe, data, progress = self.recipe, self.data, self.progress
        # The start can be the best model: an anchored fusion starts as a trained adapter.
        if recipe.score_start and not progress.step and not progress.curve:
            self.score(0)
        while not progress.done:
            self.wrapped.train()
            self.begin()
            batches = data.batches(progress.epoch, progress.batch)
            # A GPU computes while the CPU makes the next batches.
            for pieces in prefetched(batches) if self.device.type == "cuda" else batches:
                # Seeds and learning rates follow from the step alone, so a resumed run has the same.
                _seed(self.seed, progress.step, self.accelerator.process_index, self.device)
                for group in self.optimizer.param_groups:
                    group["lr"] = group["initial_lr"] * self.factor(progress.step)
                # Piece by piece, so that only one piece's activations are in memory.
                batch_loss = _backward(self.wrapped, pieces, self.loss, self.penalties, self.accelerator, self.combine)
                self.count(batch_loss, self.update(batch_loss), sum(map(len, pieces)))
                # A regulariser may track the weights, for example by a running mean.
                for companion in self.companions:
                    companion.after_step(progress.step, self.total)
                if self.shown.due():
                    self.show()
                # Between two steps the state is complete: write it here, and end here if a signal came.
                if self.must_pause():
                    self.settle()
                    self.end_if_interrupted()
                    self.state.keep()
                    self.begin()
            self.settle()
            # The result is the best epoch on dev; this also decides whether training is done.
            if recipe.scored(progress.epoch, data.epochs):
                self.score(progress.epoch)
            progress.epoch += 1
            progress.batch, progress.loss_sum, progress.loss_count = 0, 0.0, 0
            if progress.done or in_any_process(self.accelerator, self.state.due):
                self.state.keep()
        self.end_if_interrupted()

    def factor(self, step: int) -> float:
        """The factor on all peak learning rates at ``step``, from 0."""
        return rate_factor(self.recipe.schedule, step, self.total, self.recipe.warmup_ratio)

    def update(self, loss: Tensor) -> Tensor:
        """Clip the gradient and step the optimiser; returns whether the loss and the gradient are finite."""
        is_finite, scaler = torch.isfinite(loss), self.accelerator.scaler
        if all(parameter.grad is None for parameter in self.parameters):
            return is_finite  # the scaler of fp16 cannot take a step without a gradient
        norm = whole(self.accelerator.clip_grad_norm_(self.parameters, self.recipe.max_grad_norm))
        self.optimizer.step()
        self.optimizer.zero_grad()
        # Under fp16 a gradient may overflow: the scaler then skips the step and lowers its scale.
        return is_finite if scaler is not None else is_finite & torch.isfinite(norm)

    def begin(self) -> None:
        """Begin to time steps and to sum their losses."""
        self.started = time.perf_counter()
        self.loss_sum = torch.tensor(self.progress.loss_sum, device=self.device)
        self.broken_at = torch.full((), -1, dtype=torch.int64, device=self.device)

    def count(self, loss: Tensor, is_finite: Tensor, rows: int) -> None:
        """Count a step into the progress."""
        progress = self.progress
        self.loss_sum += loss
        self.broken_at = torch.where((self.broken_at < 0) & ~is_finite, progress.step, self.broken_at)
        progress.step += 1
        progress.batch += 1
        progress.loss_count += 1
        progress.examples += rows

    def settle(self) -> None:
        """Add losses and seconds to the progress; a :class:`PipelineError` if a loss or gradient was not finite."""
        step = int(self.broken_at.item())
        if step >= 0:
            epoch, batch = divmod(step, self.data.batches_per_epoch)
            raise PipelineError(
                f"{self.title}: loss or gradient is no longer a finite number at step {step + 1}"
                f" (epoch {epoch + 1}, batch {batch + 1}); lower --learning-rate or use --precision fp32."
                " Finished runs are kept"
            )
        self.progress.train_seconds += time.perf_counter() - self.started
        self.progress.loss_sum = self.loss_sum.item()

    def must_pause(self) -> bool:
        """Whether to write a checkpoint now, or to end; all processes get the same answer."""
        # Asking over GPUs makes the host wait for them.
        ask_every = 8 if self.accelerator.num_processes > 1 and self.device.type == "cuda" else 1
        wanted = self.state.due or self.interrupts.held is not None
        return self.progress.step % ask_every == 0 and in_any_process(self.accelerator, wanted)

    def end_if_interrupted(self) -> None:
        """End all processes after the same step, even those that got no signal."""
        if in_any_process(self.accelerator, self.interrupts.held is not None):
            self.interrupts.end()

    def show(self) -> None:
        progress = self.progress
        seconds = progress.train_seconds + time.perf_counter() - self.started
        mean_loss, left = self.loss_sum.item() / progress.loss_count, self._seconds_left(progress.epoch, seconds)
        self.shown.step(progress.step, self.total, progress.epoch, mean_loss, progress.examples / seconds, left)

    def score(self, epoch: int) -> None:
        """Score dev after ``epoch``, or at 0 before the first step; keep the weights if they are the best so far."""
        progress, epochs, recipe = self.progress, self.data.epochs, self.recipe
        mean_loss = progress.loss_sum / progress.loss_count if epoch else None
        assert recipe.learning_rate is not None
        rate = recipe.learning_rate * self.factor(progress.step - 1) if epoch else 0.0
        self.shown.scoring(epoch)
        self.state.gather()
        if best := self.add_point(progress, epoch, mean_loss, rate):
            self.state.remember_best()
        patience = recipe.early_stopping_patience or math.inf
        progress.done = epoch > 0 and (epoch >= epochs or epoch - progress.best_epoch >= patience)
        left = 0.0 if progress.done or not epoch else self._seconds_left(epoch + 1, progress.train_seconds)
        dev, losses = progress.curve[-1]["dev"], {} if mean_loss is None else {"loss": mean_loss}
        self.shown.epoch(epoch, mean_loss, f"dev {self.metric} {dev:.4f}", best, progress.examples_per_second, left)
        self.accelerator.log({**losses, f"dev_{self.metric}": dev}, step=progress.step)

    def _seconds_left(self, epoch: int, train_seconds: float) -> float:
        """Estimated seconds of the remaining steps and of the evaluations from ``epoch`` on, at the pace so far."""
        progress, epochs = self.progress, self.data.epochs
        scorings = sum(self.recipe.scored(number, epochs) for number in range(epoch, epochs + 1))
        # Before the first one: a row is trained on in about three passes, and scored in one.
        untimed = self.data.scored_rows * train_seconds / progress.examples / 3
        scoring = progress.evaluation_seconds / len(progress.curve) if progress.curve else untimed
        return (self.total - progress.step) * train_seconds / progress.step + scorings * scoring


def _backward(
    model: nn.Module,
    pieces: list[Piece],
    loss: Loss,
    penalties: Sequence[Penalty],
    accelerator: Accelerator,
    combine: Surgery | None,
) -> Tensor:
    """Accumulate the gradient of the whole batch; each process takes some pieces. Returns the batch's loss."""
    rows = Counter[str]()
    for piece in pieces:
        rows[piece.task] += len(piece)
    world = accelerator.num_processes
    mine = [(piece, len(piece) / rows[piece.task]) for piece in pieces[accelerator.process_index :: world]]
    # A small batch leaves some processes fewer pieces. These repeat one with weight zero, because the others wait for
    # them in every pass.
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
        if penalties:  # which belong to no task
            accelerator.backward(_sum_of(penalties, total.device))
    return accelerator.reduce(total, "sum") if world > 1 else total


def _sum_of(penalties: Sequence[Penalty], device: torch.device) -> Tensor:
    return sum((penalty() for penalty in penalties), torch.zeros((), device=device))


def _seed(seed: int, step: int, process: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of ``device`` for a step in a process, as :func:`torch.manual_seed` does.

    ``manual_seed`` also formats the call stack for each absent kind of device: half a millisecond per step.
    """
    # Knuth's multiplicative hashing. The CPU's generator uses the low 32 bits, which are distinct within a run.
    spread = ((seed * 1_000_003 + step) * 2_654_435_761 + process * 97) % 2**63
    torch.default_generator.manual_seed(spread)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(spread)
