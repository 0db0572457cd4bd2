"""Which rows a workspace trains on, chooses by and scores."""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.data.canonical import fingerprint
from pipeline.data.split import overlapping_rows
from pipeline.data.task_data import TaskData
from pipeline.runs.workspace import Workspace
from pipeline.settings.study import ScoredRows
from pipeline.system.errors import PipelineError
from tests.nano import write_tasks


def rows(split: str, size: int, *texts: str) -> pd.DataFrame:
    """Rows with texts of their own, but for the first ones."""
    own = [f"{split} {number}" for number in range(size)]
    return pd.DataFrame({"sentence": [*texts, *own[len(texts) :]], "label": [number % 2 for number in range(size)]})


@pytest.fixture
def place(backbone_folder: Path, tmp_path: Path) -> Workspace:
    """``films`` has a test split. Rows of its dev and test also stand in its own train and in that of ``meals``."""
    data = write_tasks(tmp_path / "data")
    for task in ("films", "meals"):
        shared = ("films dev 7", "films test 7") + (("films dev 8", "films dev 9") if task == "meals" else ())
        rows(f"{task} train", 60, *shared).to_csv(data / task / "train.csv", index=False)
        rows(f"{task} dev", 40).to_csv(data / task / "dev.csv", index=False)
    rows("films test", 30).to_csv(data / "films" / "test.csv", index=False)
    return Workspace(str(backbone_folder), data, tmp_path / "store", tmp_path / "reports")


def read(place: Workspace, task: str = "films", limit: int | None = None, seed: int = 0, **changes: Any) -> TaskData:
    place = dataclasses.replace(place, **changes)
    return place.splits.of(place.task(task), limit, seed)


def texts(rows: pd.DataFrame | None) -> list[str]:
    return rows["text_a"].tolist()


def test_by_default_dev_chooses_and_is_scored_as_it_always_was(place: Workspace) -> None:
    plain = read(place)
    assert plain.test is None
    assert plain.scored is plain.dev
    assert plain.fingerprint == {"train": fingerprint(plain.train), "dev": fingerprint(plain.dev)}
    assert plain.scored_fingerprint == fingerprint(plain.dev)


def test_the_halves_of_dev_are_dev_whatever_the_limit_and_the_seed(place: Workspace) -> None:
    plain, halved = read(place), read(place, scoring=ScoredRows(rows="half"))
    assert sorted(texts(halved.dev) + texts(halved.test)) == sorted(texts(plain.dev))
    assert (len(halved.dev), halved.fingerprint["train"]) == (20, plain.fingerprint["train"])
    assert halved.fingerprint.keys() == {"train", "dev", "test"}
    for limit, seed in ((None, 1), (20, 1), (20, 2)):
        other = read(place, limit=limit, seed=seed, scoring=ScoredRows(rows="half"))
        assert texts(other.test) == texts(halved.test)
        assert other.fingerprint["test"] == halved.fingerprint["test"]
    moved = read(place, scoring=ScoredRows(rows="half", seed=1))
    assert texts(moved.test) != texts(halved.test)


def test_a_test_split_is_scored_and_all_of_dev_chooses(place: Workspace) -> None:
    plain, tested = read(place), read(place, scoring=ScoredRows(rows="test"))
    assert texts(tested.test) == [f"films test {number}" for number in range(30)]
    assert tested.fingerprint["dev"] == plain.fingerprint["dev"]
    assert (tested.dev_in_train, tested.test_in_train) == (1, 1)
    with pytest.raises(PipelineError, match=r"split 'test' is missing: no test\{.*\}; --scoring half scores a half of"):
        read(place, "meals", scoring=ScoredRows(rows="test"))
    assert read(place, "meals", scoring=ScoredRows(rows="test", tasks={"meals": "dev"})).test is None


def test_a_source_without_a_test_split_is_scored_on_dev_unless_test_was_asked_of_it(place: Workspace) -> None:
    tested = ScoredRows(rows="test")
    of_target = ScoredRows(rows="test", tasks={"meals": "dev"})
    assert read(place, scoring=of_target, held_out=("meals",)).test is not None  # a source that has one
    assert read(place, "meals", scoring=tested, held_out=("films",)).test is None
    for held_out, asked in (
        (("films", "meals"), tested),
        (("films",), ScoredRows(rows="test", tasks={"meals": "test"})),
    ):
        with pytest.raises(PipelineError, match="split 'test' is missing"):
            read(place, "meals", scoring=asked, held_out=held_out)


