"""runs export and import: a run comes over as it was or not at all; what is no archive of runs is refused in a line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pipeline.cli.app import main
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord, run_name
from pipeline.records.store import SourceRun
from pipeline.records.studies import Entry, StudyResult
from pipeline.settings.parse_study import parse_study
from pipeline.system.atomic import make_folder, write_json
from pipeline.system.errors import PipelineError
from stages.archives import KeptRun, export_runs, import_runs
from stages.runs import Runs
from tests.permissions import unreadable
from tests.pipeline.records.artifacts import contents, save_study
from tests.pipeline.records.test_ledger import CURVE, OWN, TABLE, record
from tests.tars import changed, members_of

IDENTITY = {"tasks": {"sst": {"meaning": {}, "data": {"dev": "bb"}}}, "backbone": {"weights": "dd"}}


def finish(reports: Path, seed: int, dev: float = 0.5, sources: tuple[str, ...] = ()) -> str:
    """A finished run that is called as a run of its identity is; returns its name."""
    identity = {"seed": seed, **IDENTITY}
    built_on = tuple(SourceRun(task="sst", run=source, digest="cc") for source in sources)
    run = run_name(identity)
    scores = {"sst": OWN.model_copy(update={"dev": dev})}
    finished = record(run, identity=identity, seed=seed, sources=built_on, scores=scores)
    Ledger(reports).finish(finished, CURVE, {"sst": TABLE}, pd.DataFrame({"layer": [0], "weight": [1.0]}))
    return run


def records_in(reports: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(reports).items() if not name.endswith(".lock")}


def names(archive: Path) -> set[str]:
    return {member.name for member in members_of(archive)}


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    return tmp_path / "reports"


@pytest.fixture
def export(tmp_path: Path, reports: Path) -> Callable[..., Path]:
    def exported(study: str | None = None) -> Path:
        export_runs(Runs(reports, tmp_path / "store"), tmp_path / "runs.tar.xz", study)
        return tmp_path / "runs.tar.xz"

    return exported


def test_what_is_exported_is_imported_byte_for_byte(reports: Path, export: Callable[..., Path], tmp_path: Path) -> None:
    runs = sorted(finish(reports, seed) for seed in (1, 2))
    imported = import_runs(tmp_path / "other", export())
    assert ([*imported.added], imported.already_here, imported.study) == (runs, (), None)
    assert records_in(tmp_path / "other") == records_in(reports)
    assert Ledger(tmp_path / "other").records() == Ledger(reports).records()


def test_the_folder_of_runs_may_be_a_link(reports: Path, export: Callable[..., Path], tmp_path: Path) -> None:
    run = finish(reports, 1)
    (linked := tmp_path / "elsewhere").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "runs").symlink_to(linked)
    assert import_runs(tmp_path / "other", export()).added == (run,)


def test_where_store_and_backbone_stand_stays_here(reports: Path, export: Callable[..., Path], tmp_path: Path) -> None:
    ledger, run = Ledger(reports), finish(reports, 1)
    folder = ledger.folder(run)
    shutil.rmtree(folder)
    place = tmp_path / "private" / "adapters" / "sst" / run
    names = {"artifact": str(place), "artifact_digest": "ee", "backbone": str(tmp_path / "private" / "nano")}
    here = record(run, identity={"seed": 1, **IDENTITY}, seed=1, **names)
    ledger.finish(here, CURVE, {"sst": TABLE})
    import_runs(tmp_path / "other", export())
    there = Ledger(tmp_path / "other").find(run)
    assert there == here.model_copy(update={"artifact": f"adapters_store/adapters/sst/{run}", "backbone": "nano"})
    assert ledger.find(run) == here
    assert not [member.name for member in members_of(export()) if str(tmp_path).encode() in member.content]


def test_a_study_names_no_place_of_this_machine(reports: Path, export: Callable[..., Path], tmp_path: Path) -> None:
    """Neither of its backbone, nor of a row's own, nor in the reason why a cell has no run."""
    run, here = finish(reports, 1), tmp_path / "private"
    rows = {"near": {"method": "full", "backbone": str(here / "nano")}, "far": {"method": "full", "backbone": "a/bert"}}
    study = {"name": "few", "methods": ["full", "near", "far"], "targets": ["sst"], "seeds": [1], "rows": rows}
    errors = (None, f"backbone '{here / 'nano'}': no weights", f"{tmp_path / 'store'}/adapters/sst/x: damaged; {here}")
    cells = zip(study["methods"], (run, None, None), errors, strict=True)
    entries = tuple(Entry(method=row, target="sst", seed=1, run=run, error=error) for row, run, error in cells)
    result = StudyResult(study=parse_study(study, "test"), backbone=str(here), entries=entries)
    write_json(make_folder(reports / "few") / "study.json", result.model_dump(mode="json"))
    members = {member.name: member.content for member in members_of(export("few"))}
    assert not [name for name, content in members.items() if str(tmp_path).encode() in content]
    there = StudyResult.model_validate_json(members["study.json"])
    assert there.backbone == "private"
    assert [there.study.row(name).backbone for name in study["methods"]] == [None, "nano", "a/bert"]
    assert [entry.error for entry in there.entries] == [
        None, "backbone 'nano': no weights", "adapters_store/adapters/sst/x: damaged; private",
    ]  # fmt: skip


