"""The generated tasks hold what they promise: reproducible, balanced, apart, and sharing what they should."""

import itertools
import random
import tomllib
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from stages import demo_tasks
from stages.demo_tasks import LEXICON, SYNONYM, TASKS, VOCABULARY, Event, alike, similarity

NAMES = list(TASKS)
SPLITS = ("train", "dev", "test")
CLASSIFICATION = [name for name, task in TASKS.items() if task["kind"] == "classes"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    assert demo_tasks.write_tasks(folder, seed=0) == NAMES
    return folder


@pytest.fixture(scope="module")
def tables(folder: Path) -> dict[tuple[str, str], pd.DataFrame]:
    return {(name, split): pd.read_csv(folder / name / f"{split}.csv") for name in NAMES for split in SPLITS}


def sentences(name: str, table: pd.DataFrame) -> list[str]:
    return [text for column in TASKS[name]["text"] for text in table[column]]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(folder: Path, tmp_path: Path) -> None:
    demo_tasks.write_tasks(tmp_path / "again", seed=0)
    demo_tasks.write_tasks(tmp_path / "other", seed=1)
    first, other = contents(folder), contents(tmp_path / "other")
    assert contents(tmp_path / "again") == first
    assert all((other[path] == first[path]) == (path.suffix == ".toml") for path in first)


@pytest.mark.parametrize("name", NAMES)
def test_task_file_agrees_with_the_tables(name: str, folder: Path, tables: dict) -> None:
    task = tomllib.loads((folder / name / "task.toml").read_text())
    train = tables[name, "train"]
    assert task["name"] == name
    assert list(train) == ["id", *task["text"], task["label"]]
    assert task["metric"] == {"classes": "accuracy", "score": "pearson"}[task["kind"]]
    if task["kind"] == "classes":
        assert set(train[task["label"]]) == set(range(len(task["classes"])))
    else:
        assert train[task["label"]].between(*task["range"]).all()


@pytest.mark.parametrize("name", NAMES)
def test_splits_have_their_sizes_and_every_id_is_unique(name: str, tables: dict) -> None:
    splits = [tables[name, split] for split in SPLITS]
    sizes = TASKS[name]["sizes"]
    assert [len(table) for table in splits] == [sizes[split] for split in SPLITS]
    assert min(sizes.values()) > 0
    assert pd.concat(splits)["id"].is_unique


def test_no_sentence_stands_twice_in_any_split_of_any_task(tables: dict) -> None:
    counts = Counter(text for (name, _), table in tables.items() for text in sentences(name, table))
    assert counts.most_common(1)[0][1] == 1


def test_sentences_are_short_lower_case_ascii_words(tables: dict) -> None:
    for (name, _), table in tables.items():
        for text in sentences(name, table):
            words = text.split(" ")
            assert 3 <= len(words) <= demo_tasks.MOST_WORDS
            assert all(word.isascii() and word.isalpha() and word.islower() for word in words), text


@pytest.mark.parametrize("name", CLASSIFICATION)
@pytest.mark.parametrize("split", SPLITS)
def test_classes_are_balanced(name: str, split: str, tables: dict) -> None:
    assert tables[name, split]["label"].value_counts(normalize=True).between(0.4, 0.6).all()


def test_reviews_know_the_lexicon_that_gadgets_cannot_learn_from_their_own_rows(tables: dict) -> None:
    def opinion_words(name: str, split: str) -> Counter[str]:
        words = Counter(word for text in tables[name, split]["sentence"] for word in text.split())
        return Counter({word: words[word] for word in LEXICON if words[word]})

    needed, own = opinion_words("gadgets", "dev"), opinion_words("gadgets", "train")
    known = opinion_words("reviews", "train")
    assert needed.keys() <= known.keys()
    assert min(known.values()) >= 40
    assert sum(own.values()) / len(LEXICON) < 10


def test_the_pair_tasks_use_the_same_synonyms(tables: dict) -> None:
    for name in ("paraphrase", "similarity"):
        words = {word for text in sentences(name, tables[name, "train"]) for word in text.split()}
        assert SYNONYM.keys() <= words


def test_alike_and_synonyms_are_symmetric_and_every_word_has_one_meaning() -> None:
    assert all(SYNONYM[SYNONYM[word]] == word != SYNONYM[word] for word in SYNONYM)
    assert sorted(SYNONYM) == sorted(itertools.chain.from_iterable(demo_tasks.WORDS.values()))
    assert all(alike(a, b) == alike(b, a) for a, b in itertools.product(SYNONYM, SYNONYM))


def test_similarity_is_symmetric_within_range_and_highest_for_the_event_itself() -> None:
    rng = random.Random(0)
    for _ in range(300):
        a, b = Event.draw(rng), Event.draw(rng)
        assert 0 <= similarity(a, b) == similarity(b, a) <= 5 == similarity(a, a)


def test_similarity_ranks_the_event_its_synonyms_the_swapped_roles_and_a_changed_person() -> None:
    event = Event("doctor", "praised", "cook", "garden")
    reworded = Event("physician", "commended", "chef", "yard")
    changed = Event("sailor", "praised", "guard", "garden")
    assert similarity(event, event) == 5
    assert similarity(event, reworded) == 4
    assert similarity(event, event.swapped()) == 3.75
    assert similarity(event, changed) == 2.5


def test_scores_spread_over_the_range(tables: dict) -> None:
    bands = pd.cut(tables["similarity", "train"]["score"], [0, 1, 2, 3, 4, 5], include_lowest=True)
    assert bands.value_counts(normalize=True).min() > 0.08


def test_a_single_clause_is_as_good_as_its_word_unless_negated_and_the_stressed_clause_decides(tables: dict) -> None:
    def good(clause: str) -> bool:
        *rest, word = clause.split()
        return (LEXICON[word] > 0) != any(negation in rest for negation in VOCABULARY["negations"])

    plain = {"and", "but", "although", *VOCABULARY["degrees"]}
    for text, label in tables["reviews", "train"][["sentence", "label"]].itertuples(index=False):
        if not {"and", "but", "although"} & set(text.split()):
            assert good(text) == label, text
        elif "but" in text and not (plain - {"but"}) & set(text.split()):
            assert good(text.split(" but ")[1]) == label, text


def test_corpus_keeps_out_held_out_sentences_and_covers_every_word(folder: Path, tables: dict) -> None:
    corpus = demo_tasks.corpus(folder)
    assert {len(texts) for texts in corpus} == {1, 2}
    assert corpus == demo_tasks.corpus(folder)
    unlabelled = {text for texts in corpus for text in texts}
    vocabulary = {word for text in unlabelled for word in text.split()}
    for name, split in itertools.product(NAMES, ("dev", "test")):
        held_out = sentences(name, tables[name, split])
        assert unlabelled.isdisjoint(held_out)
        assert {word for text in held_out for word in text.split()} <= vocabulary
    assert len(vocabulary) < 300
