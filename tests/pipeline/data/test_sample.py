"""Samples have the size asked for, keep each class's share, and are the same for the same seed."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.sample import at_most, stratified


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
