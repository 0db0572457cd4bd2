"""The records of finished runs in one file, to look at elsewhere, or to go on with a study on another machine.

A record is what the ledger holds of a run: its ``run.json``, curve and predictions, but no weights. The archive of a
study also holds its ``study.json``, from which ``report`` makes the tables again without data or backbone. It may be
lean, without the predictions of trials that no cell kept or is built on.
"""

from collections import defaultdict
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from pipeline.records.archives import REMEDY, Source, refused, unpacked, write_archive
from pipeline.records.ledger import RECORD_FILE, RUN_NAME, Ledger
from pipeline.records.run_record import SCHEMA, RunRecord, run_name
from pipeline.records.store import DEFAULT_STORE
from pipeline.records.studies import StudyResult
from pipeline.settings.parse_study import name_of_study
from pipeline.system.atomic import clear_leftovers, file_json, write_text
from pipeline.system.backbone_name import backbone_text
from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import present, read_json, read_model, reading
from stages.runs import Runs

Model = TypeVar("Model", StudyResult, RunRecord)

_STUDY = "study.json"
_RECORD = "run.json"
_SPARE = (_RECORD, "curve.csv")
"""The files that a lean archive keeps of a trial that no cell kept or is built on."""
_NEEDED = (*_SPARE, "predictions.parquet")
_LEVEL: Final = 9  # a window of 64 MiB reaches across the runs of a study


@dataclass(frozen=True)
class ExportedRuns:
    runs: tuple[str, ...]
    missing: tuple[str, ...]
    """Runs that the study names or others build on, but that the ledger lacks or has only in part."""


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


def export_runs(runs: Runs, file: Path, study: str | None = None, *, lean: bool = False) -> ExportedRuns:
    """Write the records of all finished runs, or of those of a study with all that they are built on.

    Args:
        study: its name, or its TOML file.
        lean: without the predictions of the study's trials that no cell kept or is built on, which its report does not
            read.

    Raises:
        PipelineError: there are none, or the study was never compared here.
    """
    if lean and study is None:
        raise PipelineError("--lean: leaves out trials of a study: name it with --study")
    document = None if study is None else runs.reports / name_of_study(study) / _STUDY
    if document is None:
        wanted, missing, spare = set(runs.records), set[str](), set[str]()
    else:
        result = read_model(StudyResult, document, "run compare first")
        kept = [entry.run for entry in result.entries if entry.run]
        wanted, missing = _with_sources([*kept, *result.tried], runs)
        # With other seeds, a fusion's own adapter is only a trial.
        spare = result.spare_trials - _with_sources(kept, runs)[0]
    files = {run: runs.ledger.files(run) for run in sorted(wanted)}
    whole = {run: own for run, own in files.items() if {*_needed(run, spare)} <= {file.name for file in own}}
    if not whole:
        raise PipelineError(f"{runs.ledger.root}: no finished runs to export: see runs list")
    sources: dict[str, Source] = {
        f"{run}/{each.name}": partial(_as_elsewhere, each) if each.name == _RECORD else each
        for run, own in whole.items()
        for each in own
        if not (lean and run in spare and each.name not in _SPARE)
    }
    if document is not None:
        sources[_STUDY] = partial(_study_file, _study_as_elsewhere(result, runs.store.root))
    write_archive(file, sources, _LEVEL)
    return ExportedRuns(tuple(whole), tuple(sorted(missing | files.keys() - whole.keys())))


def import_runs(reports: Path, file: Path) -> ImportedRuns:
    """Add what ``reports`` does not have of an archive, each run as a whole. What is here already stays as it is.

    Before anything is added, all but the contents of curves and predictions is checked; these when they are read.

    Raises:
        PipelineError: no archive of runs, or a damaged one; or another process is training one of its runs.
    """
    ledger = Ledger(reports)
    added, already_here = list[str](), list[KeptRun]()
    with unpacked(file, reports) as folder:
        study, records = _contents(file, folder)
        for run, (record, files) in records.items():
            if ledger.add(run, files):
                added.append(run)
            else:
                here = ledger.find(run) or record
                already_here.append(KeptRun(run, here.value, record.value))
        name = None if study is None else study.study.name
        is_new = name is not None and _add_study(reports / name, folder)
    is_other = not is_new and study is not None and not _stands_in(reports, study)
    return ImportedRuns(tuple(added), tuple(already_here), name if is_new else None, name if is_other else None)


