"""Data files of every kind: refused with a message, or read into rows; and what is written is what is read."""

import csv
import io
import re
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import example
from hypothesis import strategies as st

from pipeline.data.canonical import canonical_rows
from pipeline.data.cells import as_label
from pipeline.data.tables import FORMATS, SUFFIXES, read_foreign, read_table, write_table
from pipeline.data.task_data import read_test_texts
from pipeline.data.tasks import NewTask, Task, find_task
from pipeline.system.errors import PipelineError
from stages.check_task import check_task
from stages.new_task import new_task
from tests.fuzz.fuzz_cases import fuzzed
from tests.fuzz.fuzz_documents import ODD_NUMBERS, ODD_RAWS, as_bytes, damaged_bytes, texts
from tests.loading import load_task_data

COLUMNS = ["id", "text", "other", "label"]
BASE = {"text": ["text"], "label": "label", "name": "own"}
CLASSES = BASE | {"kind": "classes", "classes": ["bad", "good"], "metric": "accuracy"}
TASKS = [
    CLASSES,
    CLASSES | {"files": {"labels": {"good": 1, "bad": 0, "nan": 0, "1": 1}, "drop_blank": True}},
    CLASSES | {"files": {"dev_fraction": 0.5}},
    BASE | {"kind": "score", "range": [0, 5], "metric": "pearson", "text": ["text", "other"]},
    BASE | {"kind": "score", "range": [-1e38, 1e38], "metric": "pearson", "files": {"scale": [1e308, 1]}},
]
tasks = st.sampled_from([Task.parse(values, "test") for values in TASKS])
suffixes = st.sampled_from([suffix for suffix, form in FORMATS.items() if form.is_exact])

cells = st.sampled_from(["good", "bad", "0", "1", "1.0", 0, 1, 2.5, None]) | texts | st.sampled_from(ODD_NUMBERS)


@st.composite
def grids(draw: st.DrawFn) -> list[list[Any]]:
    """A header and rows below it, with up to three faults."""
    grid: list[list[Any]] = [list(COLUMNS)]
    grid += [[str(row), f"text {row}", f"other {row}", row % 2] for row in range(draw(st.integers(0, 6)))]
    for _ in range(draw(st.integers(0, 3))):
        row = draw(st.sampled_from(grid))
        at = draw(st.integers(0, len(row) - 1)) if row else 0
        fault = draw(st.sampled_from(["cell", "cell", "column", "drop", "add", "twice", "empty"]))
        if fault == "cell" and row:
            row[at] = draw(cells)
        elif fault == "column":
            grid = [[*each[:at], draw(cells), *each[at + 1 :]] for each in grid]
        elif fault == "drop":
            del row[at : at + 1]
        elif fault == "add":
            row.append(draw(cells))
        elif fault == "twice":
            grid.append(list(row))
        else:
            row.clear()
    return grid


def delimited(grid: list[list[Any]], separator: str, quoting: int) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=quoting, escapechar="\\", quotechar='"')
    writer.writerows(grid)
    return text.getvalue().encode("utf-8", errors="surrogatepass")


def json_of(suffix: str, grid: list[list[Any]], odd: list[Any]) -> bytes:
    rows: list[Any] = [dict(zip(map(str, grid[0]), row, strict=False)) for row in grid[1:]]
    lines = [as_bytes(row, "json") for row in [*rows, *odd]]
    return b"[" + b",\n".join(lines) + b"]" if suffix == ".json" else b"\n".join(lines)


