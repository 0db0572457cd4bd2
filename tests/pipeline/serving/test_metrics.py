"""What a Prometheus server reads."""

import re

from pipeline.serving.metrics import Metrics

LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+')


def test_counts_add_up_and_every_line_can_be_read() -> None:
    metrics = Metrics({"pipeline_queue_rows": ("Rows that wait.", lambda: 3), "swaps_total": ("Swaps.", lambda: 2)})
    for seconds in (0.001, 0.02, 30.0):
        metrics.request("/predict", 200, seconds)
    metrics.request("/predict", 422, 0.001)
    metrics.batch(5, 0.01)
    text = metrics.text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    for line in (
        'pipeline_requests_total{path="/predict",status="200"} 3',
        'pipeline_requests_total{path="/predict",status="422"} 1',
        'pipeline_request_seconds_bucket{path="/predict",le="0.005"} 2',
        'pipeline_request_seconds_bucket{path="/predict",le="0.025"} 3',
        'pipeline_request_seconds_bucket{path="/predict",le="10.0"} 3',
        'pipeline_request_seconds_bucket{path="/predict",le="+Inf"} 4',
        'pipeline_request_seconds_count{path="/predict"} 4',
        'pipeline_batch_rows_bucket{le="4.0"} 0',
        'pipeline_batch_rows_bucket{le="8.0"} 1',
        "pipeline_batch_rows_sum 5.0",
        "pipeline_queue_rows 3",
        "swaps_total 2",
    ):
        assert line in lines
    assert "# TYPE swaps_total counter" in text
    assert "# TYPE pipeline_queue_rows gauge" in text
    assert text.endswith("\n")
