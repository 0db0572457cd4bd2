"""Mixing: which tasks' batches make up each step of joint training. One class a rule.

What a step draws follows from the seed and its number alone, so that a resumed run draws what it would have drawn.
Whatever the rule, a task's rows come pass by pass: every row once, then all of them again in another order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from pipeline.data.batches import Piece
from pipeline.settings.recipe import Mixing, Recipe
from pipeline.training.fit import TrainingData

_SAMPLED, _SHUFFLED = 1, 2
"""Streams of random numbers beside the one that orders a task's rows."""


@dataclass(frozen=True)
class Draw:
    """Batch ``batch`` (from 0) of pass ``epoch`` (from 1) over the rows of ``task``."""

    task: str
    epoch: int
    batch: int


class Rule(Protocol):
    """What each step draws."""

    def draws(self, step: int) -> list[Draw]:
        """The batches of ``step``, counted from 0 over all epochs."""
        ...


@dataclass(frozen=True)
class Simultaneous:
    """One batch of every task in each step, their losses added up (Wang 2024).

    The smallest task's pass is the epoch; the others go on where they were in the next one, and are shuffled anew
    whenever they start again.
    """

    batches: Mapping[str, int]
    """Of one pass over each task."""

    def draws(self, step: int) -> list[Draw]:
        return [_nth(task, step, self.batches) for task in self.batches]


@dataclass(frozen=True)
class RoundRobin:
    """One task a step, in turn. The epoch is as many rounds as the smallest task's pass has batches."""

    batches: Mapping[str, int]

    def draws(self, step: int) -> list[Draw]:
        number, turn = divmod(step, len(self.batches))
        return [_nth(list(self.batches)[turn], number, self.batches)]


@dataclass(frozen=True)
class Sampled:
    """One task a step, drawn with probability p_i ~ N_i^alpha from its number of training rows N_i.

    alpha = 1 is proportional sampling, 1/2 square-root sampling; what falls from 1 to 1/5 over training is annealed
    sampling (Stickland & Murray 2019, section 3.2). The epoch is as many steps as a pass over all tasks has batches.
    """

    batches: Mapping[str, int]
    rows: Mapping[str, int]
    """Training rows of each task."""
    alphas: Sequence[float]
    """Of each epoch."""
    steps: int
    """Of one epoch."""
    seed: int

    def draws(self, step: int) -> list[Draw]:
        return [self._order[step]]

    @cached_property
    def _order(self) -> list[Draw]:
        drawn: list[str] = []
        for epoch, alpha in enumerate(self.alphas):
            generator = np.random.default_rng([self.seed, epoch, _SAMPLED])
            chances = probabilities(self.rows, alpha)
            drawn += generator.choice(list(chances), size=self.steps, p=list(chances.values())).tolist()
        return _in_order(drawn, self.batches)


@dataclass(frozen=True)
class Shuffled:
    """One task a step; the batches of all tasks are shuffled together, so that each task is passed once (Hayes 2024).

    Such a pass over all tasks is the epoch; where the recipe has epochs of another length, passes go on across them.
    """

    batches: Mapping[str, int]
    total: int
    """Steps of training."""
    seed: int

    def draws(self, step: int) -> list[Draw]:
        return [self._order[step]]

    @cached_property
    def _order(self) -> list[Draw]:
        every = [task for task, count in self.batches.items() for _ in range(count)]
        drawn: list[str] = []
        for number in range(-(-self.total // len(every))):
            drawn += np.random.default_rng([self.seed, number, _SHUFFLED]).permutation(every).tolist()
        return _in_order(drawn, self.batches)


def probabilities(rows: Mapping[str, int], alpha: float) -> dict[str, float]:
    """p_i = N_i^alpha / sum_j N_j^alpha."""
    weights = {task: float(count) ** alpha for task, count in rows.items()}
    return {task: weight / sum(weights.values()) for task, weight in weights.items()}


def annealed_alpha(epoch: int, epochs: int) -> float:
    """1 - 0.8 (e - 1) / (E - 1), with e from 1: from proportional sampling towards an even one. 1 if E is 1."""
    return 1 - 0.8 * (epoch - 1) / (epochs - 1) if epochs > 1 else 1.0


def mixed(parts: Mapping[str, TrainingData], rows: Mapping[str, int], recipe: Recipe, seed: int) -> TrainingData:
    """Joint training over ``parts``, the data of each task by itself; a step's pieces say whose they are.

    Args:
        rows: training rows of each task.
        recipe: resolved; its mixing rule, steps an epoch and epochs hold for all tasks together.
    """
    each = {task: part.batches_per_epoch for task, part in parts.items()}
    steps = recipe.joint_steps(each.values())
    epochs = recipe.epochs_of(steps)
    rule = _rule(recipe.mixing, each, rows, steps, epochs, seed)

    def batches(epoch: int, first: int) -> Iterator[list[Piece]]:
        running: dict[str, tuple[Draw, Iterator[list[Piece]]]] = {}
        for step in range((epoch - 1) * steps + first, epoch * steps):
            pieces: list[Piece] = []
            for draw in rule.draws(step):
                expected, iterator = running.get(draw.task, (None, iter(())))
                if draw != expected:
                    iterator = parts[draw.task].batches(draw.epoch, draw.batch)
                pieces += [replace(piece, task=draw.task) for piece in next(iterator)]
                running[draw.task] = replace(draw, batch=draw.batch + 1), iterator
            yield pieces

    return TrainingData(batches, batches_per_epoch=steps, epochs=epochs)


def _rule(
    mixing: Mixing, batches: Mapping[str, int], rows: Mapping[str, int], steps: int, epochs: int, seed: int
) -> Rule:
    if mixing == "simultaneous":
        return Simultaneous(batches)
    if mixing == "round-robin":
        return RoundRobin(batches)
    if mixing == "shuffled":
        return Shuffled(batches, steps * epochs, seed)
    alphas = {
        "proportional": [1.0] * epochs,
        "square-root": [0.5] * epochs,
        "annealed": [annealed_alpha(epoch, epochs) for epoch in range(1, epochs + 1)],
    }
    return Sampled(batches, rows, alphas[mixing], steps, seed)


def _nth(task: str, number: int, batches: Mapping[str, int]) -> Draw:
    """Batch ``number`` (from 0) of ``task``, counted over all passes."""
    return Draw(task, 1 + number // batches[task], number % batches[task])


def _in_order(drawn: Iterable[str], batches: Mapping[str, int]) -> list[Draw]:
    """The draw of each step, from the tasks drawn: each goes on where it was."""
    seen = Counter[str]()
    found = []
    for task in drawn:
        found.append(_nth(task, seen[task], batches))
        seen[task] += 1
    return found
