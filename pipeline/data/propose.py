"""Propose a task for a table: its text and label columns, kind, classes and metric."""

import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from pipeline.data import foreign
from pipeline.data.canonical import flagged, text_column
from pipeline.data.cells import as_label, as_number, count_words, is_blank, is_object, listed, parts_of, text_key
from pipeline.data.delimited import is_unnamed
from pipeline.data.labels import Kind, Metric, same_form
from pipeline.data.tasks import NewTask
from pipeline.system.errors import PipelineError, few, shortened

_UNBALANCED = 2.0
_RANGE_SHARE = 0.2
_TEXTS = ("text_a", "text_b")
_MOST_CONTRADICTING = 0.25
"""If a larger share of the rows or of the texts contradicts itself, a guessed text column is considered wrong."""
_CLEAR_MAJORITY = 2 / 3
"""If this share of the rows with one text agrees on a label, the text has that label."""
_FEW_SCORES = 20
_SEPARATORS = ("|", ";", " | ", " || ")
"""What may stand between the labels of a row where its file has lists; the first that is in no label."""
_WHOLE = re.compile(r"-?[0-9]+(\.0*)?")
_NO_LABEL = re.compile(
    r"""[-\u2010-\u2015?._*#"'/\s\u2026]*|\W*(n\W?a|nan|k\.? ?a|nil|null|none|missing|unknown|tbd|todo|skip(ped)?)\W*"""
    r"|(no|not|un)[\s_-]*(label|class|categor|annotat|assign|tag)[a-z]*",
    re.IGNORECASE,
)
"""Values that may mean a missing label. So may one negative number beside names or several other numbers."""


@dataclass(frozen=True)
class Proposal:
    """A task for a table, and the usable rows of the table."""

    columns: foreign.Columns
    kind: Kind
    metric: Metric
    rows: pd.DataFrame
    """``id``, ``text_a``, ``text_b`` (pairs only), ``label``: a class's name, a tuple of them, or a score (float64)."""
    classes: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    separator: str = "|"
    max_length: int = 128
    dropped: dict[str, list[int]] = field(default_factory=dict)
    """Rows that are left out, by number in the file, by reason."""
    drop_labels: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    lost: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By class: its rows that are left out, and all its rows. A class without rows left is not in the task."""
    repeated: int = 0
    """Rows that repeat the text of an earlier row."""
    hints: tuple[str, ...] = ()
    """Labels that may be misspelt."""
    remarks: tuple[str, ...] = ()
    """Where the table may have been read otherwise than its author meant."""

    @property
    def counts(self) -> dict[str, int]:
        """Rows by class, the most frequent first; if all classes are numbers, in ascending order."""
        counts = Counter(self.rows["label"].explode().dropna()) if self.kind != "score" else Counter()
        names = self.classes if foreign.are_numbers(self.classes) else [name for name, _ in counts.most_common()]
        return {name: counts[name] for name in names}

    @property
    def labels(self) -> dict[str, int]:
        """Raw label -> class, if some are renamed, or numbers that could be read as the number of another class."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        others = {old: numbers[new] for old, new in self.renamed.items() if new in numbers and old not in numbers}
        return numbers | others if others or any(not np.isnan(as_number(name)) for name in self.classes) else {}


