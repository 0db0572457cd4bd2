"""Masked-language-model training: the right tokens are asked for, and the head reads these alone."""

from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    PretrainedConfig,
    RobertaConfig,
    XLMRobertaConfig,
)

from pipeline.data.tokens import TokenisedSplit
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe
from pipeline.training.masked_lm import IGNORED, MaskedModel, Masking, cut, fit_masked

SPECIAL = torch.tensor([0, 2, 3])
MASK, VOCABULARY = 4, 1000
WORDS = torch.arange(5, VOCABULARY)


@pytest.fixture(scope="module")
def masked() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A million tokens, two in ten of them special: the ids, what stands in their place, and the labels."""
    generator = np.random.default_rng(0)
    ids = torch.from_numpy(generator.integers(5, VOCABULARY, (1000, 1250)))
    ids[:, :100], ids[:, 100:250] = 2, 0
    return ids, *Masking().apply(ids, SPECIAL, MASK, WORDS, np.random.default_rng(1))


def test_berts_shares_hold_and_special_tokens_are_never_asked_for(masked) -> None:
    ids, replaced, labels = masked
    chosen = labels != IGNORED
    assert not chosen[torch.isin(ids, SPECIAL)].any()
    assert chosen[~torch.isin(ids, SPECIAL)].float().mean().item() == pytest.approx(0.15, abs=0.002)
    assert (labels[chosen] == ids[chosen]).all()
    assert (replaced[~chosen] == ids[~chosen]).all()
    asked, shown = ids[chosen], replaced[chosen]
    hidden = (shown == MASK).float().mean().item()
    kept = (shown == asked).float().mean().item()
    assert hidden == pytest.approx(0.8, abs=0.005)
    assert kept == pytest.approx(0.1, abs=0.005)
    assert 1 - hidden - kept == pytest.approx(0.1, abs=0.005)


SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
FAMILIES = [
    BertConfig(**SIZES),
    RobertaConfig(**SIZES),
    XLMRobertaConfig(**SIZES),
    DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
]


@pytest.mark.covering(1)
@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.model_type)
@pytest.mark.parametrize("places", [[1, 2, 6, 13], [0], []], ids=str)
def test_scores_and_gradients_are_those_of_a_head_that_reads_every_token(
    places: list[int], config: PretrainedConfig
) -> None:
    torch.manual_seed(0)
    model, asked = AutoModelForMaskedLM.from_config(config).double(), torch.tensor(places, dtype=torch.int64)
    inputs = {"input_ids": torch.randint(5, 50, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
    inputs["attention_mask"][1, 4:] = 0
    weight = torch.randn(len(places), 50, dtype=torch.float64)

    def scores_and_gradients(asks: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
        torch.manual_seed(1)  # the same dropout
        scores = MaskedModel(model)(asked, **inputs) if asks else model(**inputs).logits.flatten(0, 1)[asked]
        model.zero_grad()
        (scores * weight).sum().backward()
        return scores.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    model.train()
    (scores, gradients), (expected, those) = scores_and_gradients(True), scores_and_gradients(False)
    torch.testing.assert_close(scores, expected)
    assert len(gradients) == len(those) > 10
    for gradient, that in zip(gradients, those, strict=True):
        torch.testing.assert_close(gradient, that)
    assert model(**inputs).logits.shape == (2, 7, 50)  # nothing stays behind


@pytest.mark.covering(1)
@pytest.mark.parametrize("hidden", [0.0, 0.15, 1.0])
@pytest.mark.parametrize(("pieces", "most_padding"), [(1, None), (2, None), (3, 2), (12, None), (20, None), (1, 3)])
def test_a_batch_that_is_cut_has_the_loss_of_the_whole(pieces: int, most_padding: int | None, hidden: float) -> None:
    """Each piece's mean, weighted by its rows as ``fit`` weights it, whatever share of the hidden words is in it."""
    generator, size, length = np.random.default_rng(0), 12, 9
    lengths = torch.arange(size) // 2 + 3
    there = torch.arange(length) < lengths[:, None]
    ids = torch.from_numpy(generator.integers(5, VOCABULARY, (size, length))) * there
    masked, labels = Masking(chosen=hidden).apply(ids, SPECIAL, MASK, WORDS, generator)
    loss_of_word = torch.from_numpy(generator.random(VOCABULARY))
    batch = {"input_ids": masked, "attention_mask": there.long(), "labels": labels, "rows": torch.arange(size)}

    total, seen = 0.0, []
    for piece in cut(batch, pieces, most_padding):
        inputs = piece.batch["input_ids"]
        assert inputs.shape[1] == lengths[piece.batch["rows"]].max()
        asked = piece.batch["asked"]
        assert (inputs.flatten()[asked] != 0).all()
        value = loss_of_word[piece.batch["labels"]].sum() / piece.batch["share"]
        total += value.item() * len(piece) / size
        seen += piece.batch["rows"].tolist()
    assert seen == list(range(size))
    chosen = labels[labels != IGNORED]
    assert total == pytest.approx(loss_of_word[chosen].mean().item() if len(chosen) else 0.0, rel=1e-6)


