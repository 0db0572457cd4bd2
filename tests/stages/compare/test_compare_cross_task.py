"""A model of one task is read on others where its outputs allow, once, and the report rebuilds it from the ledger."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pipeline.data.labels import Prediction
from pipeline.data.tasks import Task
from pipeline.models.transfer_model import pool
from pipeline.records.run_record import RunRecord
from pipeline.runs.build import restore_run
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import Study
from pipeline.stats.metrics import score
from stages.compare.compare import compare, dry_run
from stages.compare.cross_task import read_as, read_on, reading_of, score_across
from stages.report import report
from tests.nano import add_pair_task
from tests.runs import single_run

pytestmark = pytest.mark.usefixtures("trained_once")

Quick = Callable[..., Recipe]


def task(name: str, **keys: Any) -> Task:
    classes = {"kind": "classes", "metric": "accuracy", "classes": ["no", "yes"]}
    if "classes" not in keys and len(keys.get("text", ["a", "b"])) == 2:
        classes["similar"] = "yes"
    return Task.parse({"name": name, "text": ["a", "b"], "label": "label", **classes, **keys}, name)


SCORE = {"kind": "score", "metric": "pearson", "classes": [], "range": [1.0, 5.0]}
YES, GRADED = task("yes"), task("graded", **SCORE)
FIRST, SILENT = task("first", classes=["same", "other"], similar="same"), task("silent", similar=None)


def test_a_probability_is_read_as_a_score_over_its_whole_range() -> None:
    assert reading_of(YES, GRADED) == "probability"
    one = np.array([0.0, 0.25, 1.0])
    read = read_on(GRADED, YES, Prediction(np.array([0, 0, 1]), np.stack([1 - one, one], axis=-1)))
    assert read.values == pytest.approx([1.0, 2.0, 5.0])
    assert read.probabilities is None
    first = read_on(GRADED, FIRST, Prediction(np.array([0, 0, 1]), np.stack([1 - one, one], axis=-1)))
    assert first.values == pytest.approx([5.0, 4.0, 1.0])
    assert len({read_as(GRADED, None, trained) for trained in (YES, FIRST)}) == 2


def test_a_score_is_read_as_a_class_by_the_middle_of_its_own_range() -> None:
    assert reading_of(GRADED, YES) == "middle"
    read = read_on(YES, GRADED, Prediction(np.array([-9.0, 2.9, 3.0, 3.1, 9.0]), None))
    assert read.values.tolist() == [0, 0, 0, 1, 1]
    assert read_on(FIRST, GRADED, Prediction(np.array([2.9, 3.1]), None)).values.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("trained", "target", "reading"),
    [
        (YES, task("other"), "same"),
        (GRADED, task("other", **SCORE), "same"),
        (YES, task("named", classes=["a", "b"]), None),
        (SILENT, GRADED, None),
        (GRADED, SILENT, None),
        (task("three", classes=["a", "b", "c"]), GRADED, None),
        (GRADED, task("three", classes=["a", "b", "c"]), None),
        (GRADED, task("other", **SCORE | {"range": [0.0, 5.0]}), None),
        (task("one", text=["a"]), task("two", text=["a"]), "same"),
        (task("one", text=["a"]), YES, None),
        (YES, task("one", text=["a"]), None),
        (task("one", text=["a"]), task("two", text=["a"], **SCORE), None),
        (task("one", text=["a"], **SCORE), task("two", text=["a"]), None),
    ],
)
def test_what_the_outputs_do_not_allow_is_not_read(trained: Task, target: Task, reading: str | None) -> None:
    assert reading_of(trained, target) == reading


@pytest.fixture
def place(workspace: Workspace, data_folder: Path, tmp_path: Path) -> Workspace:
    """Also ``alike``, pairs with two classes for the same sentences as ``pairs``."""
    data = shutil.copytree(data_folder, tmp_path / "data")
    add_pair_task(data, "alike", [2.5], ["no", "yes"], 'similar = "yes"\n')
    return dataclasses.replace(workspace, data=data)


def trained(place: Workspace, kind: Any, task: str, recipe: Recipe) -> RunRecord:
    return single_run(place, kind, task, recipe, seed=1).get()


def test_models_of_every_kept_kind_are_scored_and_their_predictions_kept(place: Workspace, quick: Quick) -> None:
    runs = {
        ("full", "films"): trained(place, "full", "films", quick("full")),
        ("adapter", "meals"): trained(place, "adapter", "meals", quick("adapter")),
        ("frozen", "alike"): trained(place, "frozen", "alike", quick("head", one_logit=True)),
        ("full", "pairs"): trained(place, "full", "pairs", quick("full", encoding="siamese", head="cosine")),
    }
    score_across({record.run: {} for record in runs.values()}, ["films", "meals", "alike", "pairs"], place)
    readings = {}
    for (kind, name), before in runs.items():
        record = place.ledger.find(before.run)
        added = {other: score for other, score in record.scores.items() if other != name}
        assert record.model_copy(update={"scores": {name: record.scores[name]}}) == before
        for other, found in added.items():
            readings[kind, name, other] = found.reading
            table = place.ledger.predictions(record.run, other)
            assert len(table) == found.rows == 40
            assert found.dev == score(found.metric, table["prediction"].to_numpy(), table["label"].to_numpy())
    assert readings == {
        ("full", "films", "meals"): "same",
        ("adapter", "meals", "films"): "same",
        ("frozen", "alike", "pairs"): "probability",
        ("full", "pairs", "alike"): "middle",
    }


def test_what_was_scored_is_not_scored_again_unless_the_rows_changed(place, quick, monkeypatch) -> None:
    record = trained(place, "full", "films", quick("full"))
    score_across({record.run: {}}, ["films", "meals"], place)
    first = place.ledger.find(record.run)
    monkeypatch.setattr("stages.compare.cross_task.restore_run", lambda *_: pytest.fail("built again"))
    score_across({record.run: {}}, ["films", "meals"], dataclasses.replace(place))
    assert place.ledger.find(record.run) == first
    monkeypatch.undo()
    dev = place.data / "meals" / "dev.csv"
    pd.read_csv(dev)[:30].to_csv(dev, index=False)
    score_across({record.run: {}}, ["films", "meals"], dataclasses.replace(place))
    again = place.ledger.find(record.run)
    assert again.scores["meals"].rows == 30


@pytest.mark.parametrize("scale", ["shifted", "clamped"])
def test_by_another_cosine_it_is_scored_again(scale: str, place: Workspace, quick: Quick) -> None:
    record = trained(place, "full", "films", quick("full"))
    recipe = quick("full", encoding="siamese", head="cosine", cosine_scale="shifted", pooling="mean")
    shifted = place.resolve(recipe, place.task("pairs"))
    score_across({record.run: {"pairs": shifted}}, ["pairs"], place)
    first = place.ledger.predictions(record.run, "pairs")["prediction"]
    # What only concerns training reads nothing otherwise.
    read_by = shifted.changed({"cosine_scale": scale, "learning_rate": 1e-4})
    score_across({record.run: {"pairs": read_by}}, ["pairs"], dataclasses.replace(place))
    second = place.ledger.predictions(record.run, "pairs")["prediction"]
    assert second.equals(first) == (scale == "shifted")
    if scale == "clamped":  # (cos + 1) / 2 and max(0, cos), of scores from 0 to 5
        np.testing.assert_allclose(second, 5 * np.maximum(0, 2 * first / 5 - 1), atol=1e-5)


@pytest.mark.parametrize("older", [False, True])
def test_a_score_is_current_while_the_target_means_the_same(older: bool, place: Workspace, quick: Quick) -> None:
    record = trained(place, "full", "films", quick("full"))
    score_across({record.run: {}}, ["meals"], place)
    if older:  # what it was read by is not known
        file = place.ledger.folder(record.run) / "run.json"
        values = json.loads(file.read_text())
        del values["scores"]["meals"]["read_as"]
        assert values["scores"]["meals"]["dev_rows"] is not None
        values["scores"]["meals"]["dev"] = 2.0
        file.write_text(json.dumps(values))
    else:
        file = place.data / "meals" / "task.toml"
        assert 'metric = "accuracy"' in file.read_text()
        file.write_text(file.read_text().replace('metric = "accuracy"', 'metric = "macro-f1"'))
    there = dataclasses.replace(place)
    score_across({record.run: {}}, ["meals"], there)
    found, table = there.ledger.find(record.run), there.ledger.predictions(record.run, "meals")
    metric = there.task("meals").metric
    assert metric == ("accuracy" if older else "macro-f1") == found.scores["meals"].metric
    assert found.scores["meals"].dev == score(metric, table["prediction"].to_numpy(), table["label"].to_numpy())


def test_a_model_that_is_gone_is_told_and_left_out(place, quick, capsys) -> None:
    record = trained(place, "full", "films", quick("full"))
    place.ledger.weights_file(record.run).unlink()
    score_across({record.run: {}}, ["meals"], place)
    assert f"run {record.run} is not scored on other tasks" in capsys.readouterr().err
    assert place.ledger.find(record.run) == record


def study(**keys: Any) -> Study:
    values = {
        "name": "across",
        "methods": ["adapter"],
        "targets": ["films", "alike", "pairs"],
        "seeds": [1],
        "limit": 40,
        "recipe": {"epochs": 1, "batch_size": 16, "bottleneck": 8, "learning_rate": 5e-3},
        **keys,
    }
    return parse_study(values, "test")


def test_a_study_has_the_table_and_report_writes_it_again_byte_for_byte(place: Workspace) -> None:
    _, folder = compare(study(cross_task=True), place)
    table = pd.read_csv(folder / "tables" / "cross-task.csv", keep_default_na=False)
    lines = {(row["method"], row["trained on"]): row for _, row in table.iterrows()}
    assert set(lines) == {("adapter", "alike"), ("adapter", "pairs")}
    # One text on its own: nothing can be read on pairs, nor the other way round.
    assert {row["films (accuracy)"] for row in lines.values()} == {"-"}
    graded = lines["adapter", "alike"]
    assert graded["pairs (pearson)"] != "-"
    assert graded["pairs (pearson), verdict"] in ("better", "worse", "not significant")
    assert "its probability of the class of similar texts" in graded["pairs (pearson), test"]
    shown = {name: (folder / name).read_bytes() for name in ("tables.md", "tables.tex", "results.csv")}
    assert b"Trained on one task, scored on all" in shown["tables.md"]
    report("across", place.reports)
    assert {name: (folder / name).read_bytes() for name in shown} == shown


@pytest.mark.parametrize(
    ("of_task", "of_row"),
    [
        pytest.param({"cosine_scale": "shifted"}, {}, marks=pytest.mark.long),
        ({}, {"tune": {"cosine_scale": ["shifted"]}}),
    ],
    ids=["written", "tuned"],
)
def test_a_row_that_scores_a_task_by_a_cosine_reads_every_model_by_it(
    of_task: dict[str, Any], of_row: dict[str, Any], place: Workspace
) -> None:
    """A cosine has no weights (Liu & Shen 2023, table 7): sentence vectors tuned on anything have one."""
    recipe = {"encoding": "siamese", "epochs": 2, "batch_size": 16, "learning_rate": 5e-3}
    rows = {"single": {"method": "full", "tasks": {"pairs": {"head": "cosine", **of_task}}, **of_row}}
    study = parse_study(
        {"name": "read", "methods": ["single"], "targets": ["films", "alike", "pairs"], "seeds": [1]}
        | {"cross_task": True, "recipe": recipe, "rows": rows},
        "test",
    )
    result, _ = compare(study, place)
    for entry in result.entries:
        record = place.ledger.find(entry.run or "")
        if entry.target == "pairs":
            assert record.scores["alike"].reading == "middle"
            continue
        found = record.scores["pairs"]
        assert found.reading == "cosine"
        model = restore_run(record, place.task(entry.target), place)
        table = pd.read_csv((place.data or Path()) / "pairs" / "dev.csv")
        vectors = []
        for column in ("sentence1", "sentence2"):
            encoded = place.backbone.tokenizer.fast(
                table[column].tolist(), padding=True, truncation=True, max_length=24, return_tensors="pt"
            )
            with torch.inference_mode():
                states = model.backbone(**encoded).last_hidden_state
            vectors.append(pool(states, encoded["attention_mask"], "mean"))
        cosines = torch.nn.functional.cosine_similarity(*vectors)
        saved = place.ledger.predictions(record.run, "pairs")["prediction"]
        np.testing.assert_allclose(saved, 2.5 * (cosines + 1), rtol=2e-2, atol=2e-2)


def test_models_that_were_read_on_every_target_need_not_be_there(
    place: Workspace, forbid_training: Callable[[], None]
) -> None:
    """Nor those of the curve, which are not read."""
    tune = {"cosine_scale": ["shifted", "clamped"]}
    rows = {"single": {"method": "full", "tasks": {"pairs": {"head": "cosine"}}, "tune": tune}}
    quick = {"encoding": "siamese", "epochs": 1, "batch_size": 16}
    values = {"methods": ["single"], "reference": "single", "rows": rows, "recipe": quick, "cross_task": True}
    values |= {"curve": {"rows": [20], "methods": ["single"]}}
    two = study(**values, targets=["films", "pairs"])
    result, _ = compare(two, place)
    runs = {(entry.target, entry.rows): str(entry.run) for entry in result.entries}
    assert place.ledger.find(runs["films", None]).scores["pairs"].reading == "cosine"
    weights = {where: place.ledger.weights_file(run) for where, run in runs.items()}
    assert {where for where, file in weights.items() if file.is_file()} == {("films", None), ("pairs", None)}
    for file in place.reports.rglob("weights.safetensors"):
        file.unlink()
    assert dry_run(two, dataclasses.replace(place)).summary()["to_do"] == 0
    # A third target takes two trials on all its rows and two on 20, and the model of pairs can be read on it.
    three = study(**values, targets=["films", "pairs", "alike"])
    assert dry_run(three, dataclasses.replace(place)).summary()["to_do"] == 6
    forbid_training()
    assert compare(two, dataclasses.replace(place))[0] == result
