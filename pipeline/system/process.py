"""The process itself: whether it speaks for those that train with it, how its threads wait, how it keeps memory."""

import ctypes
import os
import sys
from contextlib import suppress
from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Names of ``mallopt``'s parameters in glibc's ``malloc.h``."""


def is_main_process() -> bool:
    """Whether this process writes and prints. The launcher's variable says so before torch is imported."""
    return int(os.environ.get("RANK", "0")) == 0


def set_up() -> None:
    """Let threads spin only briefly, and keep freed memory, unless the user's environment says otherwise.

    Call it before torch is imported: that is when OpenMP reads its settings.
    """
    # OpenMP's threads spin while they wait for each other. On a machine that is shared, long spinning made a training
    # step up to 15 times slower; sleeping at once costs a fifth on a free machine, half with small models. A short spin
    # costs next to nothing and gives way soon.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Each step frees memory that the next one allocates again. In between, glibc returns large blocks to the kernel,
    # which then clears every page anew: up to 240 MB a step with SMART, an eighth of its time.
    if not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        with suppress(AttributeError):
            c_library().mallopt(_MMAP_MAX, 0)
            c_library().mallopt(_TRIM_THRESHOLD, -1)


def give_back_memory() -> None:
    """Return freed memory to the kernel, at the end of a training: the next one may need far less."""
    with suppress(AttributeError):
        c_library().malloc_trim(0)


def c_library() -> Any:
    """The C library. Its attributes raise AttributeError where it lacks glibc's functions."""
    return ctypes.CDLL(None) if sys.platform == "linux" else None
