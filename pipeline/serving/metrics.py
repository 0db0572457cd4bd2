"""Counters of the server in the text format of Prometheus."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

Labels = tuple[tuple[str, str], ...]


class Histogram:
    """How often a value was at most each of ``bounds``, and their sum, by labels."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts: dict[Labels, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self.sums: dict[Labels, float] = defaultdict(float)

    def add(self, labels: Labels, value: float) -> None:
        counts = self.counts[labels]
        for number, bound in enumerate(self.bounds):
            counts[number] += value <= bound
        counts[-1] += 1
        self.sums[labels] += value


class Metrics:
    """What the server counts; threads may add to it at once."""

    def __init__(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """``gauges``: by name what each says and how to read it."""
        self._gauges = gauges
        self._lock = threading.Lock()
        self._requests: dict[Labels, int] = defaultdict(int)
        self._seconds, self._rows, self._batch_seconds = Histogram(_SECONDS), Histogram(_ROWS), Histogram(_SECONDS)

    def request(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[("path", path), ("status", str(status))] += 1
            self._seconds.add((("path", path),), seconds)

    def batch(self, rows: int, seconds: float) -> None:
        with self._lock:
            self._rows.add((), rows)
            self._batch_seconds.add((), seconds)

    def text(self) -> str:
        with self._lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _head("pipeline_requests_total", "counter", "Requests by address and status.")
        for labels, count in self._requests.items():
            yield f"pipeline_requests_total{_braces(labels)} {count}"
        for name, what, histogram in (
            ("pipeline_request_seconds", "Seconds from a request to its answer.", self._seconds),
            ("pipeline_batch_rows", "Texts or pairs that were computed together.", self._rows),
            ("pipeline_batch_seconds", "Seconds that a batch took.", self._batch_seconds),
        ):
            yield from _head(name, "histogram", what)
            for labels, counts in histogram.counts.items():
                for bound, count in zip((*map(repr, histogram.bounds), "+Inf"), counts, strict=True):
                    yield f"{name}_bucket{_braces((*labels, ('le', bound)))} {count}"
                yield f"{name}_sum{_braces(labels)} {histogram.sums[labels]!r}"
                yield f"{name}_count{_braces(labels)} {counts[-1]}"
        for name, (what, read) in self._gauges.items():
            yield from _head(name, "counter" if name.endswith("_total") else "gauge", what)
            yield f"{name} {read():g}"


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"


def _braces(labels: Labels) -> str:
    """``{path="/predict"}``; the values are addresses and numbers of the server's own, without quotes."""
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}" if labels else ""
