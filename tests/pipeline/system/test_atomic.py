"""A file or folder stands under its name complete or not at all, whatever stops the writer; a lock has one holder."""

from __future__ import annotations

import errno
import math
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pipeline.system import atomic
from pipeline.system.atomic import (
    canonical_json,
    check_writable,
    clear_leftovers,
    is_held,
    locked,
    new_file,
    new_folder,
    write_json,
    write_text,
)
from pipeline.system.errors import PipelineError
from tests.processes import WITH_WIDE_GAPS, in_a_process, line_of


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill(folder: Path, *files: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_new_folder_replaces_the_old_one_whole(tmp_path: Path) -> None:
    fill(tmp_path / "folder", "old", "both")
    with new_folder(tmp_path / "folder") as temporary:
        fill(temporary, "new", "both")
        assert names(tmp_path / "folder") == ["both", "old"]
    assert names(tmp_path / "folder") == ["both", "new"]
    assert names(tmp_path) == ["folder"]


KILLED_AT_EVERY_STEP = """
from pipeline.system import atomic

def write():
    with getattr(atomic, "new_" + kind)(ROOT / "target") as new:
        if kind == "file":
            new.write_text("new")
        else:
            for name in ("one", "two"):
                (new / name).write_text("new")

def die_at(step):
    events = 0
    def count(event, _):
        nonlocal events
        events += event.split(".")[0] in ("open", "os", "shutil", "tempfile")
        if events == step:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)

(kind,) = ARGUMENTS
step, status = 0, None
while status != 0:
    step += 1
    if not (child := os.fork()):
        die_at(step)
        write()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(step, flush=True)
    sys.stdin.readline()
"""


def test_a_folder_does_not_take_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "name").write_text("a file")
    with pytest.raises(PipelineError, match="there is a file where a folder is needed"), new_folder(tmp_path / "name"):
        pass
    assert names(tmp_path) == ["name"]
    assert (tmp_path / "name").read_text() == "a file"


def put(kind: str, target: Path, text: str) -> None:
    if kind == "file":
        write_text(target, text)
        return
    with new_folder(target) as new:
        for name in ("one", "two"):
            (new / name).write_text(text)


def contents(target: Path) -> list[str]:
    return [target.read_text()] if target.is_file() else [(target / name).read_text() for name in names(target)]