def propose(table: pd.DataFrame, where: str, wanted: NewTask = NewTask()) -> Proposal:
    """Propose a task for a raw ``table``, and guess what ``wanted`` leaves open.

    Labels are first renamed (:func:`renames_in`).

    Left out, and counted: rows with a blank text or label or one of ``drop_labels``, and rows whose text is equal, but
    for case and white space, while their labels contradict each other: different classes, or scores further apart than
    a fifth of the range. If two thirds of the rows with a text agree, these stay.

    Rows may have several labels or none, in lists, in texts with ``separator`` (guessed, if None) between them, or in
    columns of 0 and 1, which become one column.

    Raises:
        PipelineError: it names ``where``: the columns cannot be found, the labels are neither classes nor scores, or
            too many rows contradict each other by a text that was not given.
    """
    label, kind, drop_labels = wanted.label, wanted.kind, wanted.drop_labels or ()
    text = [] if wanted.text is None else foreign.columns_named(wanted.text, list(table.columns))
    # Nameless, mostly blank columns, such as a comma at the end of every line produces.
    unnamed = [name for name in table.columns if is_unnamed(name) and name not in (*text, label)]
    nameless = [name for name in unnamed if 2 * table[name].map(is_blank).sum() > len(table)]
    named = table.drop(columns=nameless)
    flags = foreign.flag_columns(named, text, label) if kind in (None, "labels") else []
    if flags:
        problems: list[str] = []
        held = flagged(named, flags, problems).map(lambda numbers: [flags[number] for number in numbers])
        if problems:
            raise PipelineError(f"{where}: {problems[0]}: write one of the two")
        label, named = "labels", named.drop(columns=flags).assign(labels=held)
    columns = foreign.find_columns(named, where, text, label)
    where_label = f"{where}: column '{columns.label}'"
    if objects := list(filter(is_object, named[columns.label])):
        raise PipelineError(
            f"{where_label} holds objects, such as {shortened(objects[0])}: put the label into a column of its own, or"
            " name another column with --label"
        )
    labels, found, remarks = _read_labels(named[columns.label], kind, wanted.separator)
    are_several = found is not None
    if are_several and drop_labels:
        raise PipelineError("--drop-labels: is for tasks with one label a row: leave these labels out of the file")
    renames = renames_in(wanted.rename or (), labels.explode(), where_label)
    if are_several:
        labels = labels.map(lambda names: tuple(dict.fromkeys(renames.get(name, name) for name in names)))
    else:
        labels = labels.map(lambda name: renames.get(name, name))
    if labels.explode().map(is_blank).all():
        raise PipelineError(f"{where_label} holds no labels: all its cells are empty (--label names another)")
    to_drop = [as_label(name) for name in drop_labels]
    names_of_rows = labels.map(as_label) if to_drop else labels
    if unknown := {*to_drop}.difference(names_of_rows):
        raise PipelineError(f"{where_label}: --drop-labels: no row has {', '.join(map(shortened, unknown))}")
    is_dropped = names_of_rows.isin(to_drop).to_numpy(bool)
    rows, dropped = _complete_rows(named, columns, labels, is_dropped, where)
    if unlabelled := len(dropped["without a label"]):
        where_label += f" (blank in {unlabelled:,} of {len(table):,} rows)"
    if rows["label"].nunique() < 2:
        raise PipelineError(f"{where_label} has fewer than two different labels in {len(rows)} rows with a text")
    meaning = foreign.meaning_of(columns.label)
    task_kind = "labels" if are_several else kind or foreign.kind_of(rows["label"], where_label, meaning)
    hints: tuple[str, ...] = ()
    if task_kind == "score":
        rows["label"] = foreign.scores_of(rows, where_label)
    else:
        one_by_one = rows.explode("label").dropna(subset=["label"])
        foreign.check_classes(one_by_one["label"], where_label, is_asked=kind is not None, are_several=are_several)
        hints = tuple(foreign.did_you_mean(one_by_one))
    kept, lost = _agreeing(rows, task_kind, labels[~is_dropped], columns, where, is_guessed=not text)
    dropped["with the text of another row and another label"] = rows.index.difference(kept.index).tolist()
    rows = kept.reset_index(drop=True)
    if rows["label"].nunique() < 2:
        texts = " and ".join(map(repr, columns.text))
        raise PipelineError(
            f"{where_label}: fewer than two labels are left without rows that contradict each other: equal texts in"
            f" {texts} with other labels (--text names another column)"
        )
    names = [] if task_kind == "score" else list(set(rows["label"].explode().dropna()))
    names.sort(key=lambda name: (np.nan_to_num(as_number(name), nan=np.inf), name.casefold(), name))  # numbers first
    # If all are in labels, the task's check says so.
    joining = found or next((one for one in _SEPARATORS if not any(one in name for name in names)), _SEPARATORS[0])
    return Proposal(
        columns=columns,
        kind=task_kind,
        metric=metric_for(task_kind, rows["label"]),
        rows=rows,
        classes=tuple(names),
        separator=joining,
        range=(float(rows["label"].min()), float(rows["label"].max())) if task_kind == "score" else None,
        max_length=_max_length(rows),
        dropped={reason: numbers for reason, numbers in dropped.items() if numbers},
        drop_labels=tuple(name for name in to_drop if name is not None),
        renamed=renames,
        lost=lost,
        repeated=len(rows) - len({*_texts_by(rows, text_key)}),
        hints=hints,
        remarks=(
            *_remarks_on_columns(table, nameless, columns, guessed=not text),
            *(_remarks_on_kind(rows["label"], task_kind, meaning) if kind is None and not are_several else ()),
            *remarks,
            *_remarks_on_no_labels(rows["label"].explode().dropna().map(as_label)),
        ),
    )


