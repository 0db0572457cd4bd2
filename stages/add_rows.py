"""tasks add: new labelled rows for a task, whose old rows all stay in their splits."""

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pipeline.data.canonical import canonical_rows
from pipeline.data.cells import as_label, is_blank, name_among
from pipeline.data.foreign import id_column, ids_of
from pipeline.data.labels import as_matrix, one_hot
from pipeline.data.propose import contradict, contradictions, renames_in
from pipeline.data.split import row_keys, split_added
from pipeline.data.tables import check_columns, read_foreign, read_table, write_table
from pipeline.data.task_data import is_labelled, tables_in
from pipeline.data.tasks import Split, Task
from pipeline.system.atomic import locked, new_folder
from pipeline.system.errors import PipelineError, few, one_line, rows_text, shortened
from stages.check_task import task_in
from stages.new_task import SPLITS, comment, counted, row_count, shares_of, sharing_text, short

_SHOWN = 8  # conflicts, or classes


class _Part(NamedTuple):
    split: Split
    file: Path
    table: pd.DataFrame
    """The file as it is."""
    rows: pd.DataFrame
    """Its rows in canonical form, by number in the file; without labels if it has none."""


def add_rows(
    folder: Path,
    file: Path,
    *,
    split: str | None = None,
    rename: Sequence[str] = (),
    seed: int = 0,
    is_found: bool = False,
) -> str:
    """Add the rows of ``file`` to the splits of the task in ``folder``; return a report, in lines.

    Rows whose text the task has are left out. The others are divided among train and dev as these are now, so that no
    test row is ever trained on, and models from before and after are scored on the same test rows.

    Args:
        split: percentages of the new rows for train, dev and test instead.
        rename: as for :class:`~pipeline.data.tasks.NewTask`.
        is_found: as for :func:`stages.new_task.new_task`.

    Raises:
        PipelineError: unfit rows, or rows whose text is in dev or test with another label. Nothing is written.
    """
    shown, folder = folder, Path(os.path.normpath(folder.absolute()))
    task, given = task_in(folder), None if split is None else shares_of(split)
    with locked(folder.with_name(f".{folder.name}.lock")):
        parts, table = list(_parts(task, folder)), read_foreign(file)
        lines = [f"{file}: {row_count(len(table.rows))} ({table.form})"]
        raw, rows = _read(task, table.rows, rename, str(file))
        why = _why_left_out(task, parts, rows, str(file)).reindex(raw.index, fill_value="without text or label")
        for reason, own in why[why != ""].groupby(why, sort=False):
            lines.append(f"left out: {row_count(len(own))} {reason} ({rows_text(own.index.tolist())})")
        rows = rows[why[rows.index] == ""]
        if rows.empty:
            return "\n".join(map(one_line, [*lines, f"nothing is new: {shown} stays as it is"]))
        taking = [part for part in parts if "label" in part.rows][: 2 if given is None else len(given)]
        if len(taking) < len(given or ()):
            raise PipelineError(f"--split {split}: {folder} has no labelled test rows to add to: name two percentages")
        sizes = [len(part.rows) for part in taking]
        places = split_added(rows, given or [size / sum(sizes) for size in sizes], seed)
        added = [rows[places == place] for place in range(len(taking))]
        ids = _ids(parts, raw, rows)
        tables = [_joined(part, raw.loc[own.index], ids) for part, own in zip(taking, added, strict=True)]
        counts = ", ".join(f"{part.split} {row_count(len(own))}" for part, own in zip(taking, added, strict=True))
        with new_folder(folder) as temporary:
            shutil.copytree(folder, temporary, symlinks=True, dirs_exist_ok=True)
            toml = (temporary / "task.toml").read_text(encoding="utf-8")
            toml = f"# Added from {comment(file.name)}: {counts}.\n{toml}"
            (temporary / "task.toml").write_text(toml, encoding="utf-8")
            for part, whole in zip(taking, tables, strict=True):
                (temporary / part.file.name).unlink()  # which may be a link
                write_table(whole, temporary / part.file.name)
    both = {part.split: part.rows for part in parts}
    both |= {part.split: pd.concat([part.rows, own]) for part, own in zip(taking, added, strict=True)}
    now = ", ".join(f"{name} {len(rows):,}" for name, rows in both.items())
    lines.append(f"added to {shown}: {counts}; now {now}")
    if len(taking) < len(parts):
        lines.append(
            "the test rows stay as they are, so that scores can be compared; --split 80/10/10 adds to them too"
        )
    if task.classes:
        of = [one_hot(own["label"].to_numpy(), len(task.classes)).sum(axis=0) for own in added]
        by_class = [counted(short(name), "/".join(map(str, own))) for name, *own in zip(task.classes, *of, strict=True)]
        lines.append(
            f"new rows by class ({'/'.join(part.split for part in taking)}): {', '.join(few(by_class, _SHOWN))}"
        )
    lines += [shared] if (shared := sharing_text(both)) else []
    data = "" if is_found else f" --data {shlex.quote(str(folder.parent))}"
    lines += [
        "next:",
        f"  python -m pipeline extract --task {task.name} --start-from {task.name}{data}  # the last model goes on",
        f"  python -m pipeline evaluate --target {task.name} --split test --using NEW --against OLD{data}",
    ]
    return "\n".join(map(one_line, lines))


