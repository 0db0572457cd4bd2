"""Tokenising a split twice gives the same arrays, and whatever changes them changes the key of the cache."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from transformers import BertConfig, BertModel, BertTokenizerFast

from pipeline.data import tokens
from pipeline.data.batches import training_batches
from pipeline.data.tasks import Encoding, Truncation
from pipeline.data.tokens import TokenisedSplit, Tokenizer, tokenise, whole_lengths
from pipeline.models.backbone import open_backbone

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "good", "bad", "film", "Film", "is", "it", "Good"]
CLS, SEP, UNK = WORDS.index("[CLS]"), WORDS.index("[SEP]"), WORDS.index("[UNK]")

ROWS = pd.DataFrame(
    {"id": ["7", "3", "5"], "text_a": ["the film is good", "Film", "it is bad bad bad bad"], "label": [1, 0, 0]}
)
PAIRS = ROWS.assign(text_b=["a good film is it", "bad", "a a a a a a a a a a"])


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PIPELINE_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tokenizer]:
    def tokenizer(
        words: list[str] = WORDS, lower: bool = False, token_types: bool = True, **settings: Any
    ) -> Tokenizer:
        file = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
        file.write_text("\n".join(words) + "\n")
        return Tokenizer(BertTokenizerFast(vocab_file=str(file), do_lower_case=lower, **settings), token_types)

    return tokenizer


@pytest.fixture
def tokenizer(make: Callable[..., Tokenizer]) -> Tokenizer:
    return make()


class Counting:
    """Stands in for a fast tokenizer and counts how often it is asked."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.fast, self.calls = tokenizer.fast, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.fast, name)

    def __call__(self, *texts: list[str], **settings: object) -> object:
        self.calls += 1
        return self.fast(*texts, **settings)


def counted(tokenizer: Tokenizer) -> tuple[Tokenizer, Counting]:
    counting = Counting(tokenizer)
    return dataclasses.replace(tokenizer, fast=counting), counting


def arrays(split: TokenisedSplit) -> dict[str, list[list[int]] | None]:
    columns = {"a": split.a, "types_a": split.types_a, "b": split.b}
    return {name: None if column is None else [ids.tolist() for ids in column] for name, column in columns.items()}


def keys(cache: Path) -> set[str]:
    return {file.name for file in cache.iterdir()}


def test_rows_become_ids_in_their_order_with_their_labels(tokenizer: Tokenizer) -> None:
    split = tokenise(ROWS, tokenizer, "cross", 16)
    assert split.a[0].tolist() == [CLS, *(WORDS.index(word) for word in ["the", "film", "is", "good"]), SEP]
    assert split.labels.tolist() == [1, 0, 0]
    assert split.b is None
    assert split.lengths.tolist() == [6, 3, 8] == [len(types) for types in split.types_a]
    assert tokenise(ROWS.drop(columns="label"), tokenizer, "cross", 16).labels is None


@pytest.mark.parametrize("encoding", ["cross", "siamese"])
@pytest.mark.parametrize("rows", [ROWS, PAIRS], ids=["text", "pair"])
def test_the_cache_is_hit_and_gives_equal_arrays(
    rows: pd.DataFrame, encoding: str, tokenizer: Tokenizer, cache: Path
) -> None:
    first, second = counted(tokenizer), counted(tokenizer)
    fresh = tokenise(rows, first[0], encoding, 12)
    cached = tokenise(rows, second[0], encoding, 12)
    assert first[1].calls > 0 == second[1].calls
    assert arrays(cached) == arrays(fresh)
    assert len(keys(cache)) == 1
    np.testing.assert_array_equal(cached.labels, fresh.labels)


def test_labels_and_ids_are_the_rows_own_and_not_the_caches(tokenizer: Tokenizer, cache: Path) -> None:
    tokenise(ROWS, tokenizer, "cross", 12)
    changed = tokenise(ROWS.assign(id=["x", "y", "z"], label=[0, 1, 1]), tokenizer, "cross", 12)
    assert len(keys(cache)) == 1
    assert changed.labels.tolist() == [0, 1, 1]


