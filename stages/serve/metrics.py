"""What the server counts, for Prometheus."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = tuple(2.0**power for power in range(9))


class Metrics(Collector):
    """The metrics of one server, in a registry of its own; threads may add to them at once.

    Args:
        waiting: reads how many rows wait.
        loaded: reads how many models are in memory.
        swaps: reads how many tasks got another model since the start.
    """

    def __init__(self, waiting: Callable[[], float], loaded: Callable[[], float], swaps: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()
        self._swaps = swaps
        self._requests = Counter(
            "pipeline_requests", "Requests by address and status.", ["path", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "pipeline_request_seconds",
            "Seconds from a request to its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._rows = Histogram(
            "pipeline_batch_rows",
            "Texts or pairs that were computed together.",
            buckets=_ROWS,
            registry=self.registry,
        )
        self._batch_seconds = Histogram(
            "pipeline_batch_seconds", "Seconds that a batch took.", buckets=_SECONDS, registry=self.registry
        )
        for name, text, read in (
            ("pipeline_queue_rows", "Texts or pairs that wait.", waiting),
            ("pipeline_models_loaded", "Models in memory.", loaded),
        ):
            Gauge(name, text, registry=self.registry).set_function(read)
        self.registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily("pipeline_model_swaps", "Tasks that got another model.", self._swaps())

    def request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, rows: int, seconds: float) -> None:
        self._rows.observe(rows)
        self._batch_seconds.observe(seconds)
