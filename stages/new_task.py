"""tasks new: from a table to a task with splits."""

import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from pipeline.data.cells import as_number
from pipeline.data.foreign import FEW, are_numbers
from pipeline.data.labels import METRICS_OF
from pipeline.data.propose import Proposal, propose
from pipeline.data.split import sharing_rows, split_rows
from pipeline.data.tables import FORMATS, read_foreign, suffix_of, write_table
from pipeline.data.tasks import BEST, NewTask, Split, Task, built_in_tasks, is_name, own_files
from pipeline.system.atomic import clear_leftovers, new_folder
from pipeline.system.errors import PipelineError, few, one_line, rows_text, shortened
from pipeline.system.reading import present

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
_SHOWN = 8  # classes, or hints
_ROUNDED = 0.05  # of all rows
_BECAUSE = {"macro-f1": " (unbalanced classes)"}
_SIMILAR = {
    "true", "yes", "ja", "oui", "si", "sí", "sim", "tak", "duplicate", "duplicated", "paraphrase", "similar",
    "same", "equal", "equivalent", "match", "matched", "related", "entailment", "identical",
}  # fmt: skip
"""Usual names of the class of similar texts, in lower case."""


def new_task(
    file: Path,
    data: Path,
    wanted: NewTask = NewTask(),
    *,
    seed: int = 0,
    replace: bool = False,
    is_found: bool = False,
) -> str:
    """Write ``<data>/<name>/`` with a task file and splits from the table in ``file``; return a report, in lines.

    Args:
        replace: delete the task in the folder, once the new one is complete.
        is_found: whether other commands read ``data`` by default, so that the printed commands can omit it.

    Raises:
        PipelineError: the folder exists and is not to be replaced, or the table does not make a task (:func:`propose`).
            Nothing is written.
    """
    split, similar, shares = wanted.split, wanted.similar, shares_of(wanted.split)
    folder = data / _checked_name(wanted.name, file)
    table = read_foreign(file)
    proposal = propose(table.rows, str(file), wanted)
    positions = split_rows(proposal.rows, shares, seed, str(file))
    # Checked last, so that nobody moves a folder away only to meet another mistake.
    clear_leftovers(folder.parent, folder.name)
    if present(folder) and not replace:
        raise PipelineError(
            f"{folder}: exists already and stays as it is: move it away, give another name (--name), or --replace it"
        )
    if present(folder) and (not present(folder / "task.toml") or file.resolve().is_relative_to(folder.resolve())):
        raise PipelineError(f"--replace would delete {folder}, which is no task or has the file: move one of them away")
    parts = {part: proposal.rows.iloc[own] for part, own in zip(SPLITS, positions, strict=False)}
    shared = sharing_text(parts)
    are_pairs_of_classes = len(proposal.columns.text) == 2 and proposal.kind == "classes"
    two = proposal.classes if are_pairs_of_classes and len(proposal.classes) == 2 else ()
    if similar is None:
        similar = _similar_by_name(two)
    elif similar not in two:
        classes = f", {' or '.join(map(shortened, two))}" if two else ""
        raise PipelineError(f"--similar {shortened(similar)}: give one of two classes of pairs{classes}")
    content = _task_file(folder.name, file, proposal, f"{split}, seed {seed}", shared, similar)
    task = Task.parse(tomllib.loads(content), str(folder / "task.toml"))
    names = dict(zip(("text_a", "text_b"), proposal.columns.text, strict=False)) | {"label": proposal.columns.label}
    suffix = suffix_of(file) if FORMATS[suffix_of(file)].is_exact else ".csv"
    with new_folder(folder) as temporary:
        (temporary / "task.toml").write_text(content, encoding="utf-8")
        for part, own in parts.items():
            if proposal.kind == "labels":
                own = own.assign(label=own["label"].map(proposal.separator.join))
            write_table(own.rename(columns=names), temporary / f"{part}{suffix}")
    lines = [f"{file}: {row_count(len(table.rows))} ({table.form})", *_summary(proposal)]
    sizes = {part: len(own) for part, own in parts.items()}
    written = f"written to {folder}: {', '.join(f'{part} {row_count(size)}' for part, size in sizes.items())}"
    total = sum(sizes.values())
    if any(abs(size / total - share) > _ROUNDED for size, share in zip(sizes.values(), shares, strict=True)):
        written += (
            f", not {split}: each class is in every split if it has texts enough, and equal texts are in one split"
        )
    lines.append(written)
    if similar is None and two:
        first, second = two
        lines.append(
            f"for --head cosine, '{second}' is the class of similar texts; if it is '{first}': --similar {first}"
        )
    lines += [line for line in (shared, _scarce(proposal, parts)) if line]
    place = "" if is_found else f" --data {shlex.quote(str(data))}"
    lines += _next(task, folder, place, has_test="test" in parts)
    return "\n".join(map(one_line, lines))


