"""Label sets: a row of a task of kind ``labels`` has any number of the task's classes, or none.

A label set is a text with one digit a class: ``"0110"`` has the second and third of four. So it is a single value, as a
class or a score is: columns of them are counted, hashed, split and saved alike. Arrays (B,) of label sets have NumPy's
dtype ``U``. They become matrices (B, C) only where classes are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # it takes long to load
    import pandas as pd


def as_sets(matrix: np.ndarray) -> np.ndarray:
    """The label sets (...) of a matrix (..., C) that is true, or 1, where a row has a class."""
    digits = np.ascontiguousarray(np.where(matrix, "1", "0"))
    return digits.view(f"U{digits.shape[-1]}")[..., 0]


def as_matrix(sets: Any) -> np.ndarray:
    """The matrix, bool (..., C), of label sets (...)."""
    return np.ascontiguousarray(sets, dtype=str)[..., None].view("U1") == "1"


def are_sets(values: np.ndarray) -> bool:
    """Whether an array, or a column of pandas as one, holds label sets, not class numbers or scores."""
    return values.dtype.kind in "OUT"


def holds_sets(column: pd.Series) -> bool:
    """Whether all values of a column are label sets over one number of classes."""
    are_texts = all(isinstance(value, str) and value and {*value} <= {"0", "1"} for value in column)
    return are_texts and column.str.len().nunique() == 1


def as_computed(values: Any) -> np.ndarray:
    """Label sets with dtype ``U``, and anything else as float64."""
    values = np.asarray(values)
    return values.astype(str if are_sets(values) else np.float64)


def one_hot(values: np.ndarray, classes: int) -> np.ndarray:
    """The matrix, bool (B, C), of label sets or class numbers (B,)."""
    return as_matrix(values) if are_sets(values) else values[:, None] == np.arange(classes)


def names_in(label_set: str, classes: Sequence[str]) -> tuple[str, ...]:
    """The names of the classes in a label set, in the task's order."""
    return tuple(name for name, digit in zip(classes, label_set, strict=True) if digit == "1")
