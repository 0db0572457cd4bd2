"""Texts of the report are paragraphs of a file, with values in them as they are."""

import re

from pipeline.reporting.build import TABLES
from pipeline.reporting.figures import FIGURES
from pipeline.reporting.text import TEXTS, paragraphs


def test_a_paragraph_is_one_line_and_a_value_stays_as_it_is() -> None:
    text = "\nOf {name}:\nall {rows:,} rows.\n\nThe end.\n"
    assert paragraphs(text, name="a\n\n {b}", rows=1234) == ("Of a\n\n {b}: all 1,234 rows.", "The end.")


def test_a_paragraph_that_names_an_empty_value_is_left_out() -> None:
    text = "Always.\n\n{some} of {total} differ.\n\n{marks}"
    assert paragraphs(text, some=0, total=3, marks="") == ("Always.",)
    assert paragraphs(text, some=1, total=3, marks="Marks.") == ("Always.", "1 of 3 differ.", "Marks.")


def test_every_table_and_figure_has_a_title_and_what_is_said_below_it() -> None:
    assert len(TEXTS["tables"]) == len(TABLES)
    assert len(TEXTS["figures"]) == len(FIGURES)
    for parts in (*TEXTS["tables"].values(), *TEXTS["figures"].values()):
        assert parts["title"]
        assert paragraphs(re.sub(r"{\w+}", "x", parts.get("notes") or parts["caption"]))