@pytest.mark.parametrize("old", [[], ["old"]])
@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt(), SystemExit(1)], ids=repr)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_failure_while_writing_leaves_what_was_there(
    kind: str, old: list[str], error: BaseException, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    for text in old:
        put(kind, target, text)
    with pytest.raises(type(error)), (new_file if kind == "file" else new_folder)(target) as temporary:
        (temporary if kind == "file" else temporary / "one").write_text("half")
        raise error
    assert names(tmp_path) == ["target"] * len(old)
    assert not old or {*contents(target)} == {*old}


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_writer_may_be_killed_at_any_step(kind: str, tmp_path: Path) -> None:
    """At each call that touches the disk: what stands is whole, and the next writer leaves nothing else."""
    target = tmp_path / "target"
    whole = {"old": ["old"], "new": ["new"]} if kind == "file" else {"old": ["old"] * 2, "new": ["new"] * 2}
    put(kind, target, "old")
    found, left = [], 0
    with in_a_process(KILLED_AT_EVERY_STEP, tmp_path, kind) as process:
        while line_of(process):
            left += len(names(tmp_path)) > 1
            clear_leftovers(tmp_path)
            assert names(tmp_path) == ["target"]
            found.append(contents(target))
            assert found[-1] in whole.values()
            put(kind, target, "old")
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait() == 0
    assert found[0] == whole["old"]
    assert found[-1] == whole["new"]
    assert left >= 5


@pytest.mark.parametrize("write", [new_file, new_folder])
@pytest.mark.parametrize("name", ["*", "?????", "[a-z]*", ".x", "a.b", "two\nlines"])
def test_a_writer_leaves_alone_what_is_not_its_own(name: str, write: Writer, tmp_path: Path) -> None:
    """Files of other programs, what others are writing, and what was left of other names, whatever the name is."""
    fill(tmp_path / ".cache.tmp", "another program's")
    left_by_a_killed_process(tmp_path, "other")
    before = names(tmp_path)
    with write(tmp_path / "live") as live, write(tmp_path / name) as new:
        assert live.parent.is_dir()
        new.mkdir(exist_ok=True) if write is new_folder else new.write_text("")
        live.mkdir(exist_ok=True) if write is new_folder else live.write_text("")
    assert names(tmp_path) == sorted([*before, "live", name])


Writer = Callable[[Path], AbstractContextManager[Path]]


def left_by_a_killed_process(parent: Path, name: str) -> Path:
    """The hidden folder in which a process that is no more was writing ``name``."""
    code = "from pipeline.system.atomic import new_folder\nwith new_folder(ROOT): os.kill(os.getpid(), signal.SIGKILL)"
    with in_a_process(code, parent / name) as process:
        assert process.wait() == -signal.SIGKILL
    (left,) = parent.glob(f".{name}.*.tmp")
    return left


def test_what_may_be_in_use_is_not_cleared(tmp_path: Path) -> None:
    left = left_by_a_killed_process(tmp_path, "target")
    write_text(tmp_path / "other", "its writers clear nothing else")
    (tmp_path / "other").unlink()
    # Made on another machine, whose processes are not known here.
    elsewhere = left.rename(left.with_name(".target.000000-1-01234567.tmp"))
    (tmp_path / "target").touch()
    for hours in (0, 23.9):
        os.utime(elsewhere, (time.time() - 3600 * hours,) * 2)
        clear_leftovers(tmp_path)
        assert names(tmp_path) == [elsewhere.name, "target"]
    os.utime(elsewhere, (time.time() - 3600 * 24.1,) * 2)
    clear_leftovers(tmp_path)
    assert names(tmp_path) == ["target"]


WRITE_AGAIN = """
from pipeline.system import atomic
for round in range(int(ARGUMENTS[0])):
    with atomic.new_folder(ROOT / "folder") as new:
        for name in ("one", "two"):
            (new / name).write_text(f"{os.getpid()} {round}")
"""


def test_processes_that_write_one_folder_at_once_all_succeed(tmp_path: Path) -> None:
    code = WITH_WIDE_GAPS + WRITE_AGAIN
    with in_a_process(code, tmp_path, 150) as one, in_a_process(code, tmp_path, 150) as two:
        assert (one.wait(), two.wait()) == (0, 0)
    assert names(tmp_path) == ["folder"]
    assert (tmp_path / "folder" / "one").read_text() == (tmp_path / "folder" / "two").read_text()
    assert (tmp_path / "folder" / "one").read_text().endswith(" 149")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o244, 0o755])
