"""The columns, kind, classes and metric of a table, and what is left out of it or refused."""

from typing import Any

import pandas as pd
import pytest

from pipeline.data.propose import Proposal, find_columns, is_unbalanced, name_of, propose
from pipeline.stats.names import Kind
from pipeline.system.errors import PipelineError

SIZE = 40


def table(**columns: Any) -> pd.DataFrame:
    """Rows of different messages and two queues, with further or other columns; a list is repeated to the size."""
    given = {
        "date": [f"2024-01-{row % 28 + 1:02}" for row in range(SIZE)],
        "message": [f"the long message of row {row}" for row in range(SIZE)],
        "queue": ["bill", "bug"],
        **columns,
    }
    return pd.DataFrame(
        {name: [values[row % len(values)] for row in range(SIZE)] for name, values in given.items() if values},
        dtype=object,
    )


def proposed(rows: pd.DataFrame, **options: Any) -> Proposal:
    return propose(rows, "rows.csv", **options)


COMMAS = [f"{row},5" for row in range(SIZE)]
SENTENCES = [f"a sentence of row {row}" for row in range(SIZE)]


@pytest.mark.parametrize(
    ("rows", "text", "label"),
    [
        (table(), ("message",), "queue"),
        (table(message=None, words=SENTENCES), ("words",), "queue"),
        (table(queue=None, date=None, kind=["x", "y"]), ("message",), "kind"),
        (table(date=None, Label=["x", "y"]), ("message",), "Label"),
        (table(gold_label=["x", "y"], queue=None), ("message",), "gold_label"),
        (table(title=["short title"]), ("message",), "queue"),
        (table(message=None, Sentence1=SENTENCES, Sentence2=SENTENCES[::-1]), ("Sentence1", "Sentence2"), "queue"),
        (table(message=None, text_a=SENTENCES, text_b=SENTENCES[::-1]), ("text_a", "text_b"), "queue"),
        (table(message=None, hypothesis=SENTENCES, premise=SENTENCES[::-1]), ("premise", "hypothesis"), "queue"),
        (table(id=[*range(SIZE)]), ("message",), "queue"),
        (table(queue=None, customer_id=[*range(15)], kind=["x", "y"]), ("message",), "kind"),
        (table(queue=None, class_id=[0, 1, 2]), ("message",), "class_id"),
        (table(date=None, pos_y=["1.5", "2.5", *map(str, range(SIZE - 2))]), ("message",), "queue"),
    ],
)
def test_columns_are_found_by_name_and_by_what_they_hold(rows: pd.DataFrame, text: tuple[str], label: str) -> None:
    found = find_columns(rows, "rows.csv")
    assert (found.text, found.label) == (text, label)
    assert {*found.text, found.label, *found.unused} == set(rows) - {"id"}


def test_columns_that_are_given_are_taken() -> None:
    rows = table(title=[f"title {row}" for row in range(SIZE)])
    found = find_columns(rows, "rows.csv", ["title", "message"], "date")
    assert (found.text, found.label, found.unused) == (("title", "message"), "date", ("queue",))


@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        (["b", "a"], "classes", ("a", "b")),
        ([" b", "a ", "b", "a"], "classes", ("a", "b")),
        ([10, 9, 1], "classes", ("1", "9", "10")),
        (["1.0", "2", "1", "2.0"], "classes", ("1", "2")),
        ([True, False], "classes", ("false", "true")),
        (["012", "007", "7", "07"], "classes", ("007", "07", "7", "012")),
        (["00.5", "01", "02.0"], "score", ()),
        (["1", "many"], "classes", ("1", "many")),
        ([0.5, 1, 2], "score", ()),
        ([*range(21)], "classes", ()),
    ],
)
def test_the_kind_and_the_classes_come_from_the_values(values: list[Any], kind: str, classes: tuple[str, ...]) -> None:
    rows = table(queue=values)
    if len(values) > 20:  # classes only because the column is called so
        assert proposed(pd.concat([rows, rows])).kind == "classes"
        assert proposed(rows.rename(columns={"queue": "score"})).kind == "score"
        return
    found = proposed(rows)
    assert (found.kind, found.classes) == (kind, classes)
    assert found.metric == ("pearson" if kind == "score" else "accuracy")
    assert found.range == ((0.5, 2.0) if kind == "score" else None)