def test_weights_and_checkpoints_stay(reports: Path, export: Callable[..., Path]) -> None:
    folder = Ledger(reports).folder(finish(reports, 1))
    (folder / "weights.safetensors").write_bytes(b"weights")
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "state.safetensors").write_bytes(b"state")
    assert [member.name.partition("/")[2] for member in members_of(export())] == [
        "attention.csv", "curve.csv", "predictions.parquet", "run.json",
    ]  # fmt: skip


def test_a_study_goes_with_all_that_its_runs_are_built_on_and_no_more(reports: Path, tmp_path: Path) -> None:
    first = finish(reports, 1)
    second = finish(reports, 2, sources=(first,))
    third = finish(reports, 3, sources=(second, "f" * 12))
    finish(reports, 4)
    save_study(reports, third)
    exported, missing = export_runs(Runs(reports, tmp_path / "store"), tmp_path / "runs.tar.xz", "few")
    assert (exported, missing) == (sorted((first, second, third)), ["f" * 12])
    imported = import_runs(tmp_path / "other", tmp_path / "runs.tar.xz")
    assert (imported.added, imported.study) == (tuple(exported), "few")
    assert (tmp_path / "other/few/study.json").read_bytes() == (reports / "few/study.json").read_bytes()


def test_a_lean_archive_has_no_predictions_of_trials_that_no_cell_kept(
    reports: Path, export: Callable[..., Path], tmp_path: Path
) -> None:
    kept, spare = (finish(reports, seed) for seed in (1, 2))
    save_study(reports, kept, trials=(kept, spare))
    runs, whole = Runs(reports, tmp_path / "store"), names(export("few"))
    exported, missing = export_runs(runs, tmp_path / "lean.tar.xz", "few", lean=True)
    assert (exported, missing) == (sorted((kept, spare)), [])
    left_out = whole - names(tmp_path / "lean.tar.xz")
    assert left_out == {f"{spare}/attention.csv", f"{spare}/predictions.parquet"}
    # It can be imported, exported again, and exported whole no more.
    there = tmp_path / "there"
    assert import_runs(there, tmp_path / "lean.tar.xz").added == tuple(exported)
    again = export_runs(Runs(there, tmp_path / "store"), tmp_path / "again.tar.xz", "few")
    assert again == (exported, missing)
    assert (tmp_path / "again.tar.xz").read_bytes() == (tmp_path / "lean.tar.xz").read_bytes()
    assert export_runs(Runs(there, tmp_path / "store"), tmp_path / "all.tar.xz")[1] == [spare]
    with pytest.raises(PipelineError, match="--lean: .* name it with --study"):
        export_runs(runs, tmp_path / "x.tar.xz", lean=True)


def test_what_a_run_chose_from_is_found_by_its_contents_under_each_of_its_names(reports: Path, tmp_path: Path) -> None:
    runs = [finish(reports, seed) for seed in (1, 2, 3)]
    ledger = Ledger(reports)
    for run in runs[:2]:  # two runs that kept the same weights
        kept = ledger.find(run)
        write_json(
            ledger.folder(run) / "run.json", kept.model_copy(update={"artifact_digest": "ee"}).model_dump(mode="json")
        )
    chosen_from = [{"task": "sst", "digest": "ee"}, {"task": "sts", "digest": "ff"}]
    fusion = record(sources=(), identity={**record().identity, "sources": chosen_from})
    assert Runs(reports, tmp_path / "store").built_on(fusion) == sorted(runs[:2])


def test_a_run_that_is_not_whole_is_left_out(reports: Path, tmp_path: Path) -> None:
    whole, without_curve = finish(reports, 1), finish(reports, 2)
    (Ledger(reports).folder(without_curve) / "curve.csv").unlink()
    exported = export_runs(Runs(reports, tmp_path / "store"), tmp_path / "runs.tar.xz")
    assert exported == ([whole], [without_curve])
    assert import_runs(tmp_path / "other", tmp_path / "runs.tar.xz").added == (whole,)


def test_a_file_that_may_not_be_read_is_named(reports: Path, export: Callable[..., Path], tmp_path: Path) -> None:
    curve = Ledger(reports).folder(finish(reports, 1)) / "curve.csv"
    with unreadable(curve), pytest.raises(PipelineError, match=f"^{curve}: permission denied$"):
        export()
    assert [*tmp_path.iterdir()] == [reports]


def test_what_is_here_stays_and_a_begun_run_is_finished(
    reports: Path, export: Callable[..., Path], tmp_path: Path
) -> None:
    run, begun = finish(reports, 1), finish(reports, 2)
    save_study(reports, run, begun)
    file, other = export("few"), tmp_path / "other"
    finish(other, 1, dev=0.75)
    save_study(other, run)
    before = contents(other)
    checkpoint = make_folder(Ledger(other).checkpoint_file(begun).parent)
    imported = import_runs(other, file)
    assert (imported.added, imported.already_here) == ((begun,), (KeptRun(run, 0.75, 0.5),))
    assert (imported.study, imported.other_study) == (None, "few")
    assert before.items() <= contents(other).items()
    assert not checkpoint.exists()


