"""Mixing: every step holds what its rule says, wherever training was taken up again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch

from pipeline.data.batches import Piece
from pipeline.training.fit import TrainingData
from pipeline.training.mixing import Simultaneous, mixed

COUNTS = {"large": 7, "small": 3, "middle": 4}
EPOCHS = 6


def numbered(count: int) -> TrainingData:
    """Batches that say which they are: pass and number, in two pieces."""

    def batches(epoch: int, first: int) -> Iterator[list[Piece]]:
        for number in range(first, count):
            yield [Piece({"rows": torch.tensor([epoch, number, piece])}) for piece in range(2)]

    return TrainingData(batches, count, epochs=1)


def joint(counts: Mapping[str, int] = COUNTS) -> TrainingData:
    return mixed({name: numbered(count) for name, count in counts.items()}, Simultaneous(counts), EPOCHS)


def steps(data: TrainingData, epoch: int, first: int = 0) -> list[list[tuple[str, list[int]]]]:
    return [[(piece.task, piece.batch["rows"].tolist()) for piece in step] for step in data.batches(epoch, first)]


def test_each_step_has_a_batch_of_every_task_and_the_smallest_makes_the_epoch() -> None:
    data = joint()
    assert (data.batches_per_epoch, data.epochs) == (3, EPOCHS)
    for epoch in range(1, EPOCHS + 1):
        found = steps(data, epoch)
        assert len(found) == 3
        for step in found:
            assert [task for task, _ in step] == ["large", "large", "small", "small", "middle", "middle"]
            assert [rows[2] for _, rows in step] == [0, 1] * 3


@pytest.mark.parametrize("task", COUNTS)
def test_a_task_goes_on_across_epochs_and_is_shuffled_anew_when_it_starts_again(task: str) -> None:
    data = joint()
    seen = [
        rows[:2] for epoch in range(1, EPOCHS + 1) for step in steps(data, epoch) for name, rows in step if name == task
    ]
    count = COUNTS[task]
    expected = [[1 + step // count, step % count] for step in range(3 * EPOCHS) for _ in range(2)]
    assert seen == expected


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("epoch", range(1, EPOCHS + 1))
def test_an_epoch_taken_up_in_the_middle_goes_on_as_it_would_have(epoch: int, first: int) -> None:
    assert steps(joint(), epoch, first) == steps(joint(), epoch)[first:]


def test_one_task_alone_is_that_task() -> None:
    alone, plain = joint({"large": 7}), numbered(7)
    assert alone.batches_per_epoch == 7
    for epoch in range(1, EPOCHS + 1):
        rows = [[rows for _, rows in step] for step in steps(alone, epoch)]
        assert rows == [[piece.batch["rows"].tolist() for piece in step] for step in plain.batches(epoch, 0)]
