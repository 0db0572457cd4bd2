"""Archives that are nearly archives of runs: what comes over is as it was, and what is here already stays."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import StudyResult
from pipeline.system.errors import PipelineError
from stages.archives import export_runs, import_runs
from stages.runs import Runs
from tests.fuzz.fuzz_archives import faulty
from tests.fuzz.fuzz_cases import fuzzed
from tests.fuzz.fuzz_stores import RUNS, json_files, make_reports
from tests.pipeline.records.artifacts import contents
from tests.tars import Member, members_of, pack


def exported() -> list[Member]:
    with tempfile.TemporaryDirectory() as scratch:
        reports = make_reports(Path(scratch) / "reports").root.parent
        export_runs(Runs(reports, Path(scratch) / "store"), Path(scratch) / "runs.tar.xz", "own")
        return members_of(Path(scratch) / "runs.tar.xz")


MEMBERS = exported()
CONTENTS = {member.name: member.content for member in MEMBERS}
RECORDS = [json.loads(content) for name, content in CONTENTS.items() if name.endswith("/run.json")]
STUDY = json.loads(CONTENTS["study.json"])

odd_names = st.sampled_from([
    "../../x", "/x", "a", "", "a/b/c/", "study.json", "../study.json", f"{RUNS[0]}/checkpoint/state.safetensors",
    f"{RUNS[0]}/../x", f"{RUNS[0]}/./run.json", f"{RUNS[0]}//run.json", f"{RUNS[0]}/weights.safetensors",
    f"{RUNS[1]}/predictions-sts.parquet", f"{'0' * 12}/run.json", f"{RUNS[0]}/{'n' * 5000}", "C:\\x", "a\0/b",
])  # fmt: skip


def _document(members: list[Member], name: str) -> st.SearchStrategy[bytes]:
    """A record or study that was changed."""
    return json_files(StudyResult, [STUDY]) if name == "study.json" else json_files(RunRecord, RECORDS)


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports that hold the first run of the archive, and the study."""
    reports = make_reports(tmp_path_factory.mktemp("stocked") / "reports").root.parent
    for run in RUNS[1:]:
        Ledger(reports).remove(run)
    return reports


def check_import(folder: Path, stocked: Path | None) -> None:
    """A run is finished here afterwards only if it was, or if all its files are those of the archive."""
    reports = folder / "reports"
    if stocked is not None:
        shutil.copytree(stocked, reports)
    before = contents(folder)
    try:
        imported = set(import_runs(reports, folder / "runs.tar.xz").added)
    except PipelineError:
        imported = set()
    after = contents(folder)
    assert before.items() <= after.items()
    was_here = {file.split("/")[2] for file in before if file.endswith("/run.json")}
    new = Ledger(reports).records()[0].keys() - was_here
    assert imported <= new
    for run in new:
        archived = {member.content for member in members_of(folder / "runs.tar.xz")}
        files = {name: content for name, content in after.items() if name.startswith(f"reports/runs/{run}/")}
        assert {content for name, content in files.items() if not name.endswith(".lock")} <= archived


@fuzzed(faulty(MEMBERS, odd_names, ".json", _document), st.booleans())
def test_an_archive_of_any_members_gives_whole_runs_or_none(
    room: Any, stocked: Path, members: list[Member], beside: bool
) -> None:
    with room() as folder:
        try:
            pack(folder / "runs.tar.xz", members)
        except (ValueError, OSError):  # what cannot even be written
            return
        check_import(folder, stocked if beside else None)
