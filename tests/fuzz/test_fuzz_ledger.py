"""What runs, studies and ensembles leave on disk, damaged: read, or refused by the verbs that need it."""

import copy
import io
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import strategies as st

from pipeline.cli.printing import print_described_run, print_filled
from pipeline.data.tasks import find_task
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import EnsembleRecord, Ensembles, StudyResult
from pipeline.runs.workspace import Part, Workspace
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from pipeline.training.progress import Checkpoint, Progress, Resumption, load_checkpoint, save_checkpoint
from stages.compare.plan import Job
from stages.compare.progress import Estimate
from stages.doctor import ledger_findings
from stages.ensemble import ensemble
from stages.report import report
from stages.run_comparison import compare_runs
from stages.runs import Runs
from tests.fuzz.fuzz_cases import fuzzed
from tests.fuzz.fuzz_documents import as_bytes, damaged_bytes, texts
from tests.fuzz.fuzz_stores import RUNS, Fault, documents_in, faults, json_files, make_reports, predictions

with tempfile.TemporaryDirectory() as scratch:
    make_reports(Path(scratch))
    RECORDS, STUDIES, ENSEMBLES = (
        documents_in(Path(scratch), name) for name in ("run.json", "study.json", "ensemble.json")
    )
    CURVE = next(Path(scratch).rglob("curve.csv")).read_bytes()
    PREDICTIONS = next(Path(scratch).rglob("predictions.parquet")).read_bytes()

SOURCES = [{"task": "sts", "digest": "digest"}]
SEQUENTIAL = RECORDS[0] | {"kind": "sequential", "identity": RECORDS[0]["identity"] | {"sources": SOURCES}}
records = json_files(RunRecord, [*RECORDS, SEQUENTIAL, SEQUENTIAL])


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_reports(tmp_path_factory.mktemp("stocked") / "reports").root.parent


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take seconds, and read nothing that tables do not."""
    monkeypatch.setattr("pipeline.reporting.build.write_figures", lambda *_: ())


@pytest.fixture(autouse=True)
def known_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are on the backbone of the runs, which has no files, and as long as can be told without data."""
    monkeypatch.setattr(Estimate, "_weights", lambda *_: "hash of nano")
    monkeypatch.setattr(Estimate, "work", lambda *_: np.array([288.0, 24.0]))


def use(reports: Path, run: str) -> None:
    """Everything that reads the ledger."""
    ledger = Ledger(reports)
    for named in (run, *RUNS):
        for read in (ledger.find, ledger.began, ledger.predictions, ledger.curve, ledger.attention):
            with suppress(PipelineError):
                read(named)
        with suppress(PipelineError):
            ledger.predictions(named, "sts")
    with suppress(PipelineError):
        Ensembles(reports).named("best")
    runs_here = Runs(reports, reports / "store")
    listed = [row.record.run for row in runs_here.listed(sort="score")]
    for named in listed:
        others = (other for other in listed if other != named)
        print_described_run(runs_here.described(named), as_json=True)
        for other in others:
            compared = compare_runs(runs_here, named, other)
            print_filled("run_comparison", compared.summary(), as_json=True, it=compared)
    runs_here.usage()
    assert all(finding.text for finding in ledger_findings(reports, reports / "store"))
    jobs = [Job(kind, (Part("sst", Recipe()),), seed=1) for kind in KINDS]
    assert str(Estimate(Workspace("nano", None, reports / "store", reports)).total(jobs))
    for runs in (None, RUNS):
        with suppress(PipelineError):
            ensemble(find_task("sst"), "other", reports, runs=runs)
    with suppress(PipelineError):
        report("own", reports)


@fuzzed(st.lists(faults, min_size=1, max_size=3), texts)
def test_damaged_reports_are_used_or_refused(room: Any, stocked: Path, befallen: list[Fault], run: str) -> None:
    with room() as folder:
        reports = Path(shutil.copytree(stocked, folder / "reports"))
        for fault in befallen:
            fault.befall(reports)
        use(reports, run)


ODD_VALUES: list[tuple[tuple[str, ...], Any]] = [
    *((("cost", "seconds"), value) for value in (float("nan"), float("inf"), 1.7e308)),
    *((("scores", "sst", name), value) for name in ("rows", "train_rows") for value in (0, -1, 10**400)),
]


