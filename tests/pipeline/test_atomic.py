"""A file or folder stands under its name complete or not at all, whatever stops the writer."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline
from pipeline.atomic import (
    canonical_json,
    make_folder,
    new_file,
    new_folder,
    recover_folder,
    sha256_file,
    sha256_text,
    write_json,
    write_text,
)
from pipeline.errors import PipelineError

INTERRUPTIONS = [ValueError("bug"), KeyboardInterrupt(), SystemExit(1)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_has_its_content_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "er" / "file"
    with new_file(file) as temporary:
        temporary.write_text("new")
        assert temporary.parent == file.parent
        assert not file.exists()
    assert file.read_text() == "new"
    assert names(file.parent) == ["file"]


@pytest.mark.parametrize("old", [None, "old"])
@pytest.mark.parametrize("error", INTERRUPTIONS, ids=repr)
def test_a_failure_while_writing_a_file_leaves_what_was_there(
    old: str | None, error: BaseException, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    if old is not None:
        file.write_text(old)
    with pytest.raises(type(error)), new_file(file) as temporary:
        temporary.write_text("half")
        raise error
    assert names(tmp_path) == ([] if old is None else ["file"])
    assert old is None or file.read_text() == old


def fill(folder: Path, *files: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_new_folder_has_its_files_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a" / "b") as temporary:
        fill(temporary, "one", "sub/two")
        assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a" / "b" / "sub" / "two").read_text() == "sub/two"
    assert names(tmp_path / "a") == ["b"]


def test_a_new_folder_replaces_the_old_one_whole(tmp_path: Path) -> None:
    fill(tmp_path / "folder", "old", "both")
    with new_folder(tmp_path / "folder") as temporary:
        fill(temporary, "new", "both")
        assert names(tmp_path / "folder") == ["both", "old"]
    assert names(tmp_path / "folder") == ["both", "new"]
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("error", INTERRUPTIONS, ids=repr)
def test_a_failure_while_writing_a_folder_leaves_what_was_there(
    old: bool, error: BaseException, tmp_path: Path
) -> None:
    if old:
        fill(tmp_path / "folder", "old")
    with pytest.raises(type(error)), new_folder(tmp_path / "folder") as temporary:
        fill(temporary, "half")
        raise error
    assert names(tmp_path) == (["folder"] if old else [])
    assert not old or names(tmp_path / "folder") == ["old"]


def test_a_folder_does_not_take_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "name").write_text("a file")
    with pytest.raises(PipelineError, match="a file stands where a folder is needed"), new_folder(tmp_path / "name"):
        pass
    assert names(tmp_path) == ["name"]
    assert (tmp_path / "name").read_text() == "a file"


@pytest.mark.parametrize("kind", ["new_file", "new_folder"])
def test_a_killed_writer_leaves_what_was_there_under_its_name(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    write = "temporary.write_text('half')"
    if kind == "new_folder":
        fill(target, "old")
        write = "(temporary / 'half').write_text('half')"
    else:
        target.write_text("old")
    code = (
        f"import os, signal, pathlib\nfrom pipeline.atomic import {kind}\n"
        f"with {kind}(pathlib.Path({str(target)!r})) as temporary:\n"
        f"    {write}\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(pipeline.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (names(target) if kind == "new_folder" else target.read_text()) == (
        ["old"] if kind == "new_folder" else "old"
    )
    # What is left beside it is hidden, and the next writer does not mind it.
    assert all(name.startswith(".target.") for name in names(tmp_path) if name != "target")
    with pytest.raises(ValueError, match="again"), (new_folder if kind == "new_folder" else new_file)(target):
        raise ValueError("again")


def test_a_replacement_that_was_killed_half_way_is_undone(tmp_path: Path) -> None:
    # Between the two renames: the old folder has stepped aside, the new one does not stand yet.
    fill(tmp_path / ".target.0123abcd.old", "old")
    fill(tmp_path / ".target.4567cdef.tmp", "half")
    fill(tmp_path / ".other.4567cdef.tmp", "not ours")
    recover_folder(tmp_path / "target")
    assert names(tmp_path) == [".other.4567cdef.tmp", "target"]
    assert names(tmp_path / "target") == ["old"]


def test_a_replacement_that_was_killed_at_its_end_is_cleared_away(tmp_path: Path) -> None:
    fill(tmp_path / "target", "new")
    fill(tmp_path / ".target.0123abcd.old", "old")
    recover_folder(tmp_path / "target")
    assert names(tmp_path) == ["target"]
    assert names(tmp_path / "target") == ["new"]


def test_the_next_writer_of_a_folder_clears_away_what_a_killed_one_left(tmp_path: Path) -> None:
    fill(tmp_path / ".target.0123abcd.old", "old")
    fill(tmp_path / ".target.4567cdef.tmp", "half")
    with pytest.raises(ValueError, match="stopped"), new_folder(tmp_path / "target"):
        raise ValueError("stopped")
    assert names(tmp_path) == ["target"]
    assert names(tmp_path / "target") == ["old"]


def test_two_writers_of_a_file_at_once_do_not_mix(tmp_path: Path) -> None:
    with new_file(tmp_path / "target") as first, new_file(tmp_path / "target") as second:
        first.write_text("first")
        second.write_text("second")
    # The outer one finished last.
    assert (tmp_path / "target").read_text() == "first"
    assert names(tmp_path) == ["target"]


@pytest.mark.parametrize("write", [new_file, new_folder])
def test_a_place_that_cannot_be_written_is_named(write: object, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    opened = new_file if write is new_file else new_folder
    with (
        pytest.raises(PipelineError, match="cannot write .*file: a file stands where a folder is needed"),
        opened(tmp_path / "file" / "below"),
    ):
        pass


def test_a_number_json_does_not_know_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    write_json(file, {"b": 1, "a": [2.5, None]})
    before = file.read_text()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"a": math.nan})
    assert file.read_text() == before
    assert before.index('"a"') < before.index('"b"')


def test_text_is_written_as_utf8_and_hashed_as_it_stands(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "é\n")
    expected = hashlib.sha256("é\n".encode()).hexdigest()
    assert sha256_file(tmp_path / "file") == sha256_text("é\n") == expected


def test_canonical_json_is_equal_for_equal_values_and_only_for_them() -> None:
    assert canonical_json({"b": (1, 2), "a": "é"}) == canonical_json({"a": "é", "b": [1, 2]})
    different = [{"a": 1}, {"a": 1.5}, {"a": "1"}, {"a": None}, {"a": True}, {"a": [1]}, {"b": 1}, {}, []]
    assert len({canonical_json(value) for value in different}) == len(different)
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": math.inf})


def test_a_folder_that_is_there_is_made_again_without_harm(tmp_path: Path) -> None:
    fill(tmp_path / "a", "file")
    assert make_folder(tmp_path / "a") == tmp_path / "a"
    assert make_folder(tmp_path / "b" / "c").is_dir()
    assert names(tmp_path / "a") == ["file"]
