"""Zip files that are nearly exports: imported whole, with what they hold, or refused with nothing changed."""

import io
import json
import shutil
import tempfile
import warnings
import zipfile
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from pipeline.records.packing import export_artifact, import_artifacts
from pipeline.records.store import MANIFEST, Manifest, Store
from pipeline.system.errors import PipelineError
from tests.fuzz.fuzz_cases import fuzzed
from tests.fuzz.fuzz_documents import ODD_TEXTS, as_bytes, damaged_bytes, near_valid, texts
from tests.fuzz.fuzz_stores import FUSION, contents, make_store


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
        usual = next((member for member in MEMBERS if member.name == self.name), Member(self.name, b""))
        changed = [key for key in self.__dataclass_fields__ if getattr(self, key) != getattr(usual, key)]
        return f"Member({self.name!r}{''.join(f', {key}={getattr(self, key)!r}' for key in changed)})"


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


def exported() -> list[Member]:
    with tempfile.TemporaryDirectory() as scratch:
        export_artifact(make_store(Path(scratch) / "store"), FUSION, Path(scratch) / "export.zip")
        with zipfile.ZipFile(Path(scratch) / "export.zip") as archive:
            return [Member(name, archive.read(name)) for name in archive.namelist()]


MEMBERS = exported()
MANIFESTS = [json.loads(member.content) for member in MEMBERS if member.name.endswith(MANIFEST)]

# General purpose flags, compression method, CRC, compressed and uncompressed size.
lies = st.tuples(
    st.sampled_from([(6, 8), (8, 10), (14, 16), (18, 20), (22, 24)]),
    st.sampled_from([b"\1\0", b"\x63\0", b"\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x10"])
    | st.binary(min_size=2, max_size=4),
).map(lambda drawn: (*drawn[0], drawn[1]))
odd_names = st.sampled_from([
    "../../x", "/x", "a", "", "a/b/c/", "adapters/sst/" + "a" * 12, "adapters/sst/" + "a" * 12 + "/../x", "C:\\x",
    "adapters/sst/" + "a" * 12 + "/" + "n" * 5000, "adapters/../" + "a" * 12 + "/x", "a\0/b/c/d",
    "adapters/sst/" + "a" * 12 + "/./" + MANIFEST, "adapters//sst/" + "a" * 12 + "/" + MANIFEST,
    "fusions/sst/" + "a" * 12 + "/" + MANIFEST, "adapters/sst/" + "d" * 12 + "/" + MANIFEST,
])  # fmt: skip
kinds = st.sampled_from(
    [zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)


@st.composite
def archives(draw: st.DrawFn) -> list[Member]:
    """An export with up to three faults; manifests that were changed may list the files as they are."""
    members = list(MEMBERS)
    for _ in range(draw(st.integers(0, 3))):
        if not members:
            break
        at = draw(st.integers(0, len(members) - 1))
        member = members[at]
        fault = draw(
            st.sampled_from(["manifest", "manifest", "name", "drop", "add", "twice", "lie", "mode", "content"])
        )
        if fault == "manifest":
            at = draw(st.sampled_from([i for i, each in enumerate(members) if each.name.endswith(MANIFEST)] or [at]))
            members[at] = replace(members[at], content=draw(_manifest(members, members[at].name.rpartition("/")[0])))
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


@st.composite
def _manifest(draw: st.DrawFn, members: list[Member], folder: str) -> bytes:
    document = draw(near_valid(Manifest, MANIFESTS))
    if draw(st.booleans()):
        files = [each for each in members if each.name.startswith(f"{folder}/") and not each.name.endswith(MANIFEST)]
        document["files"] = {each.name.rpartition("/")[2]: sha256(each.content).hexdigest() for each in files}
    if draw(st.booleans()):
        files = document.get("files") if isinstance(document.get("files"), dict) else {}
        document["files"] = {**files, draw(texts): "0" * 64} if draw(st.booleans()) else {}
    return as_bytes(document, "json")


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("stocked") / "store").root


def check_import(folder: Path, content: bytes, stocked: Path | None) -> None:
    """All of it or nothing, into an empty store or beside the artifacts that it may hold already."""
    (folder / "export.zip").write_bytes(content)
    root = folder / "store"
    if stocked is not None:
        shutil.copytree(stocked, root)
    before = contents(folder)
    store = Store(root)
    try:
        imported = import_artifacts(store, folder / "export.zip")
    except PipelineError:
        assert contents(folder) == before
        return
    for artifact in (*imported.added, *imported.already_here):
        artifact.verify()
        assert store.find(artifact.manifest.run) == artifact


@fuzzed(archives(), st.booleans())
def test_an_archive_of_any_members_is_imported_whole_or_refused(
    room: Any, stocked: Path, members: list[Member], beside: bool
) -> None:
    try:
        content = pack(members)
    except (ValueError, OSError):  # what cannot even be written
        return
    with room() as folder:
        check_import(folder, content, stocked if beside else None)


@fuzzed(damaged_bytes(st.just(pack(MEMBERS))), st.booleans())
def test_an_archive_of_any_bytes_is_imported_whole_or_refused(
    room: Any, stocked: Path, content: bytes, beside: bool
) -> None:
    with room() as folder:
        check_import(folder, content, stocked if beside else None)


file_names = st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,11}", fullmatch=True).filter(
    lambda name: name != MANIFEST and not name.endswith(".safetensors")
)


@fuzzed(st.dictionaries(file_names, st.binary(max_size=64), min_size=1, max_size=4))
def test_what_is_exported_is_what_is_imported(room: Any, files: dict[str, bytes]) -> None:
    with room() as folder:
        store, other = Store(folder / "store"), Store(folder / "other")

        def write(into: Path) -> None:
            for name, content in files.items():
                (into / name).write_bytes(content)

        manifest = Manifest.model_validate({**MANIFESTS[0], "files": {}})
        kept = store.save(manifest, write)
        export_artifact(store, manifest.run, folder / "export.zip")
        (found,) = import_artifacts(other, folder / "export.zip").added
        assert found.manifest == kept.manifest
        assert contents(other.root) == contents(store.root)
        assert import_artifacts(other, folder / "export.zip").already_here == (found,)
        assert contents(other.root) == contents(store.root)
