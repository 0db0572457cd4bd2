"""The generated tasks are reproducible, balanced and disjoint, and the target needs what two others know."""

import tomllib
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from stages import demo as demo_tasks
from stages.demo import OPINIONS, PRODUCTS, TASKS, WORDS

NAMES = list(TASKS)
SPLITS = ("train", "dev", "test")

Tables = dict[tuple[str, str], pd.DataFrame]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    assert demo_tasks.write_tasks(folder, seed=0) == NAMES
    return folder


@pytest.fixture(scope="module")
def tables(folder: Path) -> Tables:
    return {(name, split): pd.read_csv(folder / name / f"{split}.csv") for name in NAMES for split in SPLITS}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}


def words_of(table: pd.DataFrame, kind: dict[str, int]) -> Counter[str]:
    return Counter(word for text in table["sentence"] for word in text.split() if word in kind)


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(folder: Path, tmp_path: Path) -> None:
    demo_tasks.write_tasks(tmp_path / "again", seed=0)
    demo_tasks.write_tasks(tmp_path / "other", seed=1)
    first, other = contents(folder), contents(tmp_path / "other")
    assert contents(tmp_path / "again") == first
    assert all((other[path] == first[path]) == (path.suffix == ".toml") for path in first)


def test_who_reads_tables_that_are_written_again_finds_whole_ones(tmp_path: Path) -> None:
    demo_tasks.write_tasks(tmp_path)
    written = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/*")}
    changed = tmp_path / "coins" / "dev.csv"
    changed.write_text("other rows")
    with changed.open() as reader:
        demo_tasks.write_tasks(tmp_path)
        assert reader.read() == "other rows"
    assert {file for file, time in written.items() if file.stat().st_mtime_ns != time} == {changed}


@pytest.mark.parametrize("name", NAMES)
def test_task_file_agrees_with_the_tables(name: str, folder: Path, tables: Tables) -> None:
    task = tomllib.loads((folder / name / "task.toml").read_text())
    _, _, classes, sizes = TASKS[name]
    assert (task["name"], task["classes"], task["metric"]) == (name, classes, "accuracy")
    for split in SPLITS:
        table = tables[name, split]
        assert list(table) == ["id", *task["text"], task["label"]]
        assert len(table) == sizes[split]
        assert set(table["label"]) == set(range(len(classes)))
        # Classes are balanced within four standard errors.
        share = 1 / len(classes)
        assert table["label"].value_counts(normalize=True).sub(share).abs().max() < 4 * (share / len(table)) ** 0.5


def test_labels_follow_from_the_words(tables: Tables) -> None:
    for split in SPLITS:
        for sentence, label in tables["tickets", split][["sentence", "label"]].itertuples(index=False):
            words = sentence.split()
            opinion, product = (next(kind[word] for word in words if word in kind) for kind in (OPINIONS, PRODUCTS))
            assert label == 2 * opinion + product
        for name, kind in (("reviews", OPINIONS), ("orders", PRODUCTS)):
            for sentence, label in tables[name, split][["sentence", "label"]].itertuples(index=False):
                assert [kind[word] for word in sentence.split() if word in kind] == [label]


def test_each_source_knows_one_half_of_what_the_target_needs_and_its_own_rows_show_too_little(tables: Tables) -> None:
    known = {
        "reviews": words_of(tables["reviews", "train"], OPINIONS),
        "orders": words_of(tables["orders", "train"], PRODUCTS),
    }
    for name, kind in (("reviews", OPINIONS), ("orders", PRODUCTS)):
        assert known[name].keys() == kind.keys()
        assert sum(count >= 3 for count in known[name].values()) > 0.98 * WORDS
        assert not words_of(tables[name, "train"], PRODUCTS if kind is OPINIONS else OPINIONS)
        needed, own = words_of(tables["tickets", "test"], kind), words_of(tables["tickets", "train"], kind)
        unseen = sum(count for word, count in needed.items() if word not in own)
        assert unseen / sum(needed.values()) > 0.5


def test_the_corpus_has_every_word_and_no_sentence_of_a_split(folder: Path, tables: Tables) -> None:
    texts = demo_tasks.corpus(folder, seed=0)
    assert texts == demo_tasks.corpus(folder, seed=0)
    assert not {*texts} & {text for table in tables.values() for text in table["sentence"]}
    assert {*OPINIONS, *PRODUCTS} <= {word for text in texts for word in text.split()}