@pytest.mark.parametrize("here", ["more seeds", "the same", "the same on another machine", "damaged", "none"])
def test_a_study_that_is_here_with_other_contents_is_told(
    here: str, reports: Path, export: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else report would show the runs of the study that is here, without a word on those that were added."""
    first, second = (finish(reports, seed) for seed in (1, 2))
    save_study(reports, first, second)
    file, other = export("few"), tmp_path / "other"
    study = other / "few" / "study.json"
    if here != "none":
        save_study(other, *((first,) if here == "more seeds" else (first, second)))
    if here == "the same on another machine":
        there = json.loads(study.read_text())
        write_json(study, {**there, "backbone": str(tmp_path / "nano")})
    if here == "damaged":
        study.write_text("{")
    before = (reports / "few/study.json" if here == "none" else study).read_bytes()
    told = {"none": ["study few added"], "the same": [], "the same on another machine": []}
    way_out = f"move {study} away and import again, or run compare"
    line = f"study few is here already, with other contents, and stays: {way_out}"
    assert main(["runs", "import", str(file), f"--reports={other}", "--json"]) == 0
    _, *lines, document = capsys.readouterr().out.splitlines()
    assert lines == told.get(here, [line])
    assert json.loads(document)["other_study"] == (None if here in told else "few")
    assert study.read_bytes() == before
    # As the line says.
    study.unlink()
    assert import_runs(other, file).study == "few"
    assert study.read_bytes() == (reports / "few/study.json").read_bytes()


def test_a_run_in_training_is_not_touched(reports: Path, export: Callable[..., Path], tmp_path: Path) -> None:
    run = finish(reports, 1)
    other = Ledger(tmp_path / "other")
    with other.lock(run), pytest.raises(PipelineError, match="is being trained by another process"):
        import_runs(tmp_path / "other", export())
    assert other.find(run) is None


def _renamed(record: RunRecord) -> RunRecord:
    return record.model_copy(update={"seed": 7, "identity": {**record.identity, "seed": 7}})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"{run}/curve.csv": None}, "lacks .*curve.csv"),
        ({"{run}/run.json": None}, "lacks .*run.json"),
        ({"{run}/run.json": b"{}"}, "run.json.* cannot be read"),
        ({"{run}/run.json": "renamed"}, "the record of another run"),
        ({"../evil/run.json": b"x"}, "../evil/run.json"),
        ({"study.json": b"[]"}, "study.json.* cannot be read"),
        ({"{run}/run.json": None, "{run}/curve.csv": None, "{run}/predictions.parquet": None}, "lacks .*run.json"),
        (
            {f"{{run}}/{name}": None for name in ("run.json", "curve.csv", "predictions.parquet", "attention.csv")},
            "holds no runs",
        ),
    ],
)
def test_what_is_no_archive_of_runs_is_refused_with_nothing_added(
    change: dict[str, bytes | str | None], why: str, reports: Path, export: Callable[..., Path], tmp_path: Path
) -> None:
    run = finish(reports, 1)
    file, changes = export(), {name.format(run=run): content for name, content in change.items()}
    for name, content in changes.items():
        if content == "renamed":
            (member,) = members_of(file, name)
            changes[name] = _renamed(RunRecord.model_validate_json(member.content)).model_dump_json().encode()
    bad = changed(file, changes)
    with pytest.raises(PipelineError, match=why) as caught:
        import_runs(tmp_path / "other", bad)
    assert str(caught.value).startswith(str(bad))
    assert not contents(tmp_path / "other")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["export", "{root}/x.tar.xz"], "no finished runs to export"),
        (["export", "{root}/x.tar.xz", "--study=few"], "few/study.json: no such file: run compare first"),
        (["import", "{root}/x.tar.xz"], "x.tar.xz: no such file"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["runs", *(each.format(root=tmp_path) for each in arguments), f"--reports={tmp_path / 'reports'}"])
    assert (status, why in capsys.readouterr().err) == (2, True)


def test_the_verbs_say_what_they_did(reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = finish(reports, 1), tmp_path / "other"
    save_study(reports, run)
    file = tmp_path / "runs.tar.xz"
    assert main(["runs", "export", str(file), "--study=few", f"--reports={reports}"]) == 0
    assert capsys.readouterr().out.startswith(f"1 runs: {file}, ")
    finish(other, 1, dev=0.75)
    assert main(["runs", "import", str(file), f"--reports={other}", "--json"]) == 0
    *lines, document = capsys.readouterr().out.splitlines()
    assert lines == [
        "0 runs added, 1 already here",
        f"{run}: scored 0.7500 here, 0.5000 in the archive: yours stays",
        "study few added",
    ]
    assert json.loads(document)["study"] == "few"
