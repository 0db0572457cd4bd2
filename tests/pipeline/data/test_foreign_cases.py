"""Files as other programs write them: each is read with the right texts and labels, or refused for the right reason."""

import datetime
import io
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.canonical import canonical_rows
from pipeline.data.cells import as_label, as_number
from pipeline.data.propose import Proposal, propose
from pipeline.data.tables import read_foreign, read_table, write_table
from pipeline.data.task_data import load_split
from pipeline.data.tasks import Files, NewTask, Task
from pipeline.system.errors import PipelineError

SIZE = 12
TEXTS = [f"the parcel of row {row}" for row in range(SIZE)]
LABELS = ["good", "bad"] * (SIZE // 2)


def lines(header: str, row: str, *, texts: list[str] = TEXTS, labels: list[str] = LABELS) -> str:
    """A header, and a line a row with its text and label in place of ``T`` and ``L``."""
    body = [row.replace("T", text).replace("L", label) for text, label in zip(texts, labels, strict=True)]
    return "".join(f"{line}\n" for line in [header, *body])


def workbook(rows: list[list[Any]], edit: Callable[[Any], None] = lambda sheet: None) -> bytes:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    edit(book.active)
    content = io.BytesIO()
    book.save(content)
    return content.getvalue()


def parquet(text: Any, label: Any) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.table({"text": text, "label": label}), content)
    return content.getvalue()


def task_of(proposal: Proposal, **files: Any) -> Task:
    raw = {"name": "mine", "kind": "classes", "classes": list(proposal.classes), "metric": "accuracy"}
    files = {"labels": proposal.labels} | files
    return Task.parse({**raw, "text": list(proposal.columns.text), "label": proposal.columns.label, "files": files}, "")


def merged(*areas: str) -> Callable[[Any], None]:
    return lambda sheet: [sheet.merge_cells(area) for area in areas]


def hidden(sheet: Any) -> None:
    other = sheet.parent.create_sheet("lists")
    other.append(["good"])
    other.sheet_state = "hidden"


SHEET = [["text", "label"], *map(list, zip(TEXTS, LABELS, strict=True))]
RECORDS = [{"text": text, "label": label} for text, label in SHEET[1:]]
BY_LABEL = [["label", "text"], *([label, text] for text, label in zip(TEXTS, sorted(LABELS), strict=True))]
BLANKED = [
    [None if place in range(2, 7) or place in range(8, 13) else label, text]
    for place, (label, text) in enumerate(BY_LABEL)
]
QUOTES = [f'{text} " , " ; 5"' for text in TEXTS]  # which are doubled in a cell
INCHES = [text.replace('"', '""') for text in QUOTES]
COMMAS = [f"{text}, and, more" for text in TEXTS]
ESCAPED = [[str(cell).replace("parcel", "parcel_x000D_\n") for cell in row] for row in SHEET]

