"""A run is finished when its run.json stands complete, and not before; a damaged one is named."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import BaseModel

from pipeline.data.tables import write_table
from pipeline.records.ledger import Ledger, RunBusy
from pipeline.records.run_record import Cost, Parameters, RunRecord, TaskScore
from pipeline.records.store import SourceRun
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import clear_leftovers, leftovers, write_text
from pipeline.system.errors import PipelineError
from tests.processes import in_a_process, line_of

RUN = "0123456789ab"
TABLE = pd.DataFrame(
    {"id": ["b", "a"], "label": [1, 0], "prediction": [1, 1], "probability_0": [0.2, 0.4], "probability_1": [0.8, 0.6]}
)
PREDICTIONS = {"sst": TABLE}
CURVE = [{"epoch": 1.0, "loss": 0.7, "dev": 0.4}, {"epoch": 2.0, "loss": 0.5, "dev": 0.5}]


OWN = TaskScore(metric="accuracy", dev=0.5, rows=2, recipe=Recipe(epochs=2), pair=False, train_rows=10)


IDENTITY: dict[str, Any] = {
    "seed": 1,
    "tasks": {task: {"meaning": {}, "data": {"dev": "bb"}} for task in ("sst", "sts")},
    "backbone": {"weights": "dd"},
}


def record(run: str = RUN, **changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        "run": run,
        "kind": "adapter",
        "seed": 1,
        "identity": IDENTITY,
        "sources": (SourceRun(task="sts", run="ba9876543210", digest="cc"),),
        "backbone": "nano",
        "best_epoch": 2,
        "scores": {"sst": OWN},
        "cost": Cost(trainable_parameters=7, seconds=1.5, examples_per_second=10.0, peak_memory_mb=100.0),
        "parameters": Parameters(backbone=100, head=5, model=105),
        "provenance": {"commit": None, "python": "3"},
    }
    return RunRecord(**values | changes)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "reports")


def test_a_finished_run_is_found_with_all_that_was_written(ledger: Ledger) -> None:
    written = record()
    ledger.finish(written, CURVE, PREDICTIONS)
    assert ledger.find(RUN) == written
    pd.testing.assert_frame_equal(ledger.predictions(RUN), TABLE)
    curve = pd.read_csv(ledger.folder(RUN) / "curve.csv")
    assert curve.to_dict("records") == CURVE
    assert {file.name for file in ledger.folder(RUN).iterdir()} == {"curve.csv", "predictions.parquet", "run.json"}


def test_rows_that_only_score_stand_beside_those_that_chose(ledger: Ledger) -> None:
    both = pd.concat([TABLE.assign(split="dev"), TABLE[:1].assign(split="test")], ignore_index=True)
    score = OWN.model_copy(update={"test": 0.25, "test_rows": 1})
    written = record(scores={"sst": score})
    ledger.finish(written, CURVE, {"sst": both})
    assert (written.dev, written.value, score.value, score.scored_rows) == (0.5, 0.25, 0.25, 1)
    pd.testing.assert_frame_equal(ledger.predictions(RUN), TABLE[:1])
    pd.testing.assert_frame_equal(ledger.predictions(RUN, "sst", "dev"), TABLE)
    assert (OWN.value, OWN.scored_rows) == (0.5, 2)  # where dev is scored too
    ledger.finish(record("ba9876543210"), CURVE, PREDICTIONS)
    assert [len(ledger.predictions("ba9876543210", split=split)) for split in ("scored", "dev", "test")] == [2, 2, 0]


def test_a_run_of_several_tasks_has_scores_and_predictions_of_each(ledger: Ledger) -> None:
    other = TaskScore(metric="pearson", dev=0.8, rows=1, recipe=Recipe(), pair=True, train_rows=9)
    written = record(kind="multitask", scores={"sst": OWN, "sts": other})
    ledger.finish(written, CURVE, PREDICTIONS | {"sts": TABLE[:1]})
    assert ledger.find(RUN) == written
    assert written.trained_on == ("sst", "sts")
    assert [written.score(task) for task in ("sst", "sts")] == [OWN, other]
    assert [len(ledger.predictions(RUN, task)) for task in (None, "sst", "sts")] == [2, 2, 1]
    with pytest.raises(PipelineError, match=f"run {RUN} was not scored on task 'quora', only on sst, sts"):
        written.score("quora")


def test_attention_comes_back_as_it_was_whatever_a_task_is_called(ledger: Ledger) -> None:
    columns = ["layer", "site", "adapter", "weight"]
    attention = pd.DataFrame([(0, "attention", "null", 0.25), (0, "ffn", "nan", 0.75)], columns=columns)
    ledger.finish(record(kind="fusion"), CURVE, PREDICTIONS, attention=attention)
    pd.testing.assert_frame_equal(ledger.attention(RUN), attention)
    ledger.finish(record("ba9876543210"), CURVE, PREDICTIONS)
    assert ledger.attention("ba9876543210") is None


def test_a_run_that_was_never_made_is_not_found(ledger: Ledger) -> None:
    assert ledger.find(RUN) is None
    ledger.folder(RUN).mkdir(parents=True)
    assert ledger.find(RUN) is None


@pytest.mark.parametrize("name", ["", ".", "..", f"../runs/{RUN}", f"{RUN}/", "/etc", "a" * 300])
def test_a_path_is_not_the_name_of_a_run(name: str, ledger: Ledger) -> None:
    ledger.finish(record(), CURVE, PREDICTIONS)
    assert ledger.began(RUN)
    assert ledger.find(name) is None
    assert not ledger.began(name)


def test_a_run_is_unfinished_while_it_is_trained_or_where_it_left_something(ledger: Ledger) -> None:
    with ledger.lock(RUN):
        assert ledger.is_unfinished(RUN)
        write_text(ledger.checkpoint_file(RUN), "state")
    assert ledger.is_unfinished(RUN)
    ledger.finish(record(), CURVE, PREDICTIONS)
    assert not ledger.is_unfinished(RUN)
    (ledger.folder(RUN) / "run.json").unlink()  # what to do with a damaged one
    assert ledger.is_unfinished(RUN)


def test_a_command_that_was_refused_leaves_no_unfinished_run(ledger: Ledger) -> None:
    with pytest.raises(PipelineError, match="refused"), ledger.lock(RUN):
        write_text(ledger.checkpoint_file(RUN), "state")
        ledger.drop_checkpoint(RUN)
        raise PipelineError("refused")
    assert ledger.names() == [RUN]
    assert not ledger.is_unfinished(RUN)
    assert not ledger.is_unfinished("..")
    with ledger.lock(RUN):  # the refused one has given it up
        assert ledger.is_busy(RUN)


def test_the_newest_runs_are_listed(ledger: Ledger) -> None:
    for seconds, name in enumerate(("first", "second", "third")):
        ledger.folder(name).mkdir(parents=True)
        os.utime(ledger.folder(name), (seconds, seconds))
    assert ledger.newest(2) == ["third", "second"]


def source(task: str) -> SourceRun:
    return SourceRun(task=task, run=f"run of {task}", digest="cc")


@pytest.mark.parametrize(
    ("changes", "continued"),
    [
        ({}, []),
        ({"started_from": source("sst")}, ["sst"]),
        ({"identity": {**IDENTITY, "start": "in turn"}, "started_from": source("sts")}, ["sts", "quora"]),
        ({"kind": "fusion"}, ["sts", "quora"]),
        ({"kind": "fusion", "started_from": source("imdb")}, ["imdb", "sts", "quora"]),
    ],
    ids=["candidates alone", "one of them", "in turn", "fusion", "fusion, warm-started"],
)
def test_a_run_continues_what_it_started_as_and_reads_its_sources_but_no_candidates(
    changes: dict[str, Any], continued: list[str]
) -> None:
    made = record(sources=(source("sts"), source("quora")), **changes)
    assert [each.task for each in made.continued] == continued


def test_run_json_is_written_last(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.records.ledger.write_json", fail)
    ledger.checkpoint_file(RUN).parent.mkdir(parents=True)
    ledger.checkpoint_file(RUN).write_bytes(b"state")
    with pytest.raises(KeyboardInterrupt):
        ledger.finish(record(), CURVE, PREDICTIONS)
    assert ledger.find(RUN) is None
    assert len(ledger.predictions(RUN)) == 2
    # The run can still be resumed.
    assert ledger.checkpoint_file(RUN).read_bytes() == b"state"


@pytest.mark.parametrize("written", range(3))
def test_a_run_that_is_made_again_is_never_half_the_old_one(
    written: int, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.finish(record(), CURVE, PREDICTIONS)
    tables = iter([write_table] * written)

    def interrupted(table: pd.DataFrame, file: Path) -> None:
        if (write := next(tables, None)) is None:
            raise KeyboardInterrupt
        write(table, file)

    monkeypatch.setattr("pipeline.records.ledger.write_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ledger.finish(record(), CURVE[:1], {"sst": TABLE[:1]}, pd.DataFrame({"layer": [0], "weight": [1.0]}))
    assert ledger.find(RUN) is None


def test_finishing_drops_the_checkpoint_and_replaces_an_older_result(ledger: Ledger) -> None:
    ledger.finish(record(), CURVE, PREDICTIONS)
    ledger.checkpoint_file(RUN).parent.mkdir()
    ledger.checkpoint_file(RUN).write_bytes(b"state")
    ledger.finish(record(scores={"sst": OWN.model_copy(update={"dev": 0.75})}), CURVE[:1], {"sst": TABLE[:1]})
    assert not ledger.checkpoint_file(RUN).parent.exists()
    found = ledger.find(RUN)
    assert (found.dev, len(ledger.predictions(RUN))) == (0.75, 1)


def test_a_run_whose_checkpoint_is_dropped_keeps_what_it_finished_before(ledger: Ledger) -> None:
    ledger.finish(record(), CURVE, PREDICTIONS)
    ledger.checkpoint_file(RUN).parent.mkdir()
    ledger.checkpoint_file(RUN).write_bytes(b"state")
    ledger.drop_checkpoint(RUN)
    assert not ledger.checkpoint_file(RUN).parent.exists()
    assert ledger.find(RUN) == record(finished_at=ledger.find(RUN).finished_at)
    ledger.drop_checkpoint(RUN)
    ledger.drop_checkpoint("never made")
    assert not ledger.folder("never made").exists()


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and no more"])
def test_predictions_that_cannot_be_read_are_named(content: bytes | None, ledger: Ledger) -> None:
    ledger.finish(record(), CURVE, PREDICTIONS)
    file = ledger.folder(RUN) / "predictions.parquet"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PipelineError, match=r"predictions\.parquet: (cannot be read|no such file).*--force"):
        ledger.predictions(RUN)


@contextmanager
def held_elsewhere(reports: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the lock of ``RUN`` and is writing its checkpoint and weights."""
    code = """
from pipeline.system.atomic import new_file
from pipeline.records.ledger import Ledger
ledger, (run,) = Ledger(ROOT), ARGUMENTS
with ledger.lock(run), new_file(ledger.checkpoint_file(run)), new_file(ledger.weights_file(run)):
    print("held", flush=True)
    sys.stdin.read()
"""
    with in_a_process(code, reports, RUN) as process:
        assert line_of(process) == "held"
        yield process


