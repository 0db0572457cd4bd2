"""Prepare the next batches while a GPU computes on the current one."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pipeline.data.batches import Batch, Piece


def prefetched(batches: Iterator[list[Piece]], ahead: int = 2) -> Iterator[list[Piece]]:
    """The same batches in the same order, collated ahead of time by a thread, and pinned.

    Copying from pinned memory to the GPU does not make the host wait. An error in ``batches`` is raised in place of the
    batch it belongs to.
    """

    def pinned() -> list[Piece] | None:
        pieces = next(batches, None)
        return pieces and [replace(piece, batch=_pinned(piece.batch)) for piece in pieces]

    with ThreadPoolExecutor(max_workers=1) as thread:
        waiting = deque(thread.submit(pinned) for _ in range(ahead))
        while (pieces := waiting.popleft().result()) is not None:
            waiting.append(thread.submit(pinned))
            yield pieces


def _pinned(batch: Batch) -> Batch:
    return {name: tensor.pin_memory() for name, tensor in batch.items()}
