"""The rows that a model and its sources have seen: kept with the model, told, and left out of its score."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.cli.printing import print_evaluation
from pipeline.data.split import row_hashes
from pipeline.data.tasks import Extra, NewTask
from pipeline.records.run_record import RunRecord
from pipeline.records.store import SEEN
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import ScoredRows
from pipeline.system.errors import PipelineError
from stages.archives import export_artifact, import_artifacts
from stages.ensemble import ensemble
from stages.evaluate import Evaluation, evaluate
from stages.extract import extract
from stages.fuse import fuse
from stages.new_task import new_task
from stages.prune import prune
from tests.runs import joint_run, single_run

Quick = Callable[..., Recipe]
once = pytest.mark.usefixtures("trained_once")
TASK = """name = "{name}"
kind = "classes"
text = ["sentence"]
label = "label"
classes = ["bad", "good"]
metric = "accuracy"
"""
SHARED = {"dev": 12, "test": 7}
"""How many of the 40 rows of each split of the target also occur in train of the source."""


def rows_of(kind: str, count: int) -> pd.DataFrame:
    texts = [f"{kind} {number} is {'good' if number % 2 else 'bad'}" for number in range(count)]
    return pd.DataFrame({"sentence": texts, "label": [number % 2 for number in range(count)]})


@pytest.fixture
def place(workspace: Workspace, tmp_path: Path) -> Workspace:
    """A target and a source that shares rows of its dev and test: in other case, and behind 60 rows of its own."""
    splits = {
        "target": {"train": rows_of("train", 40), "dev": rows_of("dev", 40), "test": rows_of("test", 40)},
        "source": {"dev": rows_of("other dev", 20)},
        "other": {"train": rows_of("more", 30), "dev": rows_of("more dev", 20)},
    }
    shared = [splits["target"][split].head(count) for split, count in SHARED.items()]
    shared = [rows.assign(sentence=rows["sentence"].str.upper() + "!") for rows in shared]
    splits["source"]["train"] = pd.concat([rows_of("other", 60), *shared])
    for name, parts in splits.items():
        save_task(tmp_path / "tables" / name, parts)
    return dataclasses.replace(workspace, data=tmp_path / "tables")


def save_task(folder: Path, parts: dict[str, pd.DataFrame]) -> None:
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(TASK.format(name=folder.name))
    for split, rows in parts.items():
        rows.to_csv(folder / f"{split}.csv", index=False)


def begin_as(monkeypatch: pytest.MonkeyPatch, task: str | None) -> None:
    """Probes prefer the adapter of ``task``."""

    def choose(chooser: Any) -> Any:
        return next((adapter for adapter in chooser.request.adapters if adapter.manifest.task == task), None)

    monkeypatch.setattr("pipeline.runs.initial.Chooser.choose_start", choose)


def seen(found: Evaluation) -> tuple[int, int | None, int | None, dict[str, int | None]]:
    return found.seen, found.trained_on, found.selected_on, found.seen_by_sources


def fusion(place: Workspace, quick: Quick, sources: str = "source", **settings: Any) -> RunRecord:
    return fuse("target", quick("fusion", epochs=1, **settings), place, seed=0, sources=sources).record


def _fused(place: Workspace, quick: Quick) -> str:
    return fusion(place, quick).run


def _warm_fusion(place: Workspace, quick: Quick) -> str:
    return fusion(place, quick, own_adapter="warm").run


def _gated_away(place: Workspace, quick: Quick) -> str:
    """The target's adapter starts as the source's, which the gates leave out of the fusion."""
    extract("other", quick("adapter", epochs=1), place, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        begin_as(patch, "source")
        patch.setattr("pipeline.runs.initial.Chooser.choose_gates", lambda *_: {"other": 0.5})
        record = fusion(place, quick, "source,other", fusion="gated", own_adapter="warm", gate_start="probe")
    assert [each.task for each in record.sources] == ["other"]
    return record.run


def _warm_adapter(place: Workspace, quick: Quick) -> str:
    with pytest.MonkeyPatch.context() as patch:
        begin_as(patch, "source")
        return extract("target", quick("adapter", epochs=1), place, seed=0, start_from="best").record.run


def _given_rows(place: Workspace, quick: Quick) -> str:
    """A source that was given rows of another task."""
    extract("other", quick("adapter", epochs=1, extra=(Extra(task="source"),)), place, seed=0)
    return fusion(place, quick, "other").run


def _joint(place: Workspace, quick: Quick) -> str:
    tasks = ("source", "target")
    recipes = dict.fromkeys(tasks, quick("full", epochs=1))
    return joint_run(place, tasks, recipes, limits=dict.fromkeys(tasks), seed=0, keep_weights=True).get().run


def _in_turn(place: Workspace, quick: Quick) -> str:
    first = single_run(place, "full", "source", quick("full", epochs=1), 0).get()
    recipe = quick("full", epochs=1)
    return single_run(place, "sequential", "target", recipe, 0, start=first, keep_weights=True).get().run


def _pruned(place: Workspace, quick: Quick) -> str:
    """What is left out of a fusion has shaped the rest of it."""
    extract("other", quick("adapter", epochs=1), place, seed=0)
    fusion(place, quick, "source,other", fusion="gated", gate_start="even")
    return prune("target", place, keep=1).record.run


def _ensemble(place: Workspace, quick: Quick) -> str:
    runs = [_fused(place, quick), extract("target", quick("adapter", epochs=1), place, seed=1).record.run]
    ensemble(place.task("target"), "both", place.reports, runs=runs, rule="mode")
    return "ensemble:both"


@once
@pytest.mark.parametrize(
    "build", [_fused, _warm_fusion, _gated_away, _warm_adapter, _given_rows, _joint, _in_turn, _pruned, _ensemble]
)
def test_rows_of_all_sources_are_left_out_whatever_became_of_these(
    build: Callable[[Workspace, Quick], str], place: Workspace, quick: Quick
) -> None:
    source = extract("source", quick("adapter", epochs=1), place, seed=0).record
    using = build(place, quick)
    shutil.rmtree(place.ledger.folder(source.run))
    if build in (_gated_away, _warm_adapter, _joint, _in_turn):  # the others read the source's adapter
        place.store.remove(source.run, force=True)
    shutil.rmtree(place.data / "source")
    there = dataclasses.replace(place)
    for split, count in SHARED.items():
        found = evaluate("target", there, using=using, split=split)
        selected = 40 if split == "dev" else 0
        others = {} if build in (_fused, _warm_fusion, _warm_adapter, _joint, _in_turn, _ensemble) else {"other": 0}
        assert seen(found) == (count, 0, selected, {"source": count, **others})
        assert (found.rows, found.selecting) == (40 - count, 40 - count if selected else 0)
        unseen = place.data / "unseen.csv"
        pd.read_csv(place.data / "target" / f"{split}.csv").iloc[count:].to_csv(unseen, index=False)
        if split == "test":
            assert evaluate("target", there, using=using, input_file=unseen).score == pytest.approx(found.score)


@pytest.mark.parametrize("start", ["source", None])
def test_of_the_adapters_that_one_may_start_as_only_the_chosen_one_counts(
    start: str | None,
    place: Workspace,
    quick: Quick,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = quick("adapter", epochs=1)
    extract("source", recipe, place, seed=0)
    begin_as(monkeypatch, start)
    capsys.readouterr()
    record = extract("target", recipe, place, seed=0, start_from="best").record
    assert ("; then name it: --start-from source@RUN\n" in capsys.readouterr().err) == (start is not None)
    assert evaluate("target", place, using=record.run).seen_by_sources == ({} if start is None else {"source": 12})


def test_the_command_that_trains_tells_what_the_sources_have_seen(
    place: Workspace, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    extract("source", quick("adapter", epochs=1), place, seed=0)
    capsys.readouterr()
    record = fusion(place, quick)
    note = capsys.readouterr().err
    assert "12 of 40 rows of dev and 7 of 40 rows of test of target" in note
    assert "extract --task source --without-rows-of target" in note and "--sources source@RUN\n" in note
    print_evaluation(evaluate("target", place, using=record.run, split="test"), as_json=False)
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("7 of 40 rows are left out") and "accuracy" in second
    fusion(dataclasses.replace(place, is_study=True), quick, own_adapter="warm")
    assert "rows of dev and" not in capsys.readouterr().err


@once
def test_rows_that_a_source_left_out_do_not_count(place: Workspace, quick: Quick) -> None:
    recipe = quick("adapter", epochs=1)
    assert evaluate("target", place, using=fusion(place, quick).run).seen == 0  # fuse trains its sources without them
    apart = extract("source", recipe, place, seed=1, without_rows_of=["target"]).record
    assert apart.own.train_rows == 60
    record = fusion(place, quick, f"source@{apart.run}")
    assert evaluate("target", place, using=record.run).seen_by_sources == {"source": 0}


@once
def test_of_a_sample_only_the_rows_that_were_drawn_count(place: Workspace, quick: Quick) -> None:
    extract("source", quick("adapter", epochs=1), place, seed=2, limit=20)
    found = evaluate("target", place, using=fusion(place, quick).run)
    drawn = set(place.splits.of(place.task("source"), 20, 2).train["text_a"].str.lower())
    expected = sum(f"dev {number} is {'good' if number % 2 else 'bad'}!" in drawn for number in range(40))
    assert 0 < expected < SHARED["dev"]
    assert seen(found) == (expected, 0, 40, {"source": expected})


@once
def test_rows_of_the_target_that_its_own_adapter_was_trained_on_count_as_the_models(
    place: Workspace, quick: Quick
) -> None:
    for task in ("target", "source"):
        extract(task, quick("adapter", epochs=1), place, seed=0)
    recipe = quick("fusion", fusion="standard", epochs=1)
    record = fuse("target", recipe, place, seed=0, sources="source,target", limit=12).record
    both = pd.concat([rows_of("train", 40), rows_of("new", 30)])
    both.to_csv(file := place.data / "both.csv", index=False)
    assert seen(evaluate("target", place, using=record.run, input_file=file)) == (40, 40, 0, {"source": 0})
    with pytest.raises(PipelineError, match="40 of these 40 rows"):
        evaluate("target", place, using=record.run, input_file=place.data / "target" / "train.csv")


@once
@pytest.mark.parametrize("limit", [40, None])
@pytest.mark.parametrize("scoring", ["half", "train", "held-out"])
def test_a_model_of_a_study_knows_which_rows_trained_and_selected_it(
    scoring: Any, limit: int | None, place: Workspace, quick: Quick
) -> None:
    rows_of("train", 96).to_csv(place.data / "target" / "train.csv", index=False)
    there = dataclasses.replace(place, scoring=ScoredRows(rows=scoring, size=30))
    recipe = quick("adapter", epochs=1, permute_labels=scoring == "half")
    record = extract("target", recipe, there, seed=0, limit=limit).record
    selected = evaluate("target", place, using=record.run).selected_on
    assert selected == {"half": 20, "train": 0, "held-out": 40}[scoring]
    both = pd.concat([rows_of("train", 96), rows_of("new", 30)])
    both.to_csv(file := place.data / "both.csv", index=False)
    found = evaluate("target", place, using=record.run, input_file=file)
    in_train = record.own.rows if scoring == "train" else 0
    assert seen(found)[:3] == (record.own.train_rows + in_train, record.own.train_rows, in_train)


def test_a_model_that_is_trained_again_on_more_rows_leaves_its_old_ones_out_of_the_new_test(
    workspace: Workspace, quick: Quick, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With 50 rows more, the splits are drawn anew, and rows that the old model was trained on come to be test rows."""
    file, there = tmp_path / "mails.csv", dataclasses.replace(workspace, data=tmp_path / "data")
    rows = rows_of("mail", 200)
    for table in (rows, pd.concat([rows, rows_of("letter", 50)])):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        table.to_csv(file, index=False)
        new_task(file, tmp_path / "data", NewTask(split="60/10/30"))
        if table is rows:
            record = extract("mails", quick("adapter", epochs=1), there, seed=0).record
            used = [pd.read_csv(tmp_path / "data" / "mails" / f"{split}.csv") for split in ("train", "dev")]
    there = dataclasses.replace(there)
    test = pd.read_csv(tmp_path / "data" / "mails" / "test.csv")
    trained, selected = (int(test["sentence"].isin(part["sentence"]).sum()) for part in used)
    assert trained > 0 and selected > 0
    found = evaluate("mails", there, using=record.run, split="test")
    assert seen(found) == (trained + selected, trained, selected, {})
    assert found.rows == len(test) - trained - selected
    print_evaluation(found, as_json=False)
    told = capsys.readouterr().out.splitlines()
    assert f"{trained + selected} of {len(test)} rows are left out" in told[0] and "accuracy" in told[1]


