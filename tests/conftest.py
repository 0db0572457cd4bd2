"""A nano backbone with random weights and small generated tasks: everything the tests need, made on the spot."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

# Before torch and transformers are imported anywhere.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipeline.models.backbone import Backbone
    from pipeline.recipe import Recipe
    from stages.workspace import Workspace

GOOD = ["good", "fine", "great", "lovely", "bright", "warm", "kind"]
BAD = ["bad", "poor", "awful", "dull", "cold", "grim", "mean"]
THINGS = ["film", "song", "book", "meal", "room", "walk", "game"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "is", "very", *GOOD, *BAD, *THINGS]


@pytest.fixture(scope="session", autouse=True)
def token_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["PIPELINE_CACHE"] = str(tmp_path_factory.mktemp("tokens"))


def save_backbone(folder: Path, family: str = "bert", seed: int = 0, width: int = 32) -> Path:
    """Write a two-layer encoder with random weights and a word tokenizer; dropout off, so that tests are exact."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    tokenizer = transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt"), model_max_length=32)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 34, "pad_token_id": 0}
    config: transformers.PretrainedConfig
    if family == "distilbert":
        config = transformers.DistilBertConfig(
            dim=width, n_layers=2, n_heads=2, hidden_dim=2 * width, dropout=0.0, attention_dropout=0.0, **sizes
        )
    else:
        config_class = {"bert": transformers.BertConfig, "roberta": transformers.RobertaConfig}[family]
        config = config_class(
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=2 * width,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.3,
            **({"type_vocab_size": 1} if family == "roberta" else {}),
            **sizes,
        )
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


def write_tasks(folder: Path, rows: int = 96) -> Path:
    """Two sentence tasks that share their words' meaning, and a graded pair task, as CSV files with task.toml."""
    rng = random.Random(0)

    def sentence(thing: str) -> tuple[str, int]:
        label = rng.randrange(2)
        return f"the {thing} is {'very ' if rng.random() < 0.3 else ''}{rng.choice((BAD, GOOD)[label])}", label

    def sentences(size: int) -> pd.DataFrame:
        found = [sentence(rng.choice(THINGS)) for _ in range(size)]
        return pd.DataFrame({"id": range(size), "sentence": [t for t, _ in found], "label": [y for _, y in found]})

    def pairs(size: int) -> pd.DataFrame:
        found = [(sentence(rng.choice(THINGS)), sentence(rng.choice(THINGS))) for _ in range(size)]
        score = [5.0 * (a[1] == b[1]) - 2.0 * (a[0].split()[1] != b[0].split()[1]) for a, b in found]
        texts = {"sentence1": [a[0] for a, _ in found], "sentence2": [b[0] for _, b in found]}
        return pd.DataFrame({"id": range(size), **texts, "score": [max(0.0, s) for s in score]})

    common = "max_length = 24\n"
    tomls = {
        name: f'name = "{name}"\nkind = "classes"\ntext = ["sentence"]\nlabel = "label"\n'
        f'classes = ["bad", "good"]\nmetric = "accuracy"\n{common}'
        for name in ("films", "meals")
    } | {
        "pairs": 'name = "pairs"\nkind = "score"\ntext = ["sentence1", "sentence2"]\nlabel = "score"\n'
        f'range = [0.0, 5.0]\nmetric = "pearson"\n{common}'
    }
    for name, toml in tomls.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "task.toml").write_text(toml)
        make = pairs if name == "pairs" else sentences
        for split, size in (("train", rows), ("dev", 40)):
            make(size).to_csv(folder / name / f"{split}.csv", index=False)
    return folder


@pytest.fixture(scope="session")
def backbone_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def backbone(backbone_folder: Path) -> Backbone:
    from pipeline.models.backbone import open_backbone

    return open_backbone(str(backbone_folder))


@pytest.fixture
def encoder(backbone: Backbone) -> PreTrainedModel:
    """A fresh copy of the nano encoder."""
    return backbone.load()


@pytest.fixture
def workspace(backbone_folder: Path, data_folder: Path, tmp_path: Path) -> Workspace:
    from stages.workspace import Workspace

    return Workspace(str(backbone_folder), data_folder, tmp_path / "store", tmp_path / "reports")


@pytest.fixture(scope="session")
def quick() -> Callable[..., Recipe]:
    """A recipe for a few steps: ``quick("adapter", epochs=1)``."""
    from pipeline.recipe import Recipe

    def make(trainable: str, **values: object) -> Recipe:
        settings = {"epochs": 2, "batch_size": 16, "bottleneck": 8, "learning_rate": 5e-3, **values}
        return Recipe.parse({"trainable": trainable, **settings}, "test")

    return make
