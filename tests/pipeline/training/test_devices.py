"""What ``auto`` comes to is measured, not assumed."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.system.errors import PipelineError
from pipeline.training import devices


@pytest.fixture(autouse=True)
def measured_anew() -> Iterator[None]:
    devices.bf16_is_faster.cache_clear()
    yield
    devices.bf16_is_faster.cache_clear()


@pytest.mark.parametrize(("share", "expected"), [(0.3, "bf16"), (0.9, "fp32"), (1.5, "fp32")])
def test_auto_is_bf16_only_where_that_is_clearly_faster(
    share: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(devices, "_seconds", lambda left, _: share if left.dtype == torch.bfloat16 else 1.0)
    assert devices.resolve_precision("auto") == expected
    assert devices.resolve_precision("fp32") == "fp32"


def test_a_cpu_without_the_instructions_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(devices, "_seconds", lambda left, right: pytest.fail("measured"))
    assert not devices.bf16_is_faster("cpu")


def test_processes_on_cpus_agree_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(devices, "_seconds", lambda left, right: pytest.fail("measured"))
    assert devices.resolve_precision("auto") == "fp32"


def test_a_gpu_that_is_to_be_left_alone_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.on_gpu()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert not devices.on_gpu()
    assert devices.hardware().startswith("CPU")


def test_full_memory_is_explained_and_nothing_else() -> None:
    with (
        pytest.raises(PipelineError, match="memory is full: rest"),
        devices.full_memory_explained("adapter sst", "rest"),
    ):
        raise torch.OutOfMemoryError("of 80 GB")
    with pytest.raises(ValueError, match="other"), devices.full_memory_explained("adapter sst", "rest"):
        raise ValueError("other")


def test_processes_that_would_each_train_alone_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PipelineError, match="2 processes were launched"):
        devices.make_accelerator("fp32")


def test_the_measurement_runs_here() -> None:
    assert devices._seconds(torch.ones(4, 4), torch.ones(4, 4)) > 0


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
    monkeypatch.setattr(devices, "_CONTAINER", tmp_path)
    monkeypatch.setattr(devices, "on_gpu", lambda: False)
    monkeypatch.setattr(devices.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    assert devices.available_bytes() == free