def test_a_replaced_file_keeps_its_permissions(mode: int, tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    (tmp_path / "file").chmod(mode)
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        write_text(tmp_path / name, f"new by {name}")
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    (tmp_path / "file").chmod(0o600)
    assert (tmp_path / "file").read_text() == "new by link"


def test_a_link_keeps_pointing_at_what_is_replaced(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere" / "folder", "old")
    for name in ("folder", "file"):
        (tmp_path / name).symlink_to(tmp_path / "elsewhere" / name)
    with new_folder(tmp_path / "folder") as new:
        fill(new, "new")
    write_text(tmp_path / "file", "new")
    assert all((tmp_path / name).is_symlink() for name in ("folder", "file"))
    assert names(tmp_path / "elsewhere") == ["file", "folder"]
    assert names(tmp_path / "elsewhere" / "folder") == ["new"]


def write_folder(path: Path) -> None:
    with new_folder(path) as folder:
        fill(folder, "new")


@pytest.mark.parametrize("place", ["pipe", "link"])
@pytest.mark.parametrize("write", [lambda path: write_text(path, "new"), write_folder, check_writable])
def test_a_pipe_or_device_is_not_replaced(write: Callable[[Path], None], place: str, tmp_path: Path) -> None:
    """A command that root gives would else make a regular file of /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with pytest.raises(PipelineError, match=f"cannot write .*{place}: not a regular file.*: name another place"):
        write(tmp_path / place)
    assert (tmp_path / "pipe").is_fifo()
    assert names(tmp_path) == ["link", "pipe"]


def test_a_place_that_takes_no_new_name_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pipeline.system.atomic.uuid.uuid4", refuse)
    with pytest.raises(PipelineError, match="cannot write .*new"):
        check_writable(tmp_path / "new")


@pytest.mark.parametrize("kind", ["file", "folder", "replaced folder"])
def test_a_name_never_outlives_its_bytes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is new is flushed to disk before the rename, and the rename before the writer returns."""
    target, fsync = tmp_path / "target", os.fsync
    before, after = set[int](), set[int]()

    def stands() -> bool:
        return (target if kind == "file" else target / "new").exists()

    def watched(descriptor: int) -> None:
        (after if stands() else before).add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    if kind == "replaced folder":
        fill(target, "old")
    with (new_file if kind == "file" else new_folder)(target) as temporary:
        if kind == "file":
            temporary.write_text("new")
        else:
            fill(temporary, "new", "sub/two")
    assert stands()
    assert {path.stat().st_ino for path in ([target] if kind == "file" else target.rglob("*"))} <= before
    assert tmp_path.stat().st_ino in after


def test_a_number_json_does_not_know_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    write_json(file, {"b": 1, "a": [2.5, None]})
    before = file.read_text()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"a": math.nan})
    assert file.read_text() == before
    assert before == '{\n  "a": [\n    2.5,\n    null\n  ],\n  "b": 1\n}\n'


def test_canonical_json_is_equal_for_equal_values_and_only_for_them() -> None:
    assert canonical_json({"b": (1, 2), "a": "é"}) == canonical_json({"a": "é", "b": [1, 2]})
    different = [{"a": 1}, {"a": 1.5}, {"a": "1"}, {"a": None}, {"a": True}, {"a": [1]}, {"b": 1}, {}, []]
    assert len({canonical_json(value) for value in different}) == len(different)
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": math.inf})


BUSY = PipelineError("busy")


def test_a_held_lock_is_never_taken_from_its_holder_however_long_it_is_silent(tmp_path: Path) -> None:
    """Nor because of what stands in its file: the file of another machine's lock once made a second holder."""
    file = tmp_path / ".lock"
    file.write_text("another machine")
    with locked(file):
        os.utime(file, (0, 0))
        assert is_held(file)
        with pytest.raises(PipelineError, match="busy"), locked(file, BUSY):
            pytest.fail("two holders")
    assert not is_held(file)


ASKED_AGAIN_AND_AGAIN = """
from pipeline.system.atomic import is_held
print("begun", flush=True)
while True:
    is_held(ROOT)
"""


def test_who_only_asks_whether_a_lock_is_held_keeps_nobody_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_ASKING_SECONDS", 5.0)  # the other process may be halted while it asks
    file = tmp_path / ".lock"
    file.touch()
    with in_a_process(ASKED_AGAIN_AND_AGAIN, file) as process:
        assert line_of(process) == "begun"
        for _ in range(3000):
            with locked(file, BUSY):
                pass


PROGRAM = """
import os
from pipeline.system import process

process.set_up()
print(os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(
    ("variables", "spin"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "passive"}, None)],
    ids=["default", "count", "policy"],
)
def test_threads_spin_for_a_moment_unless_the_user_says_otherwise(variables: dict[str, str], spin: str | None) -> None:
    others = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=others | variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(spin)
