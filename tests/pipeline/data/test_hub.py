"""Hub data sets become the same canonical rows as files; one that cannot be had is answered with --data."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import datasets
import pytest

from pipeline.data.task_data import load_split, read_test_texts
from pipeline.data.tasks import find_task
from pipeline.system.errors import PipelineError
from tests.loading import load_task_data

Published = dict[str, dict[str, list[Any]]]


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[[Published], list[tuple[Any, ...]]]:
    """Put splits on a Hub of our own; what was asked of it is returned."""

    def install(splits: Published) -> list[tuple[Any, ...]]:
        asked: list[tuple[Any, ...]] = []

        def load(path: str, name: str | None, *, split: str, revision: str | None) -> datasets.Dataset:
            asked.append((path, name, split, revision))
            return datasets.Dataset.from_dict(splits[split])

        monkeypatch.setattr(datasets, "load_dataset", load)
        return asked

    return install


def test_qqp_gives_pairs_with_the_hubs_row_numbers_as_ids(publish: Callable[..., list[Any]]) -> None:
    columns = {"question1": ["how?", "why?"], "question2": ["how so?", "when?"], "label": [1, 0], "idx": [41, 40]}
    asked = publish({"train": columns, "validation": columns | {"question1": ["who?", "NA"]}})
    data = load_task_data(find_task("qqp"), None)
    assert asked == [("nyu-mll/glue", "qqp", "train", None), ("nyu-mll/glue", "qqp", "validation", None)]
    assert data.train.to_dict("list") == {
        "id": ["41", "40"],
        "text_a": ["how?", "why?"],
        "text_b": ["how so?", "when?"],
        "label": [1, 0],
    }
    assert data.dev["text_a"].tolist() == ["who?", "NA"]


def test_sick_is_rescaled_from_1_to_5_to_0_to_5(publish: Callable[..., list[Any]]) -> None:
    columns = {"sentence_A": list("abc"), "sentence_B": list("def"), "relatedness_score": [1.0, 3.0, 5.0]}
    asked = publish({"train": columns, "validation": columns, "test": columns})
    data = load_task_data(find_task("sick"), None)
    assert data.train["label"].tolist() == [0.0, 2.5, 5.0]
    assert asked[0] == ("RobZamp/sick", None, "train", "refs/convert/parquet")


def test_imdb_maps_its_sides_to_the_outer_classes_and_holds_out_a_fixed_tenth(
    publish: Callable[..., list[Any]],
) -> None:
    asked = publish({"train": {"text": [f"film {i}" for i in range(100)], "label": [0] * 50 + [1] * 50}})
    first, second = (load_task_data(find_task("imdb"), None, seed=seed, limit=20) for seed in (1, 2))
    assert {call[2] for call in asked} == {"train"}
    assert Counter(first.dev["label"]) == {0: 5, 4: 5}
    assert Counter(first.train["label"]) == {0: 10, 4: 10}
    assert first.fingerprint["dev"] == second.fingerprint["dev"]
    assert first.fingerprint["train"] != second.fingerprint["train"]
    assert set(first.dev["id"]).isdisjoint(first.train["id"])


PAIR, QUESTION = ["sentence1", "sentence2"], ["text"]
INFERENCE = ["premise", "hypothesis"]


@pytest.mark.parametrize(
    ("name", "asked", "columns", "labels"),
    [
        ("rte", ("nyu-mll/glue", "rte", "train", None), PAIR, {"label": [0, 1]}),
        ("mrpc", ("nyu-mll/glue", "mrpc", "train", None), PAIR, {"label": [0, 1]}),
        ("cb", ("aps/super_glue", "cb", "train", None), INFERENCE, {"label": [0, 1, 2]}),
        ("mnli", ("nyu-mll/glue", "mnli", "train", None), INFERENCE, {"label": [0, 1, 2]}),
        ("snli", ("stanfordnlp/snli", None, "train", None), INFERENCE, {"label": [0, 1, 2]}),
        ("cola", ("nyu-mll/glue", "cola", "train", None), ["sentence"], {"label": [0, 1]}),
        (
            "trec",
            ("CogComp/trec", None, "train", "refs/convert/parquet"),
            QUESTION,
            {"coarse_label": [0, 1, 2, 3, 4, 5], "fine_label": [9] * 6},
        ),
        ("mr", ("cornell-movie-review-data/rotten_tomatoes", None, "train", None), QUESTION, {"label": [0, 1]}),
        (
            "subj",
            ("SetFit/subj", None, "train", None),
            QUESTION,
            {"label_text": ["subjective", "objective"], "label": [7, 8]},
        ),
        ("banking77", ("mteb/banking77", None, "train", None), QUESTION, {"label": list(range(77))}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_class_of_the_hub_is_the_class_of_that_number(
    name: str,
    asked: tuple[Any, ...],
    columns: list[str],
    labels: dict[str, list[Any]],
    publish: Callable[..., list[Any]],
) -> None:
    task, size = find_task(name), len(next(iter(labels.values())))
    assert size == task.outputs and task.hub is not None
    rows = labels | {column: [f"{column} {row}" for row in range(size)] for column in columns}
    tenfold = {column: values * 10 for column, values in rows.items()}  # dev is held out of some
    calls = publish(dict.fromkeys(task.hub.splits.values(), tenfold))
    data = load_task_data(task, None)
    assert calls[0] == asked
    both = [*data.train.to_dict("records"), *data.dev.to_dict("records")]
    assert {(row["label"], row["text_a"], row.get("text_b")) for row in both} == {
        (number, f"{columns[0]} {number}", f"{columns[1]} {number}" if task.is_pair else None) for number in range(size)
    }
    assert len(data.train) > 0 < len(data.dev)


def test_rows_without_a_label_that_annotators_agreed_on_are_left_out(publish: Callable[..., list[Any]]) -> None:
    columns = {"premise": list("abcd"), "hypothesis": list("efgh"), "label": [2, -1, 0, -1]}
    publish({"train": columns, "validation": columns, "test": columns})
    data = load_task_data(find_task("snli"), None)
    assert data.train["label"].tolist() == data.dev["label"].tolist() == [2, 0]
    assert data.train["text_a"].tolist() == ["a", "c"]
    texts = read_test_texts(find_task("snli"), None)
    assert texts is not None and texts["text_a"].tolist() == ["a", "b", "c", "d"]


def test_bad_rows_of_the_hub_are_named_by_data_set_and_split(publish: Callable[..., list[Any]]) -> None:
    publish({"train": {"text": ["a", "", None], "label": [0, 1, -1]}})
    with pytest.raises(PipelineError) as caught:
        load_task_data(find_task("sst"), None)
    message = str(caught.value)
    assert message.startswith("SetFit/sst5:train: 2 problems")
    assert "column 'text': empty or null text (2 in all): row 2: '', row 3: " in message
    assert "(1 in all): row 3: -1.0" in message


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("offline"),
        FileNotFoundError("gone"),
        OSError("time out"),
        ValueError("Unknown split"),
        datasets.exceptions.DatasetNotFoundError("private"),
        datasets.exceptions.DatasetGenerationError("damaged download"),
        RuntimeError("Dataset scripts are no longer supported, but found set.py"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_hub_that_gives_nothing_is_answered_with_the_data_option(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(PipelineError, match="'SetFit/sst5' cannot be downloaded from the Hub") as caught:
        load_task_data(find_task("sst"), None)
    assert "--data DIR" in str(caught.value)


@pytest.mark.parametrize("name", ["cfimdb", "rotten15k"])
def test_a_task_of_files_alone_is_answered_with_the_data_option(name: str) -> None:
    with pytest.raises(PipelineError, match=f"task '{name}' has no Hub data set: .*--data DIR"):
        load_task_data(find_task(name), None)


def test_a_split_that_is_not_published_is_answered_with_the_data_option(publish: Callable[..., list[Any]]) -> None:
    asked = publish({})
    with pytest.raises(PipelineError, match="nyu-mll/glue: publishes no 'test' split: .*--data DIR$"):
        load_split(find_task("quora"), None, "test")
    with pytest.raises(PipelineError, match="publishes no 'test' split: .*--data DIR; or do without$"):
        load_split(find_task("quora"), None, "test", "or do without")
    assert not asked
