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
from stages.extract import extract
from stages.predict import evaluate
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
    record = extract(name, quick("adapter"), place, seed=0, limit=48).record
    found = evaluate(name, place, using="adapter")
    assert (found.run, found.rows, found.seen, found.selecting) == (record.run, 40, 0, 40)
    assert found.score == pytest.approx(record.dev)
    assert found.interval[0] < found.score < found.interval[1]
    new = evaluate(name, place, using=record.run, input_file=folder / "new.csv")
    assert (new.seen, new.trained_on, new.selected_on, new.rows) == (0, 0, 0, 40)
    with pytest.raises(PipelineError, match="40 of these 40 rows"):
        evaluate(name, place, using=record.run, input_file=folder / "dev.csv")


FILES: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "blank texts and labels": (
        "films",
        ["new good,1", "new bad,0", "new kind,", ",1", "new grim, 0 "],
        {"rows": 3, "left_out": 2, "metric": "accuracy"},
    ),
    "one class": ("films", [f"new {n},1" for n in range(9)], {"rows": 9, "metric": "accuracy"}),
    "one class of macro F1": ("balanced", [f"new {n},good" for n in range(9)], {"rows": 9, "metric": "macro-f1"}),
    "one row": ("balanced", ["new,bad"], {"error": "a single row"}),
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


def test_the_command_prints_score_and_interval(workspace, quick, films, capsys: pytest.CaptureFixture[str]) -> None:
    record = extract("films", quick("adapter"), workspace, seed=0).record
    capsys.readouterr()
    assert main(["evaluate", "--target=films", f"--input={films}", "--json", *places(workspace)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    summary = json.loads(last)
    assert (summary["run"], summary["trained_on"], len(summary["interval"])) == (record.run, 0, 2)
    assert f"accuracy {summary['score']:.4f} (95 % CI {summary['interval'][0]:.4f} to" in lines[1]
    assert lines[2] == f"always answering good, the largest class: accuracy {summary['largest_class']['score']:.4f}"
    assert lines[3].split() == ["class", "rows", "precision", "recall", "F1"]
    for line, scores in zip(lines[4:6], summary["classes"], strict=True):
        assert line.split()[:2] == [scores["name"], f"{scores['rows']}"]
    assert sum(each["right"] for each in summary["classes"]) == round(40 * summary["score"])
    assert summary["mean_absolute_error"] is None
    assert "trained on none of these 40 rows" in lines[0]


def test_of_scores_the_mean_absolute_error_is_printed(workspace, quick, capsys: pytest.CaptureFixture[str]) -> None:
    record = extract("pairs", quick("adapter", epochs=1), workspace, seed=0).record
    found = evaluate("pairs", workspace, using=record.run)
    saved = workspace.ledger.predictions(record.run)
    assert found.rows == len(saved)
    assert found.mean_absolute_error == pytest.approx((saved["prediction"] - saved["label"]).abs().mean(), rel=1e-4)
    assert (found.classes, found.largest_class) == ((), None)
    capsys.readouterr()
    print_evaluation(found, as_json=False)
    assert f"mean absolute error: {found.mean_absolute_error:.4f}" in capsys.readouterr().out.splitlines()


def test_of_many_classes_those_with_the_most_errors_are_printed(
    workspace, quick, films, capsys: pytest.CaptureFixture[str]
) -> None:
    record = extract("films", quick("adapter", epochs=1), workspace, seed=0).record
    classes = tuple(ClassScore(f"c{n}", 9, 9, 9 - n % 7, 0.5, 0.5, None) for n in range(12))
    found = dataclasses.replace(evaluate("films", workspace, using=record.run, input_file=films), classes=classes)
    capsys.readouterr()
    print_evaluation(found, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[4:14]] == ["c6", "c5", "c4", "c11", "c3", "c10", "c2", "c9", "c1", "c8"]
    assert lines[4].split() == ["c6", "9", "0.5000", "0.5000", "-"]
    assert lines[14] == "the 10 of 12 classes with the most errors; --json has all"


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