def metric_for(kind: Kind, labels: pd.Series) -> Metric:
    """The metric to propose for a kind of task, given the label of every row.

    If the largest class has more than twice the rows of the others' mean (for two classes, over 2/3), accuracy rewards
    a model that knows nothing but that class, so it is macro-F1.
    """
    if kind != "classes":
        return "pearson" if kind == "score" else "micro-f1"
    counts = labels.value_counts().to_numpy()
    return "macro-f1" if counts[0] > _UNBALANCED * counts[1:].mean() else "accuracy"


def renames_in(options: Sequence[str], labels: Iterable[str | None], where: str) -> dict[str, str]:
    """The names in ``OLD=NEW``, or in several of these with commas; with a single ``=``, commas belong to the names.

    Raises:
        PipelineError: an option is no such text, or none of the ``labels`` is an old name.
    """
    parts = [part for text in options for part in (text.split(",") if text.count("=") > 1 else [text])]
    renames = {old: new for old, new in (map(as_label, part.partition("=")[::2]) for part in parts) if old and new}
    if len(renames) < len(parts):
        raise PipelineError(f"--rename {shortened(','.join(options))}: write OLD=NEW, or several of these with commas")
    if unknown := renames.keys() - set(labels):
        raise PipelineError(f"{where}: --rename: no row has {', '.join(map(shortened, sorted(unknown)))}")
    return renames


def _read_labels(
    column: pd.Series, kind: Kind | None, separator: str | None
) -> tuple[pd.Series, str | None, list[str]]:
    """The label of every row (n,), or a tuple of several, what separates these in texts, and remarks.

    The separator is None if a row has one label, and empty if it has several and no text joins them. Without a ``kind``
    rows have several labels if a cell holds a list of several, or joins labels of other cells.
    """
    are_lists = any(len(listed(value) or ()) > 1 for value in column)
    names = pd.Series(foreign.class_names(column), dtype=object)
    found = separator or (None if are_lists or foreign.oddly_written(names) else foreign.separator_in(names))
    if kind is None and found == "," and foreign.are_numbers(names.str.split(",").explode()):
        found = None  # a decimal comma, perhaps
    if kind not in (None, "labels") or (kind is None and not are_lists and found is None):
        return _spelt_labels(column), None, []
    parts = ([as_label(part) for part in parts_of(value, found or "|")] for value in column)
    several = pd.Series([tuple(dict.fromkeys(filter(None, own))) for own in parts], column.index, dtype=object)
    remarks = []
    if kind is None and found is not None and separator is None:
        remarks.append(
            f"cells are read as several labels with {found!r} between them: --kind classes reads each as one class"
        )
    if none := int((several.map(len) == 0).sum()):
        has, kept = ("rows have", "are kept") if none > 1 else ("row has", "is kept")
        remarks.append(f"{none:,} {has} no label, and {kept} as such")
    return several, found or "", remarks


def _spelt_labels(column: pd.Series) -> pd.Series:
    """The class name of every row, as the file spells it; None for a blank."""
    raw = column.tolist()
    names = list(map(as_label, raw))
    spellings: dict[str | None, set[str]] = {}
    for name, value in zip(names, raw, strict=True):
        spellings.setdefault(name, set()).add(same_form(value) if isinstance(value, str) else str(name))
    # pandas writes a column of whole numbers with a blank as 1.0 and 2.0.
    fractions = any(
        name is not None and not _WHOLE.fullmatch(name) and not np.isnan(as_number(name)) for name in spellings
    )
    spelt = {
        name: spelling
        for name, (spelling, *others) in spellings.items()
        if not others and not np.isnan(as_number(spelling)) and (fractions or not _WHOLE.fullmatch(spelling))
    }
    return pd.Series([spelt.get(name, name) for name in names], column.index, dtype=object)


