"""Ray's pool without a cluster: how much memory each cell has."""

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from pipeline.settings.study import Resources
from stages.compare.executors.on_ray import _Ray


@pytest.mark.long
@pytest.mark.parametrize(
    ("is_here", "memory_gb", "expected"),
    [(True, None, 3.0), (True, 2.0, 2.0), (True, 12.0, 3.0), (False, None, None), (False, 2.0, 2.0)],
)
def test_cells_of_one_machine_share_its_memory_and_those_of_others_have_what_they_are_given(
    is_here: bool, memory_gb: float | None, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": 8.0, "memory": 100 * 2**30}}]
    monkeypatch.setattr("stages.compare.executors.on_ray.ray.nodes", lambda: nodes)
    monkeypatch.setattr("stages.compare.executors.on_ray.free_host_bytes", lambda: 12 * 2**30)
    assert _Ray(Resources(cpus=2, memory_gb=memory_gb), None, is_here).memory_gb == expected
