"""Tokenise a split once; the cache key covers everything that changes the result."""

import hashlib
import json
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import feather
from transformers import PreTrainedTokenizerFast

from pipeline.data.load import fingerprint
from pipeline.data.tasks import Encoding, Truncation
from pipeline.system.atomic import canonical_json, new_file, sha256_text
from pipeline.system.errors import PipelineError

_FORMAT = 2
# Of the 510 tokens that fit beside the special ones, Sun et al. 2019 keep the first 128 and the last 382.
_HEAD_SHARE = 128 / 510
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Tokenizer:
    """A backbone's tokenizer, with a hash that tells whether two are the same."""

    fast: PreTrainedTokenizerFast
    hash: str
    token_types: bool
    """Whether the backbone distinguishes the sentences of a pair by token type."""

    @property
    def pad_token_id(self) -> int:
        assert self.fast.pad_token_id is not None
        return int(self.fast.pad_token_id)


def tokenizer_of(fast: PreTrainedTokenizerFast, token_types: bool) -> Tokenizer:
    """A tokenizer with the hash of its whole content: vocabulary, normaliser, special tokens.

    The class name would not do: a cased and an uncased BERT share it.
    """
    content = json.loads(fast.backend_tokenizer.to_str())
    # Truncation and padding are set at each call; they are no part of the tokenizer.
    content.pop("truncation", None)
    content.pop("padding", None)
    return Tokenizer(fast=fast, hash=sha256_text(canonical_json(content)), token_types=token_types)


@dataclass(frozen=True)
class TokenisedSplit:
    """Token ids of a split, row for row; labels are NaN-free float64 or int64, or None.

    ``b`` holds the second sentences of a siamese encoding. A cross encoding has both sentences in ``a``, distinguished
    by ``types_a`` if the backbone has token types.
    """

    ids: tuple[str, ...]
    a: list[np.ndarray]
    types_a: list[np.ndarray] | None
    b: list[np.ndarray] | None
    labels: np.ndarray | None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of the longest input of each row: what a batch is padded to."""
        lengths = np.array([len(ids) for ids in self.a])
        return lengths if self.b is None else np.maximum(lengths, [len(ids) for ids in self.b])


def tokenise(
    rows: pd.DataFrame, tokenizer: Tokenizer, encoding: Encoding, max_length: int, truncation: Truncation = "head"
) -> TokenisedSplit:
    """Tokenise canonical rows, or read them from the cache if they were tokenised in the same way before.

    A pair longer than ``max_length`` loses tokens of its longer sentence first, so that both stay. Of a single text,
    ``head`` keeps the beginning; ``head-and-tail`` keeps a quarter from the beginning and the rest from the end, where
    reviews often state their opinion (Sun et al. 2019, section 5.3.1).
    """
    columns = ["text_a", "text_b"] if "text_b" in rows else ["text_a"]
    siamese = encoding == "siamese" and len(columns) == 2
    with_tail = truncation == "head-and-tail" and len(columns) == 1
    key = sha256_text(
        canonical_json(
            {
                "format": _FORMAT,
                "tokenizer": tokenizer.hash,
                "token_types": tokenizer.token_types,
                "rows": fingerprint(rows[columns]),
                "siamese": siamese,
                "max_length": max_length,
                # Only if used, so that files cached before there was a choice stay valid.
                **({"truncation": truncation} if with_tail else {}),
            }
        )
    )
    folder = _cache_folder()
    file = None if folder is None else folder / f"{key}.arrow"
    table = None if file is None else _read_cached(file)
    if table is None:
        table = _tokenise(rows, tokenizer, siamese, max_length, with_tail)
        if file is not None:
            _write_cached(table, file)
    labels = rows["label"].to_numpy() if "label" in rows else None
    return TokenisedSplit(
        ids=tuple(rows["id"]),
        a=_arrays(table, "a"),
        types_a=_arrays(table, "types_a") if "types_a" in table.column_names else None,
        b=_arrays(table, "b") if "b" in table.column_names else None,
        labels=labels,
    )


def _tokenise(rows: pd.DataFrame, tokenizer: Tokenizer, siamese: bool, max_length: int, with_tail: bool) -> pa.Table:
    def encode(*texts: list[str]) -> dict[str, list[list[int]]]:
        return dict(
            tokenizer.fast(
                *texts,
                truncation="do_not_truncate" if with_tail else "longest_first",
                max_length=max_length,
                return_attention_mask=False,
                return_token_type_ids=tokenizer.token_types,
            )
        )

    first = rows["text_a"].tolist()
    second = rows["text_b"].tolist() if "text_b" in rows else None
    whole = encode(first) if second is None or siamese else encode(first, second)
    columns = {"a": whole["input_ids"]}
    if "token_type_ids" in whole:
        columns["types_a"] = whole["token_type_ids"]
    if siamese and second is not None:
        columns["b"] = encode(second)["input_ids"]
    if with_tail:
        columns = {name: [_head_and_tail(one, max_length) for one in values] for name, values in columns.items()}
    return pa.table({name: pa.array(values, type=pa.list_(pa.int32())) for name, values in columns.items()})


def _head_and_tail(ids: list[int], max_length: int) -> list[int]:
    """First and last tokens of a text that has a special token at either end, as all supported families give it."""
    if len(ids) <= max_length:
        return ids
    head = 1 + round((max_length - 2) * _HEAD_SHARE)
    return ids[:head] + ids[len(ids) - (max_length - head) :]


def _arrays(table: pa.Table, name: str) -> list[np.ndarray]:
    column = table[name].combine_chunks()
    values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
    return [values[start:end] for start, end in pairwise(offsets)]


def _cache_folder() -> Path | None:
    """``$PIPELINE_CACHE``, or the user's cache folder; None for a user without a home."""
    named = os.environ.get("PIPELINE_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  (Path.home would raise)
    return Path(base) / "adapter-fusion-pipeline" / "tokens" if Path(base).is_absolute() else None


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
