"""Exports: artifacts in one zip file, stored as they are; what a file that claims to be one must hold; importing it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pipeline.records.archives import Archive, Source, write_archive
from pipeline.records.store import MANIFEST, Artifact, Manifest, Store, delete
from pipeline.system.atomic import clear_leftovers, make_folder, new_folder
from pipeline.system.errors import PipelineError, shortened

# Far more than exports have, for each manifest is read whole.
_MOST_ARTIFACTS = 256
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
    files: dict[str, Source] = {}
    for each in packed:
        each.verify()
        files |= {f"{each.manifest.place}/{name}": each.folder / name for name in _names(each.manifest)}
    write_archive(file, files, f"copy the folder {store.root} instead")
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
    with Archive.opened(file) as archive:
        export = Export(archive)
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
    """The artifacts in an archive, of which all but their files' contents has been checked."""

    def __init__(self, archive: Archive) -> None:
        self.archive, self.file, self.refused = archive, archive.file, archive.refused
        self.manifests = self._read_manifests()
        """Adapters before the fusions over them."""
        there = archive.sizes.keys()
        expected = {f"{manifest.place}/{name}" for manifest in self.manifests for name in _names(manifest)}
        for name in sorted(there - expected):
            raise self.refused(f"holds {shortened(name)}, which no export of this project does")
        for name in sorted(expected - there):
            raise self.refused(f"lacks {shortened(name)}, which its manifest names")

    def size(self, manifest: Manifest) -> int:
        """Bytes of an artifact's files."""
        return sum(self.archive.sizes[f"{manifest.place}/{name}"] for name in _names(manifest))

    def unpack(self, manifest: Manifest, folder: Path) -> None:
        """Write the files of an artifact into ``folder``, checked against their sha256."""
        for name in _names(manifest):
            member, digest = f"{manifest.place}/{name}", hashlib.sha256()
            with (folder / name).open("wb") as target:
                for chunk in self.archive.chunks(member):
                    digest.update(chunk)
                    target.write(chunk)
            if name != MANIFEST and digest.hexdigest() != manifest.files[name]:
                raise self.refused(f"{member} is damaged: its sha256 is not the manifest's")

    def _read_manifests(self) -> list[Manifest]:
        names = [name for name in self.archive.sizes if name.endswith(f"/{MANIFEST}")]
        if not 0 < len(names) <= _MOST_ARTIFACTS:
            raise self.refused(f"holds {len(names)} artifacts, not 1 to {_MOST_ARTIFACTS}")
        manifests = {}
        for name in names:
            content = self.archive.content(name, _LARGEST_MANIFEST, "a manifest")
            with self.archive.reading(name):
                manifest = Manifest.model_validate_json(content)
            if manifest.run in manifests:
                raise self.refused(f"holds two artifacts of run {manifest.run}")
            if not manifest.files:
                raise self.refused(f"{shortened(name)} lists no files")
            manifests[manifest.run] = manifest
        return sorted(manifests.values(), key=lambda manifest: manifest.kind)


def _names(manifest: Manifest) -> list[str]:
    return [*manifest.files, MANIFEST]