@pytest.mark.parametrize("labels", ["no column", "blank", "of the task"])
def test_a_source_whose_test_split_has_no_labels_is_scored_on_dev_and_a_target_is_not(
    labels: str, place: Workspace
) -> None:
    test = rows("meals test", 30)
    test = {"no column": test.drop(columns="label"), "blank": test.assign(label=None), "of the task": test}[labels]
    test.to_csv(place.data / "meals" / "test.csv", index=False)
    tested = ScoredRows(rows="test")
    assert (read(place, "meals", scoring=tested, held_out=("films",)).test is not None) == (labels == "of the task")
    if labels != "of the task":
        with pytest.raises(PipelineError, match=r"meals/test.csv: (column 'label' is missing|1 problem\n.*label)"):
            read(place, "meals", scoring=tested, held_out=("films", "meals"))


def test_held_out_rows_are_train_less_what_the_target_trains_on(place: Workspace) -> None:
    plain = read(place)
    scoring = ScoredRows(rows="held-out", size=20)
    found = read(place, scoring=scoring)
    assert found.fingerprint["dev"] == plain.fingerprint["dev"]
    shared = {"films dev 7"}  # of train, in dev too: it would have chosen
    assert set(texts(found.train)) | set(texts(found.test)) | shared == set(texts(plain.train))
    assert not set(texts(found.train)) & set(texts(found.test))
    assert 19 <= len(texts(found.test)) <= 20
    assert not shared & set(texts(found.test))
    for limit, seed in ((20, 1), (20, 2)):
        assert texts(read(place, limit=limit, seed=seed, scoring=scoring).test) == texts(found.test)
    assert texts(read(place, scoring=ScoredRows(rows="held-out", size=20, seed=1)).test) != texts(found.test)
    assert len(texts(read(place, scoring=ScoredRows(rows="held-out")).train)) == 30  # at most half is held out


def test_rows_that_all_stand_in_dev_cannot_be_held_out(place: Workspace) -> None:
    films = place.data / "films"
    pd.read_csv(films / "train.csv").to_csv(films / "dev.csv", index=False)
    with pytest.raises(PipelineError, match="30 of 30 training rows to be held out also occur in dev"):
        read(place, scoring=ScoredRows(rows="held-out"))


def test_a_source_does_without_the_rows_that_a_target_holds_out(place: Workspace) -> None:
    train = pd.read_csv(place.data / "films" / "train.csv")
    train.to_csv(place.data / "meals" / "train.csv", index=False)
    changes: dict[str, Any] = {"scoring": ScoredRows(rows="held-out", tasks={"meals": "dev"}), "held_out": ("films",)}
    target, source = read(place, **changes), read(place, "meals", **changes)
    assert set(texts(source.train)) == set(texts(target.train)) - set(texts(target.dev))


def test_few_rows_give_some_of_theirs_to_choose_by(place: Workspace) -> None:
    plain = read(place, limit=20, seed=3)
    found = read(place, limit=20, seed=3, scoring=ScoredRows(rows="train"))
    assert (len(found.train), len(found.dev)) == (16, 4)
    assert sorted(texts(found.train) + texts(found.dev)) == sorted(texts(plain.train))
    assert texts(found.test) == texts(plain.dev)
    assert set(found.dev["label"]) == {0, 1}
    few = read(place, limit=4, seed=3, scoring=ScoredRows(rows="train", share=0.1))
    assert (set(few.dev["label"]), set(few.train["label"])) == ({0, 1}, {0, 1})


@pytest.mark.parametrize("scoring", ["half", "test", "train"])
def test_no_row_that_chooses_or_scores_is_trained_on_for_another_task(place: Workspace, scoring: Any) -> None:
    changes = {"scoring": ScoredRows(rows=scoring, tasks={"meals": "dev"}), "held_out": ("films",)}
    target, source = read(place, **changes), read(place, "meals", **changes)
    assert source.dropped == {"films": 4 if scoring == "test" else 3}
    for part in (target.dev, target.test) if scoring != "train" else (target.test,):
        assert not overlapping_rows(source.train, part).any()


@pytest.mark.parametrize(("scoring", "dropped"), [("dev", 1), ("half", 1), ("test", 2), ("train", 1)])
def test_overlap_is_dropped_with_all_rows_that_choose_or_score(place: Workspace, scoring: Any, dropped: int) -> None:
    found = read(place, drop_overlap=True, scoring=ScoredRows(rows=scoring))
    assert found.dropped == {"films": dropped}
    assert (found.dev_in_train, found.test_in_train) == (0, 0)


def test_training_rows_that_a_dev_limit_leaves_out_are_not_trained_on(place: Workspace) -> None:
    scoring = ScoredRows(rows="train")
    all_rows, limited = read(place, scoring=scoring), read(place, dev_limit=8, scoring=scoring)
    assert texts(limited.train) == texts(all_rows.train)
    assert set(texts(limited.dev)) < set(texts(all_rows.dev))
    assert set(limited.dev["label"]) == {0, 1}
    # As many as there are, or more, leave the rows and so the run's name as they are.
    same = read(place, dev_limit=len(all_rows.dev), scoring=scoring)
    assert same.fingerprint["dev"] == all_rows.fingerprint["dev"]