def _complete_rows(
    table: pd.DataFrame, columns: foreign.Columns, labels: pd.Series, is_dropped: np.ndarray, where: str
) -> tuple[pd.DataFrame, dict[str, list[int]]]:
    """The rows with texts and a label, which is the name of a class, and the rows left out, by reason.

    The rows are indexed by number in the file.
    """
    problems: list[str] = []
    texts = [text_column(table[column], column, problems, may_be_blank=True) for column in columns.text]
    if problems:
        raise PipelineError(f"{where}: {problems[0]}")
    rows = pd.DataFrame({"id": foreign.ids_of(table)[0], **dict(zip(_TEXTS, texts, strict=False))})
    rows = rows.set_axis(table.index).assign(label=labels)
    lacks_text = np.logical_or.reduce([rows[column] == "" for column in _TEXTS[: len(texts)]])
    reasons = ["with a label that --drop-labels names", "without text", "without a label"]
    why = np.select([is_dropped, lacks_text, labels.isna()], reasons, "")
    return rows[why == ""], {reason: rows.index[why == reason].tolist() for reason in reasons}


def _agreeing(
    rows: pd.DataFrame, kind: Kind, labels: pd.Series, columns: foreign.Columns, where: str, is_guessed: bool
) -> tuple[pd.DataFrame, dict[str, tuple[int, int]]]:
    """The rows that no other row contradicts, or only a few do (:func:`contradictions`), and :attr:`Proposal.lost`.

    Args:
        labels: those of all rows of the table.
        is_guessed: whether nobody named the text columns. They are considered wrong if many rows contradict each other.
    """
    keys, contradicting, is_stray = contradictions(rows, kind)
    kept = rows[~is_stray]
    counts, left = Counter(labels.explode().dropna() if kind != "score" else ()), Counter(kept["label"].explode())
    lost = {name: (count - left[name], count) for name, count in counts.items() if left[name] < count}
    lost = dict(sorted(lost.items(), key=lambda item: -item[1][0] / item[1][1]))  # those that lost most come first
    texts = len(set(keys[contradicting])) / max(1, len(set(keys)))
    if is_guessed and max(float(is_stray.mean()), texts) > _MOST_CONTRADICTING:
        option = ",".join(columns.text)
        gone = ", ".join(few([shortened(name) for name, (count, of) in lost.items() if count == of], 3))
        raise PipelineError(
            f"{where}: {contradicting.sum():,} of {len(keys):,} rows have the text of another row"
            f" ({' and '.join(map(repr, columns.text))}) and another label: for a task on pairs name both columns,"
            f" --text A,B; else name the column that says the label. --text {shlex.quote(option)} leaves out"
            f" {is_stray.sum():,} rows{gone and f', all that have the label {gone}'}"
        )
    return kept, lost


def _remarks_on_columns(
    table: pd.DataFrame, nameless: Sequence[str], columns: foreign.Columns, guessed: bool
) -> Iterator[str]:
    """Columns that may have been meant otherwise, and the option that does so.

    Args:
        guessed: whether nobody named the text columns.
    """
    if nameless:
        yield f"not used: {len(nameless)} column{'s' if nameless[1:] else ''} without a name, mostly blank"
    if (remark := foreign.ids_of(table)[1]) is not None:
        yield remark
    words = {name: foreign.mean_words(table[name]) for name in (*columns.text, *columns.unused)}
    # A few names of two words may be cities.
    others = [name for name in columns.unused if words[name] >= 2 + (len(set(map(str, table[name]))) <= foreign.FEW)]
    if not guessed or len(columns.text) > 1 or not others:
        return
    (text,) = columns.text
    other = max(others, key=words.__getitem__)
    pair = ",".join(sorted((text, other), key=list(table.columns).index))
    yield (
        f"column {other!r} holds texts too and is not used: --text {shlex.quote(other)} takes it, --text"
        f" {shlex.quote(pair)} reads both as a pair"
    )


