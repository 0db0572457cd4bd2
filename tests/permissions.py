"""Folders and files that may not be read, even where the tests run as root."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

# Of linux/capability.h.
_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """A block in which nobody may read or enter ``path``."""
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        with _without_the_rights_of_root() if os.geteuid() == 0 else nullcontext():
            yield
    finally:
        path.chmod(mode)


@contextmanager
def _without_the_rights_of_root() -> Iterator[None]:
    """A block in which this thread heeds permissions: root owns what the tests make, and reads all it owns."""
    if sys.platform != "linux":
        pytest.skip("takes root's rights away as Linux does")
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    rights = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice, for 64 of them
    assert library.capget(header, rights) == 0
    before = rights[0]
    rights[0] &= ~(1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
    assert library.capset(header, rights) == 0
    try:
        yield
    finally:
        rights[0] = before
        assert library.capset(header, rights) == 0
