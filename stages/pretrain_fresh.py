"""A backbone from nothing: a small BERT that reads texts of a small, closed language."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

from pipeline.data.tokens import TokenisedSplit, Tokenizer, joined, tokenise
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import new_folder
from pipeline.training.devices import make_accelerator
from pipeline.training.masked_lm import Masking, fit_masked

_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def pretrain_fresh(
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
        fitted = fit_masked(model, train, {"text": dev}, tokenizer, recipe, masking, seed=seed, accelerator=accelerator)
        model.bert.save_pretrained(temporary, safe_serialization=True)
    return fitted.best_score


def word_tokenizer(texts: Sequence[tuple[str, ...]], folder: Path, max_length: int) -> Tokenizer:
    """A BERT tokenizer whose vocabulary is every word of ``texts``; fit for a small, closed language."""
    words = sorted({word for text in texts for sentence in text for word in sentence.split()})
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join((*_SPECIALS, *words)) + "\n", encoding="utf-8")
    fast = BertTokenizerFast(vocab_file=str(vocabulary), do_lower_case=True, model_max_length=max_length)
    fast.save_pretrained(folder)
    return Tokenizer(fast, token_types=True)


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
    return joined(parts)
