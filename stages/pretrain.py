"""Masked-language-model pretraining of a small BERT on given text (Devlin et al. 2019, section 3.1, task 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

from pipeline.atomic import new_folder
from pipeline.data.batches import BACKBONE_INPUTS, Batch, Piece, collate, evaluation_order, training_batches
from pipeline.data.tokens import TokenisedSplit, Tokenizer, tokenise, tokenizer_of
from pipeline.recipe import Recipe
from pipeline.training.devices import make_accelerator
from pipeline.training.fit import TrainingData, fit

IGNORED = -100
_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class Masking:
    """Which tokens are asked for, and what stands in their place; the rest of the chosen keep their word.

    BERT's own shares are 0.15, 0.8 and 0.1.
    """

    chosen: float = 0.15
    masked: float = 0.8
    random: float = 0.1

    def apply(
        self, ids: Tensor, special: Tensor, mask_id: int, vocabulary: int, generator: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Masked ``ids`` (B, T), and labels (B, T) that are ``IGNORED`` wherever nothing is asked.

        Args:
            special: ids that are never chosen, padding among them.
        """
        draw = torch.from_numpy(generator.random(ids.shape))
        chosen = (draw < self.chosen) & ~torch.isin(ids, special)
        labels = ids.masked_fill(~chosen, IGNORED)
        fate = torch.from_numpy(generator.random(ids.shape))
        masked = ids.masked_fill(chosen & (fate < self.masked), mask_id)
        words = torch.from_numpy(generator.integers(len(special), vocabulary, ids.shape))
        swapped = chosen & (fate >= self.masked) & (fate < self.masked + self.random)
        return torch.where(swapped, words, masked), labels


def word_tokenizer(texts: Sequence[tuple[str, ...]], folder: Path, max_length: int) -> Tokenizer:
    """A BERT tokenizer whose vocabulary is every word of ``texts``; fit for a small, closed language."""
    words = sorted({word for text in texts for sentence in text for word in sentence.split()})
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join((*_SPECIALS, *words)) + "\n", encoding="utf-8")
    fast = BertTokenizerFast(vocab_file=str(vocabulary), do_lower_case=True, model_max_length=max_length)
    fast.save_pretrained(folder)
    return tokenizer_of(fast, token_types=True)


def pretrain(
    texts: Sequence[tuple[str, ...]],
    folder: Path,
    config: BertConfig,
    recipe: Recipe,
    masking: Masking,
    *,
    seed: int,
    held_out: int = 256,
) -> float:
    """Train a fresh BERT on ``texts`` (one sentence or a pair each) and write it to ``folder`` as a backbone.

    Args:
        config: sizes; the vocabulary's is set here.
        held_out: texts that are not trained on, for the score.

    Returns:
        The share of masked tokens of the held-out texts that the kept epoch guesses right.
    """
    with new_folder(folder) as temporary:
        tokenizer = word_tokenizer(texts, temporary, config.max_position_embeddings)
        order = np.random.default_rng(seed).permutation(len(texts))
        dev, train = (
            _tokenised([texts[i] for i in part], tokenizer, config.max_position_embeddings)
            for part in (order[:held_out], order[held_out:])
        )
        torch.manual_seed(seed)
        config.vocab_size = len(tokenizer.fast)
        model = BertForMaskedLM(config)
        accelerator = make_accelerator(recipe.precision)
        special = torch.tensor(tokenizer.fast.all_special_ids)

        def mask(batch: Batch, *stream: int) -> Batch:
            assert tokenizer.fast.mask_token_id is not None
            generator = np.random.default_rng([seed, *stream])
            ids, labels = masking.apply(
                batch["input_ids"], special, tokenizer.fast.mask_token_id, config.vocab_size, generator
            )
            return {**batch, "input_ids": ids, "labels": labels}

        def batches(epoch: int, first: int) -> Iterator[list[Piece]]:
            found = training_batches(train, recipe.batch_size, 1, seed, epoch, tokenizer.pad_token_id, first)
            for number, pieces in enumerate(found, start=first):
                yield [Piece(mask(piece, epoch, number)) for piece in pieces]

        def evaluate(trained: nn.Module) -> float:
            right = asked = 0
            for number, rows in enumerate(evaluation_order(dev.lengths, recipe.batch_size)):
                batch = mask(collate(dev, rows, tokenizer.pad_token_id), 0, number)
                with torch.inference_mode():
                    guesses = _logits(trained, batch, accelerator.device).argmax(dim=-1).cpu()
                right += int((guesses == batch["labels"]).sum())
                asked += int((batch["labels"] != IGNORED).sum())
            return right / asked

        def loss(trained: nn.Module, piece: Piece) -> Tensor:
            batch = piece.batch
            return F.cross_entropy(
                _logits(trained, batch, batch["input_ids"].device).flatten(0, 1),
                batch["labels"].flatten(),
                ignore_index=IGNORED,
            )

        fitted = fit(
            model,
            recipe=recipe,
            seed=seed,
            data=TrainingData(
                batches, batches_per_epoch=recipe.steps_over(len(train)), epochs=recipe.epochs_over(len(train))
            ),
            loss=loss,
            evaluate=evaluate,
            metric="masked accuracy",
            accelerator=accelerator,
            title="pretrain",
        )
        model.bert.save_pretrained(temporary, safe_serialization=True)
    return fitted.best_score


def _logits(model: nn.Module, batch: Batch, device: torch.device) -> Tensor:
    inputs = {name: batch[name].to(device) for name in BACKBONE_INPUTS}
    return model(**inputs).logits


def _tokenised(texts: Sequence[tuple[str, ...]], tokenizer: Tokenizer, max_length: int) -> TokenisedSplit:
    """Singles and pairs as one split; the singles come first."""
    parts = []
    for size in (1, 2):
        chosen = [text for text in texts if len(text) == size]
        columns = {"id": map(str, range(len(chosen))), "text_a": [text[0] for text in chosen]}
        if size == 2:
            columns["text_b"] = [text[1] for text in chosen]
        if chosen:
            parts.append(tokenise(pd.DataFrame(columns), tokenizer, "cross", max_length))
    return TokenisedSplit(
        ids=tuple(id for part in parts for id in part.ids),
        a=[ids for part in parts for ids in part.a],
        types_a=[types for part in parts for types in part.types_a or []],
        b=None,
        labels=None,
    )
