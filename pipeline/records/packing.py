"""Exports: artifacts in one zip file, stored as they are; what a file that claims to be one must hold; importing it."""

from __future__ import annotations

import hashlib
import io
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.records.store import MANIFEST, Artifact, Manifest, Store, delete
from pipeline.system.atomic import clear_leftovers, make_folder, new_file, new_folder
from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import check_regular, reading

_REMEDY = "export it again"
_CHUNK = 2**20

# Far more than exports have, for the directory of a zip file and each manifest are read whole.
_MOST_ARTIFACTS = 256
_LARGEST_DIRECTORY = 2**20
_LARGEST_MANIFEST = 2**20


def export_artifact(store: Store, run: str, file: Path) -> list[Artifact]:
    """Write an artifact of ``store``, checked, with the adapters of a fusion, into one zip file; returns them.

    A file of an artifact may be a link, since a manifest can name no content that its author did not know.
    """
    store.check()
    artifact = store.find(run)
    if artifact is None:
        raise store.missing(run)
    packed = [*store.adapters_of(artifact.manifest), artifact]
    with (
        new_file(file) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive,
    ):
        for each in packed:
            each.verify()
            for name in _names(each.manifest):
                archive.write(each.folder / name, f"{each.manifest.place}/{name}")
    return packed


@dataclass(frozen=True)
class Imported:
    """What an import added, and what was there before with the same contents."""

    added: tuple[Artifact, ...]
    already_here: tuple[Artifact, ...]


def import_artifacts(store: Store, file: Path) -> Imported:
    """Add the artifacts of an export to ``store``: all of them, or none on an error.

    All are unpacked and checked beside their places before any appears, adapters before the fusion over them.

    Raises:
        PipelineError: not an export of this project, damaged, without an adapter that its fusion needs, or the store
            has an artifact in it with other contents.
    """
    with reading(file):
        check_regular(file)
    with ExitStack() as opened:
        with _reading(file):
            stream = opened.enter_context(_BoundedReader(io.FileIO(file)))
            archive = opened.enter_context(zipfile.ZipFile(stream))
        export = Export(file, archive)
        _check_sources(export, store)
        here = {manifest.run: _same_here(manifest, export, store) for manifest in export.manifests}
        new = [manifest for manifest in export.manifests if here[manifest.run] is None]
        for manifest in export.manifests:
            clear_leftovers((store.root / manifest.place).parent)
        if new:
            needed, free = sum(map(export.size, new)), shutil.disk_usage(make_folder(store.root)).free
            if needed > free:
                raise PipelineError(f"{file}: needs {needed:,} bytes in {store.root}, which has {free:,}: make room")
            _add(export, new, store)
    return Imported(
        added=tuple(Artifact(folder=store.root / manifest.place, manifest=manifest) for manifest in new),
        already_here=tuple(artifact for artifact in here.values() if artifact is not None),
    )


def _check_sources(export: Export, store: Store) -> None:
    """Refuse a fusion over adapters that are neither in the export nor in the store."""
    packed = {manifest.run: manifest.digest for manifest in export.manifests if manifest.kind == "adapter"}
    for fusion in export.manifests:
        for source in fusion.sources:
            if source.run not in packed:
                store.source(source, fusion)
            elif packed[source.run] != source.digest:
                raise export.refused(f"fusion {fusion.run} was trained over other contents of adapter {source.run}")


def _same_here(manifest: Manifest, export: Export, store: Store) -> Artifact | None:
    """The artifact of the same run in ``store``, or None; an error if its contents are others or damaged."""
    artifact = store.find(manifest.run)
    if artifact is None:
        return None
    artifact.verify()
    if (artifact.manifest.place, artifact.manifest.digest) != (manifest.place, manifest.digest):
        raise PipelineError(
            f"{export.file}: holds {manifest.kind} {manifest.run} with other contents than {artifact.folder}: to have"
            f" that one instead, remove yours first (python -m pipeline store remove {manifest.run})"
        )
    return artifact


