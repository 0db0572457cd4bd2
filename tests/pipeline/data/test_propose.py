"""What is left out of a table, its metric and its length, and what no task can be made of."""

import re
from typing import Any

import pandas as pd
import pytest

from pipeline.data.cells import count_words
from pipeline.data.foreign import columns_named, find_columns
from pipeline.data.propose import metric_for, renames_in
from pipeline.system.errors import PipelineError
from tests.pipeline.data.messages import COMMAS, SENTENCES, SIZE, proposed, table


@pytest.mark.parametrize(
    ("counts", "unbalanced"), [([2, 1], False), ([21, 10], True), ([20, 10, 10], False), ([50, 30, 20, 10], True)]
)
def test_classes_are_unbalanced_where_one_is_more_than_twice_the_mean_of_the_others(
    counts: list[int], unbalanced: bool
) -> None:
    labels = pd.Series([str(label) for label, count in enumerate(counts) for _ in range(count)])
    assert metric_for("classes", labels) == ("macro-f1" if unbalanced else "accuracy")


def test_blank_and_contradicting_rows_are_left_out_and_counted() -> None:
    rows = table()
    rows.loc[0, "message"] = " "
    rows.loc[1, "queue"] = None
    rows.loc[2, ["message", "queue"]] = None, None
    rows.loc[[4, 5], "message"] = ["The same  text", "the same TEXT "]
    rows.loc[[6, 8], "message"] = "equal and agreed"
    found = proposed(rows)
    assert found.dropped == {
        "without text": [2, 4], "without a label": [3], "with the text of another row and another label": [6, 7]
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
    assert len(proposed(more, text="question").rows) == 29
    with pytest.raises(PipelineError) as caught:
        proposed(more)
    assert "11 of 40 rows" in str(caught.value) and "--text question leaves out 11 rows" in str(caught.value)


def test_scores_contradict_each_other_beyond_a_fifth_of_the_range() -> None:
    rows = table(queue=[row / 10 for row in range(SIZE)])
    rows.loc[[0, 1], ["message", "queue"]] = [["equal", 2.0], ["equal", 2.5]]
    rows.loc[[2, 3], ["message", "queue"]] = [["opposed", 0.1], ["opposed", 2.0]]
    found = proposed(rows)
    assert found.dropped == {"with the text of another row and another label": [4, 5]}
    assert found.repeated == 1


@pytest.mark.parametrize(
    "ids",
    [
        ["a", "b", "a", *map(str, range(SIZE - 3))],
        [7, "b", " 7", *map(str, range(100, SIZE + 97))],
        ["a", None, *map(str, range(SIZE - 2))],
    ],
)
@pytest.mark.parametrize("column", ["id", "ID"])
def test_ids_that_name_no_rows_are_said_to_be_replaced(ids: list[Any], column: str) -> None:
    proposal = proposed(table(**{column: ids}))
    assert proposal.rows["id"].tolist() == [str(row) for row in range(SIZE)]
    (remark,) = proposal.remarks
    assert remark.startswith(f"column '{column}' does not name the rows")
    names = [f"r{row}" for row in range(SIZE)]
    proposal = proposed(table(**{column: names}))
    assert (proposal.rows["id"].tolist(), proposal.remarks) == (names, ())


@pytest.mark.parametrize(
    ("rows", "remark"),
    [
        (table(message=None, subject=[f"note {row}" for row in range(SIZE)], nachricht=SENTENCES), "'nachricht' holds"),
        (
            table(queue=None, date=None, rating=[*range(1, 11)]),
            "the 10 different numbers are read as classes: --kind score",
        ),
        (table(queue=None, date=None, rating=[*range(1, 6)]), "the 5 different numbers"),
        (table(queue=None, date=None, rating=["7", "07", "1", "4"]), "the 3 different numbers"),
    ],
)
def test_what_may_be_meant_otherwise_is_said_with_its_option(rows: pd.DataFrame, remark: str) -> None:
    (said,) = proposed(rows).remarks
    assert re.search(remark, said)


def test_several_labels_are_renamed_at_once_and_one_name_may_have_a_comma() -> None:
    renames = renames_in(["a=b,c=1.0", "e=f, g"], ["a", "c", "e", None], "rows")
    assert renames == {"a": "b", "c": "1", "e": "f, g"}


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
        (table(message=["one text"]), {"text": "message"}, "fewer than two labels are left"),
        (table(message=["one text"]), {}, "40 of 40 rows have the text of another row"),
        (table(message=[["a", "b"]]), {"text": "message"}, "column 'message': not text"),
    ],
)  # fmt: skip
def test_what_no_task_can_be_made_of_is_refused(rows: pd.DataFrame, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said) as caught:
        proposed(rows, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        (" a good\tfilm ", 3),
        ("un film tr\u00e8s  bon", 4),
        ("\ud55c\uad6d \uc601\ud654", 2),  # Korean has spaces
        ("\u6211\u559c\u6b22BERT\u6a21\u578b v2", 7),
        ("\u0e14\u0e35 \u0e14\u0e35", 4),
        ("\u4e00\U00020000", 2),
        ("\U0001f600 \U0001f600\U0001f600", 2),
    ],
)
def test_a_character_is_a_word_where_a_script_has_no_spaces(text: str, words: int) -> None:
    assert count_words(text) == words


