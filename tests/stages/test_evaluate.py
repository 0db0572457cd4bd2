"""evaluate: the score of a kept model on labelled rows, its interval, and what the rows had to do with the model."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.cli.app import main
from pipeline.cli.printing import print_evaluation
from pipeline.runs.workspace import Workspace
from pipeline.stats.metrics import ClassScore
from pipeline.system.errors import PipelineError
from stages.evaluate import evaluate
from stages.extract import extract
from tests.runs import places

pytestmark = pytest.mark.usefixtures("trained_once")


@pytest.fixture
def films(workspace: Workspace, data_folder: Path, tmp_path: Path) -> Path:
    """A file of films whose texts stand in no split."""
    rows = pd.read_csv(data_folder / "films/dev.csv")
    rows["sentence"] = [f"{text} {number}" for number, text in enumerate(rows["sentence"])]
    rows.to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "new.csv"


@pytest.mark.parametrize("name", ["films", "pairs"])
def test_dev_scores_what_selected_the_model_and_a_file_what_is_new(
    name, workspace, quick, data_folder, tmp_path
) -> None:
    folder, column = tmp_path / "data" / name, "sentence" if name == "films" else "sentence1"
    shutil.copytree(data_folder / name, folder)
    for split in ("train", "dev", "new"):  # each text in one split
        rows = pd.read_csv(data_folder / name / f"{'dev' if split == 'new' else split}.csv")
        rows[column] = [f"{text} {split} {number}" for number, text in enumerate(rows[column])]
        rows.to_csv(folder / f"{split}.csv", index=False)
    place = dataclasses.replace(workspace, data=folder.parent)
    made = extract(name, quick("adapter"), place, seed=0, limit=48, probed=True)
    record, found = made.record, evaluate(name, place, using="adapter", with_baselines=True)
    assert found.baselines[2].score == pytest.approx(made.probe.dev)  # the same 48 rows
    assert [each.gain for each in found.baselines] == [
        pytest.approx(found.score - each.score) for each in found.baselines
    ]
    assert (found.run, found.rows, found.seen, found.selecting) == (record.run, 40, 0, 40)
    assert found.score == pytest.approx(record.dev)
    assert found.interval[0] < found.score < found.interval[1]
    new = evaluate(name, place, using=record.run, input_file=folder / "new.csv")
    assert (new.seen, new.trained_on, new.selected_on, new.rows) == (0, 0, 0, 40)
    other = extract(name, quick("adapter", epochs=1), place, seed=1, limit=40).record.run
    (beside,) = evaluate(name, place, using=record.run, against=other, input_file=folder / "new.csv").baselines
    assert beside.score == evaluate(name, place, using=other, input_file=folder / "new.csv").score
    assert (beside.name, beside.gain) == (f"adapter {other}", pytest.approx(new.score - beside.score))
    two = {"using": record.run, "input_file": folder / "train.csv"}
    assert evaluate(name, place, **two, against=other).rows < evaluate(name, place, **two).rows == 48
    with pytest.raises(PipelineError, match="40 of these 40 rows"):
        evaluate(name, place, using=record.run, input_file=folder / "dev.csv")
    (folder / "train.csv").unlink()
    alone = dataclasses.replace(workspace, data=folder.parent)
    apart = evaluate(name, alone, using=record.run, input_file=folder / "new.csv", with_baselines=True)
    assert [each.skipped for each in apart.baselines] == ["", *["its training rows are not here"] * 2]
    wrong = [folder / f"{raw}.csv" for raw in (False, True)]
    for raw, file in enumerate(wrong):
        again = evaluate(name, alone, using=record.run, input_file=folder / "new.csv", raw=bool(raw), errors_file=file)
        assert again.score == apart.score == new.score and again.calibration_error == new.calibration_error
    assert pd.read_csv(wrong[0]).equals(pd.read_csv(wrong[1])) == (new.temperature == 1)


FILES: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "blank texts and labels": (
        "films",
        ["new good,1", "new bad,0", "new kind,", ",1", "new grim, 0 "],
        {"rows": 3, "left_out": 2, "metric": "accuracy"},
    ),
    "one class": ("films", [f"new {n},1" for n in range(9)], {"rows": 9, "metric": "accuracy"}),
    "one class of macro F1": ("balanced", [f"new {n},good" for n in range(9)], {"rows": 9, "metric": "macro-f1"}),
    "one row": ("balanced", ["new,bad"], {"error": "needs two or more"}),
    "two classes of macro F1": ("balanced", ["new,bad", "newer,good"], {"rows": 2, "metric": "macro-f1"}),
    "beyond the range": (
        "pairs",
        ["a,b,1", "c,d,5.5", "e,f,-20", "g,h,5"],
        {"rows": 4, "outside": 2, "metric": "pearson"},
    ),
    "all but one beyond the range": ("pairs", ["a,b,70", "c,d,35.5", "e,f,3"], {"rows": 3, "outside": 2}),
    "one side of the range": ("pairs", ["a,b,-0.001", "c,d,2", "e,f,-1e3", "g,h,0"], {"rows": 4, "outside": 2}),
    "on the ends of the range": ("pairs", ["a,b,0", "c,d,5", "e,f,2.5"], {"rows": 3, "outside": 0}),
    "one score": ("pairs", ["a,b,1", "c,d,1"], {"error": "have one label"}),
    "no finite score": ("pairs", ["a,b,1", "c,d,1e999"], {"error": "row 3"}),
    "no class": ("films", ["new,1", "newer,2"], {"error": "out of range"}),
}


@pytest.mark.parametrize(("task", "lines", "expected"), FILES.values(), ids=[*FILES])
def test_what_a_file_has_is_scored_and_told(
    task, lines, expected, workspace, quick, data_folder, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = dataclasses.replace(workspace, data=tmp_path / "data")
    shutil.copytree(data_folder, tmp_path / "data")
    shutil.copytree(data_folder / "films", tmp_path / "data" / "balanced")
    toml = (data_folder / "films" / "task.toml").read_text().replace('"films"', '"balanced"')
    (tmp_path / "data/balanced/task.toml").write_text(toml.replace("accuracy", "macro-f1"))
    record = extract(task, quick("adapter", epochs=1), place, seed=0).record
    columns = "sentence1,sentence2,score" if task == "pairs" else "sentence,label"
    (file := tmp_path / "rows.csv").write_text("\n".join([columns, *lines, ""]))
    if "error" in expected:
        with pytest.raises(PipelineError, match=expected["error"]):
            evaluate(task, place, using=record.run, input_file=file)
        return
    found = evaluate(task, place, using=record.run, input_file=file)
    assert {key: getattr(found, key) for key in expected} == expected
    assert found.interval[0] <= found.score <= found.interval[1] + 1e-9
    capsys.readouterr()
    print_evaluation(found, as_json=False)
    told = capsys.readouterr().out
    assert ("left out: 2" in told) == (found.left_out == 2)
    assert ("beyond the task's range" in told) == (found.outside == 2)
    assert ("all rows have the label" in told) == (len(lines) == 9)


def test_rows_of_a_class_that_the_model_does_not_know_are_left_out_if_that_is_asked_for(
    workspace, quick, data_folder, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data_folder, tmp_path / "data")
    place = dataclasses.replace(workspace, data=tmp_path / "data")
    record = extract("films", quick("adapter", epochs=1), place, seed=0).record
    new = [f"new {n},{('bad', 'good', 'odd')[n % 3]}" for n in range(30)]
    (file := tmp_path / "rows.csv").write_text("\n".join(["sentence,label", *new, "blank,", ""]))
    with pytest.raises(PipelineError, match="--unknown ignore"):
        evaluate("films", place, using=record.run, input_file=file)
    found = evaluate("films", place, input_file=file, unknown="ignore")
    assert (found.rows, found.unknown, found.left_out) == (20, 10, 1)
    with pytest.raises(PipelineError, match="one class a row"):
        evaluate("pairs", place, input_file=file, unknown="ignore")
    # The task has learned a class since, and its test rows have it too.
    toml = (place.data / "films" / "task.toml").read_text()
    (place.data / "films" / "task.toml").write_text(
        toml.replace('classes = ["bad", "good"]', 'classes = ["bad", "odd", "good"]')
    )
    file.rename(place.data / "films" / "test.csv")
    (place.data / "films" / "test.csv").write_text("\n".join(["sentence,label", *new, ""]))
    there = dataclasses.replace(place)
    with pytest.raises(PipelineError, match="other classes"):
        evaluate("films", there, using=record.run, split="test")
    again = evaluate("films", there, using=record.run, split="test", unknown="ignore")
    assert (again.rows, again.unknown, again.score) == (20, 10, found.score)
    print_evaluation(again, as_json=False)
    assert "does not know, left out: 10" in capsys.readouterr().out


def test_the_command_prints_score_and_interval(workspace, quick, films, capsys: pytest.CaptureFixture[str]) -> None:
    record = extract("films", quick("adapter"), workspace, seed=0).record
    capsys.readouterr()
    arguments = [f"--input={films}", f"--errors={(wrong := films.with_name('wrong.csv'))}", "--json"]
    assert main(["evaluate", "--target=films", *arguments, *places(workspace)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    summary = json.loads(last)
    assert (summary["run"], summary["trained_on"], len(summary["interval"])) == (record.run, 0, 2)
    assert f"accuracy {summary['score']:.4f} (95 % CI {summary['interval'][0]:.4f} to" in lines[1]
    assert lines[2].startswith("instead of the model") and lines[3].startswith("always ")
    for line, each in zip(lines[3:6], summary["baselines"], strict=True):
        assert line.startswith(each["name"]) and f"{each['score']:.4f}" in line
        assert each["gain"] == pytest.approx(summary["score"] - each["score"])
        assert each["gain_interval"][0] <= each["gain"] <= each["gain_interval"][1]
    assert lines[6].split() == ["class", "rows", "precision", "recall", "F1"]
    for line, scores in zip(lines[7:9], summary["classes"], strict=True):
        assert line.split()[:2] == [scores["name"], f"{scores['rows']}"]
    matrix = summary["confusion"]
    assert [line.split() for line in lines[10:12]] == [
        ["1", "bad", *map(str, matrix[0])],
        ["2", "good", *map(str, matrix[1])],
    ]
    assert [sum(row) for row in matrix] == [each["rows"] for each in summary["classes"]]
    rows = pd.read_csv(wrong)
    assert [*rows] == ["id", "sentence", "label", "prediction", "confidence"]
    assert len(rows) == matrix[0][1] + matrix[1][0] and (rows["label"] != rows["prediction"]).all()
    assert rows["confidence"].is_monotonic_decreasing and {*rows["label"]} <= {"bad", "good"}
    assert [*pd.read_csv(films)["sentence"][rows["id"] - 2]] == [*rows["sentence"]]  # as a spreadsheet counts
    assert 0 <= summary["calibration_error"] <= 1 and "expected calibration error" in lines[-1]
    assert sum(each["right"] for each in summary["classes"]) == round(40 * summary["score"])
    assert summary["mean_absolute_error"] is None
    assert "trained on none of these 40 rows" in lines[0]


def test_of_scores_the_mean_absolute_error_is_printed(
    workspace, quick, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, wrong = extract("pairs", quick("adapter", epochs=1), workspace, seed=0).record, tmp_path / "wrong.parquet"
    found = evaluate("pairs", workspace, using=record.run, with_baselines=True, errors_file=wrong)
    assert pd.read_parquet(wrong)["error"].is_monotonic_decreasing and len(pd.read_parquet(wrong)) == found.rows
    assert [each.skipped for each in found.baselines] == ["", "", ""]
    always, words, _ = found.baselines
    assert (always.score, always.interval) == (0, None) and ", the mean" in always.name and words.interval
    saved = workspace.ledger.predictions(record.run)
    assert found.rows == len(saved)
    assert found.mean_absolute_error == pytest.approx((saved["prediction"] - saved["label"]).abs().mean(), rel=1e-4)
    assert (found.classes, found.confusion, found.surer, found.calibration_error) == ((), (), (), None)
    capsys.readouterr()
    print_evaluation(found, as_json=False)
    assert f"mean absolute error: {found.mean_absolute_error:.4f}" in capsys.readouterr().out.splitlines()


def test_of_many_classes_those_with_the_most_errors_are_printed(
    workspace, quick, films, capsys: pytest.CaptureFixture[str]
) -> None:
    record = extract("films", quick("adapter", epochs=1), workspace, seed=0).record
    classes = tuple(ClassScore(f"c{n}", 9, 9, 9 - n % 7, 0.5, 0.5, None) for n in range(14))
    found = dataclasses.replace(evaluate("films", workspace, using=record.run, input_file=films), classes=classes)
    found = dataclasses.replace(found, confusion=tuple((1,) * 13 + (5,) for _ in range(14)))
    capsys.readouterr()
    print_evaluation(found, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0][1:]) for line in lines[3:15]] == [6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8]
    assert lines[3].split() == ["c6", "9", "0.5000", "0.5000", "-"]
    assert lines[15].split() == ["true", "\\", "predicted", *map(str, range(1, 13)), "other"]
    assert lines[16].split() == ["1", "c6", "1", "5", *["1"] * 10, "2"]
    assert lines[28] == "the 12 of 14 classes with the most errors; --json has all"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"target": "operas"}, "unknown task"),
        ({"using": "fusion"}, "no fusion of 'films'"),
        (
            {"split": "test"},
            r"split 'test' is missing: no test\{.*\}; give labelled rows with --input FILE, or --split dev$",
        ),
        ({"input_file": Path("nowhere.csv")}, "nowhere.csv"),
    ],
)
def test_what_cannot_be_evaluated_is_said(workspace, quick, how, message) -> None:
    extract("films", quick("adapter", epochs=1), workspace, seed=0)
    with pytest.raises(PipelineError, match=message):
        evaluate(**{"target": "films", "workspace": workspace, **how})
