"""Tar files that xz packed, and the folder that one unpacks to. A file that somebody else wrote may hold anything.

xz packs the tar file as one stream, so what its files have in common is kept once. The runs of a study share the
identifiers of their rows, so their archive shrinks to a quarter.
"""

import io
import lzma
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pipeline.system.atomic import new_file, scratch_folder
from pipeline.system.errors import PipelineError, shortened, writing
from pipeline.system.reading import check_regular, reading

REMEDY = "export it again"
_SIZE, _RATIO = 2**26, 64
"""What unpacks to more bytes than these, and to more than this many times its packed size, is refused."""

Source = Path | Callable[[], bytes]
"""A file, or what makes the contents of one."""


def write_archive(file: Path, sources: Mapping[str, Source], level: Literal[0, 9]) -> None:
    """Write ``sources``, by the names that they get, into one ``.tar.xz`` file, which appears complete or not at all.

    Equal files give equal bytes: times, owners and permissions are left out.

    Args:
        level: how hard xz tries; its window reaches 256 KiB back, or 64 MiB.

    Raises:
        PipelineError: a file cannot be read.
    """
    with new_file(file) as temporary, tarfile.open(temporary, "w:xz", preset=level) as archive:
        for name, source in sources.items():
            member = tarfile.TarInfo(name)
            if callable(source):
                content = source()
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
                continue
            with reading(source):
                stream = source.open("rb")
            with stream:
                member.size = source.stat().st_size
                archive.addfile(member, stream)


@contextmanager
def unpacked(file: Path, root: Path) -> Iterator[Path]:
    """A hidden folder in ``root`` with the files of an archive, none of them a link. It is gone at the end.

    Raises:
        PipelineError: no archive, a damaged one, or one that holds more than any export; or there is no room for it.
    """
    with reading(file):
        check_regular(file)
    with scratch_folder(root / "import") as folder:
        with reading(file, REMEDY), lzma.open(file) as stream:
            bounded = _Bounded(file, stream)
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                for member in archive:
                    _unpack(file, archive, member, folder)
            while bounded.read(2**20):  # xz checks itself at its end, which a tar file need not reach
                pass
        yield folder


def refused(file: Path, why: str) -> PipelineError:
    """The error that names the archive, and what to do."""
    return PipelineError(f"{file}: {why}: {REMEDY}")


def _unpack(file: Path, archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    name = shortened(member.name)
    if not member.isreg() or member.issparse():
        raise refused(file, f"holds {name}, which is not a regular file")
    if (folder / member.name).exists():
        raise refused(file, f"holds {name} twice")
    with writing(folder):
        try:
            archive.extract(member, folder, set_attrs=False, filter="data")
        except (tarfile.FilterError, FileExistsError, NotADirectoryError) as error:
            raise refused(file, f"holds {name}, which leads outside or below another file") from error


class _Bounded(io.BufferedIOBase):
    """The content of an xz file, but no more than an export has: a small one may unpack to any number of bytes."""

    def __init__(self, file: Path, stream: lzma.LZMAFile) -> None:
        self._file, self._stream = file, stream
        self._most = self._left = max(_SIZE, _RATIO * file.stat().st_size)

    def read(self, size: int | None = -1, /) -> bytes:
        content = self._stream.read(-1 if size is None else size)
        self._left -= len(content)
        if self._left < 0:
            raise PipelineError(f"{self._file}: unpacks to more than {self._most:,} bytes: {REMEDY}")
        return content
