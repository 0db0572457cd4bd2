"""A split is disjoint by text, complete, stratified, seeded, and blind to the order of the rows."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data.overlap import text_key
from pipeline.data.split import split_rows
from pipeline.system.errors import PipelineError

SHARES = [0.8, 0.1, 0.1]


def table(labels: list[str], texts: list[str] | None = None) -> pd.DataFrame:
    texts = texts or [f"text {row}" for row in range(len(labels))]
    return pd.DataFrame({"id": [str(row) for row in range(len(labels))], "text_a": texts, "label": labels})


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(60, 150), st.integers(20, 60), st.integers(2, 4), st.integers(0, 999)),
    st.sampled_from([SHARES, [0.5, 0.25, 0.25], [0.8, 0.2]]),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_row_is_in_one_part_and_no_text_in_two(
    drawn: tuple[int, int, int, int], shares: list[float], seed: int, pairs: bool
) -> None:
    size, texts, labels, number = drawn
    rng = np.random.default_rng(number)
    numbers = rng.integers(0, texts, size).tolist()
    rows = table([f"class {text % labels}" for text in numbers], [f"text {text}" for text in numbers])
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
    with pytest.raises(PipelineError, match="no label has more than 2 different texts, too few for 3 splits"):
        split_rows(table(["a", "a", "b", "b"]), SHARES, 0, "rows.csv")
    for rare, named in (
        (["b"] * 2, "label 'b' has 2 different texts, too few for 3 .*: give more rows, or --split 80/20"),
        (["b", "c"], "no label but 'a' has more than 1 different text, too few for 3 .*: give more rows$"),
    ):
        with pytest.raises(PipelineError, match=f"^rows.csv: {named}"):
            split_rows(table(["a"] * 50 + rare), SHARES, 0, "rows.csv")
    with pytest.raises(PipelineError, match="label 'b' has 1 different text, too few for 2 .*: give more rows$"):
        split_rows(table(["a"] * 50 + ["b"]), [0.8, 0.2], 0, "rows.csv")
    assert [len(part) for part in split_rows(table(["a", "a", "b", "b"]), [0.8, 0.2], 0, "rows.csv")] == [2, 2]
