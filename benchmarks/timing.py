"""Measure peers in turn, A, B, A, B, ..., so that other load on the machine affects them equally."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sample:
    """Repeated measurements of one quantity."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __format__(self, spec: str) -> str:
        """``median (lowest to highest)``."""
        low, high = min(self.values), max(self.values)
        return f"{self.median:{spec}} ({low:{spec}} to {high:{spec}})"


Row = dict[str, str | int | float | Sample]
"""A row of a table: its values by column name."""
Rows = Sequence[Row]


def interleave(peers: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Sample]:
    """The measurements of each peer over ``repeats`` rounds, after a warm-up round."""
    found: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(repeats + 1):
        for name, measure in peers.items():
            # Collect one peer's garbage before the next one's clock starts.
            gc.collect()
            value = measure()
            if number:
                found[name].append(value)
    return {name: Sample(tuple(values)) for name, values in found.items()}


def ratio(above: Sample, below: Sample) -> Sample:
    """The ratio round by round: a slow minute of the machine affects both sides, so it cancels."""
    return Sample(tuple(a / b for a, b in zip(above.values, below.values, strict=True)))


def milliseconds(step: Callable[[], object], calls: int = 1) -> Callable[[], float]:
    """A measurement of ``step``: the mean time of ``calls`` calls, until the device has finished them."""

    def measure() -> float:
        _finish()
        started = time.perf_counter()
        for _ in range(calls):
            step()
        _finish()
        return 1000 * (time.perf_counter() - started) / calls

    return measure


def per_second(items: int, step: Callable[[], object]) -> Callable[[], float]:
    """A measurement of the items per second of a ``step`` that handles ``items`` items."""
    measure = milliseconds(step)
    return lambda: 1000 * items / measure()


def columns(found: Mapping[str, Sample], unit: str, ours: str = "ours") -> dict[str, Sample]:
    """Columns ``<peer>, <unit>`` for each peer, and ``<peer> / ours``, which is above one if ours takes less."""
    measured = {f"{name}, {unit}": sample for name, sample in found.items()}
    return measured | {f"{name} / {ours}": ratio(found[name], found[ours]) for name in found if name != ours}


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
