"""The whole pipeline in a few minutes: generated tasks, a nano BERT made here, extract, fuse, compare.

The tasks are a target that needs what two others know, and a third source that knows nothing. ``reviews`` asks whether
an opinion word of an invented slang is praise, ``orders`` which department a product belongs to. ``tickets`` asks for
both at once: which of four queues a customer's message goes to. Its 300 training rows show most words once or not at
all, while dev and test use them all. What it lacks is in two other tasks, and not in either alone. ``coins`` has the
sentences of ``tickets`` with labels drawn by coin. No sentence stands twice in any split of any task, so no source has
seen a row that the target is scored on.
"""

import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

from pipeline.data.tokens import Tokenizer, tokenise
from pipeline.records.store import DEFAULT_STORE
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import make_folder, new_folder, write_json, write_text
from pipeline.system.errors import PipelineError, writing
from pipeline.system.reading import present, read_json
from pipeline.training.devices import make_accelerator
from pipeline.training.masked_lm import Masking, fit_masked
from stages.compare.compare import compare
from stages.extract import extract
from stages.fuse import fuse
from stages.report import summary_of
from stages.studies import find_study

TARGET = "tickets"
_SEED_FILE = "demo.json"

_CONFIG = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    # BERT's 0.02 is meant for width 768.
    "initializer_range": 0.08,
}
_RECIPE = Recipe(trainable="full", epochs=5, learning_rate=2e-3, batch_size=64, precision="fp32")
# More tokens than usual are kept as they are: with one in ten, a nano BERT hardly passes a word it sees on to its top.
_MASKING = Masking(chosen=0.2, masked=0.6, random=0.1)
_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def demo(folder: Path, seed: int) -> int:
    """Make everything under ``folder``, a new or empty one, and say what came out; run again, what is there is used.

    The exit status is 2 if a run of the comparison failed, else 0.
    """
    began = time.monotonic()
    # The seed is written before anything else. Among other files the demo would overwrite the tasks, and use the
    # backbone, models and runs that it finds.
    file, remedy = make_folder(folder) / _SEED_FILE, "give another folder (--output)"
    if not present(file):
        if any(folder.iterdir()):
            raise PipelineError(f"{folder} holds other files: {remedy}")
        write_json(file, {"seed": seed})
    elif read_json(file, remedy) != {"seed": seed}:
        raise PipelineError(f"{folder} was made with another seed: {remedy}")
    data, backbone = folder / "data", folder / "backbone"
    _say(f"Four generated tasks: {data}")
    with writing(data):
        names = write_tasks(data, seed)
    if not (backbone / "config.json").is_file():
        _say("A nano BERT, pretrained on other sentences of their kinds")
        score = pretrain_fresh(corpus(data, seed), backbone, BertConfig(**_CONFIG), _RECIPE, _MASKING, seed=seed)
        _say(f"Its masked-token accuracy is {score:.0%}: {backbone}")
    study = find_study("demo")
    places = str(backbone), data, folder / DEFAULT_STORE, folder / "reports"
    workspace = Workspace(*places, scoring=study.scoring)  # the study's, which then finds these runs
    _say("Stage one: an adapter for each task, the nano BERT frozen")
    for name in names:
        record = extract(name, study.recipe_for("adapter", name), workspace, seed=study.seeds[0]).record
        print(f"{name}: dev {record.metric} {record.dev:.3f}", flush=True)
    _say(f"Stage two: fusion of the others for {TARGET}, which has few rows")
    fused = fuse(TARGET, study.recipe_for("fusion", TARGET), workspace, seed=study.seeds[0]).record
    print(f"{TARGET}: dev {fused.metric} {fused.dev:.3f}", flush=True)
    _say("Stage three: the alternatives, on the same rows and seed")
    result, report = compare(study, workspace)
    print()
    print("\n".join(summary_of(report)))
    _say(f"Done in {time.monotonic() - began:.0f} s")
    return 2 if any(entry.error for entry in result.entries) else 0


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def pretrain_fresh(
    texts: Sequence[str],
    folder: Path,
    config: BertConfig,
    recipe: Recipe,
    masking: Masking,
    *,
    seed: int,
    held_out: int = 256,
) -> float:
    """Train a fresh BERT on the sentences ``texts`` and write it to ``folder`` as a backbone.

    The vocabulary's size in ``config`` is set here. ``held_out`` texts are not trained on: returns the share of their
    masked tokens that the kept epoch guesses right.
    """
    length = config.max_position_embeddings
    with new_folder(folder) as temporary:
        # Every word has its token, which is fit for a small, closed language.
        words = sorted({word for text in texts for word in text.split()})
        vocabulary = temporary / "vocab.txt"
        vocabulary.write_text("\n".join((*_SPECIALS, *words)) + "\n", encoding="utf-8")
        fast = BertTokenizerFast(vocab_file=str(vocabulary), do_lower_case=True, model_max_length=length)
        fast.save_pretrained(temporary)
        tokenizer = Tokenizer(fast, token_types=True)
        order = np.random.default_rng(seed).permutation(len(texts))
        rows = pd.DataFrame({"text_a": [texts[i] for i in order]})
        dev, train = (tokenise(part, tokenizer, "cross", length) for part in (rows[:held_out], rows[held_out:]))
        torch.manual_seed(seed)
        config.vocab_size = len(fast)
        model = BertForMaskedLM(config)
        accelerator = make_accelerator(recipe.precision)
        fitted = fit_masked(model, train, {"text": dev}, tokenizer, recipe, masking, seed=seed, accelerator=accelerator)
        model.bert.save_pretrained(temporary, safe_serialization=True)
    return fitted.best_score


