"""Which rows of a target its sources were trained on: counted, told, and left out where that is asked for."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.cli.printing import print_evaluation
from pipeline.data.load import load_all_rows
from pipeline.data.tasks.extra import Extra
from pipeline.records.run_record import RunRecord
from pipeline.records.store import SourceRun
from pipeline.runs.seen import Gaps, seen_notes, sources_seen
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.evaluate import evaluate
from stages.extract import extract
from stages.fuse import fuse
from stages.prune import prune
from tests.runs import joint_run

Quick = Callable[..., Recipe]
TASK = """name = "{name}"
kind = "classes"
text = ["sentence"]
label = "label"
classes = ["bad", "good"]
metric = "accuracy"
"""
SHARED = {"dev": 12, "test": 7}
"""How many of the 20 rows of each split of the target also occur in train of the source."""


def rows_of(kind: str, count: int) -> pd.DataFrame:
    texts = [f"{kind} {number} is {'good' if number % 2 else 'bad'}" for number in range(count)]
    return pd.DataFrame({"sentence": texts, "label": [number % 2 for number in range(count)]})


@pytest.fixture
def place(workspace: Workspace, tmp_path: Path) -> Workspace:
    """A target and a source that shares rows of its dev and test: in other case, and behind 60 rows of its own."""
    splits = {
        "target": {"train": rows_of("train", 40), "dev": rows_of("dev", 20), "test": rows_of("test", 20)},
        "source": {"dev": rows_of("other dev", 20)},
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

    def choose(adapters: Any, *_: Any) -> Any:
        return next((adapter for adapter in adapters if adapter.manifest.task == task), None)

    monkeypatch.setattr("pipeline.runs.initial.choose_start", choose)


def as_older(record: RunRecord, place: Workspace) -> None:
    """Make the record one that does not name the adapter that the run started as."""
    file = place.ledger.folder(record.run) / "run.json"
    values = json.loads(file.read_text())
    del values["started_from"]
    file.write_text(json.dumps(values))


def seen_by(record: RunRecord, place: Workspace, split: str) -> np.ndarray | None:
    assert place.data is not None
    rows = pd.read_csv(place.data / "target" / f"{split}.csv").rename(columns={"sentence": "text_a"})
    (seen,) = sources_seen(rows, record.sources, place, place.task("target"), Gaps()).values()
    return seen


def test_a_fusion_knows_which_rows_its_source_was_trained_on(
    place: Workspace, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    extract("source", quick("adapter", epochs=1), place, seed=0)
    capsys.readouterr()
    record = fuse("target", quick("fusion", epochs=1), place, seed=0, sources="source").record
    note = capsys.readouterr().err
    assert "12 of 20 rows of dev and 7 of 20 rows of test of target also occur in the tr" in note
    assert "extract --task source --without-rows-of target trains an adapter without them" in note
    assert "; then name it: --sources source@RUN\n" in note
    for split, count in SHARED.items():
        seen = seen_by(record, place, split)
        assert seen is not None
        assert seen.tolist() == [True] * count + [False] * (20 - count)
        found = evaluate("target", place, using="fusion", split=split)  # type: ignore[arg-type]
        assert (found.trained_on, found.sources_trained_on) == (0, {"source": count})
        print_evaluation(found, as_json=False)
        told = capsys.readouterr().out
        assert f"rows with a text in the training rows of source: {count} of 20\n" in told


def test_of_a_sample_only_the_rows_that_were_drawn_count(place: Workspace, quick: Quick) -> None:
    source = extract("source", quick("adapter", epochs=1), place, seed=2, limit=20).record
    record = fuse("target", quick("fusion", epochs=1), place, seed=0, sources="source").record
    drawn = set(place.splits.of(place.task("source"), 20, 2).train["text_a"].str.lower())
    seen = seen_by(record, place, "dev")
    assert seen is not None
    assert seen.sum() == sum(f"dev {number} is {'good' if number % 2 else 'bad'}!" in drawn for number in range(20))
    assert 0 < seen.sum() < SHARED["dev"]
    # What the store alone tells is the same.
    (place.ledger.folder(source.run) / "run.json").unlink()
    alone = dataclasses.replace(place)
    assert np.array_equal(seen_by(record, alone, "dev"), seen)  # type: ignore[arg-type]


def test_what_fuse_trains_first_leaves_them_out(
    place: Workspace, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    record = fuse("target", quick("fusion", epochs=1), place, seed=0, sources="source").record
    told = capsys.readouterr().err
    assert "source: 19 training rows that also occur in dev or test of target are left out" in told
    assert "rows of dev and" not in told
    found = evaluate("target", place, using=record.run, split="test")
    assert found.sources_trained_on == {"source": 0}
    print_evaluation(found, as_json=False)
    assert "rows with a text in the training rows of the other tasks (source): 0 of 20\n" in capsys.readouterr().out


def test_extract_leaves_them_out_where_that_is_asked_for(place: Workspace, quick: Quick) -> None:
    recipe = quick("adapter", epochs=1)
    apart = extract("source", recipe, place, seed=0, without_rows_of=["target"]).record
    assert (apart.own.train_rows, extract("source", recipe, place, seed=0).record.own.train_rows) == (60, 79)
    # Where no row is shared, it is the same run.
    plain = extract("target", recipe, place, seed=0).record
    assert extract("target", recipe, place, seed=0, without_rows_of=["source", "target"]).record.run == plain.run
    record = fuse("target", quick("fusion", epochs=1), place, seed=0, sources=f"source@{apart.run}").record
    assert evaluate("target", place, using=record.run).sources_trained_on == {"source": 0}


@pytest.mark.parametrize("apart", [(), ("target",)], ids=["all rows", "apart from the target's"])
def test_rows_of_a_source_that_dropped_those_of_its_own_dev_are_known(
    apart: tuple[str, ...], place: Workspace, quick: Quick
) -> None:
    assert place.data is not None
    file = place.data / "source" / "train.csv"
    pd.concat([pd.read_csv(file), rows_of("other dev", 4)]).to_csv(file, index=False)
    dropping = dataclasses.replace(place, drop_overlap=True)
    source = extract("source", quick("adapter", epochs=1), dropping, seed=0, without_rows_of=apart).record
    assert source.own.train_rows == (60 if apart else 79)
    record = fuse("target", quick("fusion", epochs=1), place, seed=0, sources=f"source@{source.run}").record
    seen = seen_by(record, place, "dev")
    assert seen is not None and seen.sum() == (0 if apart else SHARED["dev"])


def test_what_a_source_was_warm_started_from_counts_too(place: Workspace, quick: Quick) -> None:
    recipe = quick("adapter", epochs=1)
    extract("source", recipe, place, seed=0)
    record = fuse("target", quick("fusion", epochs=1, own_adapter="warm"), place, seed=0, sources="source").record
    assert evaluate("target", place, using=record.run).sources_trained_on == {"source": 12}


@pytest.mark.parametrize("change", ["", "without a record", "other rows", "gone"])
def test_rows_that_a_source_was_given_from_another_task_count_too(
    change: str, place: Workspace, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.data is not None
    save_task(place.data / "wide", {"train": rows_of("more", 30), "dev": rows_of("more dev", 20)})
    recipe = quick("adapter", epochs=1, extra=(Extra(task="source"),))
    wide = extract("wide", recipe, place, seed=0).record
    file = place.data / "source" / "train.csv"
    if change == "without a record":
        (place.ledger.folder(wide.run) / "run.json").unlink()
    elif change == "other rows":
        pd.read_csv(file).iloc[1:].to_csv(file, index=False)
    elif change == "gone":
        file.unlink()
    there, known = dataclasses.replace(place), change in ("", "without a record")
    capsys.readouterr()
    record = fuse("target", quick("fusion", epochs=1), there, seed=0, sources="wide").record
    assert ("12 of 20 rows of dev and 7 of 20 rows of test of target" in capsys.readouterr().err) == known
    assert evaluate("target", there, using=record.run).sources_trained_on == {"wide": 12 if known else None}


@pytest.mark.parametrize("older", [False, True], ids=["", "older record"])
def test_the_source_that_the_own_adapter_began_as_counts_where_the_gates_leave_it_out(
    older: bool, place: Workspace, quick: Quick, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.data is not None
    save_task(place.data / "other", {"train": rows_of("more", 30), "dev": rows_of("more dev", 20)})
    recipe = quick("adapter", epochs=1)
    source = extract("source", recipe, place, seed=0).record
    extract("other", recipe, place, seed=0)
    begin_as(monkeypatch, "source")
    monkeypatch.setattr("pipeline.runs.initial.choose_gates", lambda *_: {"other": 0.5})
    warm = quick("fusion", epochs=1, fusion="gated", own_adapter="warm", gate_start="probe")
    capsys.readouterr()
    record = fuse("target", warm, place, seed=0, sources="source,other").record
    assert "12 of 20 rows of dev and 7 of 20 rows of test of target also occur in the tr" in capsys.readouterr().err
    assert [each.task for each in record.sources] == ["other"]
    assert record.started_from is not None
    assert (record.started_from.run, record.started_from.digest) == (source.run, source.artifact_digest)
    if older:
        as_older(record, place)
    again = dataclasses.replace(place)
    assert evaluate("target", again, using=record.run).sources_trained_on == {"other": 0, "source": 12}
    if older:  # without the adapter, nothing tells which of its task it was
        folder = place.store.root / "adapters" / "source"
        folder.rename(place.store.root / "elsewhere")
        seen = evaluate("target", dataclasses.replace(place), using=record.run, split="test").sources_trained_on
        assert seen == {"other": 0, "source": None}


@pytest.mark.parametrize("older", [False, True], ids=["", "older record"])
@pytest.mark.parametrize("start", ["source", None])
def test_of_the_adapters_that_one_may_start_as_only_the_chosen_one_counts(
    start: str | None,
    older: bool,
    place: Workspace,
    quick: Quick,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = quick("adapter", epochs=1)
    source = extract("source", recipe, place, seed=0).record
    begin_as(monkeypatch, start)
    capsys.readouterr()
    record = extract("target", recipe, place, seed=0, start_from="best").record
    note = capsys.readouterr().err
    assert ("also occur in the training rows of its source" in note) == (start is not None)
    assert ("; then name it: --start-from source@RUN\n" in note) == (start is not None)
    assert [each.run for each in record.sources] == [source.run]
    if older:
        as_older(record, place)
    found = evaluate("target", dataclasses.replace(place), using=record.run)
    assert found.sources_trained_on == ({} if start is None else {"source": 12})


@pytest.mark.parametrize("apart", [(), ("third",), ("target",)], ids=str)
def test_a_warm_start_tells_what_its_source_has_seen_whatever_rows_it_leaves_out_itself(
    apart: tuple[str, ...],
    place: Workspace,
    quick: Quick,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a source that left out this target's rows, or that a study trained, is not spoken of."""
    assert place.data is not None
    save_task(place.data / "third", {"train": rows_of("more", 30), "dev": rows_of("train", 4)})
    recipe, from_source = quick("adapter", epochs=1), {"start_from": "source", "without_rows_of": ["third"]}
    extract("source", recipe, place, seed=0, without_rows_of=apart)
    begin_as(monkeypatch, "source")
    for is_study in (True, False):
        there = dataclasses.replace(place, is_study=is_study)
        capsys.readouterr()
        assert extract("target", recipe, there, seed=0, force=True, **from_source).record.own.train_rows == 36
        said = "12 of 20 rows of dev and 7 of 20 rows of test of target also occur in the tr" in capsys.readouterr().err
        assert said == (apart != ("target",) and not is_study)


