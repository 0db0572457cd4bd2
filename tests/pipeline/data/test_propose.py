"""What is left out of a table, its metric and its length, and what no task can be made of."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.data.propose import is_unbalanced, name_of
from pipeline.system.errors import PipelineError
from tests.pipeline.data.messages import SENTENCES, SIZE, proposed, table


@pytest.mark.parametrize(
    ("counts", "unbalanced"), [([2, 1], False), ([21, 10], True), ([20, 10, 10], False), ([50, 30, 20, 10], True)]
)
def test_classes_are_unbalanced_where_one_is_more_than_twice_the_mean_of_the_others(
    counts: list[int], unbalanced: bool
) -> None:
    labels = pd.Series([str(label) for label, count in enumerate(counts) for _ in range(count)])
    assert is_unbalanced(labels) == unbalanced


def test_blank_and_contradicting_rows_are_left_out_and_counted() -> None:
    rows = table()
    rows.loc[0, "message"] = " "
    rows.loc[1, "queue"] = None
    rows.loc[2, ["message", "queue"]] = None, None
    rows.loc[[4, 5], "message"] = ["The same  text", "the same TEXT "]
    rows.loc[[6, 8], "message"] = "equal and agreed"
    found = proposed(rows)
    # As messages count the rows of a file: from 1.
    assert found.dropped == {
        "without text": [1, 3], "without a label": [2], "with the text of another row and another label": [5, 6]
    }  # fmt: skip
    assert found.repeated == 1
    assert found.rows["id"].tolist() == [str(row) for row in range(SIZE) if row not in (0, 1, 2, 4, 5)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("thanks :)", "thanks :("),
        ("thanks \U0001f600", "thanks \U0001f620"),
        ("C++", "C#"),
        ("a > b", "a < b"),
        ("\u0932\u0921\u093c\u0915\u093e", "\u0932\u0921\u093c\u0915\u0940"),  # boy and girl in Hindi
        ("it is!", "it is?"),
    ],
)
def test_texts_that_differ_in_a_sign_do_not_contradict_each_other(one: str, other: str) -> None:
    rows = table()
    rows.loc[[4, 5], "message"] = [one, other]
    found = proposed(rows)
    assert found.dropped == {}
    assert found.repeated == 1  # they are in one split


def test_a_guessed_text_column_by_which_many_rows_contradict_each_other_is_refused() -> None:
    """As the question of a pair does, if the label is of its answer."""
    quarter, more = (
        table(message=None, question=["one text"] * count + SENTENCES[count:]) for count in (SIZE // 4, SIZE // 4 + 1)
    )
    assert len(proposed(quarter).rows) == 30
    assert len(proposed(more, text=["question"]).rows) == 29
    with pytest.raises(PipelineError) as caught:
        proposed(more)
    assert "11 of 40 rows" in str(caught.value) and "--text question leaves out 11 rows" in str(caught.value)


def test_scores_contradict_each_other_beyond_a_fifth_of_the_range() -> None:
    rows = table(queue=[row / 10 for row in range(SIZE)])
    rows.loc[[0, 1], ["message", "queue"]] = [["equal", 2.0], ["equal", 2.5]]
    rows.loc[[2, 3], ["message", "queue"]] = [["opposed", 0.1], ["opposed", 2.0]]
    found = proposed(rows)
    assert found.dropped == {"with the text of another row and another label": [3, 4]}
    assert found.repeated == 1


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (["a", "b", "a", *map(str, range(SIZE - 3))], "rows 1 and 3 have the same, 'a'"),
        ([7, "b", " 7", *map(str, range(100, SIZE + 97))], "rows 1 and 3 have the same, '7'"),
        (["a", None, *map(str, range(SIZE - 2))], "row 2 has none that is a text or a whole number"),
    ],
)
@pytest.mark.parametrize("column", ["id", "ID"])
def test_ids_that_name_no_rows_are_said_to_be_replaced(ids: list[Any], why: str, column: str) -> None:
    proposal = proposed(table(**{column: ids}))
    assert proposal.rows["id"].tolist() == [str(row) for row in range(SIZE)]
    assert proposal.remarks == (f"column '{column}' does not name the rows: {why}. Rows are numbered from 0 instead",)
    names = [f"r{row}" for row in range(SIZE)]
    proposal = proposed(table(**{column: names}))
    assert (proposal.rows["id"].tolist(), proposal.remarks) == (names, ())


@pytest.mark.parametrize(
    ("rows", "remark"),
    [
        (table(message=None, subject=[f"note {row}" for row in range(SIZE)], nachricht=SENTENCES), "'nachricht' holds"),
        (table(queue=None, date=None, rating=[*range(1, 11)]), "10 classes are numbers: --kind score reads them"),
        (table(queue=None, date=None, rating=[*range(1, 6)]), "reads them as scores, so that 1 is near 2"),
        (table(queue=None, date=None, rating=[100, 1, 50, 60]), "4 classes .* so that 50 is near 60"),
        (table(queue=None, date=None, rating=["7", "07", "1", "4"]), "4 classes .* so that 1 is near 4"),
    ],
)
def test_what_may_be_meant_otherwise_is_said_with_its_option(rows: pd.DataFrame, remark: str) -> None:
    (said,) = proposed(rows).remarks
    assert re.search(remark, said)


def test_long_texts_raise_max_length() -> None:
    assert proposed(table()).max_length == 128
    assert proposed(table(message=[f"{row} " + "word " * 150 for row in range(SIZE)])).max_length == 256
    assert proposed(table(message=[f"{row} " + "word " * 900 for row in range(SIZE)])).max_length == 512


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (table(queue=["x"]), {}, "fewer than two different labels in 40 rows"),
        (table(queue=[1]), {"kind": "score"}, "fewer than two different labels"),
        (table(queue=["1", "1.0"]), {"kind": "score"}, "fewer than two different labels"),
        (table(message=["one text"]), {"text": ["message"]}, "fewer than two labels are left"),
        (table(message=["one text"]), {}, "40 of 40 rows have the text of another row"),
        (table(message=[["a", "b"]]), {"text": ["message"]}, "column 'message', row 1 is not a text"),
    ],
)  # fmt: skip
def test_what_no_task_can_be_made_of_is_refused(rows: pd.DataFrame, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said) as caught:
        proposed(rows, **options)
    assert "\n" not in str(caught.value)


def test_a_name_comes_from_the_file() -> None:
    assert name_of(Path("a/Support Tickets (2024).csv")) == "support-tickets-2024"
