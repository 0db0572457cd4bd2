"""Extra data: another task's rows mean what the target's mean, and none of them is what the target is scored on."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.data.split import overlapping_rows
from pipeline.data.task_data import Added, load_all_rows
from pipeline.data.tasks import Extra, Task, find_task
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError

TWO = {"kind": "classes", "metric": "accuracy", "text": ["text"], "label": "label", "classes": ["bad", "good"]}
PAIRS = {"kind": "score", "metric": "pearson", "text": ["a", "b"], "label": "label", "range": [0.0, 5.0]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A target ``own`` with dev, test and unlabelled test, and sources of every kind; word numbers are the texts."""
    write(tmp_path, "own", TWO, train=words(0, 40), dev=words(100, 120), test=words(200, 205),
          test_unlabelled=words(300, 303).drop(columns="label"))  # fmt: skip
    # Of the source, 5 rows stand in dev, 2 in test, 1 in the unlabelled one, 3 in the target's own training rows.
    texts = [*range(500, 530), *range(100, 105), 200, 201, 300, 0, 1, 2]
    write(tmp_path, "near", TWO, train=words_of(texts), dev=words(600, 610))
    write(tmp_path, "other", TWO | {"classes": ["no", "yes"]}, train=words(700, 720), dev=words(800, 810))
    write(tmp_path, "three", TWO | {"classes": ["x", "y", "z"]}, train=words(900, 921, 3), dev=words(950, 960, 3))
    write(tmp_path, "pairs", PAIRS, train=pairs(0, 30), dev=pairs(50, 60))
    write(tmp_path, "tens", PAIRS | {"range": [0.0, 10.0]}, train=pairs(70, 90, 10), dev=pairs(95, 99, 10))
    return tmp_path


def write(folder: Path, name: str, keys: dict[str, Any], **splits: pd.DataFrame) -> None:
    (folder / name).mkdir()
    Task.parse({"name": name, **keys}, name)
    lines = [f"{key} = {str(value) if not isinstance(value, str) else repr(value)}" for key, value in keys.items()]
    (folder / name / "task.toml").write_text("\n".join([f"name = '{name}'", *lines]))
    for split, table in splits.items():
        table.to_csv(folder / name / f"{split}.csv", index=False)


def words(start: int, end: int, classes: int = 2) -> pd.DataFrame:
    return words_of(range(start, end), classes)


def words_of(numbers: Any, classes: int = 2) -> pd.DataFrame:
    return pd.DataFrame([(f"Word {n}!", n % classes) for n in numbers], columns=["text", "label"])


def pairs(start: int, end: int, highest: int = 5) -> pd.DataFrame:
    rows = [(f"first {n}", f"second {n}", float(n % (highest + 1))) for n in range(start, end)]
    return pd.DataFrame(rows, columns=["a", "b", "label"])


def workspace(data: Path, **settings: Any) -> Workspace:
    return Workspace("unread", data, data / "store", data / "reports", **settings)


def added(data: Path, target: str, extra: dict[str, Any], limit: int | None = None, **settings: Any) -> Any:
    place = workspace(data, **settings)
    recipe = Recipe.parse({"extra": extra}, "test")
    return place.splits.of(place.task(target), limit, 1, recipe.extra)


def test_rows_of_another_task_stand_after_the_targets_own(data: Path) -> None:
    alone, found = added(data, "own", {}), added(data, "own", {"other": {"labels": {0: 1, 1: 0}}})
    assert found.dev.equals(alone.dev)
    assert found.train[: len(alone.train)].equals(alone.train)
    rest = found.train[len(alone.train) :]
    source = load_all_rows(find_task("other", data), data).train
    assert rest["text_a"].tolist() == source["text_a"].tolist()
    assert rest["label"].tolist() == [1 - label for label in source["label"]]
    assert rest["id"].tolist() == [f"other:{name}" for name in source["id"]]
    assert found.train.dtypes.equals(alone.train.dtypes)
    assert found.fingerprint["train"] != alone.fingerprint["train"]
    assert found.fingerprint["dev"] == alone.fingerprint["dev"]


def test_what_the_target_is_scored_on_is_left_out_and_counted(data: Path) -> None:
    found = added(data, "own", {"near": {}})
    assert found.added == {"near": Added(rows=33, in_dev=5, in_test=3, in_train=3)}
    assert len(found.train) == 40 + 33
    dev = load_all_rows(find_task("own", data), data).dev
    assert not overlapping_rows(found.train, dev).any()
    assert found.dev_in_train == 0


def test_case_and_punctuation_do_not_hide_a_leak(data: Path) -> None:
    table = pd.DataFrame([("WORD 100", 0), ("word, 101?", 1), ("Word 1000!", 0)], columns=["text", "label"])
    table.to_csv(data / "near" / "train.csv", index=False)
    assert added(data, "own", {"near": {}}).added["near"] == Added(rows=1, in_dev=2)


