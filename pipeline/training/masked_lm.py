"""Masked-language-model training, without next-sentence prediction (Devlin et al. 2019, section 3.1, task 1).

The choice of hidden words is seeded by (seed, epoch, batch), so a resumed run hides the same words.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from pipeline.data.batches import (
    BACKBONE_INPUTS,
    Batch,
    Piece,
    collate,
    evaluation_order,
    micro_batches,
    padding_worth_a_pass,
    training_batches,
)
from pipeline.data.tokens import TokenisedSplit, Tokenizer
from pipeline.settings.recipe import Recipe
from pipeline.training.fit import TrainingData, fit
from pipeline.training.progress import Progress

IGNORED = -100


@dataclass(frozen=True)
class Masking:
    """The share of tokens to predict, and the shares of those that are masked or replaced by a random word.

    The others keep their word. The defaults are BERT's.
    """

    chosen: float = 0.15
    masked: float = 0.8
    random: float = 0.1

    def apply(
        self, ids: Tensor, special: Tensor, mask_id: int, words: Tensor, generator: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Masked ``ids`` (B, T), and labels (B, T) that are ``IGNORED`` wherever there is nothing to predict.

        ``special`` ids, padding among them, are never chosen; random words are drawn from ``words``.
        """
        draw = torch.from_numpy(generator.random(ids.shape))
        chosen = (draw < self.chosen) & ~torch.isin(ids, special)
        labels = ids.masked_fill(~chosen, IGNORED)
        fate = torch.from_numpy(generator.random(ids.shape))
        masked = ids.masked_fill(chosen & (fate < self.masked), mask_id)
        drawn = words[torch.from_numpy(generator.integers(0, len(words), ids.shape))]
        swapped = chosen & (fate >= self.masked) & (fate < self.masked + self.random)
        return torch.where(swapped, drawn, masked), labels


class MaskedModel(nn.Module):
    """An encoder with its masked-language-model head; the tied decoder counts as part of the encoder.

    The head reads only the tokens to predict. Scoring every word at every token would take over half of a step.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        # Layer-wise learning rates find the encoder's parameters by this order and these names.
        self.backbone = model.base_model
        self.head = model

    def forward(self, asked: Tensor, **inputs: Tensor) -> Tensor:
        """Scores of every word at ``asked`` (n), positions in (B, T) counted row by row: (n, vocabulary)."""

        def only_asked(encoder: nn.Module, args: object, output: BaseModelOutput) -> BaseModelOutput:
            assert output.last_hidden_state is not None
            output.last_hidden_state = output.last_hidden_state.flatten(0, 1)[asked][None]
            return output

        # A hook on the encoder, because every family names its head differently; all work token by token.
        with self.backbone.register_forward_hook(only_asked):
            logits: Tensor = self.head(**inputs).logits[0]
        return logits


def fit_masked(
    model: PreTrainedModel,
    train: TokenisedSplit,
    held_out: Mapping[str, TokenisedSplit],
    tokenizer: Tokenizer,
    recipe: Recipe,
    masking: Masking,
    *,
    seed: int,
    accelerator: Accelerator,
    title: str = "pretrain",
    checkpoint_file: Path | None = None,
    checkpoint_seconds: float = 60.0,
) -> Progress:
    """Train ``model`` on ``train`` and keep the epoch with the best accuracy on ``held_out``.

    Args:
        model: an encoder with a masked-language-model head.
        held_out: texts by name. The score is the accuracy on hidden tokens, the same each time, averaged over names.
    """
    special, mask_id = tokenizer.fast.all_special_ids, tokenizer.fast.mask_token_id
    assert mask_id is not None
    never, words = torch.tensor(special), torch.tensor(sorted({*range(len(tokenizer.fast))} - {*special}))
    most_padding = padding_worth_a_pass(accelerator.device, recipe.precision)

    def mask(batch: Batch, *numbers: int) -> Batch:
        """``batch`` with some words hidden, chosen by ``numbers``, and ``labels`` (B, T) that hold them."""
        generator = np.random.default_rng([seed, *numbers])
        ids, labels = masking.apply(batch["input_ids"], never, mask_id, words, generator)
        return {**batch, "input_ids": ids, "labels": labels}

    def batches(epoch: int, first: int) -> Iterator[list[Piece]]:
        pieces = recipe.gradient_accumulation_steps * accelerator.num_processes
        whole = training_batches(train, recipe.batch_size, 1, seed, epoch, tokenizer.pad_token_id, first)
        for number, (batch,) in enumerate(whole, start=first):
            yield cut(mask(batch, epoch, number), pieces, most_padding)

    def evaluate(trained: nn.Module) -> dict[str, float]:
        accuracies = {}
        for name, split in held_out.items():
            right = asked = 0
            for number, rows in enumerate(evaluation_order(split.lengths, recipe.batch_size)):
                (piece,) = cut(mask(collate(split, rows, tokenizer.pad_token_id), 0, number), 1)
                with torch.inference_mode():
                    guesses = trained(**_inputs(piece.batch, accelerator.device)).argmax(dim=-1).cpu()
                right += int((guesses == piece.batch["labels"]).sum())
                asked += len(guesses)
            accuracies[name] = right / max(asked, 1)
        return accuracies

    def loss(trained: nn.Module, piece: Piece) -> Tensor:
        labels = piece.batch["labels"]
        logits = trained(**_inputs(piece.batch, labels.device))
        return F.cross_entropy(logits.float(), labels, reduction="sum") / piece.batch["share"]

    return fit(
        MaskedModel(model),
        recipe=recipe,
        seed=seed,
        data=TrainingData(batches, recipe.steps_over(len(train)), recipe.epochs_over(len(train)), len(train)),
        loss=loss,
        evaluate=evaluate,
        metric="masked accuracy",
        accelerator=accelerator,
        title=title,
        checkpoint_file=checkpoint_file,
        checkpoint_seconds=checkpoint_seconds,
    )


def cut(batch: Batch, pieces: int, most_padding: int | None = None) -> list[Piece]:
    """The pieces of a masked batch (:func:`micro_batches`), none wider than its longest row.

    A piece's loss is the sum over its hidden tokens, divided by its ``share``: the batch's hidden tokens times the
    piece's share of rows. Weighted by rows, as in ``fit``, these losses sum to the mean over the batch's hidden tokens.
    A piece also has ``asked`` (n), the positions of hidden words counted row by row, and their ``labels`` (n).
    """
    lengths = batch["attention_mask"].sum(dim=1)
    # A short batch may have nothing hidden: avoid a division by zero.
    hidden = max(int((batch["labels"] != IGNORED).sum()), 1)
    parts = []
    for rows in micro_batches(lengths.numpy(), pieces, most_padding):
        longest = int(lengths[rows].max())
        part = {name: values[rows, :longest] if values.ndim == 2 else values[rows] for name, values in batch.items()}
        labels = part["labels"].flatten()
        # On the CPU: on a GPU the host would wait for their number.
        asked = (labels != IGNORED).nonzero().flatten()
        share = torch.tensor(hidden * (len(rows) / len(lengths)))
        parts.append(Piece({**part, "asked": asked, "labels": labels[asked], "share": share}))
    return parts


def _inputs(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    return {name: batch[name].to(device) for name in (*BACKBONE_INPUTS, "asked") if name in batch}
