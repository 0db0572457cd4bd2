"""A cell prints what it is sorted by, and says in its small print how sure a difference is."""

import pytest

from pipeline.reporting.report import (
    Cell,
    count_cell,
    difference_cell,
    judge,
    judged,
    scores_cell,
    share_cell,
    text_cell,
)
from pipeline.stats.paired import Comparison, Difference

BETTER = Comparison(0.02, 0.01, (0.01, 0.03), seeds=2)
TEST = "+2.0 points against it, 95 % CI 1.0 to 3.0, p = 0.010"


def test_scores_are_sorted_by_their_mean() -> None:
    cell = scores_cell([0.5, 0.7], ("a", "b"), "two of them")
    assert (cell.text, cell.sort, cell.runs, cell.detail) == ("0.600 ± 0.141", 0.6, ("a", "b"), "two of them")


@pytest.mark.parametrize(
    ("part", "whole", "among", "text", "sort"),
    [(30, 200, 1, "15 %", 0.15), (30, 200, 3, "5.0 %", 0.05), (None, 200, 1, "-", None), (30, 0, 1, "-", None)],
)
def test_a_share_is_of_the_whole(part: float | None, whole: int, among: int, text: str, sort: float | None) -> None:
    cell = share_cell(part, whole, among)
    assert (cell.text, cell.sort) == (text, pytest.approx(sort))


def test_what_is_not_there_is_a_dash() -> None:
    assert [cell.text for cell in (text_cell(""), count_cell(None), difference_cell(None))] == ["-"] * 3


def test_a_difference_has_its_verdict_and_its_test() -> None:
    tested = difference_cell(0.02, ("a",), BETTER, "it", untested="not tested")
    assert tested == Cell("+2.0", 0.02, ("a",), "better", TEST)
    assert difference_cell(0.02, ("a",), untested="not tested") == Cell("+2.0", 0.02, ("a",), None, "not tested")


def test_a_test_stands_after_what_the_small_print_says() -> None:
    assert judged(Cell("0.6", detail="2 of 3 runs"), BETTER, "it").detail == f"2 of 3 runs; {TEST}"
    assert judged(Cell("0.6"), None, "it") == Cell("0.6")


@pytest.mark.parametrize("looks", [1, 3])
def test_a_family_is_of_those_that_can_be_paired_at_each_look(looks: int) -> None:
    one, other = Difference(0.02, 1e-4, 100), Difference(-0.01, 1e-4, 100)
    assert judge({"one": one, "none": None, "other": other}, looks) == {
        "one": one.comparison(2 * looks), "other": other.comparison(2 * looks),
    }  # fmt: skip