def shown(backbone: Backbone, texts: list[str], masking: Masking, seed: int) -> tuple[list[list[int]], ...]:
    """What the model reads in two epochs of training, in both evaluations, and a random number of each step."""
    tokenizer = backbone.tokenizer
    tokens = [np.array(tokenizer.fast(text)["input_ids"], dtype=np.int32) for text in texts]
    split = TokenisedSplit(tokens, None, None, None)
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**SIZES))
    read: dict[bool, list[list[int]]] = {True: [], False: []}
    random: list[list[int]] = []

    def see(module: torch.nn.Module, _: object, inputs: dict[str, torch.Tensor]) -> None:
        read[module.training].append(inputs["input_ids"].flatten().tolist())
        if module.training:
            random.append(torch.randint(2**31, (4,)).tolist())

    model.register_forward_pre_hook(see, with_kwargs=True)
    recipe = Recipe(trainable="full", epochs=2, learning_rate=1e-3, batch_size=4, precision="fp32")
    cpu = Accelerator(cpu=True)
    fit_masked(model, split, {"all": split}, tokenizer, recipe, masking, seed=seed, accelerator=cpu)
    return read[True], read[False], random


def test_what_is_hidden_follows_from_the_seed(backbone: Backbone) -> None:
    """Of one text again and again the order tells nothing."""
    texts = ["the film is very good"] * 10
    trained, evaluated, random = shown(backbone, texts, Masking(chosen=0.5), seed=1)
    assert (trained, evaluated, random) == shown(backbone, texts, Masking(chosen=0.5), seed=1)
    assert len({*map(str, trained)}) == len(trained) == 6  # anew in every batch and epoch
    assert evaluated[:3] == evaluated[3:]
    other = shown(backbone, texts, Masking(chosen=0.5), seed=2)
    assert trained != other[0]
    assert evaluated != other[1]


def test_the_score_is_the_share_of_hidden_words_that_are_guessed(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all batches together; none where nothing can be hidden."""
    texts = ["the film is good", "the song is very bad", "the book is very good"] * 4
    encoded = [np.array(backbone.tokenizer.fast(text)["input_ids"], dtype=np.int32) for text in texts]
    ends = [encoded[0][[0, -1]]]
    held_out = {
        name: TokenisedSplit(tokens, None, None, None)
        for name, tokens in {"all": encoded, "one": encoded[:1], "ends": ends}.items()
    }
    asked: dict[str, Any] = {}
    monkeypatch.setattr("pipeline.training.masked_lm.fit", lambda _, **given: asked.update(given))
    recipe, cpu = Recipe(trainable="full", epochs=2, learning_rate=1e-3, precision="fp32"), Accelerator(cpu=True)
    model, masking = BertForMaskedLM(BertConfig(**SIZES)), Masking(chosen=1.0)
    fit_masked(model, held_out["all"], held_out, backbone.tokenizer, recipe, masking, seed=1, accelerator=cpu)
    good = encoded[0][-2]

    def always_good(asked: torch.Tensor, **_: torch.Tensor) -> torch.Tensor:
        return torch.eye(100)[torch.full_like(asked, good)]

    words = np.concatenate([tokens[1:-1] for tokens in encoded])
    scores = asked["evaluate"](always_good)
    assert scores == {"all": (words == good).sum() / len(words), "one": 1 / len(encoded[0][1:-1]), "ends": 0.0}