def test_rows_that_a_source_left_out_for_other_targets_are_known(place: Workspace, quick: Quick) -> None:
    """A study holds out the rows of all its targets; a record says of which task."""
    assert place.data is not None
    save_task(place.data / "third", {"train": rows_of("more", 30), "dev": rows_of("other", 20)})
    source = extract("source", quick("adapter", epochs=1), place, seed=0, without_rows_of=["target", "third"]).record
    assert (source.own.train_rows, source.own.dropped) == (40, {"target": 19, "third": 20})
    record = fuse("target", quick("fusion", epochs=1), place, seed=0, sources=f"source@{source.run}").record
    assert evaluate("target", dataclasses.replace(place), using=record.run).sources_trained_on == {"source": 0}
    own = evaluate("source", dataclasses.replace(place), using=source.run)
    assert (own.trained_on, own.chosen_on) == (0, 20)
    train = place.data / "source" / "train.csv"
    assert evaluate("source", dataclasses.replace(place), using=source.run, input_file=train).trained_on == 40


@pytest.mark.parametrize("change", ["a row more", "none shared now", "gone"])
def test_of_other_data_nothing_is_claimed(
    change: str, place: Workspace, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    extract("source", quick("adapter", epochs=1), place, seed=0)
    assert place.data is not None
    file = place.data / "source/train.csv"
    rows = pd.read_csv(file)
    if change == "gone":
        file.unlink()
    else:
        rows = pd.concat([rows, rows_of("more", 2)]) if change == "a row more" else rows.head(60)
        rows.to_csv(file, index=False)
    capsys.readouterr()
    record = fuse("target", quick("fusion", epochs=1), dataclasses.replace(place), seed=0, sources="source").record
    assert "also occur in the training rows" not in capsys.readouterr().err
    found = evaluate("target", dataclasses.replace(place), using=record.run)
    assert (found.sources_trained_on, found.trained_on) == ({"source": None}, 0)
    assert found.changed == (() if change == "gone" else ("source",))
    print_evaluation(found, as_json=False)
    why = "" if change == "gone" else ": the data of source have changed since, or were divided otherwise"
    told = f"rows with a text in the training rows of source: how many cannot be known{why}\n"
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(("store", "known"), [("store", 12), ("other", None)], ids=["in the store", "nowhere else"])
def test_a_damaged_record_of_a_source_is_named_and_the_store_asked(
    store: str, known: int | None, place: Workspace, quick: Quick
) -> None:
    source = extract("source", quick("adapter", epochs=1), place, seed=0).record
    record = fuse("target", quick("fusion", epochs=1), place, seed=0, sources="source").record
    damaged = place.ledger.folder(source.run) / "run.json"
    damaged.write_text("{")
    there = dataclasses.replace(place, store_root=place.store_root.with_name(store))
    dev, problems = place.splits.held_out_rows(place.task("target")).head(20), list[str]()
    seen = sources_seen(dev, record.sources, there, there.task("target"), Gaps(problems))["source"]
    assert (None if seen is None else seen.sum()) == known
    assert [problem.partition(": ")[0] for problem in problems] == [str(damaged)]
    assert problems[0] in seen_notes(there.task("target"), dev, record.sources, there, "--sources")
    if known is not None:
        found = evaluate("target", there, using=record.run)
        assert (found.score, found.problems) == (pytest.approx(record.dev), tuple(problems))


def test_however_many_adapters_there_are_and_whatever_rows_they_had_a_task_is_read_once(
    place: Workspace, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = []
    others = dataclasses.replace(place, drop_overlap=True), place.apart_from(["target"])
    for seed, there in enumerate((place, *others)):
        record = extract("source", quick("adapter", epochs=1), there, seed=seed).record
        sources.append(SourceRun(task="source", run=record.run, digest=record.artifact_digest or ""))
    read: list[str] = []
    monkeypatch.setattr(
        "pipeline.runs.splits.load_all_rows",
        lambda task, *values, **named: (read.append(task.name), load_all_rows(task, *values, **named))[1],
    )
    dev = place.splits.held_out_rows(place.task("target"))
    read.clear()
    for again in (dataclasses.replace(place), dataclasses.replace(place, held_out=("other",))):
        assert sources_seen(dev, sources, again, again.task("target"), Gaps())["source"] is not None
        assert (read.count("source"), read.count("target")) == (1, 1)
        read.clear()


def test_rows_of_the_target_that_its_own_adapter_was_trained_on_count_as_the_models(
    place: Workspace, quick: Quick
) -> None:
    own = extract("target", quick("adapter", epochs=1), place, seed=0).record
    extract("source", quick("adapter", epochs=1), place, seed=0)
    recipe = quick("fusion", fusion="standard", epochs=1)
    record = fuse("target", recipe, place, seed=0, sources="source,target", limit=12).record
    assert own.run in {source.run for source in record.sources}
    train = place.data / "target" / "train.csv"
    found = evaluate("target", dataclasses.replace(place), using=record.run, input_file=train)
    assert (found.trained_on, own.own.train_rows, record.own.train_rows) == (40, 40, 12)
    assert found.sources_trained_on == {"source": 0}


@pytest.mark.parametrize("apart", [False, True], ids=["all rows", "apart from the target's"])
def test_rows_of_a_task_that_was_trained_beside_the_target_count_too(
    apart: bool, place: Workspace, quick: Quick
) -> None:
    tasks = ("source", "target")
    recipes = dict.fromkeys(tasks, quick("full", epochs=1))
    there = place.apart_from(["target"]) if apart else place
    record = joint_run(there, tasks, recipes, limits=dict.fromkeys(tasks), seed=0, keep_weights=True).get()
    for split, count in SHARED.items():
        found = evaluate("target", dataclasses.replace(place), using=record.run, split=split)  # type: ignore[arg-type]
        assert (found.trained_on, found.chosen_on) == (0, 20 if split == "dev" else 0)
        assert found.sources_trained_on == {"source": 0 if apart else count}


@pytest.mark.parametrize("change", ["", "other rows", "no record of the fusion"])
def test_a_pruned_fusion_knows_the_rows_that_were_added_to_its_target(
    change: str, place: Workspace, quick: Quick, tmp_path: Path
) -> None:
    assert place.data is not None
    for name in ("one", "two"):
        save_task(place.data / name, {"train": rows_of(name, 30), "dev": rows_of(f"{name} dev", 20)})
        extract(name, quick("adapter", epochs=1), place, seed=0)
    recipe = quick("fusion", epochs=1, fusion="gated", gate_start="even", extra=(Extra(task="source"),))
    whole = fuse("target", recipe, place, seed=0, sources="one,two").record
    if change == "no record of the fusion":
        (place.ledger.folder(whole.run) / "run.json").unlink()
    pruned = prune("target", dataclasses.replace(place), keep=1).record
    assert pruned.own.added == ({} if change == "no record of the fusion" else whole.own.added)
    assert whole.own.added
    rows_of("other", 20).to_csv(tmp_path / "other.csv", index=False)
    if change == "other rows":
        file = place.data / "source" / "train.csv"
        pd.read_csv(file).iloc[1:].to_csv(file, index=False)
    for record in (pruned,) if change == "no record of the fusion" else (pruned, whole):
        found = evaluate("target", dataclasses.replace(place), using=record.run, input_file=tmp_path / "other.csv")
        assert found.trained_on == (None if change == "other rows" else 20)
        assert found.sources_trained_on == dict.fromkeys((source.task for source in record.sources), 0)


def test_a_pruned_fusion_says_how_many_rows_of_dev_it_was_trained_on(place: Workspace, quick: Quick) -> None:
    assert place.data is not None
    file = place.data / "target" / "train.csv"
    pd.concat([pd.read_csv(file), rows_of("dev", 3)]).to_csv(file, index=False)
    save_task(place.data / "other", {"train": rows_of("more", 30), "dev": rows_of("more dev", 20)})
    for name in ("source", "other"):
        extract(name, quick("adapter", epochs=1), place, seed=0)
    recipe = quick("fusion", epochs=1, fusion="gated", gate_start="even")
    fuse("target", recipe, place, seed=0, sources="source,other")
    assert prune("target", place, keep=1).record.own.dev_in_train == 3
    fewer = dataclasses.replace(place, dev_limit=10)
    assert prune("target", fewer, keep=1).record.own.dev_in_train == 0  # the fusion's count is of more rows
