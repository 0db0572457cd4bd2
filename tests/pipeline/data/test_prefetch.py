"""Prefetched batches are the batches."""

from collections.abc import Iterator

import pytest
import torch

from pipeline.data.batches import Piece, prefetched


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory can be pinned only where there is a GPU."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)


def numbered(count: int, made: list[int]) -> Iterator[list[Piece]]:
    for number in range(count):
        made.append(number)
        yield [Piece({"rows": torch.tensor([number, piece])}) for piece in range(2)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_all_come_in_their_order(count: int, ahead: int) -> None:
    found = [[piece.batch["rows"].tolist() for piece in pieces] for pieces in prefetched(numbered(count, []), ahead)]
    assert found == [[[number, 0], [number, 1]] for number in range(count)]


def test_only_so_many_are_made_ahead() -> None:
    made: list[int] = []
    batches = prefetched(numbered(20, made), ahead=3)
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # waits for the thread
    assert 1 <= len(made) <= 4


def test_an_error_stands_in_the_place_of_its_batch() -> None:
    def broken() -> Iterator[list[Piece]]:
        yield [Piece({"rows": torch.tensor([0])})]
        raise ValueError("row 7")

    batches = prefetched(broken())
    assert len(next(batches)) == 1
    with pytest.raises(ValueError, match="row 7"):
        next(batches)
