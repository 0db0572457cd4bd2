"""Masked-language-model pretraining: the right tokens are asked for, and a backbone comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig

from pipeline.models.backbone import open_backbone
from pipeline.recipe import Recipe
from stages.pretrain import IGNORED, Masking, pretrain

SPECIAL = torch.tensor([0, 2, 3])
MASK, VOCABULARY = 4, 1000


@pytest.fixture(scope="module")
def masked() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A million tokens, two in ten of them special: the ids, what stands in their place, and the labels."""
    generator = np.random.default_rng(0)
    ids = torch.from_numpy(generator.integers(5, VOCABULARY, (1000, 1250)))
    ids[:, :100], ids[:, 100:250] = 2, 0
    return ids, *Masking().apply(ids, SPECIAL, MASK, VOCABULARY, np.random.default_rng(1))


def test_special_tokens_are_never_asked_for(masked) -> None:  # type: ignore[no-untyped-def]
    ids, replaced, labels = masked
    special = torch.isin(ids, SPECIAL)
    assert (labels[special] == IGNORED).all()
    assert (replaced[special] == ids[special]).all()


def test_berts_shares_hold(masked) -> None:  # type: ignore[no-untyped-def]
    ids, replaced, labels = masked
    chosen = labels != IGNORED
    assert chosen[~torch.isin(ids, SPECIAL)].float().mean().item() == pytest.approx(0.15, abs=0.002)
    assert (labels[chosen] == ids[chosen]).all()
    assert (replaced[~chosen] == ids[~chosen]).all()
    asked, shown = ids[chosen], replaced[chosen]
    hidden = (shown == MASK).float().mean().item()
    kept = (shown == asked).float().mean().item()
    assert hidden == pytest.approx(0.8, abs=0.005)
    assert kept == pytest.approx(0.1, abs=0.005)
    assert 1 - hidden - kept == pytest.approx(0.1, abs=0.005)


def test_a_backbone_comes_out_that_has_learned(tmp_path: Path) -> None:
    """In "x is y", y follows from x: the masked word can be guessed."""
    pairs = [("snow", "white"), ("grass", "green"), ("coal", "black"), ("blood", "red")]
    texts: list[tuple[str, ...]] = [(f"{a} is {b}",) for a, b in pairs] * 60 + [(f"{a} is", b) for a, b in pairs] * 10
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(**sizes, max_position_embeddings=16, initializer_range=0.1)
    recipe = Recipe(trainable="full", epochs=15, learning_rate=5e-3, batch_size=16, precision="fp32")
    score = pretrain(texts, tmp_path / "backbone", config, recipe, Masking(), seed=0, held_out=40)
    assert score > 0.6  # of nine words
    backbone = open_backbone(str(tmp_path / "backbone"))
    assert len(backbone.tokenizer.fast) == 5 + 9
    assert backbone.tokenizer.token_types
