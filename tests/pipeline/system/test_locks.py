"""Locks of machines that are gone: who is believed to hold a lock, and for how long."""

import fcntl
import os
import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.system import locks
from pipeline.system.errors import PipelineError
from pipeline.system.locks import MACHINE, is_held, locked
from tests.processes import in_a_process, line_of

BUSY = PipelineError("busy")
LONG_AGO = 3600.0


@pytest.mark.parametrize(
    ("owner", "age", "is_taken_over"),
    [
        ("another", LONG_AGO, True),
        ("another", 60.0, False),  # it is renewed more often than that, but storage may hang
        (MACHINE, LONG_AGO, False),  # here the kernel knows better: the process is alive, if suspended
        ("", LONG_AGO, False),  # such a lock is not renewed
    ],
)
def test_a_lock_that_another_machine_no_longer_renews_is_free(
    owner: str, age: float, is_taken_over: bool, tmp_path: Path
) -> None:
    file = tmp_path / ".lock"
    with file.open("ab") as lock:  # as a server that keeps the lock of a machine that is gone
        fcntl.flock(lock, fcntl.LOCK_EX)
        file.write_text(owner)
        os.utime(file, (time.time() - age,) * 2)
        assert is_held(file) is not is_taken_over
        if is_taken_over:
            with locked(file, BUSY, renewed=True):
                assert is_held(file)
                with pytest.raises(PipelineError, match="busy"), locked(file, BUSY):
                    pass
            assert not is_held(file)
        else:
            with pytest.raises(PipelineError, match="busy"), locked(file, BUSY):
                pass


def test_of_two_that_find_a_lock_abandoned_one_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, unlink = tmp_path / ".lock", Path.unlink
    file.write_text("another")
    os.utime(file, (time.time() - LONG_AGO,) * 2)
    has_entered, may_leave, entered = threading.Event(), threading.Event(), list[str]()

    def enter(name: str) -> None:
        with suppress(PipelineError), locked(file, BUSY, renewed=True):
            entered.append(name)
            has_entered.set()
            may_leave.wait(10)

    def unlink_once_the_other_had_its_time(path: Path, missing_ok: bool = False) -> None:
        if path == file and threading.current_thread() is slow:
            fast.start()
            has_entered.wait(1)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_once_the_other_had_its_time)
    slow, fast = (threading.Thread(target=enter, args=(name,)) for name in ("slow", "fast"))
    slow.start()
    has_entered.wait(10)
    slow.join(0.5)
    may_leave.set()
    slow.join()
    fast.join()
    assert len(entered) == 1


def test_a_lock_whose_file_is_deleted_while_others_wait_for_it_is_not_theirs(tmp_path: Path) -> None:
    file, entered = tmp_path / "run" / ".lock", threading.Event()

    def wait_and_enter() -> None:
        with locked(file):
            entered.set()
            with pytest.raises(PipelineError, match="busy"), locked(file, BUSY):
                pytest.fail("two holders")

    with ThreadPoolExecutor() as threads:
        with locked(file):
            waiting = threads.submit(wait_and_enter)
            assert not entered.wait(0.3)
            file.unlink()
            file.parent.rmdir()
        waiting.result(timeout=10)


def test_who_holds_a_lock_for_long_renews_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_RENEWAL_SECONDS", 0.01)
    file = tmp_path / ".lock"
    with locked(file, renewed=True):
        assert file.read_text() == MACHINE
        os.utime(file, (0, 0))
        deadline = time.monotonic() + 10
        while file.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert time.time() - file.stat().st_mtime < 60
    os.utime(file, (0, 0))
    time.sleep(0.1)
    assert file.stat().st_mtime == 0


ASKED_AGAIN_AND_AGAIN = """
from pipeline.system.locks import is_held
print("begun", flush=True)
while True:
    is_held(ROOT)
"""


def test_who_only_asks_whether_a_lock_is_held_keeps_nobody_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_ASKING_SECONDS", 5.0)  # the other process may be halted while it asks
    file = tmp_path / ".lock"
    file.touch()
    with in_a_process(ASKED_AGAIN_AND_AGAIN, file) as process:
        assert line_of(process) == "begun"
        for _ in range(3000):
            with locked(file, BUSY):
                pass


def test_on_a_full_disk_the_error_of_what_holds_a_lock_is_the_one_that_is_seen(tmp_path: Path) -> None:
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(KeyError, match="its own"), locked(tmp_path / ".lock", renewed=True):
            raise KeyError("its own")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
