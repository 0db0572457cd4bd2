"""Backbones of real shapes with random weights: speed does not depend on the values of weights."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from .rows import VOCABULARY
from .setting import Setting


@dataclass(frozen=True)
class Shape:
    """A BERT's sizes; the FFN is four times as wide as the model."""

    width: int
    layers: int
    heads: int
    vocabulary: int = 30_522

    def config(self) -> BertConfig:
        return BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.width,
        )


MINILM = Shape(384, 6, 12)
BERT_BASE = Shape(768, 12, 12)
FOUR_OF_BERT_BASE = Shape(768, 4, 12)
NANO = Shape(32, 2, 2, VOCABULARY)


def backbone_folder(setting: Setting, shape: Shape) -> Path:
    """A folder for ``--backbone``, written on first use."""
    folder = setting.scratch / f"bert-{shape.width}-{shape.layers}"
    if not folder.is_dir():
        torch.manual_seed(0)
        BertModel(shape.config(), add_pooling_layer=False).save_pretrained(folder)
        # Nothing is tokenised, but a backbone needs a tokenizer.
        vocabulary = folder / "vocab.txt"
        vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", encoding="utf-8")
        BertTokenizerFast(vocab_file=str(vocabulary)).save_pretrained(folder)
    return folder


def worded(setting: Setting, folder: Path) -> Path:
    """The backbone in ``folder`` with a tokenizer that knows the words w5, w6, ... each as one token."""
    own = setting.scratch / f"{folder.name}-worded"
    if not own.is_dir():
        shutil.copytree(folder, own)
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(5, VOCABULARY))]
        (own / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
        BertTokenizerFast(vocab_file=str(own / "vocab.txt")).save_pretrained(own)
    return own


def given_or_minilm(setting: Setting) -> Path:
    """The folder of ``--backbone``, else random weights of MiniLM's shape."""
    return setting.backbone or backbone_folder(setting, NANO if setting.quick else MINILM)


def describe(setting: Setting) -> str:
    """Describes the results of :func:`given_or_minilm` and :func:`sst_rows` in a report's notes."""
    shape = "a nano shape" if setting.quick else "MiniLM-L6-H384's shape"
    weights = f"backbone {setting.backbone.name}" if setting.backbone else f"random weights of {shape}"
    rows = "SST rows" if setting.backbone and setting.data else "generated rows of SST's lengths"
    return f"{weights}, {rows}"
