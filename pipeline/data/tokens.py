"""Tokenise a split once; the cache key covers everything that changes the result."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import feather
from transformers import PreTrainedTokenizerFast

from pipeline.data.counting import counting
from pipeline.data.load import fingerprint
from pipeline.data.tasks import Encoding, Truncation
from pipeline.system.atomic import canonical_json, new_file, sha256_text
from pipeline.system.caches import token_cache
from pipeline.system.errors import PipelineError

_FORMAT = 2
# Of the 510 tokens that fit beside the special ones, Sun et al. 2019 keep the first 128 and the last 382.
_HEAD_SHARE = 128 / 510
_ORDERS = 3  # the stream of random numbers that orders pairs, besides those that order and mix rows
_ENDLESS = 2**31 - 1  # tokens
_MANY = 5000  # rows take seconds, and are shown as they are done
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Tokenizer:
    """A backbone's tokenizer."""

    fast: PreTrainedTokenizerFast
    token_types: bool  # whether the backbone distinguishes the sentences of a pair by them

    @cached_property
    def hash(self) -> str:
        """Of the whole content: vocabulary, normaliser, special tokens. A cased and an uncased BERT share a class."""
        content = json.loads(self.fast.backend_tokenizer.to_str())
        # Truncation and padding are set at each call; they are no part of the tokenizer.
        content.pop("truncation", None)
        content.pop("padding", None)
        return sha256_text(canonical_json(content))

    @property
    def pad_token_id(self) -> int:
        assert self.fast.pad_token_id is not None
        return int(self.fast.pad_token_id)