@once
def test_the_rows_travel_with_an_artifact_and_are_no_part_of_its_digest(
    place: Workspace, quick: Quick, tmp_path: Path
) -> None:
    extract("source", quick("adapter", epochs=1), place, seed=0)
    record = fusion(place, quick)
    export_artifact(place.store, record.run, tmp_path / "fusion.zip")
    there = dataclasses.replace(place, store_root=tmp_path / "elsewhere", reports=tmp_path / "no-reports")
    imported = import_artifacts(there.store, tmp_path / "fusion.zip").added[-1].manifest
    assert imported.digest == record.artifact_digest
    assert imported.model_copy(update={"files": {**imported.files, SEEN: "0" * 64}}).digest == imported.digest
    assert seen(evaluate("target", there, using=record.run, split="test")) == (7, 0, 0, {"source": 7})


@pytest.mark.parametrize("older", ["source", "target"])
def test_of_a_model_without_hashes_it_is_said_that_overlap_is_unknown(
    older: str, place: Workspace, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    source = extract("source", quick("adapter", epochs=1), place, seed=0).record
    if older == "source":
        (Path(source.artifact or "") / SEEN).unlink()
        forget(place, source.run)
    record = fusion(dataclasses.replace(place), quick)
    if older == "target":
        forget(place, record.run)
    there = dataclasses.replace(place)
    found = evaluate("target", there, using=record.run, split="test")
    known = (0, 0, 0, {"source": None}) if older == "source" else (0, None, None, {})
    assert (seen(found), found.rows) == (known, 40)
    capsys.readouterr()
    print_evaluation(found, as_json=False)
    told = capsys.readouterr().out.splitlines()
    assert f"which rows of {older} the model was trained on is unknown" in told[0] and "accuracy" in told[1]


def forget(place: Workspace, run: str) -> None:
    """Make an artifact one that keeps no hashes."""
    artifact = place.store.find(run)
    (artifact.folder / SEEN).unlink(missing_ok=True)
    files = {name: value for name, value in artifact.manifest.files.items() if name != SEEN}
    text = artifact.manifest.model_copy(update={"files": files}).model_dump_json()
    (artifact.folder / "manifest.json").write_text(text)


def test_equal_texts_have_equal_hashes_and_others_do_not() -> None:
    one = row_hashes(pd.DataFrame({"text_a": ["A b.", "c"], "text_b": ["d", "E"]}))
    other = row_hashes(pd.DataFrame({"text_a": ["D", "ce"], "text_b": ["ab!", ""]}))
    assert one[0] == other[0]
    assert one[1] != other[1] and row_hashes(pd.DataFrame({"text_a": ["ab"]}))[0] != one[0]
