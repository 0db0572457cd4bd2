"""Artifacts and run records in one ``.tar.xz`` file, to take elsewhere. A file from somebody else may contain anything.

xz compresses the tar file as one stream, so content that its files share is stored once. The runs of a study share row
identifiers, so their archive shrinks to a quarter.

A record is what the ledger holds of a run: its ``run.json``, curve and predictions, but no weights. The archive of a
study also holds its ``study.json``, from which ``report`` makes the tables again without data or backbone. It may be
lean, without the predictions of trials that no cell kept or is built on.
"""

import io
import json
import lzma
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.records.ledger import Ledger
from pipeline.records.run_record import SCHEMA, RunRecord, run_name
from pipeline.records.store import DEFAULT_STORE, MANIFEST, Artifact, Store
from pipeline.records.studies import StudyResult
from pipeline.system.atomic import file_json, new_file, new_folder, scratch_folder, write_text
from pipeline.system.errors import PipelineError, shortened, writing
from pipeline.system.reading import backbone_text, check_regular, present, read_json, read_model, read_text, reading
from stages.runs import Runs
from stages.studies import name_of_study

REMEDY = "export it again"
_SIZE, _RATIO = 2**26, 64
"""An archive is refused if it unpacks to more than this many bytes and more than this many times its size."""
_STUDY = "study.json"
_RECORD = "run.json"
_SPARE = (_RECORD, "curve.csv")
"""The files that a lean archive keeps of a trial that no cell kept or is built on."""
_NEEDED = (*_SPARE, "predictions.parquet")


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
                    shutil.move(folder / artifact.manifest.place / name, new / name)
    return Imported(tuple(added), tuple(already_here))


@dataclass(frozen=True)
class KeptRun:
    """A run that both have, with its scores here and in the archive. The record here stays."""

    run: str
    here: float
    there: float


@dataclass(frozen=True)
class ImportedRuns:
    added: tuple[str, ...]
    already_here: tuple[KeptRun, ...]
    study: str | None
    """The study of the archive, if it was not here before."""
    other_study: str | None
    """The study of the archive, if it was here before with other contents; these stay."""


def export_runs(runs: Runs, file: Path, study: str | None = None, *, lean: bool = False) -> tuple[list[str], list[str]]:
    """Write the records of all finished runs, or of those of a study with all that they are built on.

    Returns these runs, and those that the study names or others build on, but that the ledger lacks or has only in
    part.

    Args:
        study: its name, or its TOML file.
        lean: without the predictions of the study's trials that no cell kept or is built on, which its report does not
            read.

    Raises:
        PipelineError: there are none, or the study was never compared here.
    """
    if lean and study is None:
        raise PipelineError("--lean: leaves out trials of a study: name it with --study")
    files: dict[str, Path | bytes] = {}
    if study is None:
        wanted, missing, spare = set(runs.records), set[str](), set[str]()
    else:
        document = runs.reports / name_of_study(study) / _STUDY
        result = read_model(StudyResult, document, "run compare first")
        kept = [entry.run for entry in result.entries if entry.run]
        wanted, missing = _with_sources([*kept, *result.tried], runs)
        # With other seeds, a fusion's own adapter is only a trial.
        spare = result.spare_trials - _with_sources(kept, runs)[0]
        files[_STUDY] = _study_as_elsewhere(result, runs.store.root).encode()
    whole = []
    for run in sorted(wanted):
        own = {each.name: each for each in runs.ledger.files(run)}
        needed = _SPARE if run in spare else _NEEDED
        if not own.keys() >= {*needed}:
            missing.add(run)
            continue
        whole.append(run)
        for name, each in own.items():
            if not (lean and run in spare and name not in _SPARE):
                files[f"{run}/{name}"] = _record_as_elsewhere(each) if name == _RECORD else each
    if not whole:
        raise PipelineError(f"{runs.ledger.root}: no finished runs to export: see runs list")
    write_archive(file, files, 9)  # a window of 64 MiB reaches across the runs of a study
    return whole, sorted(missing)


