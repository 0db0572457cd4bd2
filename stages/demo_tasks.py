"""Four small generated tasks, in two pairs, made so that one of each pair knows what the other needs.

``reviews`` and ``gadgets`` are sentiment, by one lexicon and one set of rules (degrees, negation, which clause of a
contrast counts). ``gadgets`` has so few training rows that it sees each opinion word a handful of times, while its dev
and test splits use the whole lexicon: what it lacks, ``reviews`` has.

``paraphrase`` and ``similarity`` are pairs of one-line reports of who did what to whom, where. Both need one table of
synonyms and one reading of active and passive; ``paraphrase`` asks whether anything changed, ``similarity`` how much.

No sentence stands twice in any split of any task, so no source has seen a row that a target is scored on.
"""

from __future__ import annotations

import itertools
import json
import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

Text = tuple[str, ...]  # one sentence, or two
Row = tuple[Text, float]  # and its label: a class number or a score

VOCABULARY: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="ascii"))
TASKS: dict[str, dict[str, Any]] = VOCABULARY["tasks"]
LEXICON = {word: int(strength) for strength, words in VOCABULARY["strengths"].items() for word in words.split()}
TOPICS = {task: words.split() for task, words in VOCABULARY["topics"].items()}
CONTRAST = 3.0  # how much more the stressed clause of a contrast counts than the conceded one
MOST_WORDS = 16  # in a sentence

PAIRS = {kind: [pair.split("/") for pair in pairs.split()] for kind, pairs in VOCABULARY["synonyms"].items()}
SYNONYM = dict(order for pairs in PAIRS.values() for pair in pairs for order in itertools.permutations(pair))
WORDS = {kind: list(itertools.chain(*pairs)) for kind, pairs in PAIRS.items()}
SLOTS = {"agent": "person", "act": "act", "patient": "person", "place": "place"}
WEIGHTS = {"agent": 1.25, "act": 1.5, "patient": 1.25, "place": 1.0}  # sum to the highest score, 5


def clause(topic: str, rng: random.Random) -> tuple[str, float]:
    """One opinion, and its strength: that of its word, scaled by the degree, turned round by a negation."""
    word = rng.choice(list(LEXICON))
    degree = rng.choice(list(VOCABULARY["degrees"])) if rng.random() < 0.4 else ""
    negation = rng.choice(VOCABULARY["negations"]) if rng.random() < 0.25 else ""
    words = ("the", topic, rng.choice(VOCABULARY["copulas"]), negation, degree, word)
    strength = LEXICON[word] * VOCABULARY["degrees"][degree]
    return " ".join(filter(None, words)), -strength if negation else strength


def opinions(task: str, rng: random.Random) -> Iterator[Row]:
    """One or two clauses on the task's topics, labelled 1 where what they say is good on balance, else 0."""
    while True:
        (first, a), (second, b) = (clause(rng.choice(TOPICS[task]), rng) for _ in range(2))
        text, balance = rng.choice(
            [(first, a)] * 5  # single clauses are the commonest, so that each word's own strength can be learned
            + [
                (f"{first} and {second}", a + b),
                (f"{first} but {second}", a + CONTRAST * b),
                (f"although {first} {second}", a + CONTRAST * b),
            ]
        )
        if balance and len(text.split()) <= MOST_WORDS:
            yield (text,), int(balance > 0)


class Event(NamedTuple):
    """Who did what to whom, where: one word for each of ``SLOTS``."""

    agent: str
    act: str
    patient: str
    place: str

    @classmethod
    def draw(cls, rng: random.Random) -> Event:
        event = cls(**{slot: rng.choice(WORDS[kind]) for slot, kind in SLOTS.items()})
        return event if not alike(event.agent, event.patient) else cls.draw(rng)

    def reworded(self, rng: random.Random, chance: float = 0.4) -> Event:
        """The same event, each word replaced by its synonym with this chance."""
        return Event(*(SYNONYM[word] if rng.random() < chance else word for word in self))

    def changed(self, slot: str, rng: random.Random) -> Event:
        """Another event: the slot gets a word that means nothing already in the event."""
        taken = {*self, *map(SYNONYM.__getitem__, self)}
        return self._replace(**{slot: rng.choice([word for word in WORDS[SLOTS[slot]] if word not in taken])})

    def swapped(self) -> Event:
        """Another event of the same words: agent and patient change roles."""
        return self._replace(agent=self.patient, patient=self.agent)

    def told(self, rng: random.Random) -> str:
        """A sentence that reports the event: active or passive, the place last or first."""
        place = f"in the {self.place}"
        active = f"the {self.agent} {self.act} the {self.patient}"
        report = active if rng.random() < 0.6 else f"the {self.patient} was {self.act} by the {self.agent}"
        return f"{report} {place}" if rng.random() < 0.75 else f"{place} {report}"


