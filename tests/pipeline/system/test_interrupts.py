"""Ctrl-C, SIGTERM and SIGHUP end a command with one line and 128 + the signal, whatever it is doing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pipeline.system.process import SIGNALS

ROOT = Path(__file__).parents[3]
RESUME = "interrupted: finished work is kept; run the same command again to resume"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals")

# Stand-ins for modules that take long to import; each waits once it has left its mark.
SLEEPS = "import time, pathlib\npathlib.Path({mark!r}).touch()\ntime.sleep(60)\n"
ENDS_WITH_ANOTHER = """
import time, pathlib
from pipeline.system.process import DeferredInterrupts

try:
    with DeferredInterrupts() as interrupts:
        interrupts.end()
finally:
    pathlib.Path({mark!r}).touch()
    time.sleep(60)
"""
SLEEPS_IN_A_DESTRUCTOR = """
import time, pathlib

class Dropped:
    def __del__(self):
        pathlib.Path({mark!r}).touch()
        time.sleep(60)

Dropped()
time.sleep(60)
"""
TURNS_IT_INTO_ANOTHER_ERROR = """
import time, pathlib

try:
    pathlib.Path({mark!r}).touch()
    time.sleep(60)
except KeyboardInterrupt:
    pass
raise ValueError("cannot load")
"""
SLEEPS_TWICE = """
import time, pathlib

try:
    pathlib.Path({mark!r}).touch()
    time.sleep(60)
finally:
    pathlib.Path({mark!r}).with_name("again").touch()
    time.sleep(60)
"""


def start(
    arguments: Sequence[str], modules: Path | None = None, ignored: signal.Signals | None = None
) -> subprocess.Popen[str]:
    """``python -m pipeline``, with the stand-ins in ``modules``; signals reach it even where they do not reach us."""

    def prepare() -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN if number == ignored else signal.SIG_DFL)

    paths = [str(modules)] if modules is not None else []
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments],
        cwd=modules or ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(ROOT)])},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=prepare,
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 100
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()


def stand_in(folder: Path, module: str, source: str) -> Path:
    """Write a module that leaves the mark returned."""
    mark = folder / "mark"
    (folder / f"{module}.py").write_text(source.format(mark=str(mark)))
    return mark


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("module", "arguments", "line"),
    [
        ("cyclopts", ["extract", "--task", "sst"], RESUME),
        ("torch", ["extract", "--task", "sst"], RESUME),
        ("torch", ["compare", "--dry-run"], RESUME),
        ("torch", ["doctor"], "interrupted"),
    ],
    ids=["before main", "extract", "compare", "doctor"],
)
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_an_import_is_interrupted_in_one_line(
    number: signal.Signals, module: str, arguments: list[str], line: str, tmp_path: Path
) -> None:
    mark = stand_in(tmp_path, module, SLEEPS)
    process = start(arguments, tmp_path)
    wait_for(mark.exists, process)
    process.send_signal(number)
    assert process.communicate(timeout=30) == ("", f"{line}\n")
    assert process.returncode == 128 + number


@pytest.mark.parametrize("source", [SLEEPS_IN_A_DESTRUCTOR, TURNS_IT_INTO_ANOTHER_ERROR], ids=["dropped", "replaced"])
def test_a_signal_whose_exception_gets_lost_ends_the_command(source: str, tmp_path: Path) -> None:
    """Python drops one that leaves a destructor, and some libraries replace one that is raised in them."""
    mark = stand_in(tmp_path, "torch", source)
    process = start(["extract", "--task", "sst"], tmp_path)
    wait_for(mark.exists, process)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30) == ("", f"{RESUME}\n")
    assert process.returncode == 128 + signal.SIGTERM


def test_a_second_interrupt_kills_without_a_traceback(tmp_path: Path) -> None:
    mark = stand_in(tmp_path, "torch", SLEEPS_TWICE)
    process = start(["extract", "--task", "sst"], tmp_path)
    wait_for(mark.exists, process)
    process.send_signal(signal.SIGINT)
    wait_for((tmp_path / "again").exists, process)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == -signal.SIGINT


@pytest.mark.long
def test_a_process_that_ends_with_another_survives_the_signal_that_comes_late(tmp_path: Path) -> None:
    mark = stand_in(tmp_path, "torch", ENDS_WITH_ANOTHER)
    process = start(["extract", "--task", "sst"], tmp_path)
    wait_for(mark.exists, process)
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.terminate()
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == -signal.SIGTERM


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["in the background", "under nohup"])
def test_a_signal_that_the_parent_ignores_stays_ignored(number: signal.Signals, tmp_path: Path) -> None:
    mark = stand_in(tmp_path, "torch", SLEEPS)
    process = start(["extract", "--task", "sst"], tmp_path, ignored=number)
    wait_for(mark.exists, process)
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.terminate()
    assert process.communicate(timeout=30) == ("", f"{RESUME}\n")
