"""Probes read what a head would, and all processes take the main one's."""

import numpy as np
import pandas as pd
import pytest

from pipeline.data.tasks import find_task
from pipeline.runs import scoring
from pipeline.training import devices


@pytest.mark.parametrize("is_main", [True, False])
def test_all_processes_take_what_the_main_one_finds(is_main: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "process_count", lambda: 2)
    monkeypatch.setattr(devices, "is_main_process", lambda: is_main)
    monkeypatch.setattr(devices, "process_group", lambda: None)
    monkeypatch.setattr(devices, "broadcast_object_list", lambda outcome: outcome if is_main else [np.ones(2)])
    asked: list[str] = []
    features, rows = np.eye(40, 3), pd.DataFrame({"label": [0, 1] * 20})

    def counted(*_: object) -> np.ndarray:
        asked.append("here")
        return np.zeros(2)

    monkeypatch.setattr(scoring, "explained_rows", counted)
    found = scoring.probe(features, find_task("mr"), rows)
    assert (found.tolist(), asked) == (([0, 0], ["here"]) if is_main else ([1, 1], []))
