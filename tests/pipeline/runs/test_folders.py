"""Several folders of data add up, and a task in none of them is read from the Hub."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from pipeline.data import task_data
from pipeline.runs.workspace import Workspace
from pipeline.system.errors import PipelineError


@pytest.fixture
def folders(data_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """films in the first, films (with other rows) and meals in the second."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    shutil.copytree(data_folder / "films", mine / "films")
    for task in ("films", "meals"):
        shutil.copytree(data_folder / task, theirs / task)
    rows = pd.read_csv(theirs / "films" / "train.csv")
    rows.head(30).to_csv(theirs / "films" / "train.csv", index=False)
    return mine, theirs


def opened(*folders: Path) -> Workspace:
    first, *more = folders
    return Workspace("unread", first, first / "store", first / "reports", more_data=tuple(more))


def test_a_task_is_read_from_the_first_folder_that_has_it(folders: tuple[Path, Path]) -> None:
    mine, theirs = folders
    for order, rows in (((mine, theirs), 96), ((theirs, mine), 30)):
        place = opened(*order)
        films, meals = place.task("films"), place.task("meals")
        assert len(place.splits.of(films, None, 0).train) == rows
        assert place.splits.folder_of(meals) == theirs
        assert place.splits.of(meals, None, 0).fingerprint == opened(theirs).splits.of(meals, None, 0).fingerprint


def test_a_task_file_and_its_rows_may_stand_in_different_folders(folders: tuple[Path, Path]) -> None:
    mine, theirs = folders
    (mine / "meals").mkdir()
    shutil.move(theirs / "meals" / "task.toml", mine / "meals")
    place = opened(mine, theirs)
    assert place.splits.folder_of(place.task("meals")) == theirs


def test_a_built_in_task_in_no_folder_is_read_from_the_hub_which_is_said_once(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[str] = []

    def published(hub: task_data.Hub, task: task_data.Task, split: str, labelled: bool, **_: object) -> pd.DataFrame:
        read.append(split)
        return pd.DataFrame({"id": ["0", "1"], "text_a": [f"{split} one", f"{split} two"], "label": [0, 1]})

    monkeypatch.setattr(task_data, "_hub_rows", published)
    mine, theirs = folders
    (theirs / "sst").mkdir()  # without a table it has no rows
    place = opened(mine, theirs)
    for _ in range(2):
        assert len(place.splits.of(place.task("sst"), None, 0).train) == 2
    assert read == ["train", "dev"]
    told = f"note: no rows of task 'sst' in {mine}, {theirs}: it is read from its data set on the Hub, SetFit/sst5\n"
    assert capsys.readouterr().err == told
    alone = Workspace("unread", None, mine / "store", mine / "reports")
    alone.splits.of(alone.task("sst"), None, 0)
    assert capsys.readouterr().err == ""  # nobody named a folder


def test_what_is_nowhere_is_said(folders: tuple[Path, Path], tmp_path: Path) -> None:
    mine, theirs = folders
    place = opened(mine, theirs)
    with pytest.raises(PipelineError, match="unknown task .pairs."):
        place.task("pairs")
    lone = place.task("films").model_copy(update={"name": "lone"})
    with pytest.raises(PipelineError, match=f"no rows of task 'lone' in {mine}, {theirs}: one must have <task>/train"):
        place.splits.of(lone, None, 0)
    with pytest.raises(PipelineError, match="lone: no such folder: --data must have <task>/train"):
        opened(mine).splits.of(lone, None, 0)
    # Even where another folder has the rows: it may be misspelt.
    with pytest.raises(PipelineError, match=f"{tmp_path / 'nowhere'}: no such folder"):
        opened(mine, tmp_path / "nowhere").splits.of(place.task("films"), None, 0)
