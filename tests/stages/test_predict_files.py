"""The files that predict reads and writes: the input stays as it is, and predictions stand row by row beside it."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.cli.app import main
from pipeline.data.labels import Prediction
from pipeline.data.tables import check_output, read_foreign
from pipeline.data.tokens import Cut
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.evaluate import evaluate
from stages.extract import extract
from stages.predict import predict
from tests.runs import places

pytestmark = pytest.mark.usefixtures("trained_once")

ROWS = "sentence\nthe film is good\nthe meal is bad\n"


def link(file: Path, name: str, **settings: bool) -> Path:
    """A link beside ``file``, to it or to its folder."""
    target = file.parent if settings else file
    (file.parent / name).symlink_to(target, **settings)
    return file.parent / name


IS_INPUT = "is the input file"
OUTPUTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "the input": (lambda file: file, IS_INPUT),
    "a relative path": (lambda file: Path(os.path.relpath(file)), IS_INPUT),
    "a way round": (lambda file: file.parent / ".." / file.parent.name / file.name, IS_INPUT),
    "a link": (lambda file: link(file, "link.csv"), IS_INPUT),
    "a hard link": (lambda file: (out := file.parent / "hard.tsv").hardlink_to(file) or out, IS_INPUT),
    "through a linked folder": (lambda file: link(file, "folder", target_is_directory=True) / file.name, IS_INPUT),
    "a folder": (lambda file: (out := file.parent / "out.csv").mkdir() or out, "this is a folder: name a file in it"),
    "a long name": (lambda file: file.parent / f"{'x' * 5000}.csv", "the name is too long"),
    "in /proc": (lambda _: Path("/proc/none/out.csv"), "^cannot write /proc/none: no such file"),
    "under a file": (lambda file: file / "out.csv", "there is a file where"),
}


@pytest.mark.parametrize(("output", "reason"), OUTPUTS.values(), ids=[*OUTPUTS])
def test_an_output_that_cannot_be_is_refused_before_anything_is_computed(
    output: Callable[[Path], Path], reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(ROWS)
    with pytest.raises(PipelineError, match=reason) as caught:
        check_output(output(file), file)
    assert "\n" not in str(caught.value)
    assert file.read_text() == ROWS


@pytest.fixture
def trained(workspace: Workspace, quick: Callable[..., Recipe]) -> Workspace:
    """A store with an adapter of ``films``, which reads one text, and of ``pairs``."""
    for task in ("films", "pairs"):
        extract(task, quick("adapter", epochs=1), workspace, seed=1, limit=16)
    return workspace


def test_every_column_of_the_input_stays_as_it_was_written(trained: Workspace, tmp_path: Path) -> None:
    file, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    # A labelled file with numbers that pandas would rewrite, a word that it would drop, and an empty cell.
    file.write_text('price,sentence,label,id,note\n1.50,the film is good,1,007,NA\n,"the ""meal"" is bad",0,8,\n')
    predict("films", file, out, trained, using="auto", batch_size=8, precision="fp32")
    header, *lines = out.read_text().splitlines()
    assert header == "price,sentence,label,id,note,prediction,confidence,probability_bad,probability_good"
    for line, before in zip(lines, file.read_text().splitlines()[1:], strict=True):
        assert line.startswith(f"{before},")
        label, confidence, bad, good = line.removeprefix(f"{before},").split(",")
        assert (label, confidence) == max((("bad", bad), ("good", good)), key=lambda each: float(each[1]))
        assert len(confidence) <= len("0.1234")
        assert float(bad) + float(good) == pytest.approx(1)


def test_the_columns_of_texts_may_have_other_names(trained: Workspace, tmp_path: Path) -> None:
    file, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    how = {"using": "auto", "batch_size": 8, "precision": "fp32"}
    file.write_text("one,two,sentence\nthe film is good,the meal is bad,\n")
    predict("films", file, out, trained, texts=("one",), **how)
    named = out.read_text()
    file.write_text("sentence,two,one\nthe film is good,the meal is bad,\n")
    predict("films", file, out, trained, **how)
    assert named.splitlines()[1] == out.read_text().splitlines()[1]
    with pytest.raises(PipelineError, match="--text one,two: task 'films' reads 1: name as many"):
        predict("films,pairs", file, out, trained, texts=("one", "two"), **how)


NESTED = [
    {"sentence": "the film is good", "tags": ["a", {"b": None}], "n": 1},
    {"sentence": "the meal is bad", "tags": None, "n": "two"},
]


def test_columns_of_any_kind_are_kept_or_refused_before_anything_is_computed(
    trained: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in NESTED))
    predict("films", file, out, trained, using="auto", batch_size=8, precision="fp32")
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [{name: row[name] for name in ("sentence", "tags", "n")} for row in found] == NESTED
    typed = pd.DataFrame({"sentence": ["the film is good"], "when": [pd.Timestamp("2026-01-02")], "v": [[1.5, 2.0]]})
    typed.to_parquet(tmp_path / "rows.parquet")
    predict("films", tmp_path / "rows.parquet", out, trained, using="auto", batch_size=8, precision="fp32")
    (row,) = map(json.loads, out.read_text().splitlines())
    assert (row["when"], row["v"], row["id"]) == ("2026-01-02 00:00:00", [1.5, 2.0], "0")

    monkeypatch.setattr("stages.predict.predictions_of", lambda *_: pytest.fail("computed"))
    for suffix in ("parquet", "xlsx"):
        with pytest.raises(PipelineError, match=f"column 'tags' cannot be written as {suffix} .*leave it out"):
            predict("films", file, tmp_path / f"o.{suffix}", trained, using="auto", batch_size=8, precision="fp32")
    file.write_text('{"sentence": "the film is good", "odd": "\\ud800"}\n')
    for suffix in ("csv", "jsonl", "parquet"):
        with pytest.raises(PipelineError, match=f"column 'odd' cannot be written as {suffix}"):
            predict("films", file, tmp_path / f"o.{suffix}", trained, using="auto", batch_size=8, precision="fp32")
    (rows := tmp_path / "rows.csv").write_text("sentence,prediction\nthe film is good,1\n")
    with pytest.raises(PipelineError, match="has a column 'prediction', as the predictions would be called: rename it"):
        predict("films", rows, out, trained, using="auto", batch_size=8, precision="fp32")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_a_row_with_a_blank_text_has_no_prediction_and_shifts_no_other(
    suffix: str, trained: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, whole, out = tmp_path / "rows.csv", tmp_path / "whole.parquet", tmp_path / f"out.{suffix}"
    texts = ["the film is good", "", "the meal is bad", "   ", "the room is very grim"]
    both = {"sentence": texts, "sentence1": texts, "sentence2": ["the walk is kind"] * 4 + [""]}
    columns = ["films_prediction", "films_probability_bad", "films_probability_good", "pairs_prediction"]
    pd.DataFrame(both).assign(sentence=[text.strip() or "x" for text in texts], sentence1="x", sentence2="x").to_csv(
        file, index=False
    )
    settings = {"using": "auto", "batch_size": 1, "precision": "fp32"}
    predict("films,pairs", file, whole, trained, **settings)
    expected = pd.read_parquet(whole)
    pd.DataFrame(both).to_csv(file, index=False)
    arguments = [f"--input={file}", f"--output={out}", "--precision=fp32", "--batch-size=1", *places(trained)]
    capsys.readouterr()
    assert main(["predict", "--target=films,pairs", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("3 predictions of adapter ")
    assert printed.err.splitlines() == [
        "2 of 5 rows have a blank text and no prediction for films",
        "3 of 5 rows have a blank text and no prediction for pairs",
    ]
    if suffix == "jsonl":
        found = pd.read_json(out, lines=True)
    else:
        found = pd.read_parquet(out) if suffix == "parquet" else pd.read_csv(out, sep="\t" if suffix == "tsv" else ",")
    assert len(found) == 5
    assert found[columns[:3]].isna().any(axis=1).tolist() == [False, True, False, True, False]
    assert found[columns[3]].isna().tolist() == [False, True, False, True, True]
    kept = [0, 2, 4]
    assert found["films_prediction"][kept].tolist() == expected["films_prediction"][kept].tolist()
    for column in columns[1:3]:
        assert found[column][kept].to_numpy(float) == pytest.approx(expected[column][kept].to_numpy(), abs=5e-5)


@pytest.mark.parametrize(
    ("scores", "outside"), [([-0.1, 0.0, 5.0, 6.5], 2), ([-1e-7, 0.0, 5.0, 5 + 1e-7], 0)], ids=["unbounded", "a cosine"]
)
def test_scores_outside_the_range_are_counted_and_written_as_they_are(
    scores: list[float], outside: int, trained: Workspace, tmp_path: Path, monkeypatch, capsys
) -> None:
    answer = [Prediction(np.array(scores), None)], Cut(0, 24)
    monkeypatch.setattr("stages.predict.predictions_of", lambda *_: answer)
    file, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    pd.DataFrame({"sentence1": ["a", "b", " ", "c", "d"], "sentence2": "x"}).to_csv(file, index=False)
    capsys.readouterr()
    assert main(["predict", "--target=pairs", f"--input={file}", f"--output={out}", *places(trained)]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note")]
    assert notes == [
        f"note: {outside} of 4 scores of pairs are outside 0..5, the range of the task: a regression is not bounded;"
        " clip them if you need to"
    ] * bool(outside)
    assert pd.read_csv(out)["prediction"].dropna().tolist() == pytest.approx(scores, abs=5e-5)
    assert "-0.0\n" not in out.read_text()


def test_ids_need_not_be_there_nor_differ(trained: Workspace, tmp_path: Path) -> None:
    """Predictions stand in the order of the rows."""
    file, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    file.write_text("id,sentence\n7,the film is good\n7,the film is bad\n,the film is kind\n")
    predict("films", file, out, trained, using="auto", batch_size=8, precision="fp32")
    found = pd.read_csv(out)
    assert found["id"].tolist()[:2] == [7, 7] and found["id"].isna().tolist() == [False, False, True]
    assert found["prediction"].notna().all()


@pytest.mark.parametrize(
    ("suffix", "form"),
    [
        ("csv", "csv, utf-8-sig, semicolon"),
        ("csv", "csv, cp1252, tab"),
        ("tsv", "tsv, utf-16, bar"),
        ("xlsx", "xlsx, sheet 1"),
    ],
)
def test_what_tasks_new_reads_is_read_here_too(
    suffix: str, form: str, trained: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pd.DataFrame(
        {"Nº": ["a", "b"], "sentence": ["the film, é, is good", "the meal, é, is bad"], "label": [1, 0]}
    )
    plain, file, outs = (
        tmp_path / "plain.csv",
        tmp_path / f"rows.{suffix}",
        [tmp_path / "1.csv", tmp_path / f"2.{suffix}"],
    )
    rows.to_csv(plain, index=False)
    if suffix == "xlsx":
        rows.to_excel(file, index=False, sheet_name="1")
    else:
        _, encoding, separator = form.split(", ")
        rows.to_csv(file, index=False, encoding=encoding, sep={"semicolon": ";", "tab": "\t", "bar": "|"}[separator])
    capsys.readouterr()
    for read, out in zip((plain, file), outs, strict=True):
        predict("films", read, out, trained, using="auto", batch_size=8, precision="fp32")
    usual, like = map(read_foreign, outs)  # which is written as the input was
    assert (usual.form, like.form) == ("csv, utf-8, comma", form)
    assert like.rows.astype(str).equals(usual.rows.astype(str))
    assert capsys.readouterr().err.splitlines() == [f"note: {file} was read as {form}"]
    scores = [evaluate("films", trained, input_file=read, precision="fp32").score for read in (plain, file)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("task", ["films", "pairs"])
def test_a_file_of_blank_texts_alone_has_no_predictions(task: str, trained: Workspace, tmp_path: Path) -> None:
    file, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    file.write_text("sentence,sentence1,sentence2\n,a, \n,,b\n")
    written = predict(task, file, out, trained, using="auto", batch_size=8, precision="fp32")
    assert (written.rows, written.tasks[0].blank) == (2, 2)
    assert pd.read_csv(out).filter(regex="prediction|probability").isna().all(axis=None)
    file.write_text("sentence,sentence1,sentence2\n")
    with pytest.raises(PipelineError, match="no rows"):
        predict(task, file, out, trained, using="auto", batch_size=8, precision="fp32")


@pytest.mark.long
def test_from_standard_input_to_standard_output(trained: Workspace, tmp_path: Path) -> None:
    """The real command in a pipe, in a locale whose letters are not UTF-8: the table and nothing else."""
    file, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    file.write_text("sentence,note\nthe film is good,ünï\n,x\nthe meal is bad,\n", encoding="utf-8")
    predict("films", file, out, trained, using="auto", batch_size=64, precision="fp32")
    arguments = ["predict", "--target", "films", "--input", "-", "--output", "-", "--precision=fp32", *places(trained)]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        input=file.read_bytes(),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == out.read_bytes()
    assert done.stderr.decode() == "1 of 3 rows have a blank text and no prediction for films\n"


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b"text\nthe film\n", [], "standard input: column 'sentence' is missing; the columns are 'text'"),
        (b"sentence\n\xff\n", [], "standard input: cannot be read (not UTF-8 text"),
        (b"sentence\nthe film\n", ["--json"], "--json prints to standard output, where --output - writes the table"),
    ],
)
def test_standard_input_that_cannot_be_read_is_named(
    content: bytes, options: list[str], expected: str, trained: Workspace, monkeypatch, capsys
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    capsys.readouterr()
    arguments = ["predict", "--target", "films", "--input", "-", "--output", "-", *options, *places(trained)]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {expected}")
    assert captured.out == ""