def sharing_text(parts: Mapping[Split, pd.DataFrame]) -> str | None:
    """How many pairs of dev and test share a text with a training pair; None if there are none."""
    if "text_b" not in parts["train"]:
        return None  # equal texts are in one split
    counts = {part: int(sharing_rows(parts["train"], own).sum()) for part, own in parts.items() if part != "train"}
    if not any(counts.values()):
        return None
    shown = " and ".join(f"{count:,} of {row_count(len(parts[part]))} of {part}" for part, count in counts.items())
    return f"pairs share texts, so only equal pairs are in one split: {shown} have a text that is also in train"


def _scarce(proposal: Proposal, parts: Mapping[Split, pd.DataFrame]) -> str:
    """The classes with too few training rows to learn, or without rows in some split."""
    counts = {part: Counter(rows["label"].explode()) for part, rows in parts.items()}
    rows = {name: [own[name] for own in counts.values()] for name in proposal.classes}
    rare = [counted(short(name), "/".join(map(str, own))) for name, own in rows.items() if own[0] < FEW or 0 in own]
    return f"classes with too few rows to be learned or scored ({'/'.join(parts)}): {_listed(rare)}" if rare else ""


def _next(task: Task, folder: Path, place: str, *, has_test: bool) -> list[str]:
    """The commands from here to predictions: the task alone, then with sources.

    Args:
        place: the option that names the parent of ``folder``, if commands need it.
    """
    others = []  # the user's other tasks with as many texts a row
    for file in own_files(folder.parent):
        with suppress(PipelineError):  # whoever uses that task is told
            if Task.read(file).is_pair == task.is_pair and file.parent != folder:
                others.append(file.parent.name)
    # Training on all rows of a Hub task may take hours.
    sources = others[:2] or ["quora --limit 5000" if task.is_pair else "sst --limit 5000"]
    siamese = f"  python -m pipeline extract --task {task.name} --encoding siamese --head cosine{place}"
    can_compare = task.is_pair and task.kind != "labels" and task.outputs <= 2
    return [
        "next:",
        f"  python -m pipeline tasks check {shlex.quote(str(folder))}  # repeats; with --backbone, what is cut",
        f"  python -m pipeline extract --task {task.name}{place}",
        *([f"{siamese}  # pairs as two vectors: keep the better"] if can_compare else []),
        f"  python -m pipeline evaluate --target {task.name}{place}{' --split test' if has_test else ''}",
        *(f"  python -m pipeline extract --task {source}{place}  # may help" for source in sources),
        f"  python -m pipeline extract --task {task.name} --start-from best{place}  # keep the better",
        f"  python -m pipeline predict --target {task.name} --input FILE --output FILE{place}",
    ]


def shares_of(split: str) -> list[float]:
    """``80/10/10`` as shares of train, dev and test, or ``80/20`` of train and dev."""
    try:
        shares = [float(part) for part in split.split("/")]
    except ValueError:
        shares = []
    if not (2 <= len(shares) <= 3 and all(share > 0 for share in shares) and abs(sum(shares) - 100) < 1e-6):
        raise PipelineError(
            f"--split {shortened(split)}: write percentages of train, dev and test that add up to 100, such as"
            " 80/10/10, or of train and dev, such as 80/20"
        )
    return [share / 100 for share in shares]


def _checked_name(name: str | None, file: Path) -> str:
    given = re.sub(r"[^a-z0-9_-]+", "-", file.stem.casefold()).strip("-_")[:32] if name is None else name
    if not is_name(given):
        raise PipelineError(f"--name {shortened(given)}: give up to 32 of a-z, 0-9, _ and -, a letter first")
    if given == BEST or any(given in (task.name, *task.aliases) for task in built_in_tasks().values()):
        raise PipelineError(f"'{given}' names a built-in task, or the best ones: give another name with --name")
    return given