def _remarks_on_kind(labels: pd.Series, kind: Kind, meaning: foreign.Meaning | None) -> Iterator[str]:
    """Numbers that may be meant as labels of the other ``kind``, if nobody named it."""
    numbers = np.array(sorted({as_number(label) for label in labels}))  # 07 and 7 are one score
    are_scores = kind == "score"
    may_be_other = (
        len(numbers) <= _FEW_SCORES or bool((numbers == np.floor(numbers)).all()) if are_scores else len(numbers) > 2
    )
    if not np.isnan(numbers).any() and may_be_other and meaning != ("score" if are_scores else "code"):
        now, option, other = ("scores", "classes", "classes") if are_scores else ("classes", "score", "scores")
        yield f"the {len(numbers)} different numbers are read as {now}: --kind {option} reads them as {other}"


def _remarks_on_no_labels(labels: Iterable[str]) -> Iterator[str]:
    counts = Counter(labels)
    if any(name.startswith("+") for name in counts):  # then - is a sign
        return
    numbers = {name: number for name in counts if not np.isnan(number := as_number(name))}
    negative = [name for name, number in numbers.items() if number < 0]
    # A whole number beside names or other numbers: -1 and 1 are two classes.
    is_odd = len(negative) == 1 and bool(_WHOLE.fullmatch(negative[0])) and {2} != {len(numbers), len(counts)}
    for name in [*(negative if is_odd else ()), *filter(_NO_LABEL.fullmatch, counts)]:
        yield (
            f"label {shortened(name)} ({counts[name]:,} row{'s' if counts[name] > 1 else ''}) may mean that there is no"
            f" label: --drop-labels={shlex.quote(name)} leaves these rows out (drop_labels in the task file)"
        )


def _texts_by(rows: pd.DataFrame, key: Callable[[str], str]) -> list[tuple[str, ...]]:
    """For every row, ``key`` applied to its text or to both of its texts."""
    return [*zip(*(map(key, rows[column]) for column in _TEXTS if column in rows), strict=True)]


def contradictions(rows: pd.DataFrame, kind: Kind) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows whose text also occurs with another label.

    Texts are equal but for case, Unicode form and white space. Unlike :func:`text_key` this keeps whatever may change a
    label: emoticons, the vowel signs of Hindi, C++ and C#.

    Returns:
        Numbers (n,), equal for rows of equal text, where unlike in :func:`row_keys` the order of a pair matters; a mask
        of the contradicting rows (n,); and one of those among them to leave out. Rows with the label of a clear
        majority of the rows with their text stay.
    """
    texts = _texts_by(rows, lambda text: " ".join(unicodedata.normalize("NFC", text).casefold().split()))
    labels, keys = rows["label"], pd.factorize(pd.Series(texts, dtype=object))[0]
    groups = labels.groupby(keys)
    size = groups.transform("size")
    if kind != "score":
        alike = labels.groupby([keys, labels]).transform("size")
        contradicting = alike < size
        agrees = alike >= _CLEAR_MAJORITY * size
    else:
        most = _RANGE_SHARE * np.ptp(labels)
        contradicting = groups.transform("max") - groups.transform("min") > most
        is_near = (labels - groups.transform("median")).abs() <= most / 2
        agrees = is_near & (is_near.groupby(keys).transform("mean") >= _CLEAR_MAJORITY)
    return keys, contradicting.to_numpy(), (contradicting & ~agrees).to_numpy()


def contradict(one: float, other: float, limits: tuple[float, float] | None) -> bool:
    """Whether two labels of one text contradict each other: different classes, or scores far apart in a range."""
    return one != other if limits is None else abs(one - other) > _RANGE_SHARE * (limits[1] - limits[0])


def _max_length(rows: pd.DataFrame) -> int:
    """The smallest of 128, 256 and 512 tokens that holds 95 % of the rows, assuming 1.4 tokens a word.

    In Chinese, Japanese, Thai and the like, a character counts as a word.
    """
    words = [sum(map(count_words, texts)) for texts in _texts_by(rows, str)]
    tokens = 1.4 * float(np.quantile(words, 0.95)) + 3
    return next((length for length in (128, 256) if tokens <= length), 512)
