"""What a Prometheus server reads."""

import pytest

pytest.importorskip("prometheus_client", reason="the extra serve is not installed")

from stages.serve.service import Metrics


def test_counts_add_up() -> None:
    metrics = Metrics(waiting=lambda: 3, loaded=lambda: 1)
    metrics.swaps.inc(2)
    for seconds in (0.001, 0.02, 30.0):
        metrics.request("/predict", 200, seconds)
    metrics.request("/predict", 422, 0.001)
    metrics.batch(5, 0.01)
    path = {"path": "/predict"}
    for name, labels, expected in (
        ("pipeline_requests_total", path | {"status": "200"}, 3),
        ("pipeline_requests_total", path | {"status": "422"}, 1),
        ("pipeline_request_seconds_bucket", path | {"le": "0.005"}, 2),
        ("pipeline_request_seconds_bucket", path | {"le": "+Inf"}, 4),
        ("pipeline_request_seconds_count", path, 4),
        ("pipeline_batch_rows_bucket", {"le": "4.0"}, 0),
        ("pipeline_batch_rows_bucket", {"le": "8.0"}, 1),
        ("pipeline_batch_rows_sum", {}, 5),
        ("pipeline_batch_seconds_count", {}, 1),
        ("pipeline_queue_rows", {}, 3),
        ("pipeline_models_loaded", {}, 1),
        ("pipeline_model_swaps_total", {}, 2),
    ):
        assert metrics.registry.get_sample_value(name, labels) == expected, name
