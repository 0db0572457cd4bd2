"""Objects through a pipe between a process and its workers: eight bytes of length, then the pickled object."""

import os
import pickle
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")


def send(descriptor: int, value: Any) -> None:
    """Write ``value``; a BrokenPipeError if nobody reads any longer."""
    data = pickle.dumps(value)
    rest = memoryview(_LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def receive(descriptor: int) -> Any:
    """Read what :func:`send` wrote; an EOFError where the other end was closed, even in the middle of an object."""
    (length,) = _LENGTH.unpack(_read(descriptor, _LENGTH.size))
    return pickle.loads(_read(descriptor, length))


def _read(descriptor: int, size: int) -> bytes:
    # Unbuffered and without a lock: a thread that waits here must not keep the interpreter from ending.
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
