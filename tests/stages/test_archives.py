"""An archive holds what was put into it, and what is wrong with one is refused before it fills the disk."""

import lzma
import os
import random
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.system.errors import PipelineError
from stages.archives import unpacked, write_archive
from tests.pipeline.records.artifacts import contents
from tests.tars import Member, pack

IDS = random.Random(0).randbytes(1000)  # as the identifiers of rows: the same in every run
MEMBERS = {f"{run}/{name}": IDS + f"{run} {name}".encode() for run in "abcdefgh" for name in ("predictions", "curve")}


def packed(file: Path) -> Path:
    write_archive(file, MEMBERS, 9)
    return file


def unpack(file: Path, root: Path) -> dict[str, bytes]:
    with unpacked(file, root / "import") as folder:
        found = contents(folder)
    assert not list(root.iterdir())
    return found


def refusal(file: Path, root: Path) -> str:
    with pytest.raises(PipelineError) as error:
        unpack(file, root)
    assert str(error.value).startswith(f"{file}: ")
    assert not contents(root)
    return str(error.value)


def test_it_holds_what_was_put_into_it_once_and_in_equal_bytes(tmp_path: Path) -> None:
    file = packed(tmp_path / "out")
    assert unpack(file, tmp_path / "root") == MEMBERS
    assert file.stat().st_size < 3000
    assert packed(tmp_path / "again").read_bytes() == file.read_bytes()


def test_whatever_byte_is_cut_or_changed_it_is_refused_or_as_it_was(tmp_path: Path) -> None:
    file = packed(tmp_path / "out")
    whole = file.read_bytes()
    for position in range(0, len(whole), 7):
        for content in (whole[:position], whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :]):
            file.write_bytes(content)
            try:
                found = unpack(file, tmp_path / "root")
            except PipelineError as error:
                assert str(error).startswith(f"{file}: ")
            else:
                assert found == MEMBERS


@pytest.mark.parametrize(
    "members",
    [
        [Member("../x", b"x")],
        [Member("../../../x", b"x")],
        [Member("a/../../x", b"x")],
        [Member("/a/../../x", b"x")],
        [Member("a", b"", tarfile.DIRTYPE)],
        [Member("a", b"", tarfile.SYMTYPE, "/etc/passwd")],
        [Member("a", b"", tarfile.SYMTYPE, ".."), Member("a/x", b"x")],
        [Member("a", b"x"), Member("b", b"", tarfile.LNKTYPE, "a")],
        [Member("a", b"", tarfile.FIFOTYPE)],
        [Member("a", b"", tarfile.CHRTYPE)],
    ],
    ids=lambda members: str(members[-1])[:40],
)
def test_only_files_below_its_folder_are_unpacked(members: list[Member], tmp_path: Path) -> None:
    before = contents(tmp_path)
    file = pack(tmp_path / "out", members)
    refusal(file, tmp_path / "deep" / "root")
    file.unlink()
    assert contents(tmp_path) == before


def sparse(file: Path) -> None:
    """A file that GNU tar writes as a hole of 8 GB."""
    info = tarfile.TarInfo("a")
    info.type, info.pax_headers = tarfile.REGTYPE, {"GNU.sparse.map": "8589934592,0", "GNU.sparse.size": "8589934592"}
    with tarfile.open(file, "w:xz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)


HARMS: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.touch(),
    "another file": lambda file: file.write_bytes(b"PK"),
    "no tar file": lambda file: file.write_bytes(lzma.compress(b"no tar file")),
    "bomb": lambda file: pack(file, [Member("a", bytes(2**27))]),
    "sparse": sparse,
    "cut": lambda file: file.write_bytes(packed(file).read_bytes()[:-40]),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_what_no_export_makes_is_refused_in_little_memory(harm: Callable[[Path], object], tmp_path: Path) -> None:
    harm(tmp_path / "out")
    tracemalloc.start()
    try:
        refusal(tmp_path / "out", tmp_path / "root")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**28


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "missing"])
def test_what_is_no_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    file = Path("/dev/zero") if kind == "device" else tmp_path / "in"
    if kind == "pipe":
        os.mkfifo(file)
    if kind == "folder":
        file.mkdir()
    with pytest.raises(PipelineError, match=f"{file}: "):
        unpack(file, tmp_path / "root")
    assert not (tmp_path / "root").exists()
