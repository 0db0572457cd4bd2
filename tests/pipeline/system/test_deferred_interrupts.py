"""A signal waits until the caller's state is consistent, and only as long as that."""

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from pipeline.system.process import SIGNALS, DeferredInterrupts, Interrupted, handle_signals
from tests.processes import in_a_process, line_of

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="sends signals"),
    pytest.mark.usefixtures("command_handlers"),
]
HOLDING = """
import time
from pipeline.system.process import DeferredInterrupts, handle_signals
handle_signals()
with DeferredInterrupts():
    print("held", flush=True)
    time.sleep(100)
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_raised_where_it_is_asked_for_or_at_the_end(number: signal.Signals) -> None:
    reached = []
    with pytest.raises(Interrupted) as raised, DeferredInterrupts() as interrupts:
        signal.raise_signal(number)
        reached.append("after the signal")
        assert interrupts.held is not None
        interrupts.raise_held()
        reached.append("after it was asked for")
    assert (reached, raised.value.args) == (["after the signal"], (number,))
    signal.signal(number, signal.SIG_DFL)
    handle_signals()
    with pytest.raises(Interrupted), DeferredInterrupts():
        signal.raise_signal(number)
        reached.append("to the end")
    assert reached[-1] == "to the end"
    # Once it is raised, the next one kills, as without the block; but SIGHUP, which comes twice.
    assert signal.getsignal(number) is (signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_block_may_be_left_out_of_the_holding(number: signal.Signals) -> None:
    reached = []
    with DeferredInterrupts() as interrupts:
        with interrupts.lifted():
            reached.append("lifted")
        with pytest.raises(Interrupted), interrupts.lifted():
            signal.raise_signal(number)
            reached.append("after the signal")
    assert reached == ["lifted"]


def test_a_signal_outlives_an_error_in_the_block() -> None:
    """Whoever goes on after the error must not go on after Ctrl-C."""
    with pytest.raises(Interrupted) as raised, DeferredInterrupts():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("ours")
    assert isinstance(raised.value.__context__, ValueError)


def test_other_threads_leave_signals_alone() -> None:
    def work() -> None:
        with DeferredInterrupts() as interrupts, interrupts.lifted():
            handlers.append(signal.getsignal(signal.SIGINT))

    handlers, before = [], signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with in_a_process(HOLDING, tmp_path) as process:
        assert line_of(process) == "held"
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT
