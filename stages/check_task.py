"""tasks check: what the data of a task holds that a person should know before training."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.data.canonical import canonical_rows, has_labels
from pipeline.data.cells import count_words
from pipeline.data.foreign import FEW, are_numbers
from pipeline.data.labels import one_hot
from pipeline.data.split import at_most, row_keys
from pipeline.data.tables import read_table
from pipeline.data.task_data import held_out_share, is_labelled, load_all_rows, load_split, tables_in
from pipeline.data.tasks import Split, Task, UnknownTaskError, find_task, own_files
from pipeline.data.tokens import whole_lengths
from pipeline.models.backbone import open_backbone
from pipeline.system.errors import PipelineError, few, noted, one_line, raise_all
from stages.new_task import counted

LEAST_WORDS = 8
"""In a shorter text a single word may change the meaning."""
MOST_WORDS = 5_000_000
"""Rows are compared up to this many different words in total, which takes some seconds."""
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+")
_SHOWN = 8  # classes in a line
_WORDS_READ = 1000  # rows
# With the English tokenizer of MiniLM, English texts of 17 tasks have 1.05 to 1.33 tokens a word; sentences in Spanish,
# French, Dutch, German, Polish, Finnish and Russian have 1.95 to 6.7. Of Chinese characters it does not know 74 %.
_MOST_TOKENS, _MOST_UNKNOWN = 1.7, 0.05


def check_task(folder: Path, backbone: str | None = None, is_asked: bool = True) -> str:
    """Load the splits in a task's folder; return their sizes, balance, repeats and, with a backbone, what is cut.

    Args:
        is_asked: a backbone that cannot be read is an error, not a line.

    Raises:
        PipelineError: the task file or a split cannot be loaded; of several splits, all mistakes at once.
    """
    folder = Path(os.path.normpath(folder.absolute()))
    task = task_in(folder)
    splits, unlabelled = _load(task, folder)
    lines = [f"{folder}: task '{task.name}', {task.kind}, metric {task.metric}"]
    lines += [_balance(task, split, rows["label"]) for split, rows in splits.items() if "label" in rows]
    lines += unlabelled
    if task.range is None:
        counts = one_hot(splits["train"]["label"].to_numpy(), task.outputs).sum(axis=0)
        rare = [counted(name, str(count)) for name, count in zip(task.classes, counts, strict=True) if count < FEW]
        if rare:
            lines.append(f"classes with fewer than {FEW} training rows: {', '.join(few(rare, _SHOWN))}")
    lines += repeat_lines(splits)
    if backbone is not None:
        try:
            lines += _cut(task, splits, backbone)
        except PipelineError as error:
            if is_asked:
                raise
            lines.append(f"tokens not counted: {error}")
    return "\n".join(map(one_line, lines))


def task_in(folder: Path) -> Task:
    """The task of an absolute ``folder``.

    Raises:
        PipelineError: it has no fit task file, or is a folder of tasks.
    """
    if not (folder / "task.toml").exists() and (inside := own_files(folder)):
        listed = ", ".join(str(file.parent) for file in inside)
        raise PipelineError(f"{folder}: a folder of tasks: check each by itself: {listed}")
    try:
        return find_task(folder.name, folder.parent)
    except UnknownTaskError as error:
        raise PipelineError(
            f"{folder}: no task.toml: make one with tasks new, or write it as docs/data.md says"
        ) from error


def _load(task: Task, folder: Path) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The splits in canonical form, and a line on a test split without labels, whose texts alone are read."""
    splits: dict[str, pd.DataFrame] = {}
    if held_out_share(task, folder.parent) is not None:  # then train is cut in two, and no file is dev
        loaded = load_all_rows(task, folder.parent)
        splits = {"train": loaded.train, "dev": loaded.dev}
    wanted: list[Split] = [] if splits else ["train", "dev"]
    texts: dict[str, pd.DataFrame] = {}
    lines: list[str] = []
    problems: list[str] = []
    for file in tables_in(folder, task.files.test):
        with noted(problems):
            table = read_table(file)
            lacks = f"no column '{task.label}' (it has {', '.join(map(repr, table.columns))})"
            if has_labels(task, table.columns):
                if is_labelled(task, table):
                    wanted.append("test")
                    continue
                lacks = f"column '{task.label}' is blank"
            texts["test"] = canonical_rows(task, table, str(file), source=task.files, labelled=False)
            lines.append(f"test: {len(table):,} rows, {lacks}: not scored")
    for split in wanted:
        with noted(problems):
            splits[split] = load_split(task, folder.parent, split)
    raise_all(str(folder), problems)
    return splits | texts, lines


def _balance(task: Task, split: str, labels: pd.Series) -> str:
    if task.range is not None:
        quarters = labels.quantile([0.25, 0.5, 0.75])
        return f"{split}: {len(labels):,} rows; quarters of the scores at {', '.join(f'{q:g}' for q in quarters)}"
    held = one_hot(labels.to_numpy(), task.outputs)
    counts = [(name, count) for name, count in zip(task.classes, held.sum(axis=0), strict=True) if count]
    if not are_numbers(task.classes):
        counts.sort(key=lambda pair: -pair[1])
    shown = [counted(name, f"{count:,} ({count / len(labels):.0%})") for name, count in counts]
    if len(shown) > _SHOWN:
        shown[_SHOWN - 2 : -1] = [f"{len(shown) - _SHOWN + 1} more"]
    none = int((~held.any(axis=1)).sum())
    without = f"; {none:,} without a label" if task.kind == "labels" else ""
    return f"{split}: {len(labels):,} rows: {', '.join(shown)}{without}"


