"""Cells are read as a person means them, and what is none of a task's is named with its row."""

from typing import Any

import pandas as pd
import pytest

from pipeline.data.canonical import canonical_rows
from pipeline.data.tasks import Task
from pipeline.system.errors import PipelineError

TASK = Task.parse(
    {
        "name": "tickets",
        "kind": "classes",
        "classes": ["R\u00fcckgabe", "gut"],
        "metric": "accuracy",
        "text": ["text"],
        "label": "label",
    },
    "test",
)


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
