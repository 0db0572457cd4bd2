"""A nano backbone with random weights, and small generated tasks."""

import random
from pathlib import Path

import numpy as np
import pandas as pd

GOOD = ["good", "fine", "great", "lovely", "bright", "warm", "kind"]
BAD = ["bad", "poor", "awful", "dull", "cold", "grim", "mean"]
THINGS = ["film", "song", "book", "meal", "room", "walk", "game"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "is", "very", *GOOD, *BAD, *THINGS]

FAMILIES = ["bert", "roberta", "distilbert", "electra", "deberta-v2", "modernbert"]
# Settings of the pretrained models, except sizes.
DEBERTA_V3 = {
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 4,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "type_vocab_size": 0,
}
MODERNBERT = {
    "global_attn_every_n_layers": 2,
    "local_attention": 4,
    "num_hidden_layers": 3,
    **{f"{name}_token_id": VOCABULARY.index(f"[{word}]") for name, word in (("cls", "CLS"), ("sep", "SEP"))},
    "bos_token_id": VOCABULARY.index("[CLS]"),
    "eos_token_id": VOCABULARY.index("[SEP]"),
}


WIDTH = 32
SIZES = {
    "bottleneck": 8,
    "pal_size": 12,
    "pal_heads": 3,
    "prefix_length": 4,
    "lora_rank": 4,
    "unipelt_bottleneck": 8,
    "unipelt_prefix": 4,
    "unipelt_rank": 2,
}
"""Recipe settings with which an adapter of any kind fits this backbone; those of other kinds have no effect."""


def save_backbone(folder: Path, family: str = "bert", seed: int = 0, width: int = WIDTH, **settings: object) -> Path:
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
        config_class, own = {
            "bert": (transformers.BertConfig, {}),
            "roberta": (transformers.RobertaConfig, {"type_vocab_size": 1}),
            # Embeddings are narrower, as in ELECTRA-small.
            "electra": (transformers.ElectraConfig, {"embedding_size": width // 2}),
            "deberta-v2": (transformers.DebertaV2Config, DEBERTA_V3),
            "modernbert": (transformers.ModernBertConfig, MODERNBERT),
        }[family]
        config = config_class(
            **{
                "hidden_size": width,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 2 * width,
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
                "initializer_range": 0.3,
                **sizes,
                **own,
                **settings,
            }
        )
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


def write_tasks(folder: Path, rows: int = 96) -> Path:
    """Write two sentence tasks in which words mean the same, and a scored pair task, as CSV files with task.toml."""
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


def add_pair_task(data: Path, name: str, edges: list[float], classes: list[str], more: str = "") -> None:
    """Write a task of ``classes`` over the rows of ``pairs``: by the ``edges`` between which their scores lie."""
    own = data / name
    own.mkdir()
    (own / "task.toml").write_text(
        f'name = "{name}"\nkind = "classes"\ntext = ["sentence1", "sentence2"]\nlabel = "label"\n'
        f'classes = {classes}\nmetric = "accuracy"\nmax_length = 24\n{more}'
    )
    for split in ("train", "dev"):
        table = pd.read_csv(data / "pairs" / f"{split}.csv")
        table["label"] = np.searchsorted(edges, table.pop("score"))
        table.to_csv(own / f"{split}.csv", index=False)