def is_writable(text: str) -> bool:
    """Whether UTF-8 has bytes for it: it has none for half a surrogate pair."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


plain_texts = texts.filter(is_writable)
column_types: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), plain_texts),
    (pa.large_string(), st.sampled_from(["good", "bad"])),
    (pa.int64(), st.integers(-1, 2)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats()),
    (pa.float16(), st.just(1.0)),
    (pa.bool_(), st.booleans()),
    (pa.binary(), st.binary(max_size=4)),
    (pa.null(), st.none()),
    (pa.timestamp("ns", tz="UTC"), st.integers(0, 2**62)),
    (pa.timestamp("s"), st.integers(-(2**40), 2**40)),
    (pa.date32(), st.integers(-(10**6), 10**6)),
    (pa.duration("ns"), st.integers(0, 10)),
    (pa.decimal128(20, 2), st.decimals(0, 9, places=2)),
    (pa.list_(pa.string()), st.lists(plain_texts, max_size=2)),
    (pa.struct([("a", pa.int64())]), st.fixed_dictionaries({"a": st.integers(0, 3)})),
    (pa.map_(pa.string(), pa.int64()), st.just([("a", 1)])),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["good", "bad"])),
]


@st.composite
def typed_columns(draw: st.DrawFn) -> pa.Table:
    """A parquet table in which some columns are of another type or name, which may be that of another column."""
    size = draw(st.integers(0, 5))
    numbers = range(size)
    found = {"id": [*map(str, numbers)], "text": [f"text {n}" for n in numbers], "other": ["o"] * size}
    columns = [(name, pa.array(values, pa.string())) for name, values in found.items()]
    columns.append(("label", pa.array([n % 2 for n in numbers], pa.int64())))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(columns) - 1))
        kind, values = draw(st.sampled_from(column_types))
        listed = draw(st.lists(st.none() | values, min_size=size, max_size=size))
        name = draw(st.just(columns[at][0]) | st.sampled_from(COLUMNS) | plain_texts)
        columns[at : at + draw(st.integers(0, 1))] = [(name, pa.array(listed, kind))]
    names, arrays = zip(*columns, strict=True)
    return pa.Table.from_arrays(list(arrays), names=list(names))


def content_of(suffix: str, grid: list[list[Any]], odd: list[Any], table: pa.Table, quoting: int) -> bytes:
    if suffix.startswith(".json"):
        return json_of(suffix, grid, odd)
    if suffix == ".parquet":
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        return buffer.getvalue()
    return delimited(grid, "\t" if suffix == ".tsv" else ",", quoting)


odd_lines = st.lists(st.sampled_from(ODD_RAWS) | st.sampled_from(ODD_NUMBERS), max_size=1)
contents = st.tuples(suffixes, grids(), odd_lines, typed_columns(), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))


@fuzzed(st.data(), contents, tasks, st.booleans())
def test_a_table_of_any_cells_or_bytes_is_read_or_refused(
    room: Any, data: st.DataObject, content: tuple[Any, ...], task: Task, damage: bool
) -> None:
    written = content_of(*content)
    if damage:
        written = data.draw(damaged_bytes(st.just(written)))
    with room() as folder, suppress(PipelineError):
        file = folder / f"rows{content[0]}"
        file.write_bytes(written)
        table = read_table(file)
        for labelled in (True, False):
            with suppress(PipelineError):
                rows = canonical_rows(task, table, str(file), source=task.files, labelled=labelled)
                assert len(rows) and rows.columns.tolist()[:2] == ["id", "text_a"]
                assert rows["id"].is_unique
                assert all(isinstance(text, str) and text.strip() for text in rows["text_a"])
                assert labelled == ("label" in rows)


bounds = st.none() | st.integers(-1, 6)


@fuzzed(contents, contents, contents, tasks, bounds, bounds, st.integers(0, 2**32 - 1), st.booleans())
def test_a_folder_of_data_is_loaded_or_refused(
    room: Any, train: Any, dev: Any, test: Any, task: Task, limit: Any, dev_limit: Any, seed: int, drop: bool
) -> None:
    with room() as folder, suppress(PipelineError):
        (folder / "own").mkdir()
        for stem, content in (("train", train), ("dev", dev), ("test", test)):
            (folder / "own" / f"{stem}{content[0]}").write_bytes(content_of(*content))
        with suppress(PipelineError):
            read_test_texts(task, folder)
        loaded = load_task_data(task, folder, limit=limit, seed=seed, dev_limit=dev_limit, drop_overlap=drop)
        assert min(len(loaded.train), len(loaded.dev)) > 0
        assert loaded.fingerprint.keys() == {"train", "dev"}


@st.composite
def user_tables(draw: st.DrawFn) -> tuple[str, bytes]:
    """A suffix and a table of a user, long enough to be split, with some odd cells, in any form; often damaged."""
    suffix, size = draw(suffixes), draw(st.integers(0, 40))
    values = draw(st.sampled_from([["a", "b"], [0, 1], ["1.5", "2", 0.25], ["x;y", "x", "y"], [True, None, "no"]]))
    grid: list[list[Any]] = [draw(st.permutations(COLUMNS))]
    for row in range(size):
        cell = {"id": row, "text": f"a text {row // 2}", "other": f"other {row}", "label": values[row % len(values)]}
        grid.append([cell[name] for name in grid[0]])
    for _ in range(draw(st.integers(0, 4))):
        draw(st.sampled_from(grid))[draw(st.integers(0, len(COLUMNS) - 1))] = draw(cells)
    if suffix == ".parquet":
        return suffix, content_of(suffix, grid, [], draw(typed_columns()), csv.QUOTE_MINIMAL)
    if suffix.startswith(".json"):
        return suffix, json_of(suffix, grid, [])
    content = delimited(grid, draw(st.sampled_from(",;\t|")), draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])))
    encoding = draw(st.sampled_from(["utf-8", "utf-16", "utf-8-sig", "cp1252"]))
    return suffix, content.decode("utf-8", errors="replace").encode(encoding, errors="replace")


@fuzzed(
    st.data(),
    user_tables(),
    st.none() | st.sampled_from(COLUMNS),
    st.sampled_from([None, "text", "text,other", "", ", text"]),
    st.none() | st.sampled_from(["classes", "score"]),
    st.sampled_from(["80/10/10", "50/50", "1e-300/100", "nan/1", ""]),
)
def test_a_task_is_made_of_any_table_or_refused(
    room: Any, data: st.DataObject, table: tuple[str, bytes], label: Any, text: Any, kind: Any, split: str
) -> None:
    suffix, content = table
    if data.draw(st.integers(0, 3)) == 0:
        content = data.draw(damaged_bytes(st.just(content)))
    with room() as folder:
        file = folder / f"mine{suffix}"
        file.write_bytes(content)
        try:
            new_task(file, folder / "data", NewTask(text=text, label=label, kind=kind, split=split))
        except PipelineError as error:
            assert "\n" not in str(error)
            assert not (folder / "data").exists()
            return
        task = find_task("mine", folder / "data")
        load_task_data(task, folder / "data")
        assert check_task(folder / "data" / "mine")


people_labels = st.sampled_from([
    ["pos", "neg"], [["pos"], ["neg"]], [["pos"], ["neg"], ["pos", "neg"]], ["['pos']", "['neg']"], ["__label__a", "b"],
    [*range(7)], [*range(100, 130)], ["1.1", "1.10", "2.0"], [-1, 0, 1, 2], ["-", "yes", "no"], ["+1", "-1"],
    [b"good", b"bad"], [True, False, None], ["rare", *["x", "y"] * 9], [0.5, 1.5, 2.5],
])  # fmt: skip
shapes = st.sampled_from(["plain", "merged", "blanks"])
people_columns = st.sampled_from(["label", "class_id", "target", "y", "labels", "category", "score"])


@st.composite
def people_tables(draw: st.DrawFn) -> tuple[str, dict[str, list[Any]]]:
    """A suffix and columns as people have them: lists, ids or bytes as labels, equal texts, columns without a name."""
    suffix, size = draw(st.sampled_from(SUFFIXES)), draw(st.integers(20, 60))
    values, label = draw(people_labels), draw(people_columns)
    texts: list[Any] = [f"unique text number {row} here" for row in range(size)]
    for _ in range(draw(st.integers(0, 3))):  # equal texts, and blanks, which xlsx may have in merged cells
        start, count = draw(st.integers(0, size - 1)), draw(st.integers(1, 8))
        texts[start : start + count] = [draw(st.sampled_from(["thank you", " Thank  you", None, ""]))] * count
    if draw(st.booleans()):  # a class without texts
        texts[:size] = [None if values[row % len(values)] == values[0] else texts[row] for row in range(size)]
    columns = {"text": texts[:size], label: [values[row % len(values)] for row in range(size)]}
    others = st.sampled_from(["text_pair", "story", "id", "ID", " note", "Unnamed: 2", "Unnamed: 3", "x"])
    for name in draw(st.lists(others, max_size=4, unique=True)):
        columns[name] = draw(st.sampled_from([[None] * size, [f"some other words {row}" for row in range(size)]]))
    names = draw(st.permutations(sorted(columns)))
    return suffix, {name: columns[name] for name in names}


def people_file(file: Path, columns: dict[str, list[Any]], separator: str, shape: str) -> None:
    """Write ``columns``; in a sheet of ``merged`` cells equal ones below each other are one, and ``blanks`` stand
    between quotes and delimiters.
    """
    if file.suffix not in (".csv", ".tsv", ".xlsx"):
        write_table(pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in columns.items()}), file)
        return
    header = ["" if name.startswith("Unnamed") else name for name in columns]
    rows = zip(*columns.values(), strict=True)
    if file.suffix == ".xlsx":
        cells = [[cell if isinstance(cell, int | float) else cell and str(cell) for cell in row] for row in rows]
        pd.DataFrame(cells).to_excel(file, index=False, header=header)
        book = openpyxl.load_workbook(file)
        for letter, column in zip("ABCDEFG", zip(*cells, strict=True), strict=False) if shape == "merged" else ():
            for value, run in groupby(enumerate(column, start=2), key=lambda cell: cell[1]):
                (first, _), *others = run
                if value is not None and others:
                    book.active.merge_cells(f"{letter}{first}:{letter}{others[-1][0]}")
        book.save(file)
    elif shape == "blanks":
        quoted = [['"{}"'.format("" if cell is None else str(cell).replace('"', '""')) for cell in row] for row in rows]
        between = f" {separator}\u00a0" if separator == "\t" else f"\u00a0{separator}\t"
        lines = [separator.join(header), *map(between.join, quoted)]
        file.write_text("\n".join(lines), encoding="utf-8")
    else:
        text = io.StringIO()
        csv.writer(text, delimiter=separator).writerows([header, *rows])
        file.write_text(text.getvalue(), encoding="utf-8")


TEXTS = [f"unique text number {row} here" for row in range(40)]
IN_ORDER = {"text": TEXTS, "label": ["x"] * 20 + ["y"] * 20}
IN_TURN = IN_ORDER | {"label": ["x", "y"] * 20, "Unnamed: 2": [None] * 40, " note": ["a"] * 40}


@fuzzed(people_tables(), st.sampled_from(",;\t|"), st.none() | st.sampled_from(["classes", "score"]), shapes)
@example((".xlsx", IN_ORDER), ",", None, "merged")
@example((".csv", IN_TURN), ";", None, "blanks")
@example((".parquet", IN_TURN | {"label": [b"x", b"y"] * 20}), ",", None, "plain")
def test_no_class_row_or_column_disappears_without_a_line(
    room: Any, table: tuple[str, dict[str, list[Any]]], separator: str, kind: Any, shape: str
) -> None:
    suffix, columns = table
    with room() as folder:
        file = folder / f"mine{suffix}"
        people_file(file, columns, separator, shape)
        try:
            said = new_task(file, folder / "data", NewTask(kind=kind))
        except PipelineError as error:
            assert "\n" not in str(error)
            return
        task, raw = find_task("mine", folder / "data"), read_foreign(file).rows
        parts = [read_table(one) for one in (folder / "data" / "mine").iterdir() if one.suffix != ".toml"]
        left_out = sum(
            int(count.replace(",", "")) for count in re.findall(r"^left out: ([\d,]+) row", said, re.MULTILINE)
        )
        filled = [row for row, cells in enumerate(zip(*columns.values(), strict=True), start=1) if any(cells)]
        assert len(raw) >= filled[-1]
        assert {name.strip() for name in columns if not name.startswith("Unnamed")} <= {*raw}
        assert len(raw) == sum(map(len, parts)) + left_out
        named = re.findall(r"(\d+) columns? without a name", said)
        blank = [name for name in raw if name.startswith("Unnamed: ") and name not in said]
        assert len(blank) == sum(map(int, named))
        assert all(name in said or name in ("id", "ID") for name in raw if name not in blank)
        written = {name.strip(): cells for name, cells in columns.items()}[task.label]
        texts = [value.decode() if suffix == ".parquet" and isinstance(value, bytes) else value for value in written]
        for name in {*map(as_label, texts)} - {None} if task.classes else ():
            assert name in map(as_label, task.classes) or f"class {name!r} is lost" in said