def test_whatever_changes_the_tokens_changes_the_key(make: Callable[..., Tokenizer], cache: Path) -> None:
    plain = make()
    variants: list[tuple[pd.DataFrame, Tokenizer, str, int]] = [
        (PAIRS, plain, "cross", 12),
        (PAIRS, plain, "cross", 11),
        (PAIRS, plain, "siamese", 12),
        (PAIRS, make(lower=True), "cross", 12),
        (PAIRS, make([*WORDS[:5], *reversed(WORDS[5:])]), "cross", 12),
        (PAIRS, make(token_types=False), "cross", 12),
        (PAIRS[::-1], plain, "cross", 12),
        (PAIRS.assign(text_a=PAIRS["text_b"], text_b=PAIRS["text_a"]), plain, "cross", 12),
        (PAIRS.drop(columns="text_b"), plain, "cross", 12),
    ]
    found = [arrays(tokenise(rows, tokenizer, encoding, length)) for rows, tokenizer, encoding, length in variants]
    assert len(keys(cache)) == len(variants)
    assert all(a != b for i, a in enumerate(found) for b in found[:i])
    # Once more, now from the cache.
    assert [arrays(tokenise(*variant)) for variant in variants] == found
    assert len(keys(cache)) == len(variants)


def test_the_encoding_of_a_single_text_does_not_change_its_key(tokenizer: Tokenizer, cache: Path) -> None:
    cross, siamese = (tokenise(ROWS, tokenizer, encoding, 12) for encoding in ("cross", "siamese"))
    assert arrays(cross) == arrays(siamese)
    assert len(keys(cache)) == 1


