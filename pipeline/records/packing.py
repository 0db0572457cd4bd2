"""Export artifacts into one file, check such a file, and import it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.records.archives import REMEDY, Source, refused, unpacked, write_archive
from pipeline.records.store import MANIFEST, Artifact, Manifest, Store, delete
from pipeline.system.atomic import clear_leftovers, new_folder, sha256_file
from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import reading

_LEVEL: Final = 0  # weights hardly compress


def export_artifact(store: Store, run: str, file: Path) -> list[Artifact]:
    """Write a checked artifact of ``store``, with the adapters of a fusion, into one file; returns the artifacts.

    The files of an artifact may be links: a manifest lists hashes, so its author must have known the content.
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
    write_archive(file, files, _LEVEL)
    return packed


@dataclass(frozen=True)
class Imported:
    """The artifacts that an import added, and those that were there already with the same contents."""

    added: tuple[Artifact, ...]
    already_here: tuple[Artifact, ...]


def import_artifacts(store: Store, file: Path) -> Imported:
    """Add the artifacts of an export to ``store``: all of them, or none on an error.

    Unpacks and checks all before any appears, adapters before the fusion over them.

    Raises:
        PipelineError: it is not an export of this project, is damaged, lacks an adapter that its fusion needs, or
            contains an artifact that the store has with other contents.
    """
    with unpacked(file, store.root) as folder:
        manifests = _manifests(file, folder)
        _check_sources(file, manifests, store)
        here = {manifest.run: _same_here(file, manifest, store) for manifest in manifests}
        new = [manifest for manifest in manifests if here[manifest.run] is None]
        for manifest in manifests:
            clear_leftovers((store.root / manifest.place).parent)
        _add(file, folder, new, store)
    return Imported(
        added=tuple(Artifact(folder=store.root / manifest.place, manifest=manifest) for manifest in new),
        already_here=tuple(artifact for artifact in here.values() if artifact is not None),
    )


def _check_sources(file: Path, manifests: Sequence[Manifest], store: Store) -> None:
    """Refuse a fusion over adapters that are neither in the export nor in the store."""
    packed = {manifest.run: manifest.digest for manifest in manifests if manifest.kind == "adapter"}
    for fusion in manifests:
        for source in fusion.sources:
            if source.run not in packed:
                store.source(source, fusion)
            elif packed[source.run] != source.digest:
                raise refused(file, f"fusion {fusion.run} was trained over other contents of adapter {source.run}")


def _same_here(file: Path, manifest: Manifest, store: Store) -> Artifact | None:
    """The artifact of the same run in ``store``, or None; raises if its contents differ or are damaged."""
    artifact = store.find(manifest.run)
    if artifact is None:
        return None
    artifact.verify()
    if (artifact.manifest.place, artifact.manifest.digest) != (manifest.place, manifest.digest):
        raise PipelineError(
            f"{file}: holds {manifest.kind} {manifest.run} with other contents than {artifact.folder}: to have"
            f" that one instead, remove yours first (python -m pipeline store remove {manifest.run})"
        )
    return artifact


def _add(file: Path, folder: Path, manifests: Sequence[Manifest], store: Store) -> None:
    """Move all of ``manifests`` from ``folder`` into the store, in order; on an error none stays."""
    appeared: list[Path] = []

    def note(place: Path) -> Callable[..., None]:
        return lambda error, *_: appeared.append(place) if error is None else None

    try:
        with ExitStack() as entered:
            # callbacks run in reverse: the last one entered moves first
            for manifest in reversed(manifests):
                place = store.root / manifest.place
                entered.push(note(place))
                new = entered.enter_context(new_folder(place))
                for name in _names(manifest):
                    (folder / manifest.place / name).rename(new / name)
            for manifest in manifests:  # another command may have added one meanwhile
                _same_here(file, manifest, store)
    except BaseException:
        for place in reversed(appeared):
            delete(place)
        raise


def _manifests(file: Path, folder: Path) -> list[Manifest]:
    """The manifests of an export in ``folder``, adapters before fusions, after all files are verified."""
    manifests, files = dict[str, Manifest](), set[str]()
    there = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}
    for name in sorted(each for each in there if each.endswith(f"/{MANIFEST}")):
        with reading(Path(f"{file}: {shortened(name)}"), REMEDY):
            manifest = Manifest.model_validate_json((folder / name).read_bytes())
        if manifest.run in manifests:
            raise refused(file, f"holds two artifacts of run {manifest.run}")
        if not manifest.files:
            raise refused(file, f"{shortened(name)} lists no files")
        manifests[manifest.run] = manifest
        files |= {f"{manifest.place}/{each}" for each in _names(manifest)}
    if not manifests:
        raise refused(file, "holds no artifacts")
    for name in sorted(there - files):
        raise refused(file, f"holds {shortened(name)}, which no export of this project does")
    for name in sorted(files - there):
        raise refused(file, f"lacks {shortened(name)}, which its manifest names")
    for manifest in manifests.values():
        for name, digest in manifest.files.items():
            if sha256_file(folder / manifest.place / name) != digest:
                raise refused(file, f"{manifest.place}/{name} is damaged: its sha256 is not the manifest's")
    return sorted(manifests.values(), key=lambda manifest: manifest.kind)


def _names(manifest: Manifest) -> list[str]:
    return [*manifest.files, MANIFEST]