WORDS = 500  # of each kind: 300 rows show two of five
PEOPLE = ("he", "she", "they", "we", "you", "everyone", "nobody", "somebody")
DAYS = ("today", "yesterday", "again", "now", "often", "once")
THINGS = ("ticket", "picture", "book", "film", "song", "meal", "coat")
LOOKS = ("red", "blue", "large", "small", "round", "heavy", "old")
JUDGED = ("found", "called", "thought", "considered")
TRADED = ("bought", "ordered", "sold", "returned", "wanted")


def invented(count: int, ending: str, rng: random.Random) -> dict[str, int]:
    """Words of three syllables and an ending, each of class 0 or 1; the classes have as many words each."""
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvz", "aeiou")]
    words: dict[str, int] = {}
    while len(words) < count:
        words.setdefault("".join(rng.choices(syllables, k=3)) + ending, len(words) % 2)
    return words


OPINIONS = invented(WORDS, "y", random.Random("opinions"))  # 1: praise
PRODUCTS = invented(WORDS, "er", random.Random("products"))  # 1: kitchen, 0: office


def message(thing: str, quality: str, rng: random.Random) -> str:
    """A sentence on a thing and somebody's view of it; all tasks have this form, so that knowledge carries over."""
    person, traded, judged, day = (rng.choice(words) for words in (PEOPLE, TRADED, JUDGED, DAYS))
    return f"{person} {traded} the {thing} and {judged} it {quality} {day}"


def review(rng: random.Random) -> tuple[str, int]:
    """A message on anything but a product, and whether it is praise."""
    opinion = rng.choice([*OPINIONS])
    return message(rng.choice(THINGS), opinion, rng), OPINIONS[opinion]


def order(rng: random.Random) -> tuple[str, int]:
    """A message on a product without an opinion, and the product's department."""
    product = rng.choice([*PRODUCTS])
    return message(product, rng.choice(LOOKS), rng), PRODUCTS[product]


def ticket(rng: random.Random) -> tuple[str, int]:
    """A message with an opinion on a product, and its queue: 2 * praise + department."""
    opinion, product = rng.choice([*OPINIONS]), rng.choice([*PRODUCTS])
    return message(product, opinion, rng), 2 * OPINIONS[opinion] + PRODUCTS[product]


def coin(rng: random.Random) -> tuple[str, int]:
    """A ticket, and a label that has nothing to do with it."""
    return ticket(rng)[0], rng.randrange(2)


_SMALL, _LARGE = {"train": 300, "dev": 500, "test": 1500}, {"train": 5000, "dev": 500, "test": 500}
Draw = Callable[[random.Random], tuple[str, int]]
"""Draws a sentence and the number of its class."""


class DemoTask(NamedTuple):
    draw: Draw
    description: str
    classes: list[str]
    rows: dict[str, int]
    """How many each split has."""


TASKS = {
    "reviews": DemoTask(review, "Opinions in an invented slang: praise or blame", ["blame", "praise"], _LARGE),
    "orders": DemoTask(order, "Invented products: which department sells them", ["office", "kitchen"], _LARGE),
    "coins": DemoTask(coin, "Messages with labels drawn by coin: nothing to learn", ["heads", "tails"], _LARGE),
    "tickets": DemoTask(
        ticket,
        "Messages on products, by opinion and department: few rows",
        ["blame, office", "blame, kitchen", "praise, office", "praise, kitchen"],
        _SMALL,
    ),
}


def write_tasks(folder: Path, seed: int = 0) -> list[str]:
    """Write ``<folder>/<task>/{train,dev,test}.csv`` and ``task.toml`` for every task; return the tasks' names."""
    seen: set[str] = set()
    for name, (draw, description, classes, sizes) in TASKS.items():
        rng = random.Random(f"{name} {seed}")
        task: dict[str, Any] = {"name": name, "description": description, "text": ["sentence"], "label": "label"}
        task |= {"kind": "classes", "classes": classes, "metric": "accuracy", "max_length": 32}
        # For strings, numbers and lists of them JSON and TOML agree.
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in task.items()]
        _write(folder / name / "task.toml", "".join(lines))
        for split, size in sizes.items():
            rows = list(itertools.islice(_new(draw, rng, seen), size))
            cells = [(f"{name}-{split}-{number}", *row) for number, row in enumerate(rows)]
            table = pd.DataFrame(cells, columns=["id", "sentence", "label"])
            _write(folder / name / f"{split}.csv", table.to_csv(index=False, lineterminator="\n"))
    return list(TASKS)


def corpus(folder: Path, seed: int = 0, rows: int = 4000) -> list[str]:
    """Unlabelled sentences to pretrain a masked language model on, ``rows`` of each kind, none of them in ``folder``.

    A word's company does not tell its class, so the pretrained model knows the words and nothing of the tasks.
    """
    seen = {text for file in folder.glob("*/*.csv") for text in pd.read_csv(file)["sentence"]}
    rng = random.Random(f"corpus {seed}")
    return [text for draw in (review, order, ticket) for text, _ in itertools.islice(_new(draw, rng, seen), rows)]


def _write(file: Path, text: str) -> None:
    """Write ``file`` unless it holds ``text`` already: another command may be reading it."""
    if not (file.is_file() and file.read_bytes() == text.encode()):
        write_text(file, text)


def _new(draw: Draw, rng: random.Random, seen: set[str]) -> Iterator[tuple[str, int]]:
    """Rows whose sentences are all new, which are added to ``seen``."""
    while True:
        text, label = draw(rng)
        if text not in seen:
            seen.add(text)
            yield text, label
