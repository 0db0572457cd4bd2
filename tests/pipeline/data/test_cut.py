"""Rows cut in two: disjoint, texts whole, classes divided alike, whatever the order of the rows."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data.cut import cut, text_groups
from pipeline.data.overlap import text_key
from pipeline.system.errors import PipelineError

SEEDS = st.integers(0, 2**32 - 1)


def singles(labels: list[float] | np.ndarray) -> pd.DataFrame:
    """A row a label, each with a text of its own."""
    texts = [f"text {number}" for number in range(len(labels))]
    return pd.DataFrame({"id": list(map(str, range(len(labels)))), "text_a": texts, "label": labels})


def pairs(size: int, texts: int, seed: int) -> pd.DataFrame:
    """Scored pairs; some share texts, in either column, in other spelling."""
    generator = np.random.default_rng(seed)
    chosen = generator.integers(0, texts, (size, 2))
    spelt = [[f"T{number}!" if generator.random() < 0.5 else f"t {number}" for number in row] for row in chosen]
    columns = pd.DataFrame(spelt, columns=["text_a", "text_b"])
    return columns.assign(id=[str(number) for number in range(size)], label=generator.random(size) * 5)


def keys_of(rows: pd.DataFrame) -> set[str]:
    return {text_key(text) for column in ("text_a", "text_b") if column in rows for text in rows[column]}


@settings(max_examples=40, deadline=None)
@given(st.integers(20, 120), SEEDS)
def test_rows_that_share_a_text_stay_together(size: int, seed: int) -> None:
    rows = pairs(size, 6 * size, seed)
    groups = text_groups(rows)
    assert sorted(np.concatenate(groups)) == list(range(size))
    assert sum(len(keys_of(rows.iloc[group])) for group in groups) == len(keys_of(rows))
    # Each group hangs together: no part of it can be taken away without a shared text.
    for group in groups:
        reached = {int(group[0])}
        while more := {
            int(row)
            for row in group
            if row not in reached and keys_of(rows.iloc[[row]]) & keys_of(rows.iloc[[*reached]])
        }:
            reached |= more
        assert reached == set(map(int, group))
    first = cut(rows, 0.5, seed, "dev")
    assert not keys_of(rows[first]) & keys_of(rows[~first])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=6), st.sampled_from([0.2, 0.5]), SEEDS)
def test_classes_are_divided_alike(counts: list[int], share: float, seed: int) -> None:
    counts = [max(2, count) for count in counts]
    rows = singles(np.repeat(np.arange(len(counts)), counts))
    first = cut(rows, share, seed, "rows")
    for name, count in enumerate(counts):
        part = int((first & (rows["label"] == name)).sum())
        assert 1 <= part <= count - 1  # of two rows, one on each side
        assert abs(part - share * count) <= 1.5
    assert abs(first.sum() - share * len(rows)) <= len(counts)


@settings(max_examples=40, deadline=None)
@given(st.integers(40, 120), SEEDS, SEEDS)
def test_the_cut_does_not_depend_on_the_order_of_rows(size: int, seed: int, order: int) -> None:
    rows = pairs(size, 6 * size, seed)
    first = cut(rows, 0.5, seed, "dev")
    shuffled = rows.sample(frac=1, random_state=order)
    again = cut(shuffled.reset_index(drop=True), 0.5, seed, "dev")
    assert set(shuffled["id"][again]) == set(rows["id"][first])


def test_scores_are_divided_over_their_range() -> None:
    rows = singles(np.random.default_rng(0).beta(2, 5, 500) * 5)
    first = cut(rows, 0.5, 0, "dev")
    assert abs(first.sum() - 250) <= 5
    for level in (0.1, 0.3, 0.5, 0.7, 0.9):
        parts = [rows["label"][part].quantile(level) for part in (first, ~first)]
        assert parts[0] == pytest.approx(parts[1], abs=0.25)


@pytest.mark.parametrize(
    ("labels", "texts", "message"),
    [
        ([0, 1] * 10, ["the same"] * 18 + ["one", "two"], "up to 18"),
        ([0, 1], ["one", "two"], "2 rows cannot be split"),
        ([0] * 9 + [1], list("abcdefghij"), "several labels"),
    ],
)
def test_what_cannot_be_cut_is_said(labels: list[int], texts: list[str], message: str) -> None:
    with pytest.raises(PipelineError, match=message) as raised:
        cut(singles(labels).assign(text_a=texts), 0.5, 0, "dev of task 'mood'")
    assert "dev of task 'mood'" in str(raised.value)
    assert "scoring.tasks" in str(raised.value)