def test_many_codes_with_leading_zeros_are_classes() -> None:
    codes = [f"{number:05}" for number in range(9980, 10020)]
    rows = pd.concat([table(queue=None, postcode=codes)] * 2)
    found = proposed(rows.assign(message=[f"message {row}" for row in range(len(rows))]), label="postcode")
    assert (found.kind, found.classes) == ("classes", tuple(codes))


def test_the_kind_may_be_given() -> None:
    assert proposed(table(queue=[1, 2, 3, 4, 5]), kind="score").range == (1.0, 5.0)
    assert proposed(table(queue=[0.5, 1]), kind="classes").classes == ("0.5", "1")


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
    rows.loc[[4, 5], "message"] = ["The same text!", "the same TEXT"]
    rows.loc[[6, 8], "message"] = "equal and agreed"
    found = proposed(rows)
    assert found.dropped == {
        "without text": 2, "without a label": 1, "with the text of another row and another label": 2
    }  # fmt: skip
    assert found.repeated == 1
    assert found.rows["id"].tolist() == [str(row) for row in range(SIZE) if row not in (0, 1, 2, 4, 5)]


def test_scores_contradict_each_other_beyond_a_fifth_of_the_range() -> None:
    rows = table(queue=[row / 10 for row in range(SIZE)])
    rows.loc[[0, 1], ["message", "queue"]] = [["equal", 2.0], ["equal", 2.5]]
    rows.loc[[2, 3], ["message", "queue"]] = [["opposed", 0.1], ["opposed", 2.0]]
    found = proposed(rows)
    assert found.dropped == {"with the text of another row and another label": 2}
    assert found.repeated == 1


def test_a_pair_in_the_other_order_is_another_text() -> None:
    rows = table(message=None, text_a=SENTENCES, text_b=SENTENCES[::-1])
    rows.loc[0, ["text_a", "text_b", "queue"]] = ["x", "y", "bill"]
    rows.loc[1, ["text_a", "text_b", "queue"]] = ["y", "x", "bug"]
    assert proposed(rows).dropped == {}


def test_ids_of_the_file_are_kept_if_they_name_the_rows() -> None:
    assert proposed(table(id=[f"r{row}" for row in range(SIZE)])).rows["id"].iloc[3] == "r3"
    assert proposed(table(id=["same"])).rows["id"].iloc[3] == "3"


def test_rare_labels_near_another_are_asked_about() -> None:
    rows = table(queue=["billing", "bug report"])
    rows.loc[[1, 3, 5, 7], "queue"] = ["biling", "Billing", "Billing", "question"]
    hints = proposed(rows).hints
    assert hints == (
        "label 'biling' occurs once (id 1): did you mean 'billing'?",
        "label 'Billing' occurs 2 times (id 3): did you mean 'billing'?",
    )


