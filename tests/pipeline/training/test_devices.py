"""What ``auto`` comes to, and what is said to compute."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.system.errors import PipelineError
from pipeline.training import devices


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    devices.has_bf16.cache_clear()
    yield
    devices.has_bf16.cache_clear()


@pytest.mark.parametrize(
    ("flags", "capability", "expected"),
    [
        ("fpu avx512f avx512_bf16", "AVX512", "bf16"),
        ("fpu avx512f amx_bf16", "AVX512", "bf16"),
        ("fpu avx512f", "AVX512", "fp32"),  # it would be emulated
        ("fpu avx512_bf16", "AVX2", "fp32"),  # ATEN_CPU_CAPABILITY
        ("", "DEFAULT", "fp32"),
    ],
)
def test_auto_on_a_cpu_is_bf16_where_there_are_instructions_for_it(
    flags: str, capability: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(devices, "_cpu_info", {"flags": flags}.get)
    assert devices.resolve_precision("auto") == expected
    assert devices.resolve_precision("fp32") == "fp32"


@pytest.mark.parametrize(("supported", "expected"), [(True, "bf16"), (False, "fp32")])
def test_auto_on_a_gpu_is_bf16_unless_it_would_be_emulated(
    supported: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, including_emulation: supported)
    assert devices.resolve_precision("auto", "cuda:0") == expected
    if not supported:
        with pytest.raises(PipelineError, match="this GPU does not"):
            devices.resolve_precision("bf16", "cuda:0")


def test_processes_on_cpus_agree_though_their_machines_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(devices, "has_bf16", lambda _: pytest.fail("asked"))
    assert devices.resolve_precision("auto", "cpu") == "fp32"


def test_a_gpu_that_is_to_be_left_alone_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.on_gpu()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with monkeypatch.context() as mac:
        mac.setattr(torch.cuda, "is_available", lambda: False)
        assert not devices.on_gpu() and devices.hardware(1) == "Apple GPU (MPS)"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert not devices.on_gpu()
    assert devices.hardware(1).startswith("CPU")


def test_full_memory_is_explained_and_nothing_else() -> None:
    with (
        pytest.raises(PipelineError, match="memory is full: rest"),
        devices.full_memory_explained("adapter sst", "rest"),
    ):
        raise torch.OutOfMemoryError("of 80 GB")
    with pytest.raises(ValueError, match="other"), devices.full_memory_explained("adapter sst", "rest"):
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
    monkeypatch.setattr(devices, "_CONTAINER", tmp_path)
    monkeypatch.setattr(devices, "on_gpu", lambda: False)
    monkeypatch.setattr(devices.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    assert devices.free_host_bytes() == devices.free_bytes() == free


def test_processes_that_would_each_train_alone_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PipelineError, match="2 processes were launched"):
        devices.make_accelerator("fp32")