def test_a_sample_of_dev_hides_no_leak(data: Path) -> None:
    found = added(data, "own", {"near": {}}, dev_limit=4)
    assert len(found.dev) == 4
    assert found.added["near"].in_dev == 5


def test_a_limit_holds_for_each_source_of_rows_by_itself(data: Path) -> None:
    found = added(data, "own", {"near": {}, "other": {"labels": {0: 0, 1: 1}}}, limit=10)
    assert len(found.train) == 30
    assert {name: source.rows for name, source in found.added.items()} == {"near": 10, "other": 10}
    # What a sample leaves out for its texts does not depend on the sample.
    assert found.added["near"].in_dev == 5
    assert found.train["label"].value_counts().tolist() == [15, 15]
    other_seed = workspace(data)
    again = other_seed.splits.of(other_seed.task("own"), 10, 2, Recipe.parse({"extra": {"near": {}}}, "t").extra)
    assert again.train["id"].tolist() != found.train["id"].tolist()[:20]


def test_dev_of_other_tasks_that_are_scored_is_left_out_too(data: Path) -> None:
    table = words_of([500, 501])
    table.to_csv(data / "other" / "dev.csv", index=False)
    found = added(data, "own", {"near": {}}, held_out=("own", "other"))
    assert found.added["near"] == Added(rows=31, in_dev=5, in_test=3, in_other_dev=2, in_train=3)


def test_scores_are_rescaled(data: Path) -> None:
    found = added(data, "pairs", {"tens": {"scale": [0.5, 0]}})
    source = load_all_rows(find_task("tens", data), data).train
    assert found.train["label"].tolist()[30:] == [label / 2 for label in source["label"]]


def test_classes_may_stand_for_scores(data: Path) -> None:
    write(data, "yesno", TWO | {"text": ["a", "b"]}, train=pairs(200, 212, 1).astype({"label": int}),
          dev=pairs(220, 226, 1).astype({"label": int}))  # fmt: skip
    found = added(data, "pairs", {"yesno": {"labels": {0: 1.0, 1: 4.5}}})
    assert set(found.train["label"][30:]) == {1.0, 4.5}


@pytest.mark.parametrize(
    ("target", "extra", "said"),
    [
        ("own", {"pairs": {}}, ["its rows are pairs, and those of 'own' are one text", "scores 0 to 5"]),
        ("pairs", {"own": {}}, ["its rows are one text, and those of 'pairs' are pairs"]),
        ("own", {"other": {}}, ["2 classes (no, yes), and those of 'own' 2 classes (bad, good)", "labels = {"]),
        ("own", {"three": {}}, ["3 classes (x, y, z)"]),
        ("own", {"three": {"labels": {0: 0, 1: 1}}}, ["labels: write one for each of its classes 0..2"]),
        ("own", {"three": {"labels": {0: 0, 1: 1, 2: 2}}}, ["7 labels are not a class of 'own', 0..1: 2"]),
        ("own", {"other": {"labels": {0: 0, 1: 0.5}}}, ["10 labels are not a class of 'own', 0..1: 0.5"]),
        ("own", {"other": {"labels": {0: 0, 1: 1, 7: 1}}}, ["labels: write one for each of its classes 0..1"]),
        ("own", {"other": {"scale": [1, 0]}}, ["scale: is for scores of both tasks"]),
        ("pairs", {"tens": {}}, ["scores 0 to 10, and those of 'pairs' scores 0 to 5", "scale = [a, b]"]),
        ("pairs", {"tens": {"scale": [1, 0]}}, ["10 labels are not in the range of 'pairs', 0..5: 6, 7, 8"]),
        ("pairs", {"tens": {"labels": {0: 1}}}, ["for scores write scale = [a, b]"]),
        ("own", {"nothing": {}}, ["unknown task 'nothing'"]),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_what_to_write(
    target: str, extra: dict[str, Any], said: list[str], data: Path
) -> None:
    with pytest.raises(PipelineError) as caught:
        added(data, target, extra)
    for words_said in said:
        assert words_said in str(caught.value)


def test_labels_are_listed_by_number_however_it_is_written(data: Path) -> None:
    forms = [{"0": 0, "1": 1}, {"0.0": 0, "1.0": 1}]
    found = [added(data, "own", {"other": {"labels": form}}).fingerprint for form in forms]
    assert found[0] == found[1]


def test_rows_are_read_once_for_equal_requests(data: Path) -> None:
    place, extra = workspace(data), (Extra(task="near"),)
    task = place.task("own")
    assert place.splits.of(task, None, 1, extra) is place.splits.of(task, None, 1, extra)
    assert place.splits.of(task, None, 1, extra) is not place.splits.of(task, None, 1)
