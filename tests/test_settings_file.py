"""Recurring settings from a file; and the commands from a table to predictions."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pipeline.cli.options import settings
from pipeline.data.tasks import Hub
from tests.nano import write_tasks

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, two levels below the test's folder."""
    folder = tmp_path / "work" / "deep"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_the_nearest_file_counts_alone_and_its_own_before_pyproject(here: Path, tmp_path: Path) -> None:
    assert settings() == {}
    (tmp_path / "pipeline.toml").write_text('store = "top"\nreports = "top"\n')
    assert settings() == {"store": [f"{tmp_path}/top"], "reports": [f"{tmp_path}/top"]}
    (here.parent / "pyproject.toml").write_text("[tool.ruff]\nline-length = 120\n")
    assert settings()["store"] == [f"{tmp_path}/top"]  # it has no table of ours
    (here.parent / "pyproject.toml").write_text('[tool.adapter-fusion]\nstore = "middle"\n')
    assert settings() == {"store": [f"{here.parent}/middle"]}
    (here.parent / "pipeline.toml").write_text('data = "tasks"\n')
    assert settings() == {"data": [f"{here.parent}/tasks"]}
    (here / "pyproject.toml").write_text("[tool.adapter-fusion]\n")
    assert settings() == {}


def test_paths_are_relative_to_the_file_and_a_backbone_may_be_a_hub_id(here: Path, tmp_path: Path) -> None:
    (here / "pipeline.toml").write_text(
        f'backbone = "./tuned"\ndata = ["mine", "{tmp_path}/theirs"]\nstore = "a/../b"\nreports = "."\n'
    )
    found = {"backbone": ["tuned"], "data": ["mine", f"{tmp_path}/theirs"], "store": ["a/../b"], "reports": ["."]}
    assert settings() == found
    os.chdir(here.parent)
    (here.parent / "pipeline.toml").write_text('backbone = "owner/model"\n')
    assert settings() == {"backbone": ["owner/model"]}
    (here.parent / "owner" / "model").mkdir(parents=True)
    os.chdir(here)
    (here / "pipeline.toml").unlink()
    assert settings() == {"backbone": [f"{here.parent}/owner/model"]}


