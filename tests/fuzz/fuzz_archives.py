"""Zip files that are nearly what an export writes: their members, and what may be wrong with them."""

import io
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz.fuzz_documents import ODD_TEXTS, damaged_bytes


@dataclass(frozen=True, repr=False)
class Member:
    """Of a zip file; ``lies`` are bytes over its headers: offset in the local one and in the central one, value."""

    name: str
    content: bytes
    compression: int = zipfile.ZIP_STORED
    attributes: int = 0o600 << 16
    lies: tuple[tuple[int, int, bytes], ...] = ()

    def __repr__(self) -> str:
        """Without what most members of an export are."""
        usual = Member(self.name, b"")
        changed = [key for key in self.__dataclass_fields__ if getattr(self, key) != getattr(usual, key)]
        return f"Member({self.name!r}{''.join(f', {key}={getattr(self, key)!r:.200}' for key in changed)})"


@dataclass(frozen=True, repr=False)
class Packed:
    """The bytes of a zip file, too many to print."""

    content: bytes

    def __repr__(self) -> str:
        return f"<{len(self.content)} bytes>"


def pack(members: list[Member]) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w") as archive:  # a name may stand twice
        for member in members:
            info = zipfile.ZipInfo(member.name, date_time=(2000, 1, 1, 0, 0, 0))
            info.compress_type, info.external_attr = member.compression, member.attributes
            archive.writestr(info, member.content)
        offsets = [info.header_offset for info in archive.infolist()]
        central = archive.start_dir
    content = bytearray(buffer.getvalue())
    for member, offset in zip(members, offsets, strict=True):
        for local, listed, value in member.lies:
            content[offset + local : offset + local + len(value)] = value
            content[central + listed : central + listed + len(value)] = value
        central = content.index(b"PK\x01\x02", central + 4) if member is not members[-1] else central
    return bytes(content)


def members_of(file: Path, folder: str = "") -> list[Member]:
    """The members whose names start with ``folder``; the others need not be readable."""
    with zipfile.ZipFile(file) as archive:
        return [Member(name, archive.read(name)) for name in archive.namelist() if name.startswith(folder)]


# General purpose flags, compression method, CRC, compressed and uncompressed size.
lies = st.tuples(
    st.sampled_from([(6, 8), (8, 10), (14, 16), (18, 20), (22, 24)]),
    st.sampled_from([b"\1\0", b"\x63\0", b"\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x10"])
    | st.binary(min_size=2, max_size=4),
).map(lambda drawn: (*drawn[0], drawn[1]))
kinds = st.sampled_from(
    [zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)


@st.composite
def faulty(
    draw: st.DrawFn,
    usual: Sequence[Member],
    odd_names: st.SearchStrategy[str],
    document: str,
    changed: Callable[[list[Member], str], st.SearchStrategy[bytes]],
) -> list[Member]:
    """The members of an export with up to three faults.

    Args:
        odd_names: of members that are renamed or added.
        document: how the names of those members end whose content ``changed`` draws, given all members and the name
            of one.
    """
    members = list(usual)
    for _ in range(draw(st.integers(0, 3))):
        if not members:
            break
        at = draw(st.integers(0, len(members) - 1))
        member = members[at]
        fault = draw(
            st.sampled_from(["document", "document", "name", "drop", "add", "twice", "lie", "mode", "content"])
        )
        if fault == "document":
            at = draw(st.sampled_from([i for i, each in enumerate(members) if each.name.endswith(document)] or [at]))
            members[at] = replace(members[at], content=draw(changed(members, members[at].name)))
        elif fault == "name":
            members[at] = replace(member, name=draw(odd_names | st.sampled_from(ODD_TEXTS[:3] + ODD_TEXTS[10:])))
        elif fault == "drop":
            del members[at]
        elif fault == "add":
            members.append(Member(draw(odd_names), draw(st.binary(max_size=8) | st.just(bytes(2**20))), draw(kinds)))
        elif fault == "twice":
            members.append(replace(member, content=draw(st.just(member.content) | st.binary(max_size=4))))
        elif fault == "lie":
            members[at] = replace(member, compression=draw(kinds), lies=(draw(lies),))
        elif fault == "mode":  # a link, a folder, a pipe
            members[at] = replace(member, attributes=draw(st.sampled_from([0o120777, 0o040755, 0o010644, 0])) << 16)
        else:
            members[at] = replace(member, content=draw(damaged_bytes(st.just(member.content))))
    return members