def _needed(run: str, spare: Set[str]) -> tuple[str, ...]:
    return _SPARE if run in spare else _NEEDED


def _as_elsewhere(file: Path) -> bytes:
    """A record without the places of this machine: a store of the usual name, and a backbone's folder by its name."""
    record = read_json(file, "train the run again")
    if record.get("artifact") is not None:
        record["artifact"] = Path(DEFAULT_STORE, *Path(record["artifact"]).parts[-3:]).as_posix()
    for each in (record, record.get("manifest")):
        if each is not None:
            each["backbone"] = backbone_text(each["backbone"])
    return file_json(record).encode()


def _study_as_elsewhere(result: StudyResult, store: Path) -> StudyResult:
    """A study without the places of this machine: of its backbones, its rows', and in errors also of the store."""
    study = result.study
    backbones = {result.backbone, *(row.backbone for row in study.rows.values() if row.backbone is not None)}
    names = {backbone: backbone_text(backbone) for backbone in backbones}
    if store.is_absolute():
        names[str(store)] = DEFAULT_STORE

    def elsewhere(text: str | None) -> str | None:
        for place in sorted(names, reverse=True):  # a folder after what stands in it
            text = text and text.replace(place, names[place])
        return text

    rows = {
        name: row.model_copy(update={"backbone": row.backbone and names[row.backbone]})
        for name, row in study.rows.items()
    }
    entries = tuple(each.model_copy(update={"error": elsewhere(each.error)}) for each in result.entries)
    changes = {"study": study.model_copy(update={"rows": rows}), "backbone": names[result.backbone]}
    return result.model_copy(update={**changes, "entries": entries})


def _study_file(result: StudyResult) -> bytes:
    return file_json(result.model_dump(mode="json")).encode()


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


def _contents(file: Path, folder: Path) -> tuple[StudyResult | None, dict[str, tuple[RunRecord, list[Path]]]]:
    """The study of an unpacked archive, and its runs with their files."""
    files: dict[str, list[Path]] = defaultdict(list)
    study, spare = None, set[str]()
    for each in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = each.relative_to(folder).as_posix()
        if name == _STUDY:
            study = _parsed(StudyResult, each, file)
            spare = study.spare_trials
        elif RUN_NAME.fullmatch(name.rpartition("/")[0]) and RECORD_FILE.fullmatch(each.name):
            files[each.parent.name].append(each)
        else:
            raise refused(file, f"holds {shortened(name)}, which no archive of runs does")
    if not files:
        raise refused(file, "holds no runs")
    return study, {run: (_record_of(run, own, file, spare), own) for run, own in files.items()}


def _record_of(run: str, files: list[Path], archive: Path, spare: Set[str]) -> RunRecord:
    by_name = {file.name: file for file in files}
    for needed in _needed(run, spare):
        if needed not in by_name:
            raise refused(archive, f"lacks {run}/{needed}")
    record = _parsed(RunRecord, by_name[_RECORD], archive)
    if record.run != run or (record.schema_version == SCHEMA and run_name(record.identity) != run):
        raise refused(archive, f"{run}/{_RECORD} is the record of another run")
    return record


def _parsed(model: type[Model], file: Path, archive: Path) -> Model:
    with reading(Path(f"{archive}: {file.name}"), REMEDY):
        return model.model_validate_json(file.read_bytes())


def _add_study(place: Path, folder: Path) -> bool:
    """Whether the archive's study.json was added at ``place``: not where the study has one here."""
    clear_leftovers(place, _STUDY)  # of an import that was killed
    if present(place / _STUDY):
        return False
    write_text(place / _STUDY, (folder / _STUDY).read_text(encoding="utf-8"))
    return True


def _stands_in(reports: Path, study: StudyResult) -> bool:
    """Whether the file that the study has here holds the same, but for the places of this machine."""
    with suppress(PipelineError):  # a file that cannot be read holds something else
        here = read_model(StudyResult, reports / study.study.name / _STUDY, "run compare first")
        one, other = (_study_as_elsewhere(each, Path(DEFAULT_STORE)) for each in (here, study))
        return one == other
    return False