PAIR = ("question1", "question2")
HEADLINES = ("headline1", "headline2")
TITLED = table().assign(price="1").set_axis(["Tickets of May", "Unnamed: 1", "Unnamed: 2", "Unnamed: 3"], axis=1)
"""The first row is a title, and the second one the header."""


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("text", ["text"]),
        (" text ", ["text"]),
        (" padded", [" padded"]),
        ("padded", [" padded"]),
        ("comment, if any", ["comment, if any"]),
        ("text,comment, if any", ["text", "comment, if any"]),
        ("comment, if any, text", ["comment, if any", "text"]),
        ("comment, if any, padded", ["comment, if any", " padded"]),
        ("text, padded", ["text", " padded"]),
        ("text,nope", ["text", "nope"]),
        ("a, b,text", ["a", "b", "text"]),
        ("", []),
        (" , ", []),
    ],
)
def test_columns_are_named_as_they_are_written(option: str, names: list[str]) -> None:
    assert columns_named(option, ["text", " padded", "comment, if any"]) == names


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
        (table(ID=SENTENCES), ("message",), "queue"),
        (table(address1=SENTENCES, address2=SENTENCES[::-1]), ("message",), "queue"),
        (table(message=None, text=SENTENCES, question1=SENTENCES, question2=SENTENCES[::-1]), PAIR, "queue"),
        (table(message=None, title=["a title"], headline1=SENTENCES, headline2=SENTENCES[::-1]), HEADLINES, "queue"),
        (table(message=None, address1=SENTENCES, address2=SENTENCES[::-1]), ("address1", "address2"), "queue"),
        (table(queue=None, customer_id=[*range(15)], kind=["x", "y"]), ("message",), "kind"),
        (table(queue=None, class_id=[0, 1, 2]), ("message",), "class_id"),
        (table(date=None, pos_y=["1.5", "2.5", *map(str, range(SIZE - 2))]), ("message",), "queue"),
    ],
)
def test_columns_are_found_by_name_and_by_what_they_hold(rows: pd.DataFrame, text: tuple[str], label: str) -> None:
    found = find_columns(rows, "rows.csv")
    assert (found.text, found.label) == (text, label)
    assert {*found.text, found.label, *found.unused} == set(rows) - {"id", "ID"}


def test_columns_that_are_given_are_taken() -> None:
    rows = table(title=[f"title {row}" for row in range(SIZE)])
    found = find_columns(rows, "rows.csv", ["title", "message"], "date")
    assert (found.text, found.label, found.unused) == (("title", "message"), "date", ("queue",))


