"""Texts of the report are paragraphs of a file, with values in them as they are."""

import re

import pytest

from pipeline.reporting.build import TABLES
from pipeline.reporting.figures import FIGURES
from pipeline.reporting.text import TEXTS, amount_text, amounts, interval_text, paragraphs
from pipeline.settings.parse_study import parse_study
from pipeline.stats.paired import Comparison


def test_a_paragraph_is_one_line_and_a_value_stays_as_it_is() -> None:
    text = "\nOf {name}:\nall {rows:,} rows.\n\nThe end.\n"
    assert paragraphs(text, name="a\n\n {b}", rows=1234) == ("Of a\n\n {b}: all 1,234 rows.", "The end.")


def test_a_paragraph_that_names_an_empty_value_is_left_out() -> None:
    text = "Always.\n\n{some} of {total} differ.\n\n{marks}"
    assert paragraphs(text, some=0, total=3, marks="") == ("Always.",)
    assert paragraphs(text, some=1, total=3, marks="Marks.") == ("Always.", "1 of 3 differ.", "Marks.")


def test_every_table_and_figure_has_a_title_and_what_is_said_below_it() -> None:
    published = [name for name in TEXTS["tables"] if name.startswith("published")]
    assert len(TEXTS["tables"]) - len(published) == len(TABLES) - 1  # one hook makes those
    assert len(TEXTS["figures"]) == len(FIGURES)
    for parts in (*TEXTS["tables"].values(), *TEXTS["figures"].values()):
        assert parts["title"]
        assert paragraphs(re.sub(r"{\w+}", "x", parts.get("notes") or parts["caption"]))


@pytest.mark.parametrize(("study_seeds", "seeds", "fewer"), [([1], 1, ""), ([1, 2], 2, ""), ([1, 2], 1, ", one seed")])
def test_an_amount_of_one_seed_says_so_in_a_study_of_several(study_seeds: list[int], seeds: int, fewer: str) -> None:
    """A study of one seed says it once, of the whole sentence."""
    study = parse_study({"name": "made", "methods": ["full"], "targets": ["sst"], "seeds": study_seeds}, "test")
    loss = Comparison(-0.013, 0.01, (-0.021, -0.004), seeds)
    assert interval_text(loss, study) == f"95 % CI -2.1 to -0.4{fewer}"
    assert amount_text(loss, study) == f"1.3 points (95 % CI 0.4 to 2.1{fewer})"
    assert amounts({"a": loss, "b": loss}, study) == [
        f"a (-1.3 points, 95 % CI -2.1 to -0.4{fewer})",
        f"b (-1.3, -2.1 to -0.4{fewer})",
    ]
