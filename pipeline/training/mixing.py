"""Mixing: which tasks' batches make up each step of joint training. ``RULES`` has one function per rule.

The whole order follows from the seed, so a resumed run draws the same batches. Under every rule, a task's rows come
pass by pass: every row once, then all of them again in another order.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.data.batches import Piece
from pipeline.settings.parts import Mixing
from pipeline.settings.recipe import Recipe
from pipeline.training.fit import TrainingData

_SAMPLED, _SHUFFLED = 1, 2
"""Streams of random numbers beside the one that orders a task's rows."""


@dataclass(frozen=True)
class Joint:
    """What a rule knows about a joint training run."""

    batches: Mapping[str, int]  # of one pass over each task
    rows: Mapping[str, int]  # training rows of each task
    steps: int  # of one epoch
    epochs: int
    seed: int
    temperature: float = 1.0

    @property
    def total(self) -> int:
        return self.steps * self.epochs


Rule = Callable[[Joint], Iterable[Sequence[str]]]
"""The tasks of each step over all epochs; each contributes its next batch."""


def simultaneous(joint: Joint) -> Iterable[Sequence[str]]:
    """One batch of every task in each step, their losses added up (Wang 2024).

    An epoch is a pass over the smallest task, or over ``epoch_of``; the other tasks continue where they stopped.
    """
    return [tuple(joint.batches)] * joint.total


def round_robin(joint: Joint) -> Iterable[Sequence[str]]:
    """One task per step, in turn.

    An epoch has as many rounds as a pass over the smallest task, or over ``epoch_of``, has batches.
    """
    tasks = tuple(joint.batches)
    return [(tasks[step % len(tasks)],) for step in range(joint.total)]


def shuffled(joint: Joint) -> Iterable[Sequence[str]]:
    """One task per step; the batches of one pass over every task are shuffled together (Hayes 2024).

    An epoch is one such pass; if the recipe's epochs have another length, passes continue across epochs.
    """
    every = [task for task, count in joint.batches.items() for _ in range(count)]
    drawn: list[str] = []
    for number in range(-(-joint.total // len(every))):
        drawn += np.random.default_rng([joint.seed, number, _SHUFFLED]).permutation(every).tolist()
    return [(task,) for task in drawn[: joint.total]]


def sampled(joint: Joint, alphas: Sequence[float]) -> Iterable[Sequence[str]]:
    """One task per step, drawn with probability p_i ~ N_i^alpha, where task i has N_i training rows.

    alpha = 1 is proportional sampling, 1/2 square-root sampling; an alpha that falls from 1 to 1/5 over training is
    annealed sampling (Stickland & Murray 2019, section 3.2). An epoch has as many steps as one pass over all tasks has
    batches. ``alphas`` has one value per epoch.
    """
    for epoch, alpha in enumerate(alphas):
        chances = probabilities(joint.rows, alpha)
        generator = np.random.default_rng([joint.seed, epoch, _SAMPLED])
        drawn = generator.choice(list(chances), size=joint.steps, p=list(chances.values()))
        yield from [(task,) for task in drawn.tolist()]


def by_temperature(joint: Joint, limit: int = 2**21) -> Iterable[Sequence[str]]:
    """One task per step, drawn with p_i ~ min(N_i, K)^(1/T) and the paper's K (Raffel et al. 2020, section 3.5.2).

    T = 1 is proportional sampling of tasks with up to K rows; a large T draws all tasks equally often.
    """
    rows = {task: min(count, limit) for task, count in joint.rows.items()}
    return sampled(replace(joint, rows=rows), [1 / joint.temperature] * joint.epochs)


def probabilities(rows: Mapping[str, int], alpha: float) -> dict[str, float]:
    """p_i = N_i^alpha / sum_j N_j^alpha."""
    weights = {task: float(count) ** alpha for task, count in rows.items()}
    return {task: weight / sum(weights.values()) for task, weight in weights.items()}


def annealed(joint: Joint) -> Iterable[Sequence[str]]:
    """:func:`sampled` with alpha 1 - 0.8 e / (E - 1) in epoch e, from 0: from proportional towards uniform."""
    return sampled(joint, [1 - 0.8 * epoch / max(joint.epochs - 1, 1) for epoch in range(joint.epochs)])


RULES: dict[Mixing, Rule] = {
    "simultaneous": simultaneous,
    "round-robin": round_robin,
    "proportional": lambda joint: sampled(joint, [1.0] * joint.epochs),
    "square-root": lambda joint: sampled(joint, [0.5] * joint.epochs),
    "annealed": annealed,
    "shuffled": shuffled,
    "temperature": by_temperature,
}


@dataclass(frozen=True)
class TaskBatches:
    """The batches of one task: ``of_pass(number, first)`` yields those of a pass over its rows, from ``first`` on."""

    of_pass: Callable[[int, int], Iterator[list[Piece]]]
    count: int
    """Batches of a pass."""


def mixed(parts: Mapping[str, TaskBatches], rows: Mapping[str, int], recipe: Recipe, seed: int) -> TrainingData:
    """Joint training over ``parts``, the batches of each task; each piece names its task.

    Args:
        rows: training rows of each task.
        recipe: resolved; its mixing rule, steps per epoch and epochs apply to all tasks together.
    """
    counts = {task: part.count for task, part in parts.items()}
    steps = recipe.joint_steps(counts)
    epochs = recipe.epochs_of(steps)
    order = list(RULES[recipe.joint.mixing](Joint(counts, rows, steps, epochs, seed, recipe.joint.temperature)))

    def batches(epoch: int, first: int) -> Iterator[list[Piece]]:
        start = (epoch - 1) * steps + first
        seen = Counter(task for step in order[:start] for task in step)
        running: dict[str, Iterator[list[Piece]]] = {}
        for step in order[start : epoch * steps]:
            pieces: list[Piece] = []
            for task in step:
                passes, batch = divmod(seen[task], counts[task])
                if task not in running or batch == 0:
                    running[task] = parts[task].of_pass(1 + passes, batch)
                pieces += [replace(piece, task=task) for piece in next(running[task])]
                seen[task] += 1
            yield pieces

    return TrainingData(batches, batches_per_epoch=steps, epochs=epochs, rows=sum(rows.values()))