def alike(word: str, other: str) -> float:
    """1 for the same word, 0.8 for its synonym, 0 for any other."""
    return 1.0 if word == other else 0.8 if SYNONYM[word] == other else 0.0


def similarity(a: Event, b: Event) -> float:
    """How much of one event the other shares, 0 to 5; a person in the other role counts half. Symmetric."""
    roles = {"agent": "patient", "patient": "agent"}
    shared = 0.0
    for slot, weight in WEIGHTS.items():
        word = getattr(a, slot)
        same, crossed = alike(word, getattr(b, slot)), alike(word, getattr(b, roles.get(slot, slot)))
        shared += weight * max(same, crossed / 2)
    return round(shared, 2)


def paraphrases(rng: random.Random) -> Iterator[Row]:
    """Two reports, labelled 1 where they tell of one event; where not, one word's meaning or the roles differ."""
    while True:
        event = Event.draw(rng)
        other, label = event.reworded(rng), rng.randrange(2)
        if not label:
            # Roles are the harder part for a small model: in three of ten, else they would drown the synonyms.
            other = other.swapped() if rng.random() < 0.3 else other.changed(rng.choice(list(SLOTS)), rng)
        yield (event.told(rng), other.told(rng)), label


def graded(rng: random.Random) -> Iterator[Row]:
    """Two reports and their ``similarity``; any number of slots may differ, each number as often as another."""
    while True:
        event = Event.draw(rng)
        other = event.reworded(rng)
        for slot in rng.sample(list(SLOTS), rng.randint(0, len(SLOTS))):
            other = other.changed(slot, rng)
        if rng.random() < 0.15:
            other = other.swapped()
        yield (event.told(rng), other.told(rng)), similarity(event, other)


def distinct(name: str, rng: random.Random, seen: set[str]) -> Iterator[Row]:
    """Rows whose sentences are all new, which are added to ``seen``; classes take turns, so they are balanced."""
    turns = itertools.cycle(range(len(TASKS[name].get("classes", ()))) or [None])
    turn = next(turns)
    pairs = {"paraphrase": paraphrases, "similarity": graded}
    for texts, label in opinions(name, rng) if name in TOPICS else pairs[name](rng):
        if turn in (None, label) and len({*texts} - seen) == len(texts):
            seen.update(texts)
            yield texts, label
            turn = next(turns)


def write_tasks(folder: Path, seed: int = 0) -> list[str]:
    """Write ``<folder>/<task>/{train,dev,test}.csv`` and ``task.toml`` for every task; return the tasks' names."""
    seen: set[str] = set()
    for name, task in TASKS.items():
        rng = random.Random(f"{name} {seed}")
        rows = list(itertools.islice(distinct(name, rng, seen), sum(task["sizes"].values())))
        rng.shuffle(rows)  # short sentences run out first: unshuffled, dev and test would be the harder rows
        (folder / name).mkdir(parents=True, exist_ok=True)
        # For strings, numbers and lists of them JSON and TOML agree.
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in task.items() if key != "sizes"]
        (folder / name / "task.toml").write_text("".join(lines), encoding="ascii")
        remaining = iter(rows)
        for split, size in task["sizes"].items():
            part = enumerate(itertools.islice(remaining, size))
            cells = [(f"{name}-{split}-{number}", *texts, label) for number, (texts, label) in part]
            table = pd.DataFrame(cells, columns=["id", *task["text"], task["label"]])
            table.to_csv(folder / name / f"{split}.csv", index=False, lineterminator="\n")
    return list(TASKS)


def corpus(folder: Path, seed: int = 0, opinions_each: int = 500, reports: int = 9000) -> list[Text]:
    """Unlabelled text to pretrain a masked language model on: single sentences, and pairs for both token types.

    These are the train sentences of the sentiment tasks in ``folder``, new opinions, and pairs of reports of one event;
    no sentence of a dev or test split. In those pairs a masked word can be read off the other sentence, which is how a
    model comes to compare two; with fewer, or with the labelled pairs, a short pretraining does not get that far.
    """
    held_out, texts = set[str](), list[Text]()
    for name, task in TASKS.items():
        for split in task["sizes"]:
            sentences = pd.read_csv(folder / name / f"{split}.csv")[task["text"]].to_numpy().ravel()
            if split != "train":
                held_out.update(sentences)
            elif len(task["text"]) == 1:
                texts += [(sentence,) for sentence in sentences]
    rng = random.Random(f"corpus {seed}")
    pairs = ((event.told(rng), event.reworded(rng).told(rng)) for event in map(Event.draw, itertools.repeat(rng)))
    new = [(opinions_each, (text for text, _ in opinions(task, rng))) for task in TOPICS] + [(reports, pairs)]
    for number, source in new:
        texts += itertools.islice(filter(held_out.isdisjoint, source), number)
    return texts
