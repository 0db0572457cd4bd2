"""Mixing: which tasks' batches make up each step of joint training. One class a rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from pipeline.data.batches import Piece
from pipeline.training.fit import TrainingData


@dataclass(frozen=True)
class Draw:
    """Batch ``batch`` (from 0) of pass ``epoch`` (from 1) over the rows of ``task``."""

    task: str
    epoch: int
    batch: int


class Mixing(Protocol):
    """What a step draws follows from its number alone, so that a resumed run draws what it would have drawn."""

    @property
    def steps(self) -> int:
        """Of one epoch."""
        ...

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

    @property
    def steps(self) -> int:
        return min(self.batches.values())

    def draws(self, step: int) -> list[Draw]:
        return [Draw(task, 1 + step // count, step % count) for task, count in self.batches.items()]


def mixed(parts: Mapping[str, TrainingData], mixing: Mixing, epochs: int) -> TrainingData:
    """Joint training over ``parts``, the data of each task by itself; a step's pieces say whose they are."""

    def batches(epoch: int, first: int) -> Iterator[list[Piece]]:
        running: dict[str, tuple[Draw, Iterator[list[Piece]]]] = {}
        for step in range((epoch - 1) * mixing.steps + first, epoch * mixing.steps):
            pieces: list[Piece] = []
            for draw in mixing.draws(step):
                expected, iterator = running.get(draw.task, (None, iter(())))
                if draw != expected:
                    iterator = parts[draw.task].batches(draw.epoch, draw.batch)
                pieces += [replace(piece, task=draw.task) for piece in next(iterator)]
                running[draw.task] = replace(draw, batch=draw.batch + 1), iterator
            yield pieces

    return TrainingData(batches, batches_per_epoch=mixing.steps, epochs=epochs)