def test_named_columns_are_taken_among_many_without_a_name() -> None:
    rows = table(date=None, **{f"Unnamed: {place}": ["x", "y"] for place in (2, 3, 4)})
    found = find_columns(rows, "rows.csv", ["message"], "queue")
    assert (found.text, found.label) == (("message",), "queue")


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (table(message=None, **{"Unnamed: 1": SENTENCES}), {}, "the first row names only 2 of 3 columns: delete"),
        (table(queue=None, date=None, **{"Unnamed: 2": ["x", "y"]}), {}, "only 1 of 2 columns: .* name the columns"),
        (TITLED, {}, "rows.csv: the first row names only 1 of 4 columns: delete the rows above the header"),
        (TITLED, {"text": ["message"], "label": "queue"}, "the first row names only 1 of 4 columns"),
        (table(), {"text": ["body"]}, "no column 'body'; the columns are"),
        (table(), {"text": ["date", "message", "queue"]}, "--text date,message,queue: name one column, or two"),
        (table(), {"text": ["message", "message"]}, "name one column, or two different ones"),
        (table(), {"text": ["queue"], "label": "queue"}, "--label queue: is also a text column"),
        (table(id=[*range(SIZE)]), {"label": "id"}, "column 'id' names the rows"),
        (table(queue=None, a=["x", "y"], b=["u", "v"]), {}, "several columns could be the label: name one"),
        (table(queue=None, date=None), {}, "no column beside 'message' can be the label: add one"),
        (table(queue=None, date=None, a=[f"x{row}" for row in range(SIZE)]), {}, "a few recurring values: name one"),
        (table(message=None, date=None, a=["x"]), {}, "no column has texts of several words"),
        # Without a header, the first row names the columns.
        (table(message=None, queue=None, date=None, film=SENTENCES, bad=["bad", "good"]), {}, "'bad' is called like a"),
        (table(message=None, queue=None, date=None, film=SENTENCES, **{"1": [0, 1]}), {}, "first line must name"),
        (table(message=None, queue=None, date=None, film=SENTENCES, **{"4.5": [0.5, 1.5]}), {}, "--label 4.5"),
        (table(queue=None, label=["x", "y", "label"]), {}, "and no other line"),
        (table(queue=None, date=None, wert=COMMAS), {}, r"name one with --label: .*\(column 'wert': scores .*'0,5'"),
        (table(queue=None, date=None, toxic=[0, 1], rude=[1, 1, 0]), {}, "name one with --label: 'toxic', 'rude'"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_told_are_asked_for(rows: pd.DataFrame, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said) as caught:
        find_columns(rows, "rows.csv", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["customer_id", "customerId", "Order No", "Rechnung-Nr", "ticket number", "created date"]
)
def test_ids_that_recur_are_no_labels_unless_they_are_named(name: str) -> None:
    rows = table(queue=None, date=None, **{name: [*range(15)]})
    with pytest.raises(PipelineError, match="no column has a few recurring values: name one with --label"):
        find_columns(rows, "rows.csv")
    assert len(proposed(rows, label=name).classes) == 15


@pytest.mark.parametrize(
    ("values", "are_dates"),
    [
        (["05.03.2024", "28.12.2024"], True),
        (["12/28/2024", "01/05/2024"], True),
        (["2024-01-05 10:05", "2024-02-28T10:05:00+02:00", None], True),
        (["05.03.24", "28.12.24"], True),
        (["5 Mar 2024", "28 Dec 2024"], True),
        ([pd.Timestamp("2024-01-05"), pd.Timestamp("2024-02-28")], True),
        (["2023", "2024"], False),
        (["20240105", "20240228"], False),
        (["1.2.3", "1.2.4"], False),  # versions
        (["May", "June"], False),
        (["iphone 2020", "iphone 2024"], False),
        (["2024-01-05", "unknown"], False),
    ],
    ids=str,
)
def test_dates_are_no_labels_whatever_their_column_is_called(values: list[Any], are_dates: bool) -> None:
    rows = table(queue=None, date=None, Datum=values, **({"Sterne": ["1", "2"]} if are_dates else {}))
    assert find_columns(rows, "rows.csv").label == ("Sterne" if are_dates else "Datum")


def test_one_of_several_yes_or_no_columns_and_one_that_is_called_like_a_label_may_be_named() -> None:
    assert proposed(table(queue=None, spam=["spam", "ham"]), label="spam").classes == ("ham", "spam")
    assert proposed(table(queue=None, toxic=[0, 1], rude=[1, 1, 0]), label="rude").classes == ("0", "1")