def repeat_lines(splits: Mapping[str, pd.DataFrame]) -> list[str]:
    """How many rows of each split have the text of another row, as :func:`row_keys` compares them, or nearly so.

    Near-duplicates differ in one word, which is added, left out or changed, among at least :data:`LEAST_WORDS`
    different ones. Case, order, punctuation and digits do not count.

    Args:
        splits: canonical rows; one split is ``train``.
    """
    # Only a study reads test, and only to score it, which needs labels.
    is_scored = "label" in splits.get("test", ())
    scoring = ", or score test with compare --scoring test --drop-overlap: it drops these" if is_scored else ""
    remedies = {"dev": "extract --drop-overlap drops these", "test": f"delete these from train{scoring}"}
    keys = {split: pd.Series(list(row_keys(rows)), dtype=object) for split, rows in splits.items()}
    texts = pd.concat([rows.assign(key=keys[split]) for split, rows in splits.items()], ignore_index=True)
    texts = texts.drop_duplicates("key")
    train = set(keys["train"])
    is_near, compared = _near(texts, texts["key"].isin(train).to_numpy())
    near = set(texts["key"].to_numpy()[is_near])
    lines = [
        f"equal texts: {count:,} of the {split} rows repeat an earlier row"
        for split, own in keys.items()
        if (count := own.duplicated().sum())
    ]
    lines += [
        f"equal texts: {count:,} of the {split} rows are also in train ({remedy})"
        for split, remedy in remedies.items()
        if split in keys and (count := keys[split].isin(train).sum())
    ]
    lines += [
        f"near-duplicates: {count:,} of the {split} rows differ from {'another' if split == 'train' else 'a'} row of"
        f" train in one word (of at least {LEAST_WORDS})"
        for split, own in keys.items()
        if (count := own.isin(near if split == "train" else near - train).sum())
    ]
    if not lines:
        lines.append("no equal texts, no near-duplicates")
    if compared < len(texts):
        lines.append(f"near-duplicates: only {compared:,} of {len(texts):,} texts were compared")
    return lines


def _near(texts: pd.DataFrame, in_train: np.ndarray) -> tuple[np.ndarray, int]:
    """Mask (n,) of the distinct texts with a near-duplicate in train, and how many texts were compared.

    A text's signature is the XOR of its words' random hashes. Two texts differ in one word if leaving out at most one
    word from each gives equal signatures, so sorting these signatures finds all pairs in O(n log n).
    """
    words: list[str] = []
    long, sizes = list[int](), list[int]()
    columns = [texts[column].tolist() for column in ("text_a", "text_b") if column in texts]
    compared = 0
    for owner, row in enumerate(zip(*columns, strict=True)):
        if len(words) >= MOST_WORDS:
            break
        compared += 1
        # The same word in the two texts of a pair counts as two.
        own = {
            f"{place}{word}"
            for place, text in enumerate(row)
            for word in _WORD.findall(_DIGITS.sub("0", text.casefold()))
        }
        if len(own) >= LEAST_WORDS:
            words.extend(own)
            long.append(owner)
            sizes.append(len(own))
    near = np.zeros(len(texts), dtype=bool)
    if not long:
        return near, compared
    codes, known = pd.factorize(np.array(words, dtype=object))
    hashes = np.random.default_rng(0).integers(2**64, size=len(known), dtype=np.uint64)[codes]
    whole = np.bitwise_xor.reduceat(hashes, np.cumsum([0, *sizes[:-1]]))
    signatures = np.concatenate([whole, np.repeat(whole, sizes) ^ hashes])
    order = np.argsort(signatures, kind="stable")
    owners = np.concatenate([long, np.repeat(long, sizes)])[order]
    starts = np.flatnonzero(np.diff(signatures[order], prepend=~signatures[order][:1]))
    from_train = np.add.reduceat(in_train[owners].astype(int), starts)
    others = np.repeat(from_train, np.diff([*starts, len(owners)])) - in_train[owners]
    near[owners[others > 0]] = True
    return near, compared


def _cut(task: Task, splits: dict[str, pd.DataFrame], backbone: str) -> list[str]:
    opened = open_backbone(backbone)
    longest = min(task.max_length, opened.max_length)
    lines = []
    for split, rows in splits.items():
        lengths = whole_lengths(rows, opened.tokenizer, task.encoding)
        lost = (lengths - longest).clip(0)
        cut, of = int((lost.sum(axis=1) > 0).sum()), int(lengths.sum())
        lines.append(
            f"{split}: {cut:,} of {len(rows):,} rows are longer than {longest} tokens; {int(lost.sum()):,} of {of:,}"
            f" tokens ({lost.sum() / of:.1%}) are cut; the longest row has {int(lengths.max()):,}"
        )
    rows = at_most(splits["train"], _WORDS_READ)
    texts = [text for column in ("text_a", "text_b") if column in rows for text in rows[column]]
    tokenizer = opened.tokenizer.fast
    read = tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    tokens = [token for ids in read for token in ids]
    per_word = len(tokens) / max(1, sum(map(count_words, texts)))
    unknown = tokens.count(tokenizer.unk_token_id) / max(1, len(tokens))
    line = f"tokens a word: {per_word:.2f}, of which unknown: {unknown:.1%}"
    if per_word > _MOST_TOKENS or unknown > _MOST_UNKNOWN:
        line += " (English with an English backbone: about 1.2): the backbone may not know this language (docs/faq.md)"
    lines.append(line)
    return lines
