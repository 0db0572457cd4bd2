"""Archives that xz packed: they hold the same, and what is wrong with one is refused before it fills the disk."""

import errno
import io
import lzma
import random
import re
import tracemalloc
import zlib
from pathlib import Path

import pytest

from pipeline.records.archives import Archive, write_archive
from pipeline.system.errors import PipelineError

IDS = random.Random(0).randbytes(1000)  # as the identifiers of rows: the same in every run
MEMBERS = {f"{run}/{name}": IDS + f"{run} {name}".encode() for run in "abcdefgh" for name in ("predictions", "curve")}


def packed(file: Path, members: dict[str, bytes] = MEMBERS) -> Path:
    write_archive(file, {name: (lambda name=name: members[name]) for name in members}, "")
    return file


def contents(file: Path) -> dict[str, bytes]:
    with Archive.opened(file) as archive:
        return {name: b"".join(archive.chunks(name)) for name in archive.sizes}


def refused(file: Path) -> str:
    """Why an archive cannot be opened."""
    with pytest.raises(PipelineError, match=re.escape(f"{file}: ")) as error, Archive.opened(file):
        pass
    assert str(error.value).endswith(": export it again")
    return str(error.value)


@pytest.fixture
def xz(tmp_path: Path) -> Path:
    return packed(tmp_path / "runs.zip.xz")


def test_what_xz_packed_is_what_the_zip_file_holds_and_smaller(xz: Path, tmp_path: Path) -> None:
    whole = packed(tmp_path / "runs.zip")
    assert contents(xz) == contents(whole) == MEMBERS
    assert xz.stat().st_size < whole.stat().st_size / 6
    assert packed(tmp_path / "again.zip.xz").read_bytes() == xz.read_bytes()


def test_its_content_says_that_xz_packed_it_not_its_name(xz: Path, tmp_path: Path) -> None:
    assert contents(xz.rename(tmp_path / "a")) == MEMBERS
    assert contents(packed(tmp_path / "runs.zip").rename(tmp_path / "b.xz")) == MEMBERS


def test_whatever_byte_is_cut_or_changed_it_is_refused_or_as_it_was(xz: Path) -> None:
    whole = xz.read_bytes()
    for position in range(0, len(whole), 3):
        for content in (whole[:position], whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :]):
            xz.write_bytes(content)
            try:
                found = contents(xz)
            except PipelineError as error:
                assert str(error).startswith(f"{xz}: ")
            else:
                assert found == MEMBERS


def test_what_would_unpack_to_very_much_is_refused_while_it_does(tmp_path: Path) -> None:
    file = tmp_path / "bomb.xz"
    file.write_bytes(lzma.compress(bytes(2**27)))
    tracemalloc.start()
    try:
        assert "unpacks to more than 67,108,864 bytes" in refused(file)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**24


def test_what_needs_gigabytes_of_memory_to_unpack_is_refused(xz: Path) -> None:
    content = bytearray(xz.read_bytes())
    end = 12 + 4 * content[12]  # of the header of the first block, after that of the file; its checksum follows
    window = content.index(b"\x21\x01", 12, end) + 2
    content[window] = 40  # 4 GiB
    content[end : end + 4] = zlib.crc32(content[12:end]).to_bytes(4, "little")
    xz.write_bytes(content)
    assert "cannot be read (Memory usage limit exceeded)" in refused(xz)


def test_members_that_overlap_are_refused_where_xz_packed_them_too(tmp_path: Path) -> None:
    whole = packed(tmp_path / "runs.zip", {"a": bytes(1000), "b": b""}).read_bytes()
    listed = whole.index(b"PK\x01\x02")
    second = whole.index(b"PK\x01\x02", listed + 1)
    lie = whole[:second] + whole[second : second + 16] + whole[listed + 16 : listed + 28] + whole[second + 28 : -22]
    file = tmp_path / "runs.zip.xz"
    file.write_bytes(lzma.compress(lie + whole[-22:]))
    assert "names more bytes than it has" in refused(file)


@pytest.mark.parametrize("more", [b"x", lzma.compress(b"x"), bytes(2**20)], ids=["a byte", "another", "a megabyte"])
def test_what_goes_on_after_its_end_is_refused(more: bytes, xz: Path) -> None:
    xz.write_bytes(xz.read_bytes() + more)
    assert "cannot be read (it goes on after its end)" in refused(xz)


@pytest.mark.parametrize("full", ["when it is made", "when it is written"])
def test_there_may_be_no_room_to_unpack_it(full: str, xz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(buffering: int) -> io.FileIO:
        if full == "when it is made":
            raise OSError(errno.ENOSPC, "No space left on device")
        return io.FileIO("/dev/full", "w+")

    monkeypatch.setattr("tempfile.tempdir", "/dev/full")
    monkeypatch.setattr("tempfile.TemporaryFile", made)
    told = "cannot be unpacked in /dev/full: No space left on device: name another folder in TMPDIR"
    with pytest.raises(PipelineError, match=told), Archive.opened(xz):
        pass
