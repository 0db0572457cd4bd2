"""Tokenise a split once; the cache key covers everything that changes the result."""

import json
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from rich.console import Console
from rich.progress import track
from transformers import BatchEncoding, PreTrainedTokenizerFast

from pipeline.data.canonical import fingerprint
from pipeline.data.tasks import Encoding, Truncation
from pipeline.system.atomic import canonical_json, new_file, sha256_text
from pipeline.system.errors import PipelineError
from pipeline.system.process import token_cache
from pipeline.system.streams import announce, is_commands

_FORMAT = 5
# 510 tokens fit beside the special ones: Sun et al. 2019 keep the first 128 and the last 382.
_HEAD_SHARE = 128 / 510
_ORDERS = 3  # the random stream for the order of pairs, separate from those that order and mix rows
_ENDLESS = 2**31 - 1  # tokens
_MANY = 5000  # rows that take seconds, so that progress is shown


@dataclass(frozen=True)
class Tokenizer:
    """A backbone's tokenizer."""

    fast: PreTrainedTokenizerFast
    token_types: bool  # whether the backbone uses them to distinguish the sentences of a pair

    @cached_property
    def hash(self) -> str:
        """Hash of the whole content: vocabulary, normaliser, special tokens. Cased and uncased BERT share a class."""
        content = json.loads(self.fast.backend_tokenizer.to_str())
        # Set at every call, so the value here is left over from the last one.
        content.pop("truncation", None)
        content.pop("padding", None)
        # Only transformers knows these. Omitted at their defaults, so that runs keep their names.
        if self.fast.truncation_side != "right":
            content["truncation_side"] = self.fast.truncation_side
        if self.fast.split_special_tokens:
            content["split_special_tokens"] = True
        return sha256_text(canonical_json(content))

    @property
    def pad_token_id(self) -> int:
        assert self.fast.pad_token_id is not None
        return int(self.fast.pad_token_id)


class Ragged(Sequence[np.ndarray]):
    """One integer array a row, stored in a few large buffers: millions of arrays would cost 100 bytes each."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self.column = column
        self._parts = [(chunk.values.to_numpy(), chunk.offsets.to_numpy()) for chunk in column.chunks]
        self._ends = np.cumsum([len(chunk) for chunk in column.chunks], dtype=np.int64).tolist()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        part = bisect_right(self._ends, row)
        values, offsets = self._parts[part]
        row -= self._ends[part - 1] if part else 0
        return values[offsets[row] : offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.int64), *(np.diff(offsets) for _, offsets in self._parts)])


class Cut(NamedTuple):
    """Rows that the model reads only in part."""

    rows: int
    max_length: int


@dataclass(frozen=True)
class TokenisedSplit:
    """Token ids of a split, row for row."""

    a: Sequence[np.ndarray]
    types_a: Sequence[np.ndarray] | None  # token types of ``a``, if the backbone has them
    b: Sequence[np.ndarray] | None  # second sentences of a siamese encoding; a cross encoding has both in ``a``
    labels: np.ndarray | None  # float64 or int64, without NaN
    is_cut: np.ndarray | None = None  # bool: whether the row was truncated; None: not known

    def __len__(self) -> int:
        return len(self.a)

    @property
    def cut_rows(self) -> int:
        """How many rows are known to be cut."""
        return 0 if self.is_cut is None else int(self.is_cut.sum())

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of the longest input of every row, which decides the padding of a batch."""
        lengths = _lengths(self.a)
        return lengths if self.b is None else np.maximum(lengths, _lengths(self.b))


