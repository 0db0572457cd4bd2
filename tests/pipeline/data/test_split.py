"""A split is disjoint by text, complete, stratified, seeded, and blind to the order of the rows."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data.cells import text_key
from pipeline.data.split import at_most, cut, split_rows, stratified, text_groups
from pipeline.system.errors import PipelineError

SHARES = [0.8, 0.1, 0.1]


def table(labels: Sequence[str | float] | np.ndarray, texts: list[str] | None = None) -> pd.DataFrame:
    """A row a label; without ``texts``, each with a text of its own."""
    texts = texts or [f"text {row}" for row in range(len(labels))]
    return pd.DataFrame({"id": [str(row) for row in range(len(labels))], "text_a": texts, "label": labels})


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(60, 150), st.integers(20, 60), st.integers(2, 4), st.integers(0, 999)),
    st.sampled_from([SHARES, [0.6, 0.1, 0.3], [0.8, 0.2]]),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_row_is_in_one_part_and_no_text_in_two(
    drawn: tuple[int, int, int, int], shares: list[float], seed: int, pairs: bool
) -> None:
    size, texts, labels, number = drawn
    rng = np.random.default_rng(number)
    numbers = rng.integers(0, texts, size).tolist()
    classes = [f"class {text % labels}" for text in numbers]
    rows = table([*classes, "rare", "rare"], [f"text {text}" for text in (*numbers, "a", "b")])
    if pairs:
        rows["text_b"] = [f"other {row}" for row in range(len(rows))]
    parts = split_rows(rows, shares, seed, "rows")
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(rows)))
    assert all((np.diff(part) > 0).all() for part in parts)
    if not pairs or Counter(numbers).most_common()[0][1] <= 0.05 * len(rows):
        keys = [{text_key(text) for text in rows["text_a"].iloc[part]} for part in parts]
        assert not any(keys[a] & keys[b] for a in range(len(parts)) for b in range(a))
    shuffled = rows.sample(frac=1, random_state=seed).reset_index(drop=True)
    again = split_rows(shuffled, shares, seed, "rows")
    assert [set(shuffled["id"].iloc[part]) for part in again] == [set(rows["id"].iloc[part]) for part in parts]


@pytest.mark.parametrize("seed", range(10))
def test_a_class_whose_texts_all_stand_with_another_is_in_train(seed: int) -> None:
    """Its one row has a text of a larger class, whose other texts have more rows and are divided first."""
    labels = ["large"] * 40 + ["other"] * 40 + ["rare"]
    rows = table(
        labels, [f"text {row // 3}" for row in range(40)] + [f"alone {row}" for row in range(40)] + ["text 13"]
    )
    train, dev, test = split_rows(rows, SHARES, seed, "rows")
    assert {39, 80} <= set(train.tolist())
    assert len(dev) and len(test)


def test_scores_are_stratified_by_fifths() -> None:
    rows = table(["x"] * 500).assign(label=np.random.default_rng(0).random(500) ** 2)
    parts = split_rows(rows, SHARES, 0, "rows")
    assert [len(part) for part in parts] == [400, 50, 50]
    for part in parts:
        assert rows["label"].iloc[part].mean() == pytest.approx(rows["label"].mean(), abs=0.03)


def test_pairs_that_share_a_text_stay_together_unless_all_do() -> None:
    rows = table(["a", "b"] * 60, [f"question {row // 3}" for row in range(120)])
    rows["text_b"] = [f"answer {row}" for row in range(120)]
    parts = split_rows(rows, SHARES, 0, "rows")
    questions = [set(rows["text_a"].iloc[part]) for part in parts]
    assert not questions[0] & questions[1] | questions[0] & questions[2] | questions[1] & questions[2]
    rows["text_a"] = "the same question"
    assert [len(part) for part in split_rows(rows, SHARES, 0, "rows")] == [96, 12, 12]


def test_rows_too_few_for_the_splits_are_refused() -> None:
    for labels, shares in (
        (["a", "a", "b", "b"], SHARES),
        (["a"] * 50 + ["b", "c"], SHARES),
        (["a"] * 9 + ["b"], [0.8, 0.2]),
    ):
        with pytest.raises(PipelineError, match=f"^rows.csv: .* too few for {len(shares)} splits"):
            split_rows(table(labels), shares, 0, "rows.csv")
    assert [len(part) for part in split_rows(table(["a", "a", "b", "b"]), [0.8, 0.2], 0, "rows.csv")] == [2, 2]


@given(size=st.integers(1, 40), count=st.integers(1, 40))
def test_of_few_rows_all_are_kept_and_of_many_always_the_same(size: int, count: int) -> None:
    rows = pd.DataFrame({"id": [str(number) for number in range(count)]})
    kept = at_most(rows, size)
    if count <= size:
        assert kept is rows
        return
    assert len(set(kept["id"])) == size
    assert kept.index.tolist() == list(range(size))
    pd.testing.assert_frame_equal(kept, at_most(rows, size))


@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=60), share=st.floats(0.05, 1.0), seed=st.integers(0, 9))
def test_a_class_keeps_its_share_to_within_a_row(labels: list[int], share: float, seed: int) -> None:
    column = pd.Series(labels)
    size = max(1, round(share * len(labels)))
    chosen = stratified(column, size, seed)
    assert len(chosen) == size
    assert (np.diff(chosen) > 0).all()
    for label in set(labels):
        assert column.iloc[chosen].eq(label).sum() == pytest.approx(size * labels.count(label) / len(labels), abs=1)
    assert chosen.tolist() == stratified(column, size, seed).tolist()


SEEDS = st.integers(0, 2**32 - 1)


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
    rows = table(np.repeat(np.arange(len(counts)), counts))
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
    rows = table(np.random.default_rng(0).beta(2, 5, 500) * 5)
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
        cut(table(labels).assign(text_a=texts), 0.5, 0, "dev of task 'mood'")
    assert "dev of task 'mood'" in str(raised.value)
    assert "scoring.tasks" in str(raised.value)
