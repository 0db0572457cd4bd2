"""How a process that trains waits and keeps memory: settings of OpenMP and the C library, from before torch starts."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Names of ``mallopt``'s parameters in glibc's ``malloc.h``."""


def set_up() -> None:
    """Spin for a moment only, and keep freed memory; where the user's environment says otherwise, that holds.

    To be called before torch is imported, which is when OpenMP reads its settings.
    """
    # OpenMP's threads spin while they wait for each other. On a machine that is shared, long spinning made a training
    # step up to 15 times slower; sleeping at once costs a fifth on a free machine, half with small models. A short spin
    # costs next to nothing and gives way soon.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # A step frees what it took and the next one takes it again. glibc hands large blocks back to the kernel in between,
    # which then clears every page anew: up to 240 MB a step with SMART, an eighth of its time.
    if not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        with suppress(AttributeError):
            _c_library().mallopt(_MMAP_MAX, 0)
            _c_library().mallopt(_TRIM_THRESHOLD, -1)


def give_back_memory() -> None:
    """Hand back to the kernel what is freed: at the end of a model's training, the next one may need far less."""
    with suppress(AttributeError):
        _c_library().malloc_trim(0)


def _c_library() -> Any:
    """The C library, where it is glibc or alike; others lack the functions, which is an AttributeError."""
    return ctypes.CDLL(None) if sys.platform == "linux" else None
