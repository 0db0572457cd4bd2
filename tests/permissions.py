"""Make folders and files unreadable, even if the tests run as root."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

# From linux/capability.h.
_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Within the block, nobody may read or enter ``path``."""
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        with _without_the_rights_of_root() if os.geteuid() == 0 else nullcontext():
            yield
    finally:
        path.chmod(mode)


@contextmanager
def _without_the_rights_of_root() -> Iterator[None]:
    """Within the block, permissions apply to this thread even if it runs as root, which may read everything."""
    if sys.platform != "linux":
        pytest.skip("drops root's rights as Linux does")
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    rights = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice, for 64 bits
    assert library.capget(header, rights) == 0
    before = rights[0]
    rights[0] &= ~(1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
    assert library.capset(header, rights) == 0
    try:
        yield
    finally:
        rights[0] = before
        assert library.capset(header, rights) == 0
