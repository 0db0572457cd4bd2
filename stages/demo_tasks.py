"""Four small generated tasks: a target that needs what two others know, and a third source that knows nothing.

``reviews`` asks whether an opinion word of an invented slang is praise, ``orders`` which department a product belongs
to. ``tickets`` asks for both at once: which of four queues a customer's message goes to. Its 300 training rows show
most words once or not at all, while dev and test use them all. What it lacks is in two other tasks, and not in either
alone. ``coins`` has the sentences of ``tickets`` with labels drawn by coin.

No sentence stands twice in any split of any task, so no source has seen a row that the target is scored on.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pipeline.system.atomic import write_text

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
