"""What memory is free, and what a full one is said to be."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.system.errors import PipelineError
from pipeline.training import memory


def test_full_memory_is_explained_and_nothing_else() -> None:
    with (
        pytest.raises(PipelineError, match="memory is full: rest"),
        memory.full_memory_explained("adapter sst", "rest"),
    ):
        raise torch.OutOfMemoryError("of 80 GB")
    with pytest.raises(ValueError, match="other"), memory.full_memory_explained("adapter sst", "rest"):
        raise ValueError("other")


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 1000),  # no container
        ({"memory.max": "max"}, 1000),
        ({"memory.max": "700", "memory.current": "500", "memory.stat": "anon 300\ninactive_file 180\n"}, 380),
        ({"memory.max": "700", "memory.current": "500", "memory.stat": "anon 300\n"}, 200),
        ({"memory.max": "5000", "memory.current": "500", "memory.stat": ""}, 1000),
    ],
)
def test_free_memory_is_what_the_container_has_left(
    files: dict[str, str], free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "_CONTAINER", tmp_path)
    monkeypatch.setattr(memory, "on_gpu", lambda: False)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    assert memory.free_host_bytes() == memory.free_bytes() == free