def test_the_same_tokenizer_has_the_same_hash_and_a_cased_one_another(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    for name, lower in (("cased", False), ("again", False), ("uncased", True)):
        folder = tmp_path / name
        BertModel(BertConfig(vocab_size=len(WORDS), **sizes)).save_pretrained(folder)
        (folder / "words.txt").write_text("\n".join(WORDS) + "\n")
        BertTokenizerFast(vocab_file=str(folder / "words.txt"), do_lower_case=lower).save_pretrained(folder)
    cased, again, uncased = (open_backbone(str(tmp_path / name)).tokenizer for name in ("cased", "again", "uncased"))
    assert cased.hash != uncased.hash
    assert cased.hash == again.hash
    # Truncating leaves its mark on a fast tokenizer, but not on what it is.
    before = arrays(tokenise(ROWS, cased, "cross", 4))
    assert before == arrays(tokenise(ROWS, again, "cross", 4)) != arrays(tokenise(ROWS, uncased, "cross", 4))


@pytest.mark.parametrize(
    ("settings", "are_equal"),
    [
        ({"truncation_side": "left"}, False),
        ({"split_special_tokens": True}, False),
        ({"lower": True}, False),
        ({"truncation_side": "right", "split_special_tokens": False}, True),
        ({"padding_side": "left"}, True),
        ({"model_max_length": 4}, True),
        ({"clean_up_tokenization_spaces": True}, True),
        ({"model_input_names": ["input_ids"]}, True),
    ],
    ids=str,
)
def test_tokenizers_that_give_other_tokens_have_other_hashes_and_cache_files(
    settings: dict[str, Any], are_equal: bool, make: Callable[..., Tokenizer], cache: Path
) -> None:
    texts = pd.DataFrame({"id": ["1"], "text_a": ["the Film is [SEP] good it is bad a good film"]})
    plain, other = make(), make(**settings)
    for rows, encoding in ((texts, "cross"), (texts.assign(text_b="it is a bad bad film"), "siamese")):
        one, two = (arrays(tokenise(rows, tokenizer, encoding, 8)) for tokenizer in (plain, other))
        assert (one == two) == are_equal
        assert two == arrays(tokenise(rows, other, encoding, 8, cached=False))
    assert (plain.hash == other.hash) == are_equal
    assert len(keys(cache)) == (2 if are_equal else 4)


def test_a_tokenizer_that_truncates_on_the_left_keeps_the_end(make: Callable[..., Tokenizer]) -> None:
    left, right = make(truncation_side="left"), make()
    of = {word: WORDS.index(word) for word in WORDS}
    text = ROWS.head(1).assign(text_a="the a good bad film is it")
    assert tokenise(text, left, "cross", 5).a[0].tolist() == [CLS, of["film"], of["is"], of["it"], SEP]
    pair = text.assign(text_b="is it the good film")
    first, second = [of["is"], of["it"]], [of["good"], of["film"]]
    assert tokenise(pair, left, "cross", 7).a[0].tolist() == [CLS, *first, SEP, *second, SEP]
    apart = tokenise(pair, left, "siamese", 4)
    assert [apart.a[0].tolist(), apart.b[0].tolist()] == [[CLS, *first, SEP], [CLS, *second, SEP]]
    both_ends = [arrays(tokenise(text, tokenizer, "cross", 6, "head-and-tail")) for tokenizer in (left, right)]
    assert both_ends[0] == both_ends[1]


def test_both_sentences_survive_truncation(tokenizer: Tokenizer) -> None:
    split = tokenise(PAIRS, tokenizer, "cross", 8)
    for ids, types in zip(split.a, split.types_a, strict=True):
        assert len(ids) <= 8
        assert (ids == SEP).sum() == 2
        content = ids > max(CLS, SEP, UNK)
        assert {0, 1} == set(types[content].tolist())
    # The short first sentence keeps all its words; the long second one is cut.
    long = tokenise(ROWS.assign(text_b="a " * 30), tokenizer, "cross", 12)
    assert long.a[0].tolist()[:6] == [CLS, *(WORDS.index(word) for word in ["the", "film", "is", "good"]), SEP]
    assert long.lengths.tolist() == [12] * 3


def test_the_longer_sentence_is_cut_until_both_are_as_long(tokenizer: Tokenizer) -> None:
    pair = ROWS.head(1).assign(text_a="good " * 5, text_b="bad " * 9)
    for length, kept in ((15, (5, 7)), (13, (5, 5)), (11, (4, 4)), (7, (2, 2))):
        ids = tokenise(pair, tokenizer, "cross", length).a[0].tolist()
        assert (ids.count(WORDS.index("good")), ids.count(WORDS.index("bad"))) == kept


def test_of_a_long_text_its_end_may_stay_too(tokenizer: Tokenizer, cache: Path) -> None:
    words = ["the", "a", "good", "bad", "film", "is", "it"]
    texts = [" ".join(words[i % 7] for i in range(count)) for count in (600, 512, 511, 510, 3)]
    rows = pd.DataFrame({"id": list("abcde"), "text_a": texts, "label": 0})
    head = tokenise(rows, tokenizer, "cross", 512)
    both = tokenise(rows, tokenizer, "cross", 512, "head-and-tail")
    assert len(keys(cache)) == 2
    assert both.lengths.tolist() == head.lengths.tolist() == [512, 512, 512, 512, 5]
    whole = [CLS, *(WORDS.index(word) for word in texts[0].split()), SEP]
    # Sun et al. 2019: the first 128 tokens and the last 382, beside [CLS] and [SEP].
    assert both.a[0].tolist() == [*whole[:129], *whole[-383:]]
    assert head.a[0].tolist() == [*whole[:511], SEP]
    for number in (3, 4):  # these fit
        assert both.a[number].tolist() == head.a[number].tolist()
    assert [len(types) for types in both.types_a] == both.lengths.tolist()
    assert arrays(tokenise(rows, tokenizer, "cross", 512, "head-and-tail")) == arrays(both)


def test_siamese_sentences_are_cut_apart(tokenizer: Tokenizer) -> None:
    split = tokenise(PAIRS, tokenizer, "siamese", 5)
    assert [len(ids) for ids in split.a] == [5, 3, 5]
    assert [len(ids) for ids in split.b] == [5, 3, 5]
    assert all((ids[0], ids[-1]) == (CLS, SEP) for ids in [*split.a, *split.b])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("truncation", ["head", "head-and-tail"])
@pytest.mark.parametrize("kind", ["texts", "cross", "siamese"])
def test_a_row_is_cut_if_it_has_more_tokens_than_are_read(
    kind: Encoding, truncation: Truncation, side: str, make: Callable[..., Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known from the one time that the row is tokenised, and from the cache."""
    monkeypatch.setattr(tokens, "_MANY", 16)
    generator = np.random.default_rng(0)
    texts = [[" ".join(["good"] * length) for length in generator.integers(1, 14, 50)] for _ in range(2)]
    rows = pd.DataFrame({"id": map(str, range(50)), "text_a": texts[0], "text_b": texts[1], "label": 0})
    encoding: Encoding = "siamese" if kind == "siamese" else "cross"
    rows = rows.drop(columns="text_b") if kind == "texts" else rows
    tokenizer = make(truncation_side=side)
    expected = whole_lengths(rows, tokenizer, encoding).max(axis=1) > 12
    assert 0 < expected.sum() < 50
    again, counting = counted(tokenizer)
    fresh = tokenise(rows, again, encoding, 12, truncation)
    calls = counting.calls
    cached = tokenise(rows, again, encoding, 12, truncation)
    assert calls == counting.calls
    for split in (fresh, cached, tokenise(rows, tokenizer, encoding, 12, truncation, cached=False)):
        assert split.is_cut is not None and split.is_cut.tolist() == expected.tolist()


@pytest.mark.parametrize("damage", ["empty", "cut", "text"])
def test_a_damaged_cache_file_is_made_again(damage: str, tokenizer: Tokenizer, cache: Path) -> None:
    fresh = arrays(tokenise(PAIRS, tokenizer, "cross", 12))
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "text": b"not an arrow file"}[damage])
    again, counting = counted(tokenizer)
    assert arrays(tokenise(PAIRS, again, "cross", 12)) == fresh
    assert counting.calls == 1
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tokenizer: Tokenizer, cache: Path) -> None:
    fresh = tokenise(PAIRS, tokenizer, "siamese", 12)
    for file in cache.iterdir():
        file.unlink()
    cache.rmdir()
    cache.write_text("there is a file where the folder should")
    assert arrays(tokenise(PAIRS, tokenizer, "siamese", 12)) == arrays(fresh)
    assert cache.is_file()


MANY = pd.concat([PAIRS] * 3, ignore_index=True).assign(id=[str(number) for number in range(9)])


@pytest.mark.parametrize("rows", [MANY, MANY.drop(columns="text_b")], ids=["pairs", "texts"])
@pytest.mark.parametrize("encoding", ["cross", "siamese"])
@pytest.mark.parametrize("truncation", ["head", "head-and-tail"])
def test_many_rows_are_tokenised_piece_by_piece_to_the_same_tokens(
    rows: pd.DataFrame, encoding: Any, truncation: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tokenise(rows, tokenizer, encoding, 7, truncation, cached=False)
    for piece in (1, 2, 4, 9):
        monkeypatch.setattr(tokens, "_MANY", piece)
        parts = tokenise(rows, tokenizer, encoding, 7, truncation, cached=False)
        for name in ("a", "types_a", "b"):
            one, other = getattr(whole, name), getattr(parts, name)
            assert (one is None) == (other is None)
            assert all(np.array_equal(*pair) for pair in zip(one or [], other or [], strict=True))


@pytest.mark.parametrize("rows", [MANY, MANY.drop(columns="text_b")], ids=["pairs", "texts"])
@pytest.mark.parametrize("encoding", ["cross", "siamese"])
def test_tokens_and_batches_are_the_same_in_memory_and_from_the_cache(
    rows: pd.DataFrame, encoding: Any, tokenizer: Tokenizer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tokenise(rows, tokenizer, encoding, 7, cached=False)
    monkeypatch.setattr(tokens, "_MANY", 4)
    read = [tokenise(rows, tokenizer, encoding, 7) for _ in range(2)]
    (file,) = cache.iterdir()
    file.unlink()  # what is mapped stays readable
    expected = drawn(listed(whole))
    for split in (whole, *read):
        assert arrays(split) == arrays(whole)
        assert split.lengths.tolist() == listed(whole).lengths.tolist()
        assert [ids.tolist() for ids in split.a[2:7:2]] == [split.a[row].tolist() for row in (2, 4, 6)]
        assert split.a[-1].tolist() == split.a[8].tolist()
        with pytest.raises(IndexError):
            split.a[9]
        assert drawn(split) == expected


def listed(split: TokenisedSplit) -> TokenisedSplit:
    """The same with an array of its own for each row."""
    columns = [None if each is None else [ids.astype(np.int32) for ids in each] for each in (split.a, split.types_a)]
    second = None if split.b is None else [np.array(ids) for ids in split.b]
    return TokenisedSplit(*columns, second, split.labels)


def drawn(split: TokenisedSplit) -> list[dict[str, Any]]:
    batches = [piece for batch in training_batches(split, 2, 1, 3, 1, 0) for piece in batch]
    return [{name: (str(tensor.dtype), tensor.tolist()) for name, tensor in batch.items()} for batch in batches]
