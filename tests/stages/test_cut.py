"""Rows that are longer than what is read of them: every command that cuts texts says how many."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pipeline.runs.model import load
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.extract import extract
from stages.fuse import fuse
from tests.runs import places

Quick = Callable[..., Recipe]
Run = Callable[..., tuple[int, str, str]]
LONG = "the film is " + "very " * 30 + "good"


@pytest.fixture
def place(workspace: Workspace, data_folder: Path, tmp_path: Path) -> Workspace:
    """The tasks; five rows of train of films are long, and two of dev."""
    shutil.copytree(data_folder, tmp_path / "long")
    for split, count in (("train", 5), ("dev", 2)):
        file = tmp_path / "long" / "films" / f"{split}.csv"
        rows = pd.read_csv(file)
        rows.loc[: count - 1, "sentence"] = LONG
        rows.to_csv(file, index=False)
    return dataclasses.replace(workspace, data=tmp_path / "long")


@pytest.mark.parametrize(
    ("length", "remedy"), [(16, "--max-length N reads more, up to 32"), (32, "the backbone reads no more")]
)
def test_training_says_once_how_many_rows_it_cuts(
    length: int, remedy: str, place: Workspace, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    most = place.backbone.max_length
    length, remedy = (most if length == 32 else length), remedy.replace("32", str(most))
    recipe = quick("adapter", epochs=1, max_length=length)
    note = f"note: 7 of 136 rows of films are longer than {length} tokens and are cut ({remedy})\n"
    capsys.readouterr()
    extract("films", recipe, place, seed=0)
    told = capsys.readouterr().err
    assert note in told
    steps = -(-len(place.splits.of(place.task("films"), None, 0).train) // recipe.batch_size)
    assert f"epochs = 1 leaves {steps} optimiser steps" in told  # without epochs at least 400
    # In a study the same is true of every seed and sample.
    extract("films", recipe, place, seed=1, limit=40)
    extract("meals", recipe, place, seed=0)
    assert "are cut" not in capsys.readouterr().err
    fuse("films", quick("fusion", epochs=1, max_length=length), dataclasses.replace(place), seed=0, sources="meals")
    assert note in capsys.readouterr().err


def test_predict_and_evaluate_say_how_many_rows_the_model_cuts(
    place: Workspace, quick: Quick, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extract("films", quick("adapter", epochs=1, max_length=16), place, seed=0)
    extract("meals", quick("adapter", epochs=1, max_length=16), place, seed=0)
    file, out = tmp_path / "new.csv", f"--output={tmp_path / 'out.csv'}"
    pd.DataFrame({"sentence": ["the film is good", LONG, "", LONG]}).to_csv(file, index=False)
    note = "rows are longer than the 16 tokens that the model of"
    status, printed, told = run("predict", "--target=films,meals", f"--input={file}", out, "--json", *places(place))
    assert status == 0
    assert f"note: 2 of 3 {note} films reads, and are cut" in told
    assert f"note: 2 of 3 {note} meals reads, and are cut" in told
    for summary in json.loads(printed.splitlines()[-1])["targets"]:
        assert (summary["blank"], summary["cut"], summary["max_length"]) == (1, 2, 16)
    rows = {"sentence": ["new and good", f"new {LONG}", f"newer {LONG}"], "label": [1, 0, 1]}
    pd.DataFrame(rows).to_csv(file, index=False)
    status, printed, told = run("evaluate", "--target=films", f"--input={file}", "--json", *places(place))
    assert status == 0
    assert told.count(f"note: 2 of 3 {note} films reads, and are cut") == 1
    summary = json.loads(printed.splitlines()[-1])
    assert (summary["cut"], summary["max_length"]) == (2, 16)
    pd.DataFrame({"sentence": ["the film is good"]}).to_csv(file, index=False)
    assert note not in run("predict", "--target=films", f"--input={file}", out, *places(place))[2]
    model = load("films", store=place.store_root, data=place.data)  # a program asks for lengths itself
    capsys.readouterr()
    model.predict([LONG])
    assert capsys.readouterr().err == ""
