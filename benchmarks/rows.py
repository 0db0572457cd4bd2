"""Rows to train on: real ones, or random tokens with real lengths."""

import json
from pathlib import Path

import numpy as np

from pipeline.data.tokens import TokenisedSplit, tokenise
from pipeline.runs.training_run import TrainingRun

from .setting import Setting

# Number of training rows by length in uncased WordPiece tokens, with special ones, truncated to 128. "edges" are the
# largest length of each bin; a pair is one input.
_HISTOGRAMS = json.loads(Path(__file__).with_name("lengths.json").read_text(encoding="utf-8"))


def real_lengths(name: str, count: int, seed: int = 0) -> np.ndarray:
    """``count`` lengths in tokens, drawn from the distribution of the training rows of ``name``."""
    generator = np.random.default_rng(seed)
    edges, counts = np.array(_HISTOGRAMS["edges"]), np.array(_HISTOGRAMS[name])
    bins = generator.choice(len(edges), size=count, p=counts / counts.sum())
    shortest = np.concatenate([[edges[0]], edges[:-1] + 1])
    return generator.integers(shortest[bins], edges[bins], endpoint=True)


# Tokens are drawn from this many, which every backbone here has.
VOCABULARY = 1000


def generated_split(lengths: np.ndarray, classes: int, seed: int = 0) -> TokenisedSplit:
    """Random tokens of the given lengths, with random labels."""
    generator = np.random.default_rng(seed)
    tokens = [generator.integers(5, VOCABULARY, size=length, dtype=np.int32) for length in lengths]
    return TokenisedSplit(
        a=tokens,
        types_a=[np.zeros_like(ids) for ids in tokens],
        b=None,
        labels=generator.integers(0, classes, size=len(tokens)),
    )


def sst_rows(run: TrainingRun, setting: Setting, count: int) -> TokenisedSplit:
    """``count`` training rows of SST: real if backbone (for its tokenizer) and data are given, else generated."""
    if not uses_real_rows(setting):
        return generated_split(real_lengths("sst", count), run.task.outputs)
    rows = run.workspace.splits.of(run.task, count, 0).train
    assert run.recipe.encoding is not None and run.recipe.max_length is not None
    return tokenise(rows, run.backbone.tokenizer, run.recipe.encoding, run.recipe.max_length)


def uses_real_rows(setting: Setting) -> bool:
    return setting.backbone is not None and setting.data is not None
