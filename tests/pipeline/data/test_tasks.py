"""Every shipped task is valid and found by its names, and a bad task file is told all its mistakes at once."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.data.labels import METRICS_OF
from pipeline.data.task_data import load_all_rows
from pipeline.data.tasks import BUILT_IN, Task, UnknownTaskError, built_in_tasks, find_task
from pipeline.system.errors import PipelineError
from tests.loading import LIKENESS, MOOD

SHIPPED = sorted(BUILT_IN.glob("*.toml"))
DATA = os.environ.get("TASKS_DATA")
"""A folder with the built-in tasks' files, where there is one: see docs/development.md."""

HUB: dict[str, Any] = {"dataset": "owner/set", "text": ["a", "b"], "label": "y", "splits": {"train": "train"}}


def toml(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {value!r}\n" for key, value in values.items())


def mistakes(values: dict[str, Any]) -> list[str]:
    """The lines of the error that ``values`` give, after the heading that must count them."""
    with pytest.raises(PipelineError) as caught:
        Task.parse(values, "mine.toml")
    heading, *lines = str(caught.value).splitlines()
    assert heading == f"mine.toml: {len(lines)} problem{'s' if len(lines) > 1 else ''}"
    return [line.strip() for line in lines]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_a_shipped_task_parses_and_is_named_like_its_file(file: Path) -> None:
    task = Task.read(file)
    assert task.name == file.stem
    assert task.description and task.terms
    assert task.outputs == (len(task.classes) if task.kind == "classes" else 1)
    if task.hub is not None:
        assert task.hub.dev_fraction is not None or "dev" in task.hub.splits
        assert set(task.hub.labels.values()) <= set(range(task.outputs))


@pytest.mark.skipif(DATA is None, reason="TASKS_DATA names no folder with the tasks' files")
@pytest.mark.parametrize("task", built_in_tasks().values(), ids=list(built_in_tasks()))
def test_a_shipped_task_reads_its_files(task: Task) -> None:
    rows = load_all_rows(task, Path(DATA))
    assert len(rows.train) > len(rows.dev) > 0
    labels = Path(DATA) / task.name / "labels.json"
    if labels.exists():
        names = json.loads(labels.read_text())
        assert [names[str(number)] for number in range(task.outputs)] == list(task.classes)


def test_tasks_share_text_both_ways_and_only_with_tasks_there_are() -> None:
    tasks = built_in_tasks()
    pairs = {frozenset((task.name, other)) for task in tasks.values() for other in task.shares_text}
    assert len(pairs) == sum(len(task.shares_text) for task in tasks.values()), "said twice"
    for first in tasks.values():
        for second in tasks.values():
            assert bool(first.text_shared_with(second)) == ({first.name, second.name} in pairs)
            assert first.text_shared_with(second) == second.text_shared_with(first)


def test_no_two_shipped_tasks_answer_to_the_same_name() -> None:
    names = [name for task in built_in_tasks().values() for name in (task.name, *task.aliases)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("alias", "name"), [("qqp", "quora"), ("stsb", "sts"), ("lmrd", "imdb")])
def test_the_fields_own_names_of_the_data_sets_are_aliases(alias: str, name: str) -> None:
    assert find_task(alias).name == name


def test_a_task_is_found_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "anything.toml"
    file.write_text(toml(MOOD))
    assert find_task(str(file)) == Task.parse(MOOD, "mood")
    with pytest.raises(PipelineError, match=r"nothing\.toml: no such file"):
        find_task(str(tmp_path / "nothing.toml"))


def save_task(data: Path, name: str, *aliases: str) -> Path:
    file = data / name / "task.toml"
    file.parent.mkdir(parents=True)
    file.write_text(toml(MOOD | {"name": name, "aliases": list(aliases)}))
    return file


def test_a_task_file_in_the_data_folder_comes_before_the_built_in_task(tmp_path: Path) -> None:
    save_task(tmp_path, "sst")
    assert find_task("sst", tmp_path).classes == ("bad", "good")
    assert len(find_task("sst").classes) == 5
    assert find_task("quora", tmp_path) == built_in_tasks()["quora"]


def test_a_task_of_a_data_folder_is_found_by_its_aliases(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    save_task(mine, "tickets", "tix")
    save_task(theirs, "tickets", "queue")  # the first folder's counts
    save_task(theirs, "issues", "bugs")
    (mine / "broken").mkdir()
    (mine / "broken" / "task.toml").write_text("name = 3")
    (mine / "No Name").mkdir()
    (mine / "No Name" / "task.toml").write_text(toml(MOOD))
    assert [find_task(name, mine, theirs).name for name in ("tix", "bugs")] == ["tickets", "issues"]
    for name in ("queue", "tixx"):
        with pytest.raises(PipelineError, match=f"unknown task '{name}'"):
            find_task(name, mine, theirs)


def test_a_name_comes_before_an_alias(tmp_path: Path) -> None:
    save_task(tmp_path, "mood", "sst", "stsb", "tickets")
    save_task(tmp_path, "tickets")
    assert [find_task(name, tmp_path).name for name in ("sst", "stsb", "tickets")] == ["sst", "sts", "tickets"]


def test_a_task_file_that_disagrees_with_its_folder_is_refused(tmp_path: Path) -> None:
    save_task(tmp_path, "mood").parent.rename(tmp_path / "sst")
    with pytest.raises(PipelineError, match="its name is 'mood', but its folder is 'sst'"):
        find_task("sst", tmp_path)


def test_an_unknown_task_is_answered_with_those_there_are(tmp_path: Path) -> None:
    save_task(tmp_path, "mood")
    for name, hint in (("operas", ""), ("sts2", " (did you mean 'sts'?)"), ("moood", " (did you mean 'mood'?)")):
        with pytest.raises(UnknownTaskError) as caught:
            find_task(name, tmp_path)
        assert str(caught.value).startswith(f"unknown task '{name}'{hint}: python -m pipeline tasks list names all")


BAD = {
    "nothing": ({}, ["name: missing", "kind: missing", "text: missing", "label: missing", "metric: missing"]),
    "keys of other types": (
        MOOD | {"colour": "red", "max_length": "long", "classes": "bad", "aliases": ["a,b", "Mood"], "terms": 3},
        ["colour: unknown key", "max_length: Input", "classes: Input", "aliases.0: ", "aliases.1: ", "terms: Input"],
    ),
    "values that are not allowed": (
        LIKENESS | {"text": ["a", "b", "c"], "metric": "kendall", "pooling": "max", "max_length": 3, "name": "../mood"},
        ["text: Tuple", "metric: Input", "pooling: Input", "max_length: Input", "name: String should match"],
    ),
    "classes with the settings of a score": (
        MOOD | {"classes": ["one"], "range": [0, 1], "metric": "pearson"},
        [
            "classes: a task of kind 'classes' names at least two classes",
            "range: belongs to kind 'score'",
            f"metric: use {' or '.join(METRICS_OF['classes'])} for kind 'classes'",
        ],
    ),
    "a score with the settings of classes": (
        {key: value for key, value in LIKENESS.items() if key != "range"}
        | {"classes": ["a", "b"], "similar": "c", "metric": "accuracy"},
        [
            "range: a task of kind 'score' needs its lowest and highest score",
            "classes: belongs to kinds 'classes' and 'labels'",
            "similar: 'c' is none of a and b",
            "metric: use pearson or spearman for kind 'score'",
        ],
    ),
    "text shared with itself": (MOOD | {"shares_text": {"mood": "all"}}, ["shares_text: 'mood' is the task itself"]),
    "text shared with no name of a task": (MOOD | {"shares_text": {"Mood": "all"}}, ["shares_text.Mood"]),
    "names that repeat": (
        LIKENESS | {"text": ["same", "same"], "kind": "classes", "classes": ["a", "a"], "metric": "accuracy"},
        ["classes: names repeat", "range: belongs to kind 'score'", "text: the two columns are the same"],
    ),
    "a label that is a text, and a range upside down": (
        LIKENESS | {"label": "second", "range": [5.0, 0.0]},
        ["range: the first number must be below", "label: column 'second'"],
    ),
    "an empty range and a head of one sentence": (
        LIKENESS | {"range": [2.0, 2.0], "head": "cosine", "encoding": "cross"},
        ["range: the first number must be below the second", "head: 'cosine' needs encoding = 'siamese'"],
    ),
    "an endless range": (LIKENESS | {"range": [0.0, math.inf], "aliases": "like"}, ["range", "aliases:"]),
    "a pair's head for one text": (
        MOOD | {"head": "difference", "encoding": "siamese"},
        ["encoding/head: siamese encoding and its heads need two text columns"],
    ),
    "bad files and a bad Hub data set": (
        LIKENESS
        | {"files": {"dev_fraction": 1.5, "valid": "dev"}, "hub": HUB | {"splits": {"validation": "v"}, "config": 3}},
        ["files.dev_fraction: Input", "files.valid: unknown key", "hub.splits.validation", "hub.config: Input"],
    ),
    "a Hub data set with other texts": (LIKENESS | {"hub": HUB | {"text": ["a"]}}, ["hub.text: as many columns as"]),
    "a Hub data set with nothing in it": (
        LIKENESS | {"hub": {"text": [], "splits": {}}},
        ["hub.dataset: missing", "hub.label: missing", "hub.text: Tuple", "hub.splits: Dictionary"],
    ),
}


@pytest.mark.parametrize(("values", "expected"), BAD.values(), ids=list(BAD))
def test_a_bad_task_is_told_all_its_mistakes_at_once(values: dict[str, Any], expected: list[str]) -> None:
    found = mistakes(values)
    unsaid = [start for start in expected if not any(line.startswith(start) for line in found)]
    assert not unsaid, found
    assert len(found) == len(expected), found


def test_meaning_tells_tasks_apart_by_what_is_predicted_and_not_by_where_it_stands() -> None:
    task = Task.parse(MOOD, "mood")
    assert task.meaning == Task.parse(MOOD | {"label": "y", "description": "other", "max_length": 9}, "mood").meaning
    assert task.meaning != Task.parse(MOOD | {"classes": ["good", "bad"]}, "mood").meaning
    assert Task.parse(LIKENESS, "").meaning != Task.parse(LIKENESS | {"range": [0, 4]}, "").meaning