def test_long_texts_raise_max_length() -> None:
    assert proposed(table()).max_length == 128
    assert proposed(table(message=[f"{row} " + "word " * 150 for row in range(SIZE)])).max_length == 256
    assert proposed(table(message=[f"{row} " + "word " * 900 for row in range(SIZE)])).max_length == 512


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (table(), {"text": ["body"]}, "no column 'body'; the columns are"),
        (table(), {"text": ["date", "message", "queue"]}, "--text date,message,queue: name one column, or two"),
        (table(), {"text": ["message", "message"]}, "name one column, or two different ones"),
        (table(), {"text": ["queue"], "label": "queue"}, "--label queue: is also a text column"),
        (table(id=[*range(SIZE)]), {"label": "id"}, "column 'id' names the rows"),
        (table(queue=None, a=["x", "y"], b=["u", "v"]), {}, "several columns could be the label: name one"),
        (table(queue=None, date=None), {}, "no column holds a few values that recur: name one"),
        (table(message=None, date=None, a=["x"]), {}, "no column holds texts of several words"),
        (table(queue=["x"]), {}, "fewer than two different labels in 40 rows"),
        (table(queue=SENTENCES), {}, "40 different values in 40 rows, too many for classes"),
        (table(queue=["a", "b"]), {"kind": "score"}, "id 0: 'a' is no score"),
        (table(queue=[1]), {"kind": "score"}, "fewer than two different labels"),
        (table(queue=["1", "1.0"]), {"kind": "score"}, "fewer than two different labels"),
        (table(queue=[1e39, 1]), {"kind": "score"}, "is no score"),
        (table(queue=None, score=[*range(39), "n/a"]), {}, "numbers in 98% of its rows, and 'n/a' in another"),
        # Without a header, the first row names the columns.
        (table(message=None, queue=None, date=None, film=SENTENCES, bad=["bad", "good"]), {}, "'bad' is called like a"),
        (table(message=None, queue=None, date=None, film=SENTENCES, **{"1": [0, 1]}), {}, "first line must name"),
        (table(message=None, queue=None, date=None, film=SENTENCES, **{"4.5": [0.5, 1.5]}), {}, "--label 4.5"),
        (table(queue=None, label=["x", "y", "label"]), {}, "and no other line"),
        # Numbers as spreadsheets of other countries write them.
        (table(queue=COMMAS), {}, "column 'queue': scores are written with a decimal comma, such as '0,5': write 0.5$"),
        (table(queue=["0,5", "1,5"]), {}, "with a decimal comma, such as '0,5': write 0.5$"),
        (table(queue=[*COMMAS[:-1], "?"]), {}, "with a decimal comma, such as '0,5'"),
        (table(queue=COMMAS), {"kind": "score"}, "scores are written with a decimal comma, such as '0,5': write 0.5$"),
        (table(queue=None, date=None, wert=COMMAS), {}, r"name one with --label: .*\(column 'wert': scores .*'0,5'"),
        (table(queue=[f"{row}%" for row in range(40)]), {}, "scores are written in per cent, such as '0%': write 0$"),
        (table(queue=[f"{row},5 %" for row in range(40)]), {}, "a decimal comma, such as '0,5 %': write 0.5$"),
        (table(queue=[f"{row},125" for row in range(1, 41)]), {}, "such as '1,125': write 1125, or a decimal point"),
        (table(queue=["1,5", "1", "5"]), {}, "'1,5' joins labels that also stand alone: .*; a number\\? write 1.5$"),
        (table(message=["one text"]), {}, "fewer than two labels are left"),
        (table(message=[["a", "b"]]), {"text": ["message"]}, "column 'message', row 1 is no text"),
        # Several labels a row.
        (table(queue=[["a"], ["a", "b"]]), {}, "holds lists, such as .*rows of several labels are not supported"),
        (table(queue=["a;b", "a", "b"]), {}, "'a;b' joins labels that also stand alone"),
        (table(queue=["a, b", "a", "b"]), {}, "'a, b' joins labels that also stand alone"),
        (table(queue=["a|b", "b|c", "c|a"]), {}, r"'a\|b' is a list of labels that recur in others"),
        (table(queue=["a;b", "a;b;c"]), {}, "'a;b' is a list of labels that recur in others"),
        (table(queue=None, date=None, toxic=[0, 1], rude=[1, 1, 0]), {}, "columns 'toxic', 'rude' hold 0 or 1 each"),
    ],
)  # fmt: skip
def test_what_no_task_can_be_made_of_is_refused(rows: pd.DataFrame, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said) as caught:
        proposed(rows, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values", [["praise, office", "praise, kitchen", "blame, office"], ["sport;football", "sport;tennis", "news;local"]]
)
def test_names_with_a_comma_or_of_several_levels_are_classes(values: list[str]) -> None:
    assert set(proposed(table(queue=values)).classes) == set(values)


@pytest.mark.parametrize(
    ("values", "kind"), [(["0%", "50%"], None), (["0,5", "1,5"], "classes"), (["v1,5", "v2"], None)]
)
def test_percentages_of_few_values_and_what_is_said_to_be_a_class_are_classes(
    values: list[str], kind: Kind | None
) -> None:
    assert set(proposed(table(queue=values), kind=kind).classes) == set(values)


@pytest.mark.parametrize(
    "name", ["customer_id", "customerId", "Order No", "Rechnung-Nr", "ticket number", "created date"]
)
def test_ids_that_recur_are_no_labels_unless_they_are_named(name: str) -> None:
    rows = table(queue=None, date=None, **{name: [*range(15)]})
    with pytest.raises(PipelineError, match="no column holds a few values that recur: name one with --label"):
        proposed(rows)
    assert len(proposed(rows, label=name).classes) == 15


def test_a_column_that_is_called_like_a_label_may_be_named() -> None:
    assert proposed(table(queue=None, spam=["spam", "ham"]), label="spam").classes == ("ham", "spam")


def test_one_of_several_yes_or_no_columns_may_be_named() -> None:
    assert proposed(table(queue=None, toxic=[0, 1], rude=[1, 1, 0]), label="rude").classes == ("0", "1")


def test_a_name_comes_from_the_file() -> None:
    from pathlib import Path

    assert name_of(Path("a/Support Tickets (2024).csv")) == "support-tickets-2024"