def _lengths(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays.lengths if isinstance(arrays, Ragged) else np.array([len(ids) for ids in arrays])


def tokenise(
    rows: pd.DataFrame,
    tokenizer: Tokenizer,
    encoding: Encoding,
    max_length: int,
    truncation: Truncation = "head",
    cached: bool = True,
) -> TokenisedSplit:
    """Tokenise canonical rows, or with ``cached`` read them from the cache if they were tokenised alike before.

    A pair longer than ``max_length`` loses tokens of its longer sentence first, so that both survive. For a single
    text, ``head`` keeps the beginning; ``head-and-tail`` keeps a quarter from the beginning and the rest from the end,
    where reviews often state their opinion (Sun et al. 2019, section 5.3.1). A tokenizer whose ``truncation_side`` is
    left cuts pairs, and texts under ``head``, at their beginning instead.
    """
    columns = ["text_a", "text_b"] if "text_b" in rows else ["text_a"]
    siamese = encoding == "siamese" and len(columns) == 2
    with_tail = truncation == "head-and-tail" and len(columns) == 1
    table = None
    if cached and (folder := token_cache()) is not None:
        key = {
            "format": _FORMAT,
            "tokenizer": tokenizer.hash,
            "token_types": tokenizer.token_types,
            "rows": fingerprint(rows[columns]),
            "siamese": siamese,
            "max_length": max_length,
            "with_tail": with_tail,
        }
        file = folder / f"{sha256_text(canonical_json(key))}.arrow"
        table = _read_cached(file)
        if table is None:
            _write_cached(_tokenise(rows, tokenizer, siamese, max_length, with_tail), file)
            table = _read_cached(file)
    if table is None:  # the cache cannot be written, or is not wanted
        table = pa.concat_tables(_tokenise(rows, tokenizer, siamese, max_length, with_tail))
    arrays = {name: Ragged(table[name]) for name in table.column_names if name != "is_cut"}
    labels = rows["label"].to_numpy() if "label" in rows else None
    return TokenisedSplit(arrays["a"], arrays.get("types_a"), arrays.get("b"), labels, table["is_cut"].to_numpy())


def whole_lengths(rows: pd.DataFrame, tokenizer: Tokenizer, encoding: Encoding) -> np.ndarray:
    """Untruncated lengths of canonical rows in tokens, (n, I); I is 2 for pairs encoded separately, else 1."""
    parts = _tokenise(rows, tokenizer, encoding == "siamese" and "text_b" in rows, _ENDLESS, with_tail=False)
    return np.concatenate(
        [np.array([Ragged(part[name]).lengths for name in ("a", "b") if name in part.column_names]).T for part in parts]
    )


def swapped(rows: pd.DataFrame) -> pd.DataFrame:
    """Canonical rows with the texts of each pair swapped."""
    return rows.rename(columns={"text_a": "text_b", "text_b": "text_a"})


def in_random_order(given: TokenisedSplit, turned: TokenisedSplit, seed: int, epoch: int) -> TokenisedSplit:
    """Take each row from ``given`` or, with probability one half, from ``turned``, the same rows with texts swapped.

    A cross-encoder reads ``[CLS] a [SEP] b [SEP]`` and answers differently for b before a, although the order means
    nothing in most pair tasks (Hayes 2024 trains on random orders). The choice depends only on ``(seed, epoch)``, so a
    resumed run repeats it.
    """
    turns = np.random.default_rng([seed, epoch, _ORDERS]).random(len(given)) < 0.5
    inputs = joined([given, turned], np.arange(len(given)) + len(given) * turns)
    return replace(inputs, labels=given.labels)


def joined(splits: Sequence[TokenisedSplit], rows: np.ndarray | None = None) -> TokenisedSplit:
    """The inputs of all ``splits``, concatenated, or these ``rows`` of them, without labels."""
    if len(splits) == 1:
        return splits[0]

    def chained(columns: Iterable[Sequence[np.ndarray] | None]) -> Ragged | None:
        known = [column.column for column in columns if isinstance(column, Ragged)]  # as :func:`tokenise` makes them
        if len(known) < len(splits):
            return None
        whole = pa.chunked_array([chunk for column in known for chunk in column.chunks])
        return Ragged(whole if rows is None else whole.take(pa.array(rows)))

    inputs = chained(split.a for split in splits)
    assert inputs is not None
    types, second = chained(split.types_a for split in splits), chained(split.b for split in splits)
    return TokenisedSplit(inputs, types, second, labels=None)


def _tokenise(
    rows: pd.DataFrame, tokenizer: Tokenizer, siamese: bool, max_length: int, with_tail: bool
) -> Iterator[pa.Table]:
    """Yield the tokens in parts, one for every group of rows that is tokenised at once."""
    encode = partial(
        tokenizer.fast,
        truncation="do_not_truncate" if with_tail else "longest_first",
        max_length=max_length,
        return_attention_mask=False,
        return_token_type_ids=tokenizer.token_types,
    )
    columns = [rows[name] for name in ("text_a", "text_b") if name in rows]

    def tokenised(some: slice) -> pa.Table:
        texts = [column.iloc[some].tolist() for column in columns]
        whole = encode(texts[0]) if siamese else encode(*texts)
        is_cut = _are_cut(whole, max_length)
        sequences = {"a": whole["input_ids"]}
        if "token_type_ids" in whole:
            sequences["types_a"] = whole["token_type_ids"]
        if siamese:
            second = encode(texts[1])
            sequences["b"], is_cut = second["input_ids"], is_cut | _are_cut(second, max_length)
        if with_tail:  # a text has a special token at either end in all supported families
            head = head_tokens(max_length)
            sequences = {
                name: [ids if len(ids) <= max_length else ids[:head] + ids[head - max_length :] for ids in values]
                for name, values in sequences.items()
            }
        kinds = {name: pa.list_(pa.int8() if name == "types_a" else pa.int32()) for name in sequences}
        arrays = {name: pa.array(values, type=kinds[name]) for name, values in sequences.items()}
        return pa.table({**arrays, "is_cut": is_cut})

    if len(rows) <= _MANY:
        yield tokenised(slice(None))
        return
    is_shown = is_commands(sys.stderr) and sys.stderr.isatty()
    if not is_shown:
        announce(f"tokenising {len(rows):,} rows", everywhere=True)
    console, parts = Console(stderr=True), range(0, len(rows), _MANY)
    for first in track(parts, "tokenising", console=console, transient=True, disable=not is_shown):
        yield tokenised(slice(first, first + _MANY))


def _are_cut(inputs: BatchEncoding, max_length: int) -> np.ndarray:
    """Mask (n,) of the inputs that have more than ``max_length`` tokens, or had before they were cut."""
    assert inputs.encodings is not None
    return np.array([len(each) > max_length or len(each.overflowing) > 0 for each in inputs.encodings], dtype=bool)


def head_tokens(max_length: int) -> int:
    """How many of ``max_length`` tokens ``head-and-tail`` takes from the beginning, with the first special one."""
    return 1 + round((max_length - 2) * _HEAD_SHARE)


def _read_cached(file: Path) -> pa.Table | None:
    try:
        # The system reads only the parts of a mapped file that a batch needs, and can free them under pressure.
        return pa.ipc.open_file(pa.memory_map(str(file))).read_all()
    except (OSError, pa.ArrowException):
        # Missing or damaged: tokenise again, which is cheap and always right.
        return None


def _write_cached(parts: Iterator[pa.Table], file: Path) -> None:
    """Write the parts as they come, so that they are never all in memory."""
    try:
        # Tokens can be decoded to texts, which may be confidential: a new folder is readable by its owner alone.
        file.parent.parent.mkdir(parents=True, exist_ok=True)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        with new_file(file) as temporary:
            first = next(parts)
            with pa.ipc.new_file(str(temporary), first.schema) as writer:
                for table in chain([first], parts):
                    writer.write_table(table)
    except (PipelineError, OSError):
        # A cache that cannot be written costs time, not correctness.
        return