def test_a_killed_process_gives_up_its_lock_and_what_it_left_is_cleared(ledger: Ledger, tmp_path: Path) -> None:
    folder = ledger.folder(RUN)
    with held_elsewhere(tmp_path / "reports") as process:
        assert ledger.is_busy(RUN)
        with pytest.raises(RunBusy, match=f"run {RUN} is being trained by another process"), ledger.lock(RUN):
            pytest.fail("two holders")
        with ledger.lock("ba9876543210"):  # of another run
            pass
        clear_leftovers(folder)
        assert len(list(folder.rglob(".*.tmp"))) == 2
        process.kill()
        process.wait()
        assert not ledger.is_busy(RUN)
        assert len(list(folder.rglob(".*.tmp"))) == 2
    with ledger.lock(RUN):
        assert ledger.is_busy(RUN)
    assert sorted(path.name for path in folder.rglob("*")) == [".lock", "checkpoint"]


def test_the_next_command_may_wait_for_a_run(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.finish(record(), CURVE, PREDICTIONS)
    score = TaskScore(metric="pearson", dev=0.8, rows=1)
    with held_elsewhere(tmp_path / "reports") as process, ThreadPoolExecutor() as threads:
        added = threads.submit(ledger.add_scores, record(), {"sts": (score, TABLE)})
        while "waiting for another process" not in capsys.readouterr().err:
            time.sleep(0.01)
        assert not added.done()
        # What the other process adds meanwhile stays.
        ledger.finish(record(scores={"sst": OWN, "quora": score}), CURVE, PREDICTIONS | {"quora": TABLE})
        process.kill()
        assert set(added.result(timeout=10).scores) == {"quora", "sst", "sts"}
    assert set(ledger.find(RUN).scores) == {"quora", "sst", "sts"}


def test_scores_that_come_late_do_not_bring_a_removed_run_back(ledger: Ledger) -> None:
    ledger.finish(record(), CURVE, PREDICTIONS)
    ledger.remove(RUN)
    score = TaskScore(metric="pearson", dev=0.8, rows=1)
    assert set(ledger.add_scores(record(), {"sts": (score, TABLE)}).scores) == {"sst", "sts"}
    assert ledger.find(RUN) is None
    assert ledger.files(RUN) == []


def test_what_a_removal_that_was_killed_left_is_no_run(ledger: Ledger, tmp_path: Path) -> None:
    ledger.finish(record(), CURVE, PREDICTIONS)
    code = """
import shutil
from pipeline.records.ledger import Ledger
shutil.rmtree = lambda folder, **_: os.kill(os.getpid(), signal.SIGKILL)
Ledger(ROOT).remove(ARGUMENTS[0])
"""
    with in_a_process(code, tmp_path / "reports", RUN) as process:
        assert process.wait() == -signal.SIGKILL
    (left,) = ledger.root.iterdir()
    assert left in leftovers(tmp_path)
    assert (ledger.began(RUN), ledger.records()) == (False, ({}, {}))


@pytest.mark.parametrize("changes", [{"scores": {}}, {"identity": {"tasks": {}}}], ids=str)
def test_a_record_without_the_tasks_that_it_trained_on_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="trained on"):
        record(**changes)


@pytest.mark.parametrize(
    ("model", "name", "value"),
    [
        *((Cost, name, value)
          for name in ("seconds", "examples_per_second", "peak_memory_mb")
          for value in (-1.0, float("nan"), float("inf"), 1e300)),
        *((TaskScore, name, value) for name in ("rows", "train_rows", "test_rows") for value in (-1, 10**400)),
        (Cost, "trainable_parameters", -1),
        (Parameters, "backbone", 10**400),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_that_no_run_has_are_refused(model: type[BaseModel], name: str, value: float) -> None:
    whole = {Cost: record().cost, TaskScore: OWN, Parameters: Parameters(backbone=1, head=1, model=2)}[
        model
    ].model_dump()
    with pytest.raises(ValueError, match=name):
        model.model_validate(whole | {name: value})


def test_the_backbone_and_the_sources_of_a_record_are_those_of_its_identity() -> None:
    sources = [{"task": "sst", "digest": "cc"}]
    assert record().backbone_weights == "dd"
    assert (record().chosen_from, record(identity=IDENTITY | {"sources": sources}).chosen_from) == ([], sources)
    tasks = {"members": [RUN], "tasks": IDENTITY["tasks"]}
    assert record(kind="ensemble", identity=tasks).backbone_weights is None
