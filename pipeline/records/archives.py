"""Write and unpack ``.tar.xz`` archives. A file from somebody else may contain anything.

xz compresses the tar file as one stream, so content that its files share is stored once. The runs of a study share row
identifiers, so their archive shrinks to a quarter.
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
"""An archive is refused if it unpacks to more than this many bytes and more than this many times its size."""

Source = Path | Callable[[], bytes]
"""A file, or a function that makes the content of one."""


def write_archive(file: Path, sources: Mapping[str, Source], level: Literal[0, 9]) -> None:
    """Write ``sources``, by their names in the archive, into one ``.tar.xz`` file, which appears complete or not at
    all.

    Equal files give equal bytes: times, owners and permissions are left out.

    Args:
        level: xz preset; its window is 256 KiB (0) or 64 MiB (9).

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
    """A hidden folder in ``root`` with the files of an archive, no links among them; deleted on exit.

    Raises:
        PipelineError: the file is not an archive, is damaged or is larger than any export; or the disk is full.
    """
    with reading(file):
        check_regular(file)
    with scratch_folder(root / "import") as folder:
        with reading(file, REMEDY), lzma.open(file) as stream:
            bounded = _Bounded(file, stream)
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                for member in archive:
                    _unpack(file, archive, member, folder)
            while bounded.read(2**20):  # xz verifies its checksum at the end, past the end of the tar file
                pass
        yield folder


def refused(file: Path, why: str) -> PipelineError:
    """The error that names the archive and says what to do."""
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
    """Reads an xz file up to the size limit of an export: a small file may unpack to any number of bytes."""

    def __init__(self, file: Path, stream: lzma.LZMAFile) -> None:
        self._file, self._stream = file, stream
        self._most = self._left = max(_SIZE, _RATIO * file.stat().st_size)

    def read(self, size: int | None = -1, /) -> bytes:
        content = self._stream.read(-1 if size is None else size)
        self._left -= len(content)
        if self._left < 0:
            raise PipelineError(f"{self._file}: unpacks to more than {self._most:,} bytes: {REMEDY}")
        return content