@dataclass(frozen=True)
class TokenisedSplit:
    """Token ids of a split, row for row."""

    ids: tuple[str, ...]
    a: list[np.ndarray]
    types_a: list[np.ndarray] | None  # token types of ``a``, if the backbone has them
    b: list[np.ndarray] | None  # second sentences of a siamese encoding; a cross encoding has both in ``a``
    labels: np.ndarray | None  # float64 or int64, without NaN

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of the longest input of each row: what a batch is padded to."""
        lengths = np.array([len(ids) for ids in self.a])
        return lengths if self.b is None else np.maximum(lengths, [len(ids) for ids in self.b])


def tokenise(
    rows: pd.DataFrame,
    tokenizer: Tokenizer,
    encoding: Encoding,
    max_length: int,
    truncation: Truncation = "head",
    cached: bool = True,
) -> TokenisedSplit:
    """Tokenise canonical rows, or if ``cached`` read them from the cache if they were tokenised in the same way before.

    A pair longer than ``max_length`` loses tokens of its longer sentence first, so that both stay. Of a single text,
    ``head`` keeps the beginning; ``head-and-tail`` keeps a quarter from the beginning and the rest from the end, where
    reviews often state their opinion (Sun et al. 2019, section 5.3.1).
    """
    columns = ["text_a", "text_b"] if "text_b" in rows else ["text_a"]
    siamese = encoding == "siamese" and len(columns) == 2
    with_tail = truncation == "head-and-tail" and len(columns) == 1
    folder, file = token_cache() if cached else None, None
    if folder is not None:
        key = {
            "format": _FORMAT,
            "tokenizer": tokenizer.hash,
            "token_types": tokenizer.token_types,
            "rows": fingerprint(rows[columns]),
            "siamese": siamese,
            "max_length": max_length,
        }
        if with_tail:  # only then, so that files cached before there was a choice stay valid
            key["truncation"] = truncation
        file = folder / f"{sha256_text(canonical_json(key))}.arrow"
    table = None if file is None else _read_cached(file)
    if table is None:
        table = _tokenise(rows, tokenizer, siamese, max_length, with_tail)
        if file is not None:
            _write_cached(table, file)
    arrays = {name: _arrays(table[name].combine_chunks()) for name in table.column_names}
    labels = rows["label"].to_numpy() if "label" in rows else None
    return TokenisedSplit(tuple(rows["id"]), arrays["a"], arrays.get("types_a"), arrays.get("b"), labels)


def whole_lengths(rows: pd.DataFrame, tokenizer: Tokenizer, encoding: Encoding) -> np.ndarray:
    """Tokens (n, I) of each input of canonical rows if nothing is cut; I is 2 for pairs read apart, else 1."""
    table = _tokenise(rows, tokenizer, encoding == "siamese" and "text_b" in rows, _ENDLESS, with_tail=False)
    inputs = [name for name in ("a", "b") if name in table.column_names]
    return np.array([[len(ids) for ids in _arrays(table[name].combine_chunks())] for name in inputs]).T


def swapped(rows: pd.DataFrame) -> pd.DataFrame:
    """Canonical rows with the texts of each pair swapped."""
    return rows.rename(columns={"text_a": "text_b", "text_b": "text_a"})


def in_random_order(given: TokenisedSplit, turned: TokenisedSplit, seed: int, epoch: int) -> TokenisedSplit:
    """Take each row from ``given`` or, with probability one half, from ``turned``, the same rows with texts swapped.

    A cross-encoder reads ``[CLS] a [SEP] b [SEP]`` and answers differently for b before a, although the order means
    nothing in most pair tasks (Hayes 2024 trains on random orders). The choice depends on ``(seed, epoch)`` alone, so a
    resumed run reads what it would have read.
    """
    turns = np.random.default_rng([seed, epoch, _ORDERS]).random(len(given)) < 0.5

    def mixed(one: list[np.ndarray], other: list[np.ndarray]) -> list[np.ndarray]:
        return [b if turn else a for a, b, turn in zip(one, other, turns, strict=True)]

    types = None
    if given.types_a is not None and turned.types_a is not None:
        types = mixed(given.types_a, turned.types_a)
    return TokenisedSplit(given.ids, mixed(given.a, turned.a), types, None, given.labels)


def joined(splits: Sequence[TokenisedSplit]) -> TokenisedSplit:
    """The inputs of all ``splits``, concatenated, without labels."""
    first = splits[0]
    if len(splits) == 1:
        return first
    return TokenisedSplit(
        ids=tuple(name for split in splits for name in split.ids),
        a=[ids for split in splits for ids in split.a],
        types_a=None if first.types_a is None else [types for split in splits for types in split.types_a or ()],
        b=None if first.b is None else [ids for split in splits for ids in split.b or ()],
        labels=None,
    )


def _tokenise(rows: pd.DataFrame, tokenizer: Tokenizer, siamese: bool, max_length: int, with_tail: bool) -> pa.Table:
    encode = partial(
        tokenizer.fast,
        truncation="do_not_truncate" if with_tail else "longest_first",
        max_length=max_length,
        return_attention_mask=False,
        return_token_type_ids=tokenizer.token_types,
    )
    texts = [rows[name].tolist() for name in ("text_a", "text_b") if name in rows]

    def tokenised(some: slice) -> pa.Table:
        whole = encode(texts[0][some]) if siamese else encode(*(each[some] for each in texts))
        columns = {"a": whole["input_ids"]}
        if "token_type_ids" in whole:
            columns["types_a"] = whole["token_type_ids"]
        if siamese:
            columns["b"] = encode(texts[1][some])["input_ids"]
        if with_tail:
            columns = {name: [_head_and_tail(one, max_length) for one in values] for name, values in columns.items()}
        return pa.table({name: pa.array(values, type=pa.list_(pa.int32())) for name, values in columns.items()})

    if len(rows) <= _MANY:
        return tokenised(slice(None))
    parts = []
    with counting("tokenising", len(rows)) as count:
        for first in range(0, len(rows), _MANY):
            parts.append(tokenised(slice(first, first + _MANY)))
            count(len(parts[-1]))
    return pa.concat_tables(parts)


def head_tokens(max_length: int) -> int:
    """How many of ``max_length`` tokens ``head-and-tail`` keeps of the beginning, the first special one included."""
    return 1 + round((max_length - 2) * _HEAD_SHARE)


def _head_and_tail(ids: list[int], max_length: int) -> list[int]:
    """First and last tokens of a text that has a special token at either end, as all supported families give it."""
    if len(ids) <= max_length:
        return ids
    head = head_tokens(max_length)
    return ids[:head] + ids[len(ids) - (max_length - head) :]


def _arrays(column: pa.ListArray) -> list[np.ndarray]:
    values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
    return [values[start:end] for start, end in pairwise(offsets)]


def _read_cached(file: Path) -> pa.Table | None:
    try:
        content = file.read_bytes()
        digest, body = content[:_DIGEST], content[_DIGEST:]
        # Arrow has no checksums: a changed byte would silently change tokens.
        return feather.read_table(pa.BufferReader(body)) if hashlib.sha256(body).digest() == digest else None
    except (OSError, pa.ArrowException):
        # Missing or damaged: tokenise again, which is cheap and always right.
        return None


def _write_cached(table: pa.Table, file: Path) -> None:
    try:
        with new_file(file) as temporary:
            sink = pa.BufferOutputStream()
            feather.write_feather(table, sink, compression="zstd")
            body = sink.getvalue().to_pybytes()
            temporary.write_bytes(hashlib.sha256(body).digest() + body)
    except (PipelineError, OSError):
        # A cache that cannot be written costs time, not correctness.
        return
