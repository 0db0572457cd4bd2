"""What ``tasks new`` takes of a table the other commands take too: the same texts, blanks and labels, from any file."""

import datetime
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.canonical import canonical_rows
from pipeline.data.cells import as_label, is_blank
from pipeline.data.propose import propose
from pipeline.data.tables import read_table
from pipeline.data.tasks import NewTask, Task
from pipeline.system.errors import PipelineError

BLANKS = [None, "", " \n", float("nan"), pd.NA, pd.NaT]
ODD = [True, False, 404, 1.5, datetime.datetime(2024, 4, 3), datetime.date(2024, 4, 3), datetime.time(7, 30)]
NONE = [["a"], {"a": 1}, np.array(["a"]), b"bytes", "half \ud800"]


def task_of(classes: list[str], **files: Any) -> Task:
    raw = {"name": "mine", "kind": "classes", "classes": classes, "metric": "accuracy", "text": ["text"]}
    return Task.parse({**raw, "label": "label", "files": files}, "test")


def labels_of(task: Task, raw: list[Any]) -> list[int]:
    table = pd.DataFrame({"text": [f"text {row}" for row in range(len(raw))], "label": raw}, dtype=object)
    return canonical_rows(task, table, "rows", source=task.files)["label"].tolist()


@pytest.mark.parametrize("value", BLANKS, ids=repr)
def test_a_blank_is_no_text_and_no_label(value: Any) -> None:
    assert is_blank(value) and as_label(value) is None


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, -(2**53) - 1, 1234567890123456789, 1234567890123456788])
def test_a_whole_number_of_any_length_is_a_label_of_its_own(number: int) -> None:
    assert as_label(number) == as_label(np.int64(number)) == as_label(f" {number} ") == str(number)


def test_spellings_of_a_number_are_one_label_and_a_code_is_a_name() -> None:
    assert {as_label(value) for value in (1, 1.0, "1", "1.0", " 1 ", np.float32(1))} == {"1"}
    assert {as_label(value) for value in (0, -0.0, "0", "-0", "0.0")} == {"0"}
    names = ["007", "1.5", "+1", "+-1", "1 192", "1\u202f192", "9007199254740993.0", "9007199254740992.0"]
    assert [as_label(name) for name in names] == names


def test_long_numbers_are_the_classes_of_their_names() -> None:
    names = ["9007199254740992", "9007199254740993", "1234567890123456789"]
    task = task_of(names, labels={name: number for number, name in enumerate(names)})
    assert labels_of(task, [*names, *map(int, names)]) == [0, 1, 2, 0, 1, 2]


@given(st.lists(st.sampled_from([*BLANKS, *ODD, *NONE, "a text", "other text"]), min_size=1, max_size=6))
def test_the_texts_of_a_new_task_are_those_that_a_model_reads(cells: list[Any]) -> None:
    """Or both commands refuse the column."""
    size = max(12, len(cells))
    table = pd.DataFrame({"text": (cells * size)[:size], "label": ["a", "b"] * (size // 2)}, dtype=object)
    found: list[Any] = [None, None]
    with suppress(PipelineError):
        read = canonical_rows(task_of(["a", "b"]), table, "rows", labelled=False, leave_out_blank=True)
        found[0] = read["text_a"].to_dict()
    try:
        # The labels are those of the texts, or rows of equal texts would be left out.
        labelled = table.assign(label=[cell_name(cell) for cell in table["text"]])
        rows = propose(labelled, "rows", NewTask(text="text")).rows
        found[1] = {int(row["id"]): row["text_a"] for row in rows.to_dict("records")}
    except PipelineError as error:
        if "not text" not in str(error) and "Unicode" not in str(error):  # too few labels
            return
    assert found[0] == found[1]


def cell_name(cell: Any) -> str:
    return "long" if len(repr(cell)) > 10 else "short"


def test_a_boolean_is_a_number_where_no_class_has_its_name() -> None:
    assert labels_of(task_of(["no", "yes"]), [True, False, "yes"]) == [1, 0, 1]
    assert labels_of(task_of(["no", "yes"], labels={"1": 0, "0": 1}), [True, False]) == [0, 1]
    score = Task.parse(
        {"name": "mine", "kind": "score", "range": [0, 5], "metric": "pearson", "text": ["text"], "label": "label"}, ""
    )
    assert labels_of(score, [True, 2.5]) == [1.0, 2.5]


@pytest.mark.parametrize(("dropped", "left"), [("true", [0, 1, 0]), ("1", [0, 1, 0]), ("maybe", [1, 0, 1, 0])])
def test_rows_of_a_boolean_label_are_left_out_by_its_name_or_number(dropped: str, left: list[int]) -> None:
    assert labels_of(task_of(["no", "yes"], drop_labels=[dropped]), [True, False, "yes", "no"]) == left


@pytest.mark.parametrize("blank", BLANKS, ids=repr)
def test_a_blank_label_is_no_class_of_that_name(blank: Any) -> None:
    task = task_of(["None", "nan", "NaT", "<NA>"])
    assert labels_of(task, ["None", "nan", "NaT", "<NA>"]) == [0, 1, 2, 3]
    with pytest.raises(PipelineError, match=r"label is neither a number nor in .* \(1 in all\): row 1"):
        labels_of(task, ["None", blank, "nan"])


@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_a_blank_of_a_nullable_column_is_one_as_in_other_files(backend: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    columns = {"text": ["a", None, "c", "d"], "label": [1, 0, None, 0], "flag": [True, None, False, True]}
    pd.DataFrame(columns, dtype=object).convert_dtypes(dtype_backend=backend).to_parquet(file)
    table = read_table(file)
    assert table.to_dict("list") == columns
    task = task_of(["no", "yes"])
    rows = canonical_rows(task, table, "rows", leave_out_blank=True)
    assert (rows["text_a"].tolist(), rows["label"].tolist()) == (["a", "d"], [1, 0])
    read = canonical_rows(task, table, "rows", labelled=False, leave_out_blank=True)
    assert read["text_a"].tolist() == ["a", "c", "d"]
    with pytest.raises(PipelineError, match=r"column 'text': empty or null text \(1 in all\): row 2: None"):
        canonical_rows(task, table, "rows")


TASK = task_of(["R\u00fcckgabe", "gut"])


def rows_of(texts: list[Any], labels: list[Any]) -> pd.DataFrame:
    return canonical_rows(TASK, pd.DataFrame({"text": texts, "label": labels}, dtype=object), "rows")


@pytest.mark.parametrize("label", ["gut ", " gut", "gut"])
def test_a_label_may_have_blanks_around_it(label: str) -> None:
    assert rows_of(["a", "b"], ["Ru\u0308ckgabe", label])["label"].tolist() == [0, 1]


def test_a_sheets_number_beside_texts_is_a_text() -> None:
    assert rows_of(["a text", 404, 1.5], [0, 1, 1])["text_a"].tolist() == ["a text", "404", "1.5"]


@pytest.mark.parametrize("texts", [[404, 405], [True, False], ["a text", ["b"]], ["a text", b"b"]], ids=str)
def test_a_column_of_numbers_alone_holds_no_texts_and_a_list_is_none(texts: list[Any]) -> None:
    with pytest.raises(PipelineError, match="column 'text': not text"):
        rows_of(texts, [0, 1])


def test_a_single_label_is_called_by_its_name() -> None:
    with pytest.raises(PipelineError, match="a single label: all 2 rows have 'gut'"):
        rows_of(["a", "b"], ["gut", "gut"])
