"""Archives like those of an export, or nearly."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Member(NamedTuple):
    name: str
    content: bytes
    kind: bytes = tarfile.REGTYPE
    link: str = ""


def pack(file: Path, members: Iterable[Member]) -> Path:
    with tarfile.open(file, "w:xz", preset=0) as archive:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type, info.linkname, info.size = member.kind, member.link, len(member.content)
            archive.addfile(info, io.BytesIO(member.content))
    return file


def members_of(file: Path, folder: str = "") -> list[Member]:
    """The members whose names start with ``folder``; the others need not be readable."""
    with tarfile.open(file) as archive:
        read = [(info, archive.extractfile(info)) for info in archive if info.name.startswith(folder)]
        return [Member(info.name, b"" if stream is None else stream.read()) for info, stream in read]


def changed(file: Path, changes: dict[str, bytes | None]) -> Path:
    """A copy of an archive with the content of some members changed; None drops a member."""
    contents = {member.name: member.content for member in members_of(file)} | changes
    kept = [Member(name, content) for name, content in contents.items() if content is not None]
    return pack(file.with_name("changed.tar.xz"), kept)
