"""Zip files of files stored as they are, whole or packed by xz. What one must be before anything of it is used.

It may come from anybody. xz packs the zip file as one stream, so what its files have in common is kept once. The runs
of a study share the identifiers of their rows, so their archive shrinks to a quarter.
"""

from __future__ import annotations

import io
import lzma
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipeline.system.atomic import new_file
from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import check_regular, reading

_REMEDY = "export it again"
_CHUNK = 2**20
_LARGEST_DIRECTORY = 2**20
"""Bytes: the directory of a zip file is read whole."""
_ENTRY = 80
"""Bytes of a file in the directory, besides its name, at most."""
_PACKED = b"\xfd7zXZ\0"
"""How a file of xz begins."""
_XZ_LEVEL = 9  # its window of 64 MiB reaches across the runs of a study
_XZ_MEMORY = 2**28
"""Bytes that unpacking may take: four times what a file of this level needs."""
_XZ_SIZE, _XZ_RATIO = 2**26, 64
"""What unpacks to more bytes than these, and to more than this many times its packed size, is refused."""


Source = Path | Callable[[], bytes]
"""A file, or what makes the contents of one."""


def write_archive(file: Path, sources: Mapping[str, Source], if_too_many: str) -> None:
    """Write ``sources``, by the names that they get, into one zip file, which appears complete or not at all.

    Where the name of ``file`` ends in ``.xz``, xz packs it. Equal files give equal bytes: times and permissions are
    left out.

    Args:
        if_too_many: what the user should do where there are more files than can be read again.

    Raises:
        PipelineError: there are, or a file cannot be read.
    """
    if sum(_ENTRY + len(name.encode()) for name in sources) > _LARGEST_DIRECTORY:
        raise PipelineError(f"{file}: {len(sources):,} files are too many for one archive: {if_too_many}")
    with (
        new_file(file) as temporary,
        lzma.open(temporary, "wb", preset=_XZ_LEVEL) if file.suffix == ".xz" else temporary.open("wb") as stream,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, source in sources.items():
            member = zipfile.ZipInfo(name)
            if callable(source):
                archive.writestr(member, source())
                continue
            with reading(source):
                member.file_size = source.stat().st_size  # so that a file of many gigabytes is announced as one
            with archive.open(member, "w") as target:
                for chunk in _chunks(source):
                    target.write(chunk)


def _chunks(file: Path) -> Iterator[bytes]:
    with reading(file), file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            yield chunk


class Archive:
    """An open zip file whose members are files, stored as they are, and no larger than itself."""

    def __init__(self, file: Path, archive: zipfile.ZipFile, size: int) -> None:
        self.file, self._archive = file, archive
        members = archive.infolist()
        self._check(members, size)
        self.sizes = {member.filename: member.file_size for member in members}
        """Bytes of each member by name, in the file's order."""

    @classmethod
    @contextmanager
    def opened(cls, file: Path) -> Iterator[Archive]:
        """The archive in ``file``; a :class:`PipelineError` if it is none."""
        with reading(file):
            check_regular(file)
        with ExitStack() as opened:
            with _reading(file):
                whole: io.RawIOBase = opened.enter_context(io.FileIO(file))
                if whole.read(len(_PACKED)) == _PACKED:
                    whole = opened.enter_context(_unpacked(file))
                size = whole.seek(0, io.SEEK_END)
                stream = opened.enter_context(_BoundedReader(whole))
                archive = opened.enter_context(zipfile.ZipFile(stream))
            yield cls(file, archive, size)

    def chunks(self, name: str) -> Iterator[bytes]:
        """The contents of a member, piece by piece; a :class:`PipelineError` if they are damaged."""
        with _reading(self.file):
            source = self._archive.open(name)
        with source:
            chunk = None
            while chunk != b"":
                with _reading(self.file):
                    chunk = source.read(_CHUNK)
                yield chunk

    def content(self, name: str, most: int, kind: str) -> bytes:
        """The contents of a member that holds a ``kind`` of at most ``most`` bytes."""
        if self.sizes[name] > most:
            raise self.refused(f"{shortened(name)} has {self.sizes[name]:,} bytes, too many for {kind}")
        return b"".join(self.chunks(name))

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """As :func:`pipeline.system.reading.reading`, of a member."""
        with _reading(Path(f"{self.file}: {shortened(name)}")):
            yield

    def refused(self, why: str) -> PipelineError:
        """The error that names the file, and what to do."""
        return PipelineError(f"{self.file}: {why}: {_REMEDY}")

    def _check(self, members: Sequence[zipfile.ZipInfo], size: int) -> None:
        for member in members:
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 where the writer's system has no such kinds
            named = f"holds {shortened(member.filename)}, which is"
            if member.filename.endswith("/") or kind not in (0, stat.S_IFREG):
                raise self.refused(f"{named} a folder or a link")
            if member.flag_bits & 1:
                raise self.refused(f"{named} encrypted")
            if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
                raise self.refused(f"{named} compressed: exports are not")
        if len({member.filename for member in members}) < len(members):
            raise self.refused("holds two files of one name")
        # Members may overlap, and be a bomb without any compression.
        if sum(member.file_size for member in members) > size:
            raise self.refused("names more bytes than it has")


@contextmanager
def _unpacked(file: Path) -> Iterator[io.RawIOBase]:
    """What xz packed into ``file``; a :class:`PipelineError` where that is far larger than any export."""
    most = max(_XZ_SIZE, _XZ_RATIO * file.stat().st_size)
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
    with file.open("rb") as packed, ExitStack() as opened:
        with _unpacking(file):
            unpacked = opened.enter_context(tempfile.TemporaryFile(buffering=0))
        while not decoder.eof:
            chunk = packed.read(_CHUNK) if decoder.needs_input else b""
            if decoder.needs_input and not chunk:
                raise lzma.LZMAError("its end is missing")
            content = memoryview(decoder.decompress(chunk, _CHUNK))
            with _unpacking(file):
                while content:
                    content = content[unpacked.write(content) :]
            if unpacked.tell() > most:
                raise PipelineError(f"{file}: unpacks to more than {most:,} bytes: {_REMEDY}")
        if decoder.unused_data or packed.read(1):
            raise lzma.LZMAError("it goes on after its end")
        yield unpacked


@contextmanager
def _unpacking(file: Path) -> Iterator[None]:
    """Tell a temporary file that cannot be written from an archive that cannot be read."""
    try:
        yield
    except OSError as error:
        why = f"cannot be unpacked in {tempfile.tempdir or 'a temporary folder'}: {error.strerror}"
        raise PipelineError(f"{file} {why}: name another folder in TMPDIR") from error


class _BoundedReader(io.BufferedReader):
    """Refuses to read very much at once, as zipfile does with a directory of any size."""

    def read(self, size: int | None = -1, /) -> bytes:
        most = _LARGEST_DIRECTORY + 1
        content = super().read(most if size is None or size < 0 else min(size, most))
        if len(content) == most:
            raise zipfile.BadZipFile("it has too many members")
        return content


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    with reading(file, _REMEDY):
        try:
            yield
        except (NotImplementedError, OverflowError) as error:  # of a later version, or with offsets past any file
            raise zipfile.BadZipFile(str(error)) from error
