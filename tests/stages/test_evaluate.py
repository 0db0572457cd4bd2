"""evaluate: the score of a kept model on labelled rows, its interval, and what the rows had to do with the model."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.cli.app import main
from pipeline.cli.printing import print_evaluation
from pipeline.runs.workspace import Workspace
from pipeline.settings.sections import ScoredRows
from pipeline.stats.by_class import ClassScore
from pipeline.system.errors import PipelineError
from stages.evaluate import evaluate
from stages.extract import extract


@pytest.fixture
def films(workspace: Workspace, data_folder: Path, tmp_path: Path) -> Path:
    """A file of films whose texts stand in no split."""
    rows = pd.read_csv(data_folder / "films/dev.csv")
    rows["sentence"] = [f"{text} {number}" for number, text in enumerate(rows["sentence"])]
    rows.to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "new.csv"


def test_dev_chose_the_model_and_new_rows_did_not(workspace, quick, films) -> None:  # type: ignore[no-untyped-def]
    record = extract("films", quick("adapter"), workspace, seed=0, limit=48).record
    found = evaluate("films", workspace, using="adapter")
    assert (found.run, found.rows, found.metric) == (record.run, 40, "accuracy")
    assert found.score == pytest.approx(record.dev)
    assert found.interval[0] < found.score < found.interval[1]
    assert found.chosen_on == 40
    assert found.trained_on == record.own.dev_in_train
    new = evaluate("films", workspace, using=record.run, input_file=films)
    assert (new.trained_on, new.chosen_on, new.rows) == (0, 0, 40)


@pytest.mark.covering(1)
@pytest.mark.parametrize("limit", [40, None])
@pytest.mark.parametrize("scoring", ["half", "train", "held-out"])
def test_a_model_of_a_study_knows_which_rows_chose_it(  # type: ignore[no-untyped-def]
    scoring, limit, workspace, quick, data_folder, tmp_path
) -> None:
    place = dataclasses.replace(workspace, data=tmp_path / "data", scoring=ScoredRows(rows=scoring, size=30))
    (tmp_path / "data/films").mkdir(parents=True)
    for file in (data_folder / "films").iterdir():
        text = file.read_text()
        if file.stem in ("train", "dev"):  # each text once
            rows = pd.read_csv(file)
            text = rows.assign(sentence=rows["sentence"] + [f" {file.stem} {n}" for n in range(len(rows))]).to_csv()
        (tmp_path / "data/films" / file.name).write_text(text)
    record = extract("films", quick("adapter"), place, seed=0, limit=limit).record
    assert record.own.test is not None
    plain = dataclasses.replace(place, scoring=ScoredRows())
    found = evaluate("films", plain, using=record.run)
    assert (found.trained_on, found.chosen_on) == (0, {"half": 20, "train": 0, "held-out": 40}[scoring])
    own = evaluate("films", plain, using=record.run, input_file=tmp_path / "data/films/train.csv")
    rows = record.own.train_rows
    assert rows == {"half": limit or 96, "train": 32 if limit else 77, "held-out": limit or 66}[scoring]
    assert (own.trained_on, own.chosen_on) == (rows, record.own.rows if scoring == "train" else 0)
    scored = place.ledger.predictions(record.run)
    assert len(scored) == record.own.scored_rows == {"half": 20, "train": 40, "held-out": 30}[scoring]


def split_again(rows: pd.DataFrame, folder: Path, seed: int) -> None:
    """Divide ``rows`` among the splits of films in another way, as ``tasks new`` does with another seed."""
    shuffled = rows.sample(frac=1, random_state=seed)
    for split, part in (("train", shuffled[30:]), ("dev", shuffled[:15]), ("test", shuffled[15:30])):
        part.to_csv(folder / f"{split}.csv", index=False)


@pytest.mark.parametrize("rows_more", [0, 30])
def test_of_data_that_were_split_again_nothing_is_claimed(  # type: ignore[no-untyped-def]
    rows_more, workspace, quick, data_folder, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a text stands today says nothing about where it stood: rows of test may have been rows of train."""
    folder = tmp_path / "data" / "films"
    shutil.copytree(data_folder / "films", folder)
    words = ["good", "grim"]
    rows = pd.DataFrame({"sentence": [f"film {n} is {words[n % 2]}" for n in range(90)], "label": [1, 0] * 45})
    split_again(rows, folder, seed=0)
    place = dataclasses.replace(workspace, data=folder.parent)
    record = extract("films", quick("adapter", epochs=1), place, seed=0).record
    assert evaluate("films", dataclasses.replace(place), split="test").trained_on == 0
    trained = set(pd.read_csv(folder / "train.csv")["sentence"])
    more = [f"song {n} is {words[n % 2]}" for n in range(rows_more)]
    more_rows = pd.DataFrame({"sentence": more, "label": [1, 0] * (rows_more // 2)})
    for seed in range(1, 4):
        split_again(pd.concat([rows, more_rows]), folder, seed)
        assert trained.intersection(pd.read_csv(folder / "test.csv")["sentence"])
        found = evaluate("films", dataclasses.replace(place), using=record.run, split="test")
        assert (found.trained_on, found.chosen_on, found.changed) == (None, None, ("films",))
    capsys.readouterr()
    print_evaluation(found, as_json=False)
    unknown = "how many cannot be known: the data of films have changed since, or were divided otherwise\n"
    assert capsys.readouterr().out.count(unknown) == 2
    split_again(rows, folder, seed=0)
    found = evaluate("films", dataclasses.replace(place), using=record.run, split="test")
    assert (found.trained_on, found.chosen_on, found.changed) == (0, 0, ())


def test_rows_of_permuted_labels_are_known(workspace, quick, data_folder, films) -> None:  # type: ignore[no-untyped-def]
    record = extract("films", quick("adapter", epochs=1, permute_labels=True), workspace, seed=1, limit=40).record
    found = evaluate("films", dataclasses.replace(workspace), using=record.run, input_file=films)
    assert (found.trained_on, found.chosen_on) == (0, 0)


@pytest.mark.parametrize("limit", [None, 30])
def test_a_model_trained_without_the_rows_of_dev_is_known_not_to_have_read_them(  # type: ignore[no-untyped-def]
    limit, workspace, quick, data_folder, tmp_path
) -> None:
    folder = tmp_path / "data" / "films"
    shutil.copytree(data_folder / "films", folder)
    train, dev = (pd.read_csv(folder / f"{split}.csv").drop_duplicates("sentence") for split in ("train", "dev"))
    train = train[~train["sentence"].isin(dev["sentence"])]
    repeated = dev.head(10).assign(sentence=dev["sentence"].str.upper())
    pd.concat([train, repeated]).drop(columns="id", errors="ignore").to_csv(folder / "train.csv", index=False)
    plain = dataclasses.replace(workspace, data=folder.parent)
    dropping = dataclasses.replace(plain, drop_overlap=True)
    for place, count in ((plain, 10), (dropping, 0)):
        record = extract("films", quick("adapter", epochs=1), place, seed=0, limit=limit).record
        found = evaluate("films", dataclasses.replace(plain), using=record.run)
        assert found.chosen_on == found.rows
        if limit is None or count == 0:
            assert found.trained_on == count
        own = evaluate("films", dataclasses.replace(plain), using=record.run, input_file=folder / "train.csv")
        assert own.trained_on == record.own.train_rows


def test_rows_that_cannot_be_scored_are_left_out_and_counted(  # type: ignore[no-untyped-def]
    workspace, quick, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extract("films", quick("adapter", epochs=1), workspace, seed=0)
    rows = ["the film is good,1", "the film is bad,0", "the film is kind,", ",1", "the film is grim, 0 "]
    (file := tmp_path / "rows.csv").write_text("\n".join(["id,sentence,label", *(f"7,{row}" for row in rows), ""]))
    found = evaluate("films", dataclasses.replace(workspace), using="adapter", input_file=file)
    assert (found.rows, found.left_out) == (3, 2)
    print_evaluation(found, as_json=False)
    assert "rows without a text or a label, left out: 2" in capsys.readouterr().out


def test_what_cannot_be_known_is_not_said(workspace, quick, data_folder) -> None:  # type: ignore[no-untyped-def]
    record = extract("films", quick("adapter"), workspace, seed=0).record
    (workspace.ledger.folder(record.run) / "run.json").unlink()
    found = evaluate("films", dataclasses.replace(workspace), using="adapter")
    assert (found.trained_on, found.chosen_on) == (None, None)


def change_data(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads(file.read_text())
    change(record["identity"]["tasks"]["films"])
    file.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("name", "harm", "problem"),
    [
        ("run.json", lambda file: file.write_text("{"), "run.json: cannot be read"),
        ("predictions.parquet", Path.unlink, "predictions.parquet: no such file"),
        ("predictions.parquet", lambda file: file.write_text("x"), "predictions.parquet: cannot be read"),
        ("run.json", lambda file: change_data(file, lambda task: task.pop("data")), None),
        ("run.json", lambda file: change_data(file, lambda task: task.update(data=None)), None),
    ],
    ids=["a damaged record", "no predictions", "damaged predictions", "no fingerprints", "null for fingerprints"],
)
def test_what_cannot_be_read_beside_the_model_costs_no_score(  # type: ignore[no-untyped-def]
    name, harm, problem, workspace, quick, capsys: pytest.CaptureFixture[str]
) -> None:
    record = extract("films", quick("adapter", epochs=1), workspace, seed=0).record
    harm(workspace.ledger.folder(record.run) / name)
    found = evaluate("films", dataclasses.replace(workspace), using="adapter")
    assert found.score == pytest.approx(record.dev)
    assert (found.trained_on, found.chosen_on) == (None, None)
    assert len(found.problems) == (problem is not None)
    places = [f"--data={workspace.data}", f"--store={workspace.store_root}", f"--reports={workspace.reports}"]
    capsys.readouterr()
    assert main(["evaluate", "--target=films", *places]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("how many cannot be known") == 2
    assert problem is None or (printed.err.startswith("warning: ") and problem in printed.err)


def test_the_command_prints_score_and_interval(  # type: ignore[no-untyped-def]
    workspace, quick, films, capsys: pytest.CaptureFixture[str]
) -> None:
    record = extract("films", quick("adapter"), workspace, seed=0).record
    places = [
        "--backbone",
        workspace.backbone_name,
        "--data",
        str(workspace.data),
        "--store",
        str(workspace.store_root),
    ]
    command = ["evaluate", "--target", "films", *places, "--reports", str(workspace.reports), "--json"]
    capsys.readouterr()
    assert main([*command, "--input", str(films)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    summary = json.loads(last)
    assert (summary["run"], summary["trained_on"], len(summary["interval"])) == (record.run, 0, 2)
    assert f"accuracy {summary['score']:.4f} (95 % CI {summary['interval'][0]:.4f} to" in lines[0]
    assert lines[1] == f"always answering good, the largest class: accuracy {summary['largest_class']['score']:.4f}"
    assert lines[2].split() == ["class", "rows", "precision", "recall", "F1"]
    for line, scores in zip(lines[3:5], summary["classes"], strict=True):
        assert line.split()[:2] == [scores["name"], f"{scores['rows']}"]
    assert sum(each["right"] for each in summary["classes"]) == round(40 * summary["score"])
    assert summary["mean_absolute_error"] is None
    assert lines[6] == "rows with a text that its epoch was selected on: 0 of 40"


def test_of_scores_the_mean_absolute_error_is_printed(  # type: ignore[no-untyped-def]
    workspace, quick, capsys: pytest.CaptureFixture[str]
) -> None:
    record = extract("pairs", quick("adapter", epochs=1), workspace, seed=0).record
    found = evaluate("pairs", workspace, using=record.run)
    saved = workspace.ledger.predictions(record.run)
    assert found.mean_absolute_error == pytest.approx((saved["prediction"] - saved["label"]).abs().mean(), rel=1e-4)
    assert (found.classes, found.largest_class) == ((), None)
    capsys.readouterr()
    print_evaluation(found, as_json=False)
    assert capsys.readouterr().out.splitlines()[1] == f"mean absolute error: {found.mean_absolute_error:.4f}"


def test_of_many_classes_those_with_the_most_errors_are_printed(  # type: ignore[no-untyped-def]
    workspace, quick, capsys: pytest.CaptureFixture[str]
) -> None:
    record = extract("films", quick("adapter", epochs=1), workspace, seed=0).record
    classes = tuple(ClassScore(f"c{n}", 9, 9, 9 - n % 7, 0.5, 0.5, None) for n in range(12))
    found = dataclasses.replace(evaluate("films", workspace, using=record.run), classes=classes)
    capsys.readouterr()
    print_evaluation(found, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[3:13]] == ["c6", "c5", "c4", "c11", "c3", "c10", "c2", "c9", "c1", "c8"]
    assert lines[3].split() == ["c6", "9", "0.5000", "0.5000", "-"]
    assert lines[13] == "the 10 of 12 classes with the most errors; --json has all"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"target": "operas"}, "unknown task"),
        ({"using": "fusion"}, "no fusion of 'films'"),
        (
            {"split": "test"},
            r"split 'test' is missing: no test\{.*\}; give labelled rows with --input FILE, or --split dev$",
        ),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"input_file": Path("nowhere.csv")}, "nowhere.csv"),
    ],
)
def test_what_cannot_be_evaluated_is_said(workspace, quick, how, message) -> None:  # type: ignore[no-untyped-def]
    extract("films", quick("adapter", epochs=1), workspace, seed=0)
    with pytest.raises(PipelineError, match=message):
        evaluate(**{"target": "films", "workspace": workspace, **how})
