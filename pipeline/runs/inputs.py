"""Rows as a model of a recipe reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.data.pair_order import swapped
from pipeline.data.tokens import TokenisedSplit, Tokenizer, tokenise
from pipeline.settings.recipe import Recipe

if TYPE_CHECKING:
    import pandas as pd


def training_splits(rows: pd.DataFrame, recipe: Recipe, tokenizer: Tokenizer) -> list[TokenisedSplit]:
    """What a resolved ``recipe`` trains on; a second split is the same pairs the other way round."""
    return _splits(rows, recipe, tokenizer, both=recipe.pair_order == "random")


def scored_splits(rows: pd.DataFrame, recipe: Recipe, tokenizer: Tokenizer) -> list[TokenisedSplit]:
    """What a resolved ``recipe`` predicts from: the mean over these splits' outputs."""
    return _splits(rows, recipe, tokenizer, both=recipe.average_orders)


def _splits(rows: pd.DataFrame, recipe: Recipe, tokenizer: Tokenizer, both: bool) -> list[TokenisedSplit]:
    assert recipe.encoding is not None and recipe.max_length is not None
    orders = [rows, swapped(rows)] if both else [rows]
    return [tokenise(order, tokenizer, recipe.encoding, recipe.max_length, recipe.truncation) for order in orders]