@pytest.mark.parametrize(("place", "value"), ODD_VALUES, ids=lambda value: str(value)[:40])
def test_a_record_with_one_odd_value_is_used_or_refused(
    place: tuple[str, ...], value: Any, room: Any, stocked: Path
) -> None:
    record = copy.deepcopy(SEQUENTIAL)
    holder = record
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    with room() as folder:
        reports = Path(shutil.copytree(stocked, folder / "reports"))
        (reports / "runs" / RUNS[0] / "run.json").write_bytes(as_bytes(record, "json"))
        use(reports, RUNS[0])


def tables_of(content: bytes) -> st.SearchStrategy[bytes]:
    """Predictions with a column that is another's, is missing or is of another type; or any bytes."""
    table = predictions(1)

    def changed(column: str, values: Any, drop: bool) -> bytes:
        buffer = io.BytesIO()
        (table.drop(columns=column) if drop else table.assign(**{column: values})).to_parquet(buffer, index=False)
        return buffer.getvalue()

    values = st.sampled_from([None, "a", 7, -1.5, float("nan"), float("inf"), b"x"]) | st.just(table["probability_0"])
    return st.builds(changed, st.sampled_from(list(table)), values, st.booleans()) | damaged_bytes(st.just(content))


@fuzzed(tables_of(PREDICTIONS), damaged_bytes(st.just(CURVE)), st.sampled_from(RUNS))
def test_predictions_and_curves_of_any_content_are_used_or_refused(
    room: Any, stocked: Path, table: bytes, curve: bytes, run: str
) -> None:
    with room() as folder:
        reports = Path(shutil.copytree(stocked, folder / "reports"))
        (reports / "runs" / run / "predictions.parquet").write_bytes(table)
        (reports / "runs" / run / "curve.csv").write_bytes(curve)
        use(reports, run)


@fuzzed(st.none() | records, json_files(StudyResult, STUDIES), json_files(EnsembleRecord, ENSEMBLES), texts)
def test_records_studies_and_ensembles_of_any_content_are_used_or_refused(
    room: Any, stocked: Path, record: bytes | None, study: bytes, ensemble: bytes, name: str
) -> None:
    with room() as folder:
        reports = Path(shutil.copytree(stocked, folder / "reports"))
        if record is not None:
            (reports / "runs" / RUNS[0] / "run.json").write_bytes(record)
        (reports / "own" / "study.json").write_bytes(study)
        (reports / "ensembles" / "best" / "ensemble.json").write_bytes(ensemble)
        use(reports, RUNS[0])
        with suppress(PipelineError):
            Ensembles(reports).named(name)
        with suppress(PipelineError):
            report(name, reports)


def made_checkpoint(file: Path, shape: tuple[int, ...], name: str) -> None:
    """A checkpoint of a layer, or of one with other names or shapes."""
    weights = {f"{name}weight": torch.zeros(shape), f"{name}bias": torch.zeros(shape[:1])}
    moments = {key: torch.zeros(shape) for key in ("exp_avg", "exp_avg_sq")} | {"step": torch.tensor(1.0)}
    progress = Progress(epoch=2, step=3, curve=[{"epoch": 1.0, "dev": 0.5}])
    best = {key: tensor.clone() for key, tensor in weights.items()}
    save_checkpoint(file, Checkpoint(progress, weights, best, {0: moments}, {}))


@fuzzed(
    st.data(),
    st.sampled_from([(2, 3), (3, 2), (2,), (0, 3), (2, 3, 1)]),
    st.sampled_from(["", "other."]),
    st.booleans(),
)
def test_a_checkpoint_of_any_content_is_resumed_or_left(
    room: Any, data: st.DataObject, shape: tuple[int, ...], name: str, damage: bool
) -> None:
    with room() as folder:
        file = folder / "checkpoint" / "state.safetensors"
        made_checkpoint(file, shape, name)
        if damage:
            file.write_bytes(data.draw(damaged_bytes(st.just(file.read_bytes()))))
        with suppress(PipelineError):
            load_checkpoint(file)
        with suppress(PipelineError):
            model = torch.nn.Linear(3, 2)
            optimizer = torch.optim.AdamW(model.parameters())
            resumed = Resumption(file, 60.0, model, model, optimizer, Accelerator(cpu=True))
            assert resumed.progress.step in (0, 3)
