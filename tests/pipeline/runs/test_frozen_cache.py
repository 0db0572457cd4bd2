"""Keeping what frozen layers give changes no result, also of a run that was stopped and goes on."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.models.transfer_model import PrefixCache
from pipeline.records.run_record import RunRecord
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from tests.runs import Stopped, single_run, stop_at

Quick = Callable[..., Recipe]
MODELS = {
    "head only": ("frozen", "head", "films", {}),
    "siamese head only": ("frozen", "head", "pairs", {"encoding": "siamese"}),
    "dropped layers": ("adapter", "adapter", "films", {"drop_layers": "0", "hidden_dropout": 0.1}),
}


@pytest.fixture(params=MODELS.values(), ids=list(MODELS))
def train(request: Any, workspace: Workspace, quick: Quick, tmp_path: Path) -> Callable[..., RunRecord]:
    kind, trainable, task, values = request.param

    def run(name: str, **settings: Any) -> RunRecord:
        places = dataclasses.replace(
            workspace, store_root=tmp_path / name / "store", reports=tmp_path / name / "reports", **settings
        )
        recipe = quick(trainable, epochs=2, batch_size=8, **values)
        return single_run(places, kind, task, recipe, seed=0).get()

    return run


@pytest.fixture
def cached_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes each cache of a run may take, dev's before train's."""
    found: list[int] = []
    original = PrefixCache.__init__

    def remember(self: PrefixCache, *arguments: Any, **settings: Any) -> None:
        original(self, *arguments, **settings)
        found.append(self.bytes)

    monkeypatch.setattr(PrefixCache, "__init__", remember)
    return found


def curve(folder: Path, record: RunRecord) -> list[list[str]]:
    """Loss, score and examples of each epoch as they were written."""
    file = folder / "reports" / "runs" / record.run / "curve.csv"
    return [line.split(",")[:5] for line in file.read_text().splitlines()]


def test_a_cache_changes_no_result(train, cached_bytes, tmp_path: Path) -> None:
    whole, none = train("whole"), train("none", cache_gb=0.0)
    assert min(cached_bytes[:2]) > 0
    assert cached_bytes[2:] == [0, 0]
    assert whole.run == none.run
    assert whole.dev == pytest.approx(none.dev, abs=1e-5)
    for one, other in zip(curve(tmp_path / "whole", whole)[1:], curve(tmp_path / "none", none)[1:], strict=True):
        assert [float(value) for value in one] == pytest.approx([float(value) for value in other], abs=1e-5)


@pytest.mark.covering(1)
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_a_run_that_was_stopped_ends_bit_for_bit_as_one_never_stopped(
    share, train, cached_bytes, monkeypatch, tmp_path
) -> None:
    train("measured")
    settings = {"cache_gb": share * sum(cached_bytes) / 2**30 if share < 1 else 2.0, "checkpoint_seconds": 0.0}
    whole = train("whole", **settings)
    assert (sum(cached_bytes[2:]) < 0.61 * sum(cached_bytes[:2])) == (share < 1)
    stop_at(monkeypatch, 17)
    with pytest.raises(Stopped):
        train("stopped", **settings)
    record = train("stopped", **settings)
    assert record.dev == whole.dev
    assert curve(tmp_path / "stopped", record) == curve(tmp_path / "whole", whole)
    assert (record.weights_sha256, record.artifact_digest) == (whole.weights_sha256, whole.artifact_digest)
