"""The files that predict reads and writes: the input stays as it is, and predictions stand row by row beside it."""

import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.extract import extract
from stages.predict import predict

ROWS = "sentence\nthe film is good\nthe meal is bad\n"


def same(file: Path) -> Path:
    return file


def relative(file: Path) -> Path:
    return Path(os.path.relpath(file))


def round_about(file: Path) -> Path:
    return file.parent / ".." / file.parent.name / file.name


def link(file: Path) -> Path:
    (file.parent / "link.csv").symlink_to(file.name)
    return file.parent / "link.csv"


def hard_link(file: Path) -> Path:
    (file.parent / "hard.tsv").hardlink_to(file)
    return file.parent / "hard.tsv"


def through_a_linked_folder(file: Path) -> Path:
    (file.parent / "folder").symlink_to(file.parent)
    return file.parent / "folder" / file.name


def folder(file: Path) -> Path:
    (file.parent / "out.csv").mkdir()
    return file.parent / "out.csv"


def long(file: Path) -> Path:
    return file.parent / f"{'x' * 5000}.csv"


@pytest.mark.parametrize("using", ["auto", "ensemble:best"])
@pytest.mark.parametrize(
    ("output", "reason"),
    [(name, "is the input file") for name in (same, relative, round_about, link, hard_link, through_a_linked_folder)]
    + [(folder, "a folder stands there: name a file in it"), (long, "the name is too long")],
)
def test_an_output_that_cannot_be_is_refused_before_anything_is_computed(
    output: Callable[[Path], Path], reason: str, using: str, workspace: Workspace, tmp_path: Path, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("stages.predict.read_table", lambda _: pytest.fail("read"))
    file = tmp_path / "rows.csv"
    file.write_text(ROWS)
    with pytest.raises(PipelineError, match=reason) as caught:
        predict("films", file, output(file), workspace, using=using, batch_size=8, precision="fp32")
    assert "\n" not in str(caught.value)
    assert file.read_text() == ROWS


def test_an_output_may_stand_beside_the_input_and_replace_another(
    workspace: Workspace, quick: Callable[..., Recipe], tmp_path: Path
) -> None:
    extract("films", quick("adapter", epochs=1), workspace, seed=1, limit=16)
    file, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    file.write_text(ROWS)
    out.write_text("old")
    predict("films", file, out, workspace, using="auto", batch_size=8, precision="fp32")
    assert len(pd.read_csv(out)) == 2
    file.write_text(ROWS.replace("\nthe meal", "\n\nthe meal"))
    with pytest.raises(PipelineError, match="column 'sentence': empty or null text .1 in all.: row 2"):
        predict("films", file, out, workspace, using="auto", batch_size=8, precision="fp32")
