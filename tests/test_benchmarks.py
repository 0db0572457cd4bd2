"""The benchmarks still run; of their measurements, only memory is checked."""

import gc
import json
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.__main__ import NAMES, main
from benchmarks.memory import saved_mb

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", NAMES)
def test_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if needed := {"serve": "fastapi", "nodes": "ray"}.get(name):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    for variable in ("BENCH_BACKBONE", "BENCH_DATA"):
        monkeypatch.delenv(variable, raising=False)
    main([name, "--quick", "--repeats", "1", "--output", str(tmp_path)])
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert {"threads", "torch", "commit", "date", "command", "hardware"} <= written.keys()
    assert written["tables"] or name == "gpu"
    assert f"## {name}" in capsys.readouterr().out


def test_what_a_forward_pass_keeps_is_counted_once_and_then_let_go() -> None:
    layers = [nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256)]
    gone = weakref.ref(layers[0].weight)
    inputs = torch.randn(64, 256)

    def measured() -> float:
        model = nn.Sequential(*layers)
        layers.clear()
        return saved_mb(model, lambda: model(inputs).sum())

    # The inputs, and Tanh's output, which both Tanh and the second layer keep.
    assert measured() == 4 * 64 * (256 + 1024) / 2**20
    gc.collect()
    assert gone() is None
