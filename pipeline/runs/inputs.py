"""Rows as a model of a recipe reads them."""

from collections.abc import Sequence

import pandas as pd
from accelerate import Accelerator

from pipeline.data.batches import Piece, padding_worth_a_pass, training_batches
from pipeline.data.tokens import TokenisedSplit, Tokenizer, in_random_order, swapped, tokenise
from pipeline.settings.recipe import Recipe
from pipeline.training.fit import TrainingData
from pipeline.training.predict import Extend


def training_splits(rows: pd.DataFrame, recipe: Recipe, tokenizer: Tokenizer) -> list[TokenisedSplit]:
    """What a resolved ``recipe`` trains on; a second split is the same pairs the other way round."""
    return _splits(rows, recipe, tokenizer, both=recipe.pairs.order == "random")


def scored_splits(rows: pd.DataFrame, recipe: Recipe, tokenizer: Tokenizer) -> list[TokenisedSplit]:
    """What a resolved ``recipe`` predicts from: the mean over these splits' outputs."""
    return _splits(rows, recipe, tokenizer, both=recipe.pairs.average_orders)


def _splits(rows: pd.DataFrame, recipe: Recipe, tokenizer: Tokenizer, both: bool) -> list[TokenisedSplit]:
    assert recipe.encoding is not None and recipe.max_length is not None
    orders = [rows, swapped(rows)] if both else [rows]
    return [tokenise(order, tokenizer, recipe.encoding, recipe.max_length, recipe.truncation) for order in orders]


def training_data(
    splits: Sequence[TokenisedSplit],
    recipe: Recipe,
    seed: int,
    pad_token_id: int,
    accelerator: Accelerator,
    extend: Extend | None = None,
) -> TrainingData:
    """The batches of one task; ``extend`` adds to each piece what is known of its inputs.

    Args:
        splits: the rows, and where pairs train in random order, the same with each pair the other way round.
    """
    pieces, rows = recipe.gradient_accumulation_steps * accelerator.num_processes, len(splits[0])
    most_padding = padding_worth_a_pass(accelerator.device)

    def of_epoch(epoch: int) -> TokenisedSplit:
        return splits[0] if len(splits) == 1 else in_random_order(splits[0], splits[1], seed, epoch)

    return TrainingData(
        batches=lambda epoch, first: (
            [Piece(part if extend is None else extend(part)) for part in batch]
            for batch in training_batches(
                of_epoch(epoch), recipe.batch_size, pieces, seed, epoch, pad_token_id, first, most_padding
            )
        ),
        batches_per_epoch=recipe.steps_over(rows),
        epochs=recipe.epochs_over(rows),
    )