def _add(export: Export, manifests: Sequence[Manifest], store: Store) -> None:
    """Unpack all of ``manifests``, then let them appear, the first first; on an error none stays."""
    appeared: list[Path] = []

    def note(place: Path) -> Callable[..., None]:
        return lambda error, *_: appeared.append(place) if error is None else None

    try:
        with ExitStack() as unpacked:
            # What is entered last appears first.
            for manifest in reversed(manifests):
                place = store.root / manifest.place
                unpacked.push(note(place))
                export.unpack(manifest, unpacked.enter_context(new_folder(place)))
            for manifest in manifests:  # another command may have put one there meanwhile
                _same_here(manifest, export, store)
    except BaseException:
        for place in reversed(appeared):
            delete(place)
        raise


class Export:
    """The artifacts in an open zip file, of which all but their files' contents has been checked."""

    def __init__(self, file: Path, archive: zipfile.ZipFile) -> None:
        self.file, self._archive = file, archive
        self._check_members(archive.infolist())
        self.manifests = self._read_manifests()
        """Adapters before the fusions over them."""
        there = set(archive.namelist())
        expected = {f"{manifest.place}/{name}" for manifest in self.manifests for name in _names(manifest)}
        for name in sorted(there - expected):
            raise self.refused(f"holds {shortened(name)}, which no export of this project does")
        for name in sorted(expected - there):
            raise self.refused(f"lacks {shortened(name)}, which its manifest names")

    def size(self, manifest: Manifest) -> int:
        """Bytes of an artifact's files."""
        return sum(self._archive.getinfo(f"{manifest.place}/{name}").file_size for name in _names(manifest))

    def unpack(self, manifest: Manifest, folder: Path) -> None:
        """Write the files of an artifact into ``folder``, checked against their sha256."""
        for name in _names(manifest):
            member, digest = f"{manifest.place}/{name}", hashlib.sha256()
            with (folder / name).open("wb") as target:
                for chunk in self._chunks(member):
                    digest.update(chunk)
                    target.write(chunk)
            if name != MANIFEST and digest.hexdigest() != manifest.files[name]:
                raise self.refused(f"{member} is damaged: its sha256 is not the manifest's")

    def _check_members(self, members: Sequence[zipfile.ZipInfo]) -> None:
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
        if sum(member.file_size for member in members) > self.file.stat().st_size:
            raise self.refused("names more bytes than it has")

    def _read_manifests(self) -> list[Manifest]:
        members = [member for member in self._archive.infolist() if member.filename.endswith(f"/{MANIFEST}")]
        if not 0 < len(members) <= _MOST_ARTIFACTS:
            raise self.refused(f"holds {len(members)} artifacts, not 1 to {_MOST_ARTIFACTS}")
        manifests = {}
        for member in members:
            name = shortened(member.filename)
            if member.file_size > _LARGEST_MANIFEST:
                raise self.refused(f"{name} has {member.file_size:,} bytes, too many for a manifest")
            content = b"".join(self._chunks(member.filename))
            with _reading(Path(f"{self.file}: {name}")):
                manifest = Manifest.model_validate_json(content)
            if manifest.run in manifests:
                raise self.refused(f"holds two artifacts of run {manifest.run}")
            if not manifest.files:
                raise self.refused(f"{name} lists no files")
            manifests[manifest.run] = manifest
        return sorted(manifests.values(), key=lambda manifest: manifest.kind)

    def _chunks(self, member: str) -> Iterator[bytes]:
        with _reading(self.file):
            source = self._archive.open(member)
        with source:
            chunk = None
            while chunk != b"":
                with _reading(self.file):
                    chunk = source.read(_CHUNK)
                yield chunk

    def refused(self, why: str) -> PipelineError:
        """The error that names the file, and what to do."""
        return PipelineError(f"{self.file}: {why}: {_REMEDY}")


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


def _names(manifest: Manifest) -> list[str]:
    return [*manifest.files, MANIFEST]
