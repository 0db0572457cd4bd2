"""What a server needs before it starts: its limits, its socket, and the names of the models to serve.

Imports no model and no web framework, so mistakes are reported before the libraries load.
"""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from pipeline.records.store import Store
from pipeline.runs.kept_models import check_task, kept_for, parse_model, silent_unless_refused
from pipeline.system.errors import PipelineError
from pipeline.system.reading import is_folder


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the server."""

    max_batch: int = field(default=64, metadata={"bounds": (1, 2**16)})
    "Texts or pairs in a request, and in a forward pass."
    max_queue: int = field(default=1024, metadata={"bounds": (1, 2**24)})
    "Texts or pairs that may wait; further requests get 429."
    max_body: int = field(default=2**20, metadata={"bounds": (1, 2**30)})
    "Bytes of a request."
    max_text: int = field(default=2**16, metadata={"bounds": (1, 2**30)})
    "Characters in a text, even if it may be cut."
    max_wait: float = field(default=4.0, metadata={"bounds": (0, 60_000)})
    "Milliseconds that a request waits for others to share its forward pass."
    poll: float = field(default=2.0, metadata={"bounds": (0.05, 86_400)})
    "Seconds between two checks of the store."
    max_models: int = field(default=64, metadata={"bounds": (1, 2**20)})
    "Models in memory; others are loaded when they are requested, and replace the least recently used."

    def check(self) -> None:
        """Raise a :class:`PipelineError` for the first limit that makes no sense."""
        for limit in fields(self):
            (least, most), value = limit.metadata["bounds"], getattr(self, limit.name)
            if not least <= value <= most:
                raise PipelineError(f"--{limit.name.replace('_', '-')} {value:g}: give {least} to {most}")
        if self.max_queue < self.max_batch:
            raise PipelineError(f"--max-queue {self.max_queue}: give at least --max-batch ({self.max_batch})")


def check_serve(
    store: Path, host: str, port: int, targets: Sequence[str], backbone: str | None, limits: Limits
) -> None:
    """Find mistakes in the arguments of :func:`stages.serve.serve.serve`; raises as that does."""
    limits.check()
    listen(host, port).close()
    if backbone is not None:
        is_folder(backbone)
    with silent_unless_refused():
        tasks_to_serve(Store(store), targets, backbone)


def tasks_to_serve(store: Store, targets: Sequence[str], backbone: str | None) -> list[str]:
    """Names of the models to try first, for :func:`pipeline.runs.model.load`: the first target, or every task.

    Raises:
        PipelineError: the store has no models, or lacks a target, or has several backbones and none was named.
    """
    store.check()
    artifacts = store.artifacts()
    if not artifacts:
        raise PipelineError(f"no model in {store.root}: train one with python -m pipeline extract --task TASK")
    names = {artifact.manifest.backbone_weights: artifact.manifest.backbone for artifact in artifacts}
    if not targets:
        if backbone is None and len(names) > 1:
            listed = ", ".join(sorted(names.values()))
            raise PipelineError(f"{store.root} has models of several backbones: name one of {listed} with --backbone")
        return sorted({artifact.manifest.task for artifact in artifacts})
    pinned, weights = dict[str, str](), set[str]()
    for task, run, _ in (parse_model(target, store.root) for target in targets):
        if pinned.setdefault(task, run) != run:
            raise PipelineError(f"--model names two models of {task}: give one for each task")
        if not run:
            kept_for(task, "auto", store)
        elif (artifact := store.find(run)) is not None:
            check_task(artifact, task)
            weights.add(artifact.manifest.backbone_weights)
        else:
            raise PipelineError(
                f"--model {task}@{run}: {store.root} has no such run, and only its adapters and fusions are served: see"
                " store list"
            )
    if len(weights) > 1:
        raise PipelineError("--model names runs of several backbones, and a server has one: start several servers")
    return [targets[0]]


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on ``host`` and ``port``; port 0 picks a free port.

    It listens before models are loaded, so early requests wait: until one listens, two servers can bind the same port.

    Raises:
        PipelineError: the address does not exist on this machine, is taken, or is forbidden.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise PipelineError(f"--host {host}: {getattr(error, 'strerror', None) or error}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()
    except OSError as error:
        bound.close()
        raise PipelineError(f"cannot listen on {host}, port {port}: {error.strerror}: give another --port") from None
    return bound


def address_of(bound: socket.socket) -> str:
    """The URL of a server on this socket."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def hosts_of(bound: socket.socket, host: str) -> list[str]:
    """The Host headers that a server on this socket answers: any, unless only this machine can reach it.

    Args:
        host: as given to :func:`listen`.
    """
    address = address_of(bound).removeprefix("http://").rpartition(":")[0]
    return ["localhost", "127.0.0.1", "[::1]", address, host] if is_loopback(bound) else ["*"]
