"""The benchmarks still run; what they measure is not looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.__main__ import NAMES, main


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("BENCH_BACKBONE", "BENCH_DATA"):
        monkeypatch.delenv(variable, raising=False)
    main([name, "--quick", "--repeats", "1", "--output", str(tmp_path)])
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert {"threads", "torch", "commit", "date", "command", "hardware"} <= written.keys()
    assert written["tables"] or name == "gpu"
    assert f"## {name}" in capsys.readouterr().out