BAD = {
    "an unknown key": ('stor = "a"', "stor: unknown key"),
    "a number": ("store = 3", "store: Input should be a valid string (got 3)"),
    "a list of stores": ('store = ["a"]', "store: Input should be a valid string (got ['a'])"),
    "no folder of data": ("data = []", "data: Value should have at least 1 item"),
    "data that are no text": ("data = [1]", "data.0: Input should be a valid string (got 1)"),
    "a blank backbone": ('backbone = " "', "backbone: String should match"),
    "no TOML": ("store: a", "cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("shared", [False, True])
def test_a_file_that_cannot_be_is_refused_in_one_message(name: str, shared: bool, here: Path, run: Command) -> None:
    content, expected = BAD[name]
    file = here.parent / ("pyproject.toml" if shared else "pipeline.toml")
    file.write_text(f"{'[tool.adapter-fusion]' if shared else ''}\n{content}\n")
    status, _, error = run("store", "list")
    assert status == 2
    assert error.startswith(f"error: {file}: ")
    assert expected in error
    # A command that needs no folder ignores the file.
    assert run("studies", "list")[0] == 0
    file.write_text(f"{'[tool]' if shared else ''}\nadapter-fusion = 3\n")
    assert run("store", "list")[2].startswith(f"error: {file}: ")


def test_all_mistakes_are_told_at_once_and_a_long_path_is_one(here: Path, run: Command) -> None:
    (here / "pipeline.toml").write_text('a = 1\nstore = 2\nreports = "x"\n')
    assert "pipeline.toml: 2 problems\n" in run("store", "list")[2]
    (here / "pipeline.toml").write_text(f'store = "{"a" * 5000}"\n')
    assert "the name is too long" in run("store", "list")[2]


def test_a_flag_wins_and_a_command_ignores_what_it_has_no_option_for(here: Path, run: Command) -> None:
    (here / "pipeline.toml").write_text('backbone = "b"\ndata = "none"\nstore = "s"\nreports = "r"\n')
    assert run("store", "list")[2] == "error: s: no such folder (--store)\n"
    assert run("store", "list", "--store", "t")[2] == "error: t: no such folder (--store)\n"
    assert run("tasks", "list")[2] == "error: none: no such folder (--data, or data in pipeline.toml)\n"
    (here / "mine").mkdir()
    assert run("tasks", "list", "--data", "mine")[0] == 0


def test_several_folders_are_given_by_flags_or_by_the_file(here: Path, run: Command, data_folder: Path) -> None:
    for name in ("one", "two"):
        folder = here / name / f"from-{name}"
        folder.mkdir(parents=True)
        text = (data_folder / "films" / "task.toml").read_text()
        (folder / "task.toml").write_text(text.replace("films", f"from-{name}"))
    status, out, _ = run("tasks", "list", "--data", "one", "--data", "two")
    assert [line.split()[0] for line in out.splitlines()[:2]] == ["from-one", "from-two"]
    (here / "pipeline.toml").write_text('data = ["two", "one"]\n')
    status, out, _ = run("tasks", "list")
    assert [line.split()[0] for line in out.splitlines()[:2]] == ["from-two", "from-one"]
    assert json.loads(run("tasks", "show", "from-one")[1])["name"] == "from-one"
    assert "unknown task 'from-two'" in run("tasks", "show", "from-two", "--data", "one")[2]
    # A new task goes into the first folder.
    rows = pd.DataFrame({"text": [f"line {number}" for number in range(60)], "label": ["a", "b"] * 30})
    rows.to_csv("lines.csv", index=False)
    status, out, _ = run("tasks", "new", "lines.csv")
    assert (status, (here / "two" / "lines" / "task.toml").is_file()) == (0, True)
    assert "  python -m pipeline extract --task lines" in out.splitlines()


@pytest.mark.slow
def test_from_a_table_to_predictions_in_five_commands(
    here: Path, run: Command, backbone_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands that tasks new prints, with a user's and a built-in task."""
    data = write_tasks(here / "made")
    rows = pd.concat([pd.read_csv(data / "films" / f"{split}.csv") for split in ("train", "dev")])
    rows.drop(columns="id").to_csv("notes.csv", index=False)
    recipe = here / "recipe.toml"
    recipe.write_text("bottleneck = 8\nepochs = 1\nbatch_size = 16\n")
    published = pd.read_csv(data / "meals" / "train.csv").rename(columns={"sentence": "text"})
    published["label"] *= 4  # five classes

    def hub_rows(hub: Hub, task: object, split: str, labelled: bool, **_: object) -> pd.DataFrame:
        return published.rename(columns={"text": "text_a"}).astype({"id": str})

    monkeypatch.setattr("pipeline.data.task_data._hub_rows", hub_rows)
    status, out, _ = run("tasks", "new", "notes.csv", "--text", "sentence", "--label", "label")
    assert status == 0
    commands = [line.partition("#")[0].split()[3:] for line in out.splitlines()[-5:]]
    assert [command[0] for command in commands] == ["extract", "evaluate", "extract", "extract", "predict"]
    (here / "pipeline.toml").write_text(f'backbone = "{backbone_folder}"\n')
    quick = ["--recipe", recipe]
    assert run(*commands[0], *quick)[0] == 0
    assert run(*commands[1])[0] == 0
    status, out, error = run(*commands[2], *quick)
    assert status == 0, error
    assert "note: no rows of task 'sst' in data: it is read from its data set on the Hub, SetFit/sst5" in error
    assert run(*commands[3], *quick)[0] == 0
    (here / "pipeline.toml").unlink()  # the model knows its backbone
    fill_in = dict(zip(("--input", "--output"), ("notes.csv", "scored.csv"), strict=True))
    last = commands[4]
    last = [fill_in.get(last[place - 1], each) for place, each in enumerate(last)]
    status, out, error = run(*last, "--json")
    assert status == 0, error
    scored = pd.read_csv("scored.csv")
    assert len(scored) == 136
    assert scored["prediction"].notna().all()
    assert (here / "data" / "notes" / "task.toml").is_file()