def _parts(task: Task, folder: Path) -> Iterator[_Part]:
    for split in SPLITS:
        stem = getattr(task.files, split)
        files = tables_in(folder, *((stem, f"{stem}_unlabelled") if split == "test" else (stem,)))
        if split != "test" and len(files) != 1:
            raise PipelineError(f"{folder}: {len(files)} files of split '{split}': rows are added where there is one")
        for file in files:
            table = read_table(file)
            labelled = split != "test" or is_labelled(task, table)
            yield _Part(split, file, table, _rows(task, table, str(file), labelled))


def _rows(task: Task, table: pd.DataFrame, where: str, labelled: bool = True) -> pd.DataFrame:
    without_ids = table.drop(columns="id", errors="ignore")
    return canonical_rows(
        task, without_ids, where, source=task.files, labelled=labelled, leave_out_blank=True, is_scored=True
    )


def _read(task: Task, table: pd.DataFrame, rename: Sequence[str], where: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The new rows as they are, but for renamed labels, and in canonical form."""
    if (label := name_among(task.label, table.columns)) is not None and rename:
        renames = renames_in(rename, table[label].map(as_label), where)
        table = table.assign(**{label: table[label].map(lambda cell: renames.get(as_label(cell) or "", cell))})
    rows = _rows(task, table, where)
    if task.range is not None and (outside := rows.index[~rows["label"].between(*task.range)].tolist()):
        low, high = task.range
        raise PipelineError(f"{where}: scores beyond {low:g} and {high:g}, the range of the task: {rows_text(outside)}")
    if task.kind == "labels":  # the splits may have the labels in the other form
        flags = dict(zip(task.classes, as_matrix(rows["label"]).T.astype(int), strict=True))
        forms = {task.label: rows["label"].map(task.shown), **flags}
        others = {name: own for name, own in forms.items() if name_among(name, table.columns) is None}
        table = table.join(pd.DataFrame(others, rows.index))
    return table, rows


def _why_left_out(task: Task, parts: Sequence[_Part], rows: pd.DataFrame, where: str) -> pd.Series:
    """Why rows are not added, by their number; empty for those that are.

    Raises:
        PipelineError: the text of a row is in dev or test with another label.
    """
    places: dict[Any, tuple[_Part, int, Any]] = {}
    for part in parts:  # test last: a text that is also there counts as a test row
        labels = part.rows["label"] if "label" in part.rows else [None] * len(part.rows)
        for key, row, label in zip(row_keys(part.rows), part.rows.index, labels, strict=True):
            places[key] = part, row, label
    why, conflicts, new = [], list[str](), set[Any]()
    _, _, is_stray = contradictions(rows, task.kind)
    for key, row, label, stray in zip(row_keys(rows), rows.index, rows["label"], is_stray, strict=True):
        if stray:
            why.append("with the text of another row and another label")
            continue
        if key not in places:
            why.append("with the text of an earlier row" if key in new else "")
            new.add(key)
            continue
        part, other, known = places[key]
        if known is None or not contradict(label, known, task.range):
            why.append(f"whose text is in {part.split} already")
        else:
            why.append("whose text is in train with another label, which stays")
            if part.split != "train":
                its, own = (shortened(task.shown(each)) for each in (known, label))
                conflicts.append(f"row {row}: {own}, but {its} in row {other} of {part.file}")
    if conflicts:
        raise PipelineError(
            f"{where}: {row_count(len(conflicts))} with a text of dev or test and another label: mend one of the two,"
            f" or leave the row out\n  " + "\n  ".join(few(conflicts, _SHOWN))
        )
    return pd.Series(why, rows.index, dtype=object)


def _ids(parts: Sequence[_Part], raw: pd.DataFrame, rows: pd.DataFrame) -> dict[int, Any]:
    """Ids of the new rows, by number: their own if no old row has them, else numbers after the largest one."""
    old = {str(one) for part in parts if (column := id_column(part.table)) for one in part.table[column]}
    names = ids_of(raw)[0] if id_column(raw) else []
    own = dict(zip(raw.index, names, strict=False))
    if own and old.isdisjoint(own[row] for row in rows.index):
        return own
    first = max((int(one) for one in old if one.isdecimal()), default=-1) + 1
    return {row: str(first + place) for place, row in enumerate(rows.index)}


def _joined(part: _Part, raw: pd.DataFrame, ids: dict[int, Any]) -> pd.DataFrame:
    """The file of a split with new rows, in its columns and their types."""
    columns = {}
    for column in map(str, part.table):
        name, old = name_among(column, raw.columns), part.table[column].tolist()
        values = [None] * len(raw) if name is None else raw[name].tolist()
        if column == id_column(part.table):
            values = [ids[row] for row in raw.index]
        kind = next((type(value) for value in old if not is_blank(value)), None)
        with suppress(ValueError):
            values = [None if is_blank(value) else _typed(value, kind) for value in values]
        columns[column] = pd.Series([*old, *values], dtype=object)
    whole = pd.DataFrame(columns)
    check_columns(whole, part.file)
    return whole


def _typed(value: Any, kind: type | None) -> Any:
    if kind is str:
        return str(value)
    return kind(value) if kind in (int, float) and isinstance(value, str) else value
