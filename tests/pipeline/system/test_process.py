"""A training process keeps memory between steps and returns it to the system between runs."""

import ctypes
import ctypes.util
import json
import os
import platform
import subprocess
import sys
from typing import Any

import pytest

from pipeline.system import process

# 64 MB, twice as much as glibc ever keeps of its own accord, in pages that are resident once written.
PROGRAM = """
import json, os
from pathlib import Path
from pipeline.system import process

process.set_up()
import numpy as np

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

before = resident_mb()
block = np.ones(2**23)
del block
freed = resident_mb() - before
process.give_back_memory()
print(json.dumps({"kept": freed, "given back": resident_mb() - before, "spin": os.environ.get("GOMP_SPINCOUNT")}))
"""


def measured(**variables: str) -> dict[str, Any]:
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GOMP_", "OMP_")) and name != "GLIBC_TUNABLES"
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=own | variables, capture_output=True, text=True, check=True
    )
    measurements: dict[str, Any] = json.loads(done.stdout)
    return measurements


glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")


@glibc
def test_freed_memory_is_kept_until_it_is_given_back() -> None:
    measurements = measured()
    assert measurements["kept"] > 60
    assert measurements["given back"] < 8


JEMALLOC = ctypes.util.find_library("jemalloc")


@pytest.mark.skipif(JEMALLOC is None, reason="jemalloc is not installed")
@pytest.mark.parametrize(
    ("settings", "keeps"), [({}, True), ({"MALLOC_CONF": "dirty_decay_ms:0"}, False)], ids=["ours", "the user's"]
)
def test_with_jemalloc_it_is_the_same(settings: dict[str, str], keeps: bool) -> None:
    measurements = measured(LD_PRELOAD=str(JEMALLOC), **settings)
    assert (measurements["kept"] > 60) == keeps
    assert measurements["given back"] < 8


DECAY = """
import ctypes
from pipeline.system import process

process.set_up()
library, value, size = ctypes.CDLL(None), ctypes.c_ssize_t(), ctypes.c_size_t(8)
for arena in ("arena.0", "arenas"):
    library.mallctl(f"{arena}.dirty_decay_ms".encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    print(value.value)
"""


@pytest.mark.skipif(JEMALLOC is None, reason="jemalloc is not installed")
def test_with_jemalloc_smaller_blocks_are_given_back_slowly() -> None:
    """Kept for good, they grew to several times what a step needs."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", DECAY],
        env=own | {"LD_PRELOAD": str(JEMALLOC)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["10000", "10000"]


@glibc
@pytest.mark.parametrize(
    "variables",
    [{"MALLOC_ARENA_MAX": "2"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=1000"}],
    ids=lambda each: next(iter(each)),
)
def test_the_users_settings_of_memory_hold(variables: dict[str, str]) -> None:
    assert measured(**variables)["kept"] < 8


@pytest.mark.parametrize(
    ("variables", "spin"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "passive"}, None)],
    ids=["default", "count", "policy"],
)
def test_threads_spin_for_a_moment_unless_the_user_says_otherwise(variables: dict[str, str], spin: str | None) -> None:
    assert measured(**variables)["spin"] == spin


@pytest.mark.parametrize("platform", ["darwin", "win32", "linux"])
def test_where_the_c_library_lacks_the_functions_the_rest_is_still_set(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object() if platform == "linux" else pytest.fail("no such library"))
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GOMP_", "OMP_")) or "TUNABLES" in name]:
        monkeypatch.delenv(name)
    process.set_up()
    process.give_back_memory()
    assert os.environ["GOMP_SPINCOUNT"] == "10000"