def _summary(proposal: Proposal) -> list[str]:
    """The columns, the classes or the range, and what was left out or may be meant otherwise, in lines."""
    columns = proposal.columns
    lines = [f"text: {' and '.join(map(repr, columns.text))}; label: {columns.label!r}"]
    if columns.unused:
        lines[0] += f"; not used: {_listed(columns.unused)}"
    if proposal.range is not None:
        lines.append(f"scores from {proposal.range[0]:g} to {proposal.range[1]:g}; metric: {proposal.metric}")
    else:
        counts, how = proposal.counts, ", any number of them a row" if proposal.kind == "labels" else ""
        shown = _listed([counted(short(name), f"{count:,}") for name, count in counts.items()])
        metric = f"{proposal.metric}{_BECAUSE.get(proposal.metric, '')}"
        lines.append(f"{len(counts)} classes{how}: {shown}; metric: {metric}")
    lines += [
        f"WARNING: class {shortened(name)} is lost, and the task does not know it: its {row_count(count)} are left out"
        for name, (rows, count) in proposal.lost.items()
        if rows == count
    ]
    lines += [
        f"left out: {row_count(len(numbers))} {reason} ({rows_text(numbers)})"
        for reason, numbers in proposal.dropped.items()
    ]
    if some := [counted(short(name), f"{rows:,} of {count:,}") for name, (rows, count) in proposal.lost.items()]:
        lines.append(f"rows left out of classes: {_listed(some)}")
    if proposal.repeated:
        lines.append(f"repeated texts: {row_count(proposal.repeated)} beyond the first; equal texts are in one split")
    lines += [*proposal.remarks, *few(proposal.hints, _SHOWN)]
    if proposal.hints:
        lines.append("to fix labels: run the command again with --replace --rename WRONG=RIGHT")
    return lines


def row_count(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _listed(items: Sequence[str]) -> str:
    return ", ".join(few(items, _SHOWN))


def counted(name: str, count: str) -> str:
    """A class and its row count, for use in a list; a number is quoted, so that it is not mistaken for a count."""
    return f"'{name}': {count}" if are_numbers([name]) else f"{name} {count}"


def short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:20]}...{name[-17:]}"


def _similar_by_name(classes: Sequence[str]) -> str | None:
    """Of two classes, the one whose name says that its texts are similar; None: neither or both, or no classes."""
    if classes and as_number(classes[1]) == 1 and as_number(classes[0]) in (0, -1):
        return classes[1]
    words = [re.sub(r"[\s_-]+", " ", name.strip().casefold()).removeprefix("is ") for name in classes]
    named = [name for name, word in zip(classes, words, strict=True) if word in _SIMILAR]
    return named[0] if len(named) == 1 else None


def _task_file(name: str, file: Path, proposal: Proposal, split: str, shared: str | None, similar: str | None) -> str:
    """The task as TOML, with comments on what the user may change."""
    others = ", ".join(one for one in METRICS_OF[proposal.kind] if one != proposal.metric)
    lines = [
        f"# Made from {comment(file.name)} by tasks new (split {split}).",
        *(f"# Left out: {row_count(len(numbers))} {reason}." for reason, numbers in proposal.dropped.items()),
        *(f"# Lost: all rows of {comment(name)}." for name, (rows, count) in proposal.lost.items() if rows == count),
        *([f"# {shared[0].upper()}{shared[1:]}."] if shared else []),
        f"name = {_toml(name)}",
        f"kind = {_toml(proposal.kind)}",
        f"text = {_toml(list(proposal.columns.text))}",
        f"label = {_toml(proposal.columns.label)}",
    ]
    if proposal.range is not None:
        lines.append(
            f"range = [{proposal.range[0]!r}, {proposal.range[1]!r}]  # the lowest and highest score found; widen it"
            " before you train, if others can come"
        )
    else:
        lines += ["classes = [", *(f"    {_toml(one)}," for one in proposal.classes), "]"]
    if similar is not None:
        lines.append(f"similar = {_toml(similar)}  # the class of similar texts, for --head cosine")
    lines.append(f"metric = {_toml(proposal.metric)}  # or {others}{_BECAUSE.get(proposal.metric, '')}")
    lines.append(f"max_length = {proposal.max_length}  # tokens; longer texts are cut: tasks check counts them")
    if proposal.labels or proposal.drop_labels or proposal.kind == "labels":
        lines += ["", "[files]"]
    if proposal.kind == "labels":
        lines.append(f"separator = {_toml(proposal.separator)}  # between the labels of a row; lists need none")
    if proposal.drop_labels:
        lines.append(f"drop_labels = {_toml(list(proposal.drop_labels))}  # rows with these are left out")
    if labels := proposal.labels:
        lines.append("# What the files call class 0, 1, ... of the list above.")
        lines.append(f"labels = {{ {', '.join(f'{_toml(one)} = {number}' for one, number in labels.items())} }}")
    return "\n".join(lines) + "\n"


def comment(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _toml(value: str | list[str]) -> str:
    """A string or a list of strings in TOML. JSON differs from TOML only in one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
