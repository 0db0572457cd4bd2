"""How many parameters each method adds to BERT-base, for one task and for three; shapes alone, no weights."""

from collections.abc import Iterator
from typing import Any

import adapters
import pytest
import torch
from adapters.composition import Fuse
from transformers import BertConfig, BertModel, PreTrainedModel

from pipeline.methods import prefix
from pipeline.methods.registry import add_modules
from pipeline.settings.recipe import Recipe
from tests.pipeline.methods.adapted import trainable

TASKS = ("sst", "quora", "sts")


@pytest.fixture
def bert() -> Iterator[PreTrainedModel]:
    with torch.device("meta"):
        yield BertModel(BertConfig(), add_pooling_layer=False)


def recipe(**values: Any) -> Recipe:
    return Recipe.parse({"trainable": "adapter", **values}, "test")


@pytest.mark.parametrize(
    ("settings", "tasks", "expected"),
    [
        ({}, 1, 2_379_264),
        ({"bottleneck": 8}, 1, 313_536),
        ({"bottleneck": 256}, 1, 9_461_760),
        ({"adapter": "pfeiffer", "bottleneck": 48}, 1, 894_528),
        ({"train_layernorm": True}, 3, 7_248_384),
        ({"adapter": "pal"}, 1, 1_819_836),
        ({"adapter": "pal"}, 3, 5_459_508),
        ({"adapter": "pal", "pal_heads": 6}, 1, 1_819_836),
        ({"adapter": "prefix"}, 1, 92_160),
        ({"adapter": "prefix"}, 3, 276_480),
        ({"adapter": "prefix-tuning"}, 1, 184_320),
        *(({"adapter": "lora", "lora_rank": rank}, 1, 12 * 2 * (2 * rank * 768)) for rank in (1, 8, 64)),
        ({"adapter": "ia3"}, 1, 12 * (768 + 768 + 3072)),
        ({"adapter": "bitfit"}, 1, 12 * (7 * 768 + 3072) + 768),
        ({"adapter": "bitfit", "drop_layers": [0]}, 3, 3 * 11 * (7 * 768 + 3072)),
        ({"adapter": "unipelt"}, 1, 894_528 + 184_320 + 294_912 + 12 * 4 * 769),
        ({"adapter": "pal", "drop_layers": [0, 1]}, 1, 1_819_836 - 2 * 125_460),
        ({"adapter": "prefix", "drop_layers": [0]}, 3, 276_480 - 3 * 7_680),
    ],
    ids=str,
)
def test_what_trains(
    settings: dict[str, Any], tasks: int, expected: int, bert: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "token_states", lambda model, length: [torch.zeros(length, 768)] * 12)
    add_modules(bert, TASKS[:tasks], recipe(**settings))
    assert trainable(bert) == expected


def test_with_the_backbone_all_of_it_trains_too(bert: PreTrainedModel) -> None:
    """But for the LayerNorms that each task has its own of."""
    backbone = trainable(bert)
    assert backbone == 109_482_240 - 590_592
    add_modules(bert, TASKS, recipe(trainable="full+adapter", train_layernorm=True))
    assert trainable(bert) == backbone + 7_248_384 - 24 * 2 * 768


@pytest.mark.parametrize(("config", "points"), [(adapters.DoubleSeqBnConfig, 24), (adapters.SeqBnConfig, 12)])
def test_standard_fusion(config: Any, points: int, bert: PreTrainedModel) -> None:
    adapters.init(bert)
    for task in TASKS:
        bert.add_adapter(task, config=config(reduction_factor=768))
    bert.add_adapter_fusion(Fuse(*TASKS))
    bert.train_adapter_fusion(Fuse(*TASKS))
    assert trainable(bert) == points * 1_771_008 == {24: 42_504_192, 12: 21_252_096}[points]