def import_runs(reports: Path, file: Path) -> ImportedRuns:
    """Add what ``reports`` does not have of an archive, each run as a whole. What is here already stays as it is.

    Before anything is added, all but the contents of curves and predictions is checked; these when they are read.

    Raises:
        PipelineError: no archive of runs, or a damaged one; or another process is training one of its runs.
    """
    ledger = Ledger(reports)
    added, already_here = list[str](), list[KeptRun]()
    with unpacked(file, ledger.root) as folder:
        archive = Ledger(folder.parent, REMEDY)
        with within(file, folder):
            study = read_model(StudyResult, folder / _STUDY, REMEDY) if present(folder / _STUDY) else None
            records = _checked(archive, set() if study is None else study.spare_trials)
        for run, record in records.items():
            if ledger.add(run, archive.files(run)):
                added.append(run)
            else:
                already_here.append(KeptRun(run, (ledger.find(run) or record).value, record.value))
        new, other = None, None
        if study is not None:
            here, name = reports / study.study.name / _STUDY, study.study.name
            if not present(here):
                write_text(here, read_text(folder / _STUDY))
                new = name
            elif not _is_same(here, study):
                other = name
    return ImportedRuns(tuple(added), tuple(already_here), new, other)


def _checked(archive: Ledger, spare: Set[str]) -> dict[str, RunRecord]:
    """The records of an unpacked archive, each with all its files; ``spare`` runs need no predictions."""
    records, damaged = archive.records()
    for problem in damaged.values():
        raise PipelineError(problem)
    for run in archive.names():
        names = {file.name for file in archive.files(run)} if archive.began(run) else {*_NEEDED}
        if lacking := {*(_SPARE if run in spare else _NEEDED)} - names:
            raise PipelineError(f"{run}: lacks {', '.join(sorted(lacking))}: {REMEDY}")
    for run, record in records.items():
        if record.schema_version == SCHEMA and run_name(record.identity) != run:
            raise PipelineError(f"{run}/{_RECORD} is the record of another run: {REMEDY}")
    if not records:
        raise PipelineError(f"holds no runs: {REMEDY}")
    return records


def _record_as_elsewhere(file: Path) -> bytes:
    """A record without the places of this machine: a store of the usual name, and a backbone's folder by its name."""
    record = read_json(file, "train the run again")
    if record.get("artifact") is not None:
        record["artifact"] = Path(DEFAULT_STORE, *Path(record["artifact"]).parts[-3:]).as_posix()
    for each in (record, record.get("manifest")):
        if each is not None:
            each["backbone"] = backbone_text(each["backbone"])
    return file_json(record).encode()


def _study_as_elsewhere(result: StudyResult, store: Path) -> str:
    """A study's file without the places of this machine: of its backbones, its rows', and in errors of the store."""
    backbones = {result.backbone, *(row.backbone for row in result.study.rows.values() if row.backbone is not None)}
    names = {backbone: backbone_text(backbone) for backbone in backbones}
    if store.is_absolute():
        names[str(store)] = DEFAULT_STORE
    text = file_json(result.model_dump(mode="json"))
    for place in sorted(names, reverse=True):  # a folder after what stands in it
        text = text.replace(json.dumps(place)[1:-1], json.dumps(names[place])[1:-1])
    return text


def _is_same(file: Path, study: StudyResult) -> bool:
    """Whether ``file`` holds the same study, but for the places of this machine; one that is damaged does not."""
    with suppress(PipelineError):
        here = read_model(StudyResult, file, "run compare first")
        return _study_as_elsewhere(here, Path(DEFAULT_STORE)) == _study_as_elsewhere(study, Path(DEFAULT_STORE))
    return False


def _with_sources(names: Iterable[str], runs: Runs) -> tuple[set[str], set[str]]:
    """Runs and all that they are built on: finished here, and missing."""
    waiting = [*names]
    finished, missing = set[str](), set[str]()
    while waiting:
        run = waiting.pop()
        if run in finished | missing:
            continue
        record = runs.records.get(run)
        (missing if record is None else finished).add(run)
        waiting += [] if record is None else runs.built_on(record)
    return finished, missing


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
    with scratch_folder(place) as scratch:
        folder = scratch / place.name  # a link's target may have another name
        folder.mkdir()
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


@contextmanager
def within(file: Path, folder: Path) -> Iterator[None]:
    """Let errors about files in ``folder`` name the archive ``file`` that it was unpacked from."""
    try:
        yield
    except PipelineError as error:
        raise PipelineError(f"{file}: {str(error).replace(f'{folder}/', '')}") from error
