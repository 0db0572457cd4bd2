"""This process: threads, caches, whether it prints for the processes that train with it, and how signals end it.

After Ctrl-C, SIGTERM or SIGHUP (a terminal or connection that is gone) one line says what is kept, and the exit status
is what a shell expects, 128 + the signal.
"""

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask the process to end."""
_RESUMABLE = ("extract", "fuse", "compare", "pretrain", "demo")
_received: list[int] = []  # the signal that asked the process to end


def is_main_process() -> bool:
    """Whether this process writes and prints. The launcher's variable says so before torch is imported."""
    return int(os.environ.get("RANK", "0")) == 0


def process_count() -> int:
    """How many processes train together, according to the launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_up() -> None:
    """Let threads spin briefly, unless the environment says otherwise; call it before torch is imported.

    From then on libraries report only errors; their other messages are expected, or replaced by ours.
    """
    for library in ("TRANSFORMERS", "HF_HUB"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    for name in ("adapters", "onnxruntime.quantization"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # OpenMP's threads spin while they wait for each other. On a shared machine, long spinning made a training step up
    # to 15 times slower; sleeping at once costs a fifth on a free machine, half with small models. A short spin costs
    # next to nothing and soon yields.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def token_cache() -> Path | None:
    """The folder for tokenised texts: ``$PIPELINE_CACHE``, or the user's cache; None for a user without a home."""
    if named := os.environ.get("PIPELINE_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  (Path.home would raise)
    return Path(base) / "adapter-fusion-pipeline" / "tokens" if Path(base).is_absolute() else None


def is_loss_of_another(error: RuntimeError) -> bool:
    """Whether ``error`` is torch's report that another of the processes that train together is gone."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and re.search("gloo|NCCL|TCPStore", str(error)) is not None


class Interrupted(KeyboardInterrupt):
    """A signal asks the process to end; its number is the only argument."""


def handle_signals() -> None:
    """Raise :class:`Interrupted` at the first signal to end; a second SIGINT or SIGTERM kills the process."""
    for number in SIGNALS:
        # A script's background jobs ignore Ctrl-C, and a command under nohup SIGHUP: leave these ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    sys.unraisablehook = partial(_send_again, otherwise=sys.unraisablehook)


def _send_again(raised: "sys.UnraisableHookArgs", otherwise: Callable[["sys.UnraisableHookArgs"], object]) -> None:
    """Python drops an exception that leaves a destructor: send the signal again once that has returned."""
    if isinstance(raised.exc_value, Interrupted):
        (number,) = raised.exc_value.args
        signal.signal(number, _interrupt)
        threading.Timer(0.01, signal.pthread_kill, [threading.main_thread().ident, number]).start()
    else:
        otherwise(raised)


def was_interrupted() -> bool:
    """Whether a signal to end has come. Some libraries turn the exception that it raises in them into another."""
    return bool(_received)


def end_at_signals() -> None:
    """Let signals end the process at once: its work is done, and nothing that runs at exit handles them."""
    for number in SIGNALS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)


class DeferredInterrupts:
    """Hold signals during a block until :meth:`raise_held`, or its end; a second SIGINT or SIGTERM kills.

    A Python handler would raise between any two lines; this raises where the caller's state is consistent. Signals
    without a Python handler are left alone, and so are all signals outside the main thread, which alone receives them.
    """

    def __init__(self) -> None:
        self.held: tuple[int, FrameType | None] | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "DeferredInterrupts":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._hold)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, KeyboardInterrupt):
            self.raise_held()  # even instead of an error, since the caller might handle that and carry on
        self._restore()

    def raise_held(self) -> None:
        """Pass a held signal to its handler, which usually raises ``KeyboardInterrupt``."""
        if self.held is not None:
            (number, frame), self.held = self.held, None
            handler = self._handlers[number]
            self._restore()
            handler(number, frame)

    def end(self) -> None:
        """:meth:`raise_held`; without a held signal, act as on SIGTERM, because another process of the group has one.

        That signal may have been meant for all and arrive here later: the next signal does nothing, and a SIGINT or
        SIGTERM after it kills.
        """
        if self.held is not None:
            self.raise_held()
            return
        self._handlers = dict.fromkeys(self._handlers, let_the_next_kill)
        self._restore()
        raise Interrupted(signal.SIGTERM)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """A block in which signals are not held. After an exception in it they are no longer held at all."""
        self.raise_held()
        holding = bool(self._handlers)
        self._restore()
        yield
        if holding:
            self.__enter__()

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self.held is not None:
            let_the_next_kill()
            signal.raise_signal(number)
            return
        self.held = number, frame

    def _restore(self) -> None:
        # Only once: a handler may have replaced itself since.
        while self._handlers:
            signal.signal(*self._handlers.popitem())


def report_interrupt(interrupt: KeyboardInterrupt, arguments: Sequence[str]) -> int:
    """Tell the user how to resume the command with ``arguments`` (the verb first); returns the exit status."""
    if is_main_process():
        resumable = bool(arguments) and arguments[0] in _RESUMABLE
        kept = ": finished work is kept; run the same command again to resume" if resumable else ""
        print(f"interrupted{kept}", file=sys.stderr)
    return interrupt_status(interrupt)


def interrupt_status(interrupt: KeyboardInterrupt) -> int:
    """The exit status after ``interrupt``."""
    # Some libraries, such as Ray, replace our KeyboardInterrupt by theirs.
    return 128 + (interrupt.args[0] if interrupt.args else _received[-1] if _received else signal.SIGINT)


def let_the_next_kill(*_: object) -> None:
    """Let the next SIGINT or SIGTERM end the process at once; it can be a signal's handler."""
    for number in SIGNALS:
        # When a connection is lost, both shell and kernel send SIGHUP: the second must not cut off the checkpoint.
        signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    let_the_next_kill()
    _received.append(number)
    raise Interrupted(number)
