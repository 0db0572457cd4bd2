"""The server's Prometheus metrics."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics of one server, in a separate registry; thread-safe.

    Args:
        waiting: returns the number of waiting rows.
        loaded: returns the number of models in memory.
    """

    def __init__(self, waiting: Callable[[], float], loaded: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()

        def made(kind: Any, name: str, text: str, *labels: str, **how: Any) -> Any:
            return kind(f"pipeline_{name}", text, labels, registry=self.registry, **how)

        self._requests = made(Counter, "requests", "Requests by address and status.", "path", "status")
        self._seconds = made(
            Histogram, "request_seconds", "Seconds from a request to its answer.", "path", buckets=_SECONDS
        )
        sizes = tuple(2.0**power for power in range(9))
        self._rows = made(Histogram, "batch_rows", "Texts or pairs that were computed together.", buckets=sizes)
        self._batch_seconds = made(Histogram, "batch_seconds", "Seconds that a batch took.", buckets=_SECONDS)
        self.swaps = made(Counter, "model_swaps", "Tasks that got another model.")
        made(Gauge, "queue_rows", "Texts or pairs that wait.").set_function(waiting)
        made(Gauge, "models_loaded", "Models in memory.").set_function(loaded)

    def request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, rows: int, seconds: float) -> None:
        self._rows.observe(rows)
        self._batch_seconds.observe(seconds)