# File, its content, and the texts and labels in it.
READ: dict[str, tuple[str, str | bytes, list[str], list[str]]] = {
    "blank before a quote": ("a.csv", lines("text, label", '"T", "L"', texts=COMMAS), COMMAS, LABELS),
    "blank before a quote alone": ("a.csv", lines("text,label", '"T", "L"', texts=COMMAS), COMMAS, LABELS),
    "blanks after closing quotes": ("a.csv", lines("text,label", '"T" , "L" ', texts=INCHES), QUOTES, LABELS),
    "blanks after closing quotes alone": ("a.csv", lines("text;label", '"T"  ;L', texts=INCHES), QUOTES, LABELS),
    "blanks before some quotes": (
        "a.csv", lines("label,text", 'L,\u00a0"T"', texts=COMMAS).replace("bad,\u00a0", "bad,"),
        COMMAS, LABELS,
    ),
    "blanks before semicolons": ("a.csv", lines("text ;label", '"T" ;"L" ', texts=COMMAS), COMMAS, LABELS),
    "tabs and blanks": ("a.tsv", lines('text\t "label"', '"T"\t "L"', texts=COMMAS), COMMAS, LABELS),
    "a header with more delimiters than rows": ("a.csv", lines("text,label,,,", "T,L"), TEXTS, LABELS),
    "a null in labels": ("a.csv", lines("text,label", "T,L\0"), TEXTS, LABELS),
    "json lines called csv": ("a.csv", lines("", '{"text": "T", "label": "L"}')[1:], TEXTS, LABELS),
    "a list called jsonl": ("a.jsonl", json.dumps(RECORDS), TEXTS, LABELS),
    "csv called json": ("a.json", lines("text,label", "T,L"), TEXTS, LABELS),
    "blank after semicolons": ("a.csv", lines("text; label", '"T"; "L"'), TEXTS, LABELS),
    "blank in a third column": ("a.csv", lines("n, text, label", '7, "T", "L"', texts=COMMAS), COMMAS, LABELS),
    "columns without a name": ("a.csv", lines("text,label,,,", "T,L,,,"), TEXTS, LABELS),
    "few cells in one": ("a.csv", lines("text,label,,,", "T,L,,,").replace("row 3,bad,", "row 3,bad,x"), TEXTS, LABELS),
    "semicolons without a name": ("a.csv", lines("text;label;;;", "T;L;;;"), TEXTS, LABELS),
    "a sheet's without a name": ("a.xlsx", workbook([[*row, None, " "] for row in SHEET]), TEXTS, LABELS),
    "a trailing delimiter": ("a.csv", lines("text;label", "T;L;", texts=COMMAS), COMMAS, LABELS),
    "a trailing comma": ("a.csv", lines("text,label", "T,L,"), TEXTS, LABELS),
    "two trailing tabs": ("a.tsv", lines("text\tlabel", "T\tL\t\t"), TEXTS, LABELS),
    "a trailing bar": ("a.csv", lines("text|label", "T|L|"), TEXTS, LABELS),
    "line break in the header": ("a.csv", lines('"Text\nlong";label', '"T";"L"'), TEXTS, LABELS),
    "line break and comma": ("a.csv", lines('"Text,\r\nlong";"label"', '"T";"L"', texts=COMMAS), COMMAS, LABELS),
    "line break and tabs": ("a.csv", lines('"Text\nlong"\tlabel', '"T"\t"L"'), TEXTS, LABELS),
    "line break in the last name": ("a.csv", lines('text;"label\n"', '"T";"L"'), TEXTS, LABELS),
    "nulls": ("a.csv", lines("text,label", "T\0,L"), [f"{text}\0" for text in TEXTS], LABELS),
    "nulls in jsonl": ("a.jsonl", lines("", '{"text": "T", "label": "L"}')[1:], TEXTS, LABELS),
    "a null in a name": ("a.csv", lines("text,label,\0x", "T,L,1"), TEXTS, LABELS),
    "utf-16 without a mark": ("a.csv", lines("text,label", "T,L").encode("utf-16-le"), TEXTS, LABELS),
    "a sheet called csv": ("a.csv", workbook(SHEET, hidden), TEXTS, LABELS),
    "a sheet called tsv": ("a.TSV", workbook(SHEET), TEXTS, LABELS),
    "parquet called csv": ("a.csv", parquet(TEXTS, LABELS), TEXTS, LABELS),
    "text called xlsx": ("a.xlsx", lines("text;label", "T;L"), TEXTS, LABELS),
    "suffix in capitals": ("a.CSV", lines("text,label", "T,L"), TEXTS, LABELS),
    "escapes of a sheet": ("a.xlsx", workbook(ESCAPED), [t.replace("parcel", "parcel\r\n") for t in TEXTS], LABELS),
    "an escaped escape": (
        "a.xlsx", workbook([[str(c).replace("row", "_x005F_x000D_") for c in r] for r in SHEET]),
        [text.replace("row", "_x000D_") for text in TEXTS], LABELS,
    ),
    "escapes in names": (
        "a.xlsx", workbook([["te_x0078_t", "label"], *([r[0], f"{r[1]}_x000D_"] for r in SHEET[1:])]), TEXTS, LABELS
    ),
    "cells merged across and down": (
        "a.xlsx", workbook([[*r, None] for r in BLANKED], merged("A2:A7", "A8:A13", "B1:C1")), TEXTS, sorted(LABELS)
    ),
    "dates of a sheet": (
        "a.xlsx", workbook([["text", "label"], *([t, datetime.date(2024, 5, 1 + n % 2)] for n, t in enumerate(TEXTS))]),
        TEXTS, ["2024-05-01", "2024-05-02"] * (SIZE // 2),
    ),
    "merged labels": ("a.xlsx", workbook(BLANKED, merged("A2:A7", "A8:A13")), TEXTS, sorted(LABELS)),
    "merged labels below blanks": (
        "a.xlsx", workbook([[], *BLANKED], merged("A3:A8", "A9:A14")), TEXTS, sorted(LABELS)
    ),
    "bytes": ("a.parquet", parquet([t.encode() for t in TEXTS], [b.encode() for b in LABELS]), TEXTS, LABELS),
    "bytes of one size": (
        "a.parquet", parquet(TEXTS, pa.array([b[:3].encode() for b in LABELS], pa.binary(3))), TEXTS,
        [b[:3] for b in LABELS],
    ),
    "bytes in a dictionary": (
        "a.parquet", parquet(TEXTS, pa.array([b.encode() for b in LABELS]).dictionary_encode()), TEXTS, LABELS
    ),
    "large bytes": (
        "a.parquet", parquet(TEXTS, pa.array(["é".encode(), b"b"] * (SIZE // 2), pa.large_binary())), TEXTS,
        ["é", "b"] * (SIZE // 2),
    ),
    "labels with a plus": ("a.csv", lines("text,label", "T,L", labels=["+1", "-1"] * 6), TEXTS, ["+1", "-1"] * 6),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_a_file_of_another_program_is_read_as_its_author_meant_it(case: str, tmp_path: Path) -> None:
    name, content, texts, labels = READ[case]
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    table = read_foreign(file)
    proposal = propose(table.rows, str(file))
    assert proposal.rows["text_a"].tolist() == texts
    assert proposal.rows["label"].tolist() == labels
    rows = canonical_rows(task_of(proposal), table.rows, "rows", source=task_of(proposal).files, leave_out_blank=True)
    assert [proposal.classes[label] for label in rows["label"]] == labels


FORMULAS = [["text", "label"], *([text, f'=IF(1=1,"{label}","")'] for text, label in zip(TEXTS, LABELS, strict=True))]
REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "formulas": ("a.xlsx", workbook(FORMULAS), "12 cells hold formulas without a saved result, such as B2"),
    "one formula": ("a.xlsx", workbook([*SHEET, ["more", "=A1"]]), "1 cells hold formulas"),
    "a formula of texts": ("a.xlsx", workbook([["text", "label"], *([f"=B{n}", "x"] for n in range(3, 9))]), "A2"),
    "no labels": ("a.csv", lines("text,label", "T,"), "holds no labels"),
    "blank labels": ("a.csv", lines("text,label", 'T," "'), "holds no labels"),
    "no labels in a sheet": ("a.xlsx", workbook([["text", "label"], *([text] for text in TEXTS)]), "holds no labels"),
    "null labels": ("a.jsonl", lines("", '{"text": "T", "label": null}')[1:], "holds no labels"),
    "a title above the header": ("a.csv", lines("Report,,\ntext,label,id", "T,L,7"), "above the header"),
    "a title alone above the header": (
        "a.csv",
        lines("Report\ntext,label,id", "T,L,7"),
        "delete lines above the header",
    ),
    "two delimiters at the end of some rows": (
        "a.csv",
        lines("text,label", "T,L,").replace("3,bad,", "3,bad"),
        "has 3 cells",
    ),
    "some rows with a comma more": ("a.csv", lines("text,label", "T,L,", texts=[*TEXTS[1:], "a, b"]), "cells"),
    "an unlabelled text with a comma": ("a.csv", "text,label\ngood, and cheap,\n", "has 3 cells"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_for_the_right_reason(case: str, tmp_path: Path) -> None:
    name, content, reason = REFUSED[case]
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PipelineError, match=reason):
        propose(read_foreign(file).rows, str(file))


BOOLEANS: list[list[Any]] = [
    [True, False], ["True", "False"], ["TRUE", "FALSE"], ["true", "false"], [np.True_, np.False_], [1, 0], ["1", "0"]
]  # fmt: skip


@pytest.mark.parametrize("new", BOOLEANS, ids=repr)
@pytest.mark.parametrize("old", BOOLEANS[:5], ids=repr)
def test_a_boolean_is_one_label_in_every_format(old: list[Any], new: list[Any]) -> None:
    trained, other = (pd.DataFrame({"text": TEXTS, "label": raw * (SIZE // 2)}, dtype=object) for raw in (old, new))
    proposal = propose(trained, "rows")
    assert proposal.classes == ("false", "true")
    assert canonical_rows(task_of(proposal), other, "rows")["label"].tolist() == [1, 0] * (SIZE // 2)


def test_a_number_with_a_plus_is_a_class_as_it_is_spelt_and_read_from_every_format() -> None:
    table = pd.DataFrame({"text": TEXTS, "label": ["+1", "-1"] * (SIZE // 2)})
    proposal = propose(table, "rows")
    assert set(proposal.classes) == {"+1", "-1"}
    task = task_of(proposal)
    for raw in (["+1", "-1"], [1, -1], [1.0, -1.0], ["1", "-1"]):
        rows = canonical_rows(task, table.assign(label=raw * (SIZE // 2)), "rows", source=task.files)
        assert [proposal.classes[label] for label in rows["label"]] == table["label"].tolist()


@pytest.mark.parametrize("column", [" text ", "Text", "TEXT", "text\u00a0", "\uff34\uff45\uff58\uff54", "text\0"])
def test_a_column_is_found_in_any_case_and_with_blanks(column: str) -> None:
    task = Task.parse({"name": "mine", "kind": "classes", "classes": ["good", "bad"], "metric": "accuracy",
                       "text": ["text"], "label": "label"}, "")  # fmt: skip
    table = pd.DataFrame({column: TEXTS, "Label ": LABELS})
    assert canonical_rows(task, table, "rows")["text_a"].tolist() == TEXTS
    both = table.assign(**{f"{column} ": TEXTS})
    with pytest.raises(PipelineError, match="column 'text' is missing"):
        canonical_rows(task, both, "rows")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("name", ["Réponse", "Größe", "ответ й"])
def test_a_column_is_the_same_in_every_unicode_form(name: str, form: Any) -> None:
    old, new = (pd.DataFrame({unicodedata.normalize(f, name): TEXTS, "label": LABELS}) for f in (form, "NFC"))
    for trained, other in ((old, new), (new, old)):
        proposal = propose(trained, "rows", NewTask(text=trained.columns[0]))
        assert canonical_rows(task_of(proposal), other, "rows")["text_a"].tolist() == TEXTS


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1\u202f192", 1192),
        ("1\u00a0192", 1192),
        ("1\u2007192", 1192),
        ("1\u2019192", 1192),
        ("12 345 678.5", 12345678.5),
        ("1'192", 1192),
        ("\u22125", -5),
    ],
)
def test_thousands_may_be_grouped_without_commas(text: str, number: float) -> None:
    assert as_number(text) == number
    assert np.isnan(as_number("1 19"))
    scores = [text, *map(str, range(3, 30))]
    table = pd.DataFrame({"text": [f"row {row} here" for row in range(28)], "value": scores})
    proposal = propose(table, "rows", NewTask(label="value", kind="score"))
    assert proposal.rows["label"].tolist() == [number, *map(float, range(3, 30))]
    assert as_label(text) in (text, "-5")


def test_rows_of_one_class_are_read_where_nothing_is_learned_from_them() -> None:
    table = pd.DataFrame({"text": TEXTS, "label": ["good"] * SIZE})
    task = task_of(propose(table.assign(label=LABELS), "rows"))
    assert canonical_rows(task, table, "rows", is_scored=True)["label"].nunique() == 1
    with pytest.raises(PipelineError, match="a single label"):
        canonical_rows(task, table, "rows")


@pytest.mark.parametrize("suffix", [".CSV", ".Parquet", ".JSONL", ".Xlsx"])
def test_a_suffix_may_be_in_any_case_for_splits_and_outputs(suffix: str, tmp_path: Path) -> None:
    table = pd.DataFrame({"text": TEXTS, "label": LABELS})
    (tmp_path / "mine").mkdir()
    write_table(table, tmp_path / "mine" / f"dev{suffix}")
    assert read_table(tmp_path / "mine" / f"dev{suffix}").to_dict("list") == table.to_dict("list")
    assert len(load_split(task_of(propose(table, "rows")), tmp_path, "dev")) == SIZE
    assert Files().dev == "dev"


def test_a_sheet_that_is_written_keeps_formulas_and_controls_as_text(tmp_path: Path) -> None:
    texts = ["=1+1", "a\rb", "\x01", "_x000D_", " x ", "é"]
    write_table(pd.DataFrame({"=a": texts, "n": [10**17, 2, 3, 4, 5, 6]}, dtype=object), tmp_path / "a.xlsx")
    back = read_table(tmp_path / "a.xlsx")
    assert back["=a"].tolist() == texts
    assert str(back["n"].iloc[0]) == str(10**17)
