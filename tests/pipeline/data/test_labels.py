"""What raw labels are taken for, classes or scores, and which can be neither."""

from typing import Any

import pandas as pd
import pytest

from pipeline.system.errors import PipelineError
from tests.pipeline.data.messages import COMMAS, SENTENCES, proposed, table


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


def test_the_kind_may_be_given() -> None:
    assert proposed(table(queue=[1, 2, 3, 4, 5]), kind="score").range == (1.0, 5.0)
    assert proposed(table(queue=[0.5, 1]), kind="classes").classes == ("0.5", "1")


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (table(queue=SENTENCES), {}, "40 different values in 40 rows, too many for classes"),
        (table(queue=["a", "b"]), {"kind": "score"}, "row 2: 'a' is not a score"),
        (table(queue=[1e39, 1]), {"kind": "score"}, "is not a score"),
        (table(queue=None, score=[*range(39), "n/a"]), {}, "numbers in 98% of its rows, and 'n/a' in another"),
        # Numbers as spreadsheets of other countries write them.
        (table(queue=COMMAS), {}, "column 'queue': scores are written like '0,5': write a decimal point"),
        (table(queue=["0,5", "1,5"]), {}, "scores are written like '0,5'"),
        (table(queue=[*COMMAS[:-1], "?"]), {}, "scores are written like '0,5'"),
        (table(queue=COMMAS), {"kind": "score"}, "row 2: scores are written like '0,5'"),
        (table(queue=[f"{row}%" for row in range(40)]), {}, "scores are written like '0%'"),
        (table(queue=[f"{row},5 %" for row in range(40)]), {}, "scores are written like '0,5 %'"),
        (table(queue=[f"{row},125" for row in range(1, 41)]), {}, "scores are written like '1,125'"),
        (table(queue=["1,5", "1", "5"]), {}, "'1,5' joins labels that also occur elsewhere"),
        # Several labels a row.
        (table(queue=["a;b", "a", "b"]), {"kind": "classes"}, "'a;b' joins labels that also occur elsewhere"),
        (table(queue=["a|b", "b|c", "c|a"]), {"kind": "classes"}, r"'a\|b' joins labels"),
        (table(queue=[{"lang": "en"}, "a"]), {}, "holds objects, such as {'lang': 'en'}: put the label into a column"),
    ],
)  # fmt: skip
def test_what_is_neither_a_class_nor_a_score_is_refused(rows: pd.DataFrame, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said) as caught:
        proposed(rows, **options)
    assert "\n" not in str(caught.value)


def test_rare_labels_near_another_are_asked_about() -> None:
    rows = table(queue=["billing", "bug report"])
    rows.loc[[1, 3, 5, 7], "queue"] = ["biling", "Billing", "Billing", "question"]
    rows.loc[0, "queue"] = None  # which is a row of the file all the same
    hints = proposed(rows).hints
    assert hints == (
        "label 'biling' occurs once (row 3): did you mean 'billing'?",
        "label 'Billing' occurs 2 times (rows 5, 7): did you mean 'billing'?",
    )


def test_a_label_is_the_same_in_every_unicode_form() -> None:
    composed, decomposed = "R\u00fcckgabe", "Ru\u0308ckgabe"
    proposal = proposed(table(queue=[composed, decomposed, "Zahlung", "Zahlung"]))
    assert proposal.classes == (composed, "Zahlung")
