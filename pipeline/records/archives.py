"""Artifacts and run records in one ``.tar.xz`` file, to take elsewhere. A file from somebody else may contain anything.

xz compresses the tar file as one stream, so content that its files share is stored once. The runs of a study share row
identifiers, so their archive shrinks to a quarter.
"""

import io
import lzma
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.records.store import MANIFEST, Artifact, Store
from pipeline.system.atomic import new_file, new_folder, scratch_folder
from pipeline.system.errors import PipelineError, shortened, writing
from pipeline.system.reading import check_regular, reading

REMEDY = "export it again"
_SIZE, _RATIO = 2**26, 64
"""An archive is refused if it unpacks to more than this many bytes and more than this many times its size."""


def write_archive(file: Path, sources: Mapping[str, Path | bytes], level: Literal[0, 9]) -> None:
    """Write ``sources``, files or contents by their names in the archive, into one file.

    Equal files give equal bytes: times, owners and permissions are left out.

    Args:
        level: xz preset; its window is 256 KiB (0) or 64 MiB (9).

    Raises:
        PipelineError: a file cannot be read.
    """
    with new_file(file) as temporary, tarfile.open(temporary, "w:xz", preset=level) as archive:
        for name, source in sources.items():
            member = tarfile.TarInfo(name)
            with reading(source) if isinstance(source, Path) else nullcontext():
                stream = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
            with stream:
                member.size = stream.seek(0, io.SEEK_END)
                stream.seek(0)
                archive.addfile(member, stream)


@contextmanager
def unpacked(file: Path, place: Path) -> Iterator[Path]:
    """A hidden folder beside ``place``, and with its name, that holds the files of an archive; deleted on exit.

    Raises:
        PipelineError: the file is not an archive, is damaged or is larger than any export; or the disk is full.
    """
    with reading(file):
        check_regular(file)
    left = max(_SIZE, _RATIO * file.stat().st_size)
    with scratch_folder(place) as folder:
        with reading(file, REMEDY), lzma.open(file) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                left -= member.size
                if not member.isreg() or left < 0:
                    raise PipelineError(f"{file}: holds {shortened(member.name)}, which no export does: {REMEDY}")
                with writing(folder):
                    archive.extract(member, folder, set_attrs=False, filter="data")
            while stream.read(2**20):  # xz verifies its checksum at the end, past the end of the tar file
                pass
        yield folder


def export_artifact(store: Store, run: str, file: Path) -> list[Artifact]:
    """Write a checked artifact of ``store``, with the adapters of a fusion, into one file; returns the artifacts."""
    store.check()
    artifact = store.find(run)
    if artifact is None:
        raise store.missing(run)
    packed = [*store.adapters_of(artifact.manifest), artifact]
    files: dict[str, Path | bytes] = {}
    for each in packed:
        each.verify()
        files |= {f"{each.manifest.place}/{name}": each.folder / name for name in (*each.manifest.files, MANIFEST)}
    write_archive(file, files, 0)  # weights hardly compress
    return packed


@dataclass(frozen=True)
class Imported:
    """The artifacts that an import added, and those that were there already with the same contents."""

    added: tuple[Artifact, ...]
    already_here: tuple[Artifact, ...]


def import_artifacts(store: Store, file: Path) -> Imported:
    """Add the artifacts of an export to ``store``, after all are checked, adapters before the fusion over them.

    Raises:
        PipelineError: it is not an export of this project, is damaged, lacks an adapter that its fusion needs, or
            contains an artifact that the store has with other contents.
    """
    added, already_here = list[Artifact](), list[Artifact]()
    with unpacked(file, store.root / "import") as folder:
        with within(file, folder):
            packed, problems = Store(folder, REMEDY).listed()  # adapters first
            if problems:
                raise PipelineError(problems[0])
            for artifact in packed:
                artifact.verify(REMEDY)
            if not packed:
                raise PipelineError(f"holds no artifacts: {REMEDY}")
        here = {(each.manifest.run, each.manifest.digest) for each in packed}
        for artifact in packed:
            manifest = artifact.manifest
            for source in manifest.sources:
                if (source.run, source.digest) not in here:
                    store.source(source, manifest)
            mine = store.find(manifest.run)
            if mine is None:
                added.append(artifact.model_copy(update={"folder": store.root / manifest.place}))
                continue
            mine.verify()
            if mine.manifest.digest != manifest.digest:
                raise PipelineError(
                    f"{file}: holds {manifest.kind} {manifest.run} with other contents than {mine.folder}: to have"
                    f" that one instead, remove yours first (python -m pipeline store remove {manifest.run})"
                )
            already_here.append(mine)
        for artifact in added:
            with new_folder(artifact.folder) as new:
                for name in (*artifact.manifest.files, MANIFEST):
                    (folder / artifact.manifest.place / name).rename(new / name)
    return Imported(tuple(added), tuple(already_here))


@contextmanager
def within(file: Path, folder: Path) -> Iterator[None]:
    """Let errors about files in ``folder`` name the archive ``file`` that it was unpacked from."""
    try:
        yield
    except PipelineError as error:
        raise PipelineError(f"{file}: {str(error).replace(f'{folder}/', '')}") from error
