"""Texts of the report are paragraphs of a file, with values in them as they are."""

import re

from pipeline.reporting.build import FIGURES, TABLES
from pipeline.reporting.report import TEXTS, paragraphs


def test_every_table_and_figure_has_a_title_and_what_is_said_below_it() -> None:
    published = [name for name in TEXTS["tables"] if name.startswith("published")]
    assert len(TEXTS["tables"]) - len(published) == len(TABLES) - 1  # one hook makes those
    assert len(TEXTS["figures"]) == len(FIGURES)
    for parts in (*TEXTS["tables"].values(), *TEXTS["figures"].values()):
        assert parts["title"]
        assert paragraphs(re.sub(r"{\w+}", "x", parts.get("notes") or parts["caption"]))
