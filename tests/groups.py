"""Run real commands as several processes that train together, forked instead of launched."""

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.forked import Forked

ON_CPUS = {"ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1"}


@contextmanager
def group(
    arguments: Sequence[object],
    size: int,
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[int], Callable[[], None] | None] = lambda _: None,
) -> Iterator[list[Forked]]:
    """Run ``python -m pipeline`` with these arguments as gloo processes, by rank; they are killed at the end.

    Args:
        prepare: for a rank, a function that its process calls before the command.
    """
    shared = {**ON_CPUS, "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(size), **(environment or {})}
    words, members = [*map(str, arguments)], []
    try:
        for rank in range(size):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
            members.append(Forked(words, {**shared, **own}, prepare(rank)))
        yield members
    finally:
        for member in members:
            member.close()


def run_together(
    arguments: Sequence[object], size: int, environment: Mapping[str, str] | None = None, timeout: float = 120.0
) -> str:
    """The output of the main process of a group; all processes must succeed."""
    with group(arguments, size, environment) as members:
        assert statuses(members, timeout) == [0] * size, "\n".join(member.printed() for member in members)
        return members[0].printed()


def statuses(members: Sequence[Forked], timeout: float) -> list[int]:
    """The exit status of each process; raises a TimeoutError if one does not end within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    return [member.wait(max(0.0, deadline - time.monotonic())) for member in members]


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
