"""A table comes back the same from every encoding and delimiter that programs write."""

import csv
import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.data.delimited import DELIMITERS
from pipeline.data.tables import read_foreign, write_table
from pipeline.system.errors import PipelineError

HEADER = ["message", "queue", "price"]
ROWS = [["the café, on Monday; again", "bill", "1,5"], ['she said "no" | and\tleft', "bug", "2"], ["über", "bug", ""]]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"]


def delimited(rows: list[list[str]], delimiter: str) -> str:
    text = io.StringIO()
    quoting = csv.QUOTE_ALL if delimiter == "\t" else csv.QUOTE_MINIMAL  # a line break beside tabs is refused else
    csv.writer(text, delimiter=delimiter, lineterminator="\r\n", quoting=quoting).writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("delimiter", DELIMITERS)
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".CSV"])
def test_a_table_is_read_in_every_encoding_and_delimiter(
    suffix: str, delimiter: str, encoding: str, tmp_path: Path
) -> None:
    file = tmp_path / f"table{suffix}"
    file.write_bytes(delimited([HEADER, *ROWS], delimiter).encode(encoding))
    found = read_foreign(file)
    assert found.rows.columns.tolist() == HEADER
    assert found.rows.fillna("").to_numpy().tolist() == ROWS
    assert found.form == f"{suffix[1:].lower()}, {encoding}, {DELIMITERS[delimiter]}"


def test_texts_of_a_single_column_may_hold_commas(tmp_path: Path) -> None:
    file, texts = tmp_path / "table.csv", ["a, b", "c", "d, e, f"]
    file.write_text("\n".join(["text", *texts]))
    assert read_foreign(file).rows.to_dict("list") == {"text": texts}
    file.write_text("text\na, b\nc, d\n")
    with pytest.raises(PipelineError, match="line 2 has 2 cells, and the header 1"):
        read_foreign(file)


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"', "SEP=;"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_first_line_that_names_the_delimiter_for_excel_is_no_row(line: str, encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(f"{line}\r\ntext;label\r\né,b;c,d\r\n".encode(encoding))
    found = read_foreign(file)
    assert found.rows.to_dict("list") == {"text": ["é,b"], "label": ["c,d"]}
    assert found.form == f"csv, {encoding}, semicolon"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Прекрасный фильм", "koi8-r"),
        ("Прекрасный фильм", "cp1251"),
        ("Μια υπέροχη ταινία, μου άρεσε πολύ", "cp1253"),
        ("一部精彩的电影", "gbk"),
        ("素晴らしい映画でした。とても気に入りました。電話が壊れて届きました", "cp932"),
        ("סרט נפלא, נהניתי מאוד. הטלפון הגיע שבור ולא עובד בכלל", "cp1255"),
        ("فيلم رائع أعجبني كثيرا", "cp1256"),
        ("plain words", "utf-16-le"),
        ("Прекрасный фильм", "utf-16-be"),
    ],
)
def test_letters_of_another_alphabet_are_not_read_as_western(text: str, encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    content = delimited([["text", "label"], *([text, "good"] for _ in range(9))], ",")
    file.write_bytes(content.encode(encoding))
    assert read_foreign(file).rows["text"].iloc[0] == text


@pytest.mark.parametrize(
    ("name", "content", "row"),
    [
        ("t.csv", 'text,label\n"two\nlines",a\nwrong,b\n', 3),  # a spreadsheet shows records, not lines
        ("t.csv", "\n\ntext,label\nfirst,a\nwrong,b\n", 5),
        ("t.csv", "sep=;\ntext;label\nfirst;a\n\nwrong;b\n", 4),  # spreadsheet programs hide the first line
        ("t.jsonl", '{"text": "first"}\n{"text": "wrong"}\n', 2),
        ("t.json", '[{"text": "first"}, {"text": "wrong"}]', 2),
        ("t.xlsx", [[None], ["text"], ["first"], ["wrong"]], 4),
        ("t.parquet", None, 2),
    ],
)
def test_rows_have_the_numbers_that_a_spreadsheet_shows(name: str, content: Any, row: int, tmp_path: Path) -> None:
    if isinstance(content, str):
        (tmp_path / name).write_text(content)
    elif content is None:
        pd.DataFrame({"text": ["first", "wrong"]}).to_parquet(tmp_path / name)
    else:
        pd.DataFrame(content).to_excel(tmp_path / name, index=False, header=False)
    assert read_foreign(tmp_path / name).rows["text"].to_dict()[row] == "wrong"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_table_with_types_is_read_as_it_is(suffix: str, tmp_path: Path) -> None:
    table = pd.DataFrame({"message": ["a b", "c"], "queue": ["x", "y"]})
    write_table(table, tmp_path / f"t{suffix}")
    assert read_foreign(tmp_path / f"t{suffix}").rows.to_dict("list") == table.to_dict("list")
    (tmp_path / f"t{suffix}").rename(tmp_path / f"t{suffix.upper()}")
    assert read_foreign(tmp_path / f"t{suffix.upper()}").rows.to_dict("list") == table.to_dict("list")


def test_a_sheet_is_read_with_its_types_and_empty_cells(tmp_path: Path) -> None:
    table = pd.DataFrame({"message": ["the café", "NA", None], "queue": ["bill", None, "bug"], "count": [1, 2.5, None]})
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        table.astype(object).to_excel(book, sheet_name="inbox", index=False)
        pd.DataFrame().to_excel(book, sheet_name="empty")
    found = read_foreign(tmp_path / "t.xlsx")
    assert found.form == "xlsx, sheet inbox"
    assert found.rows.to_dict("list") == {
        "message": ["the café", "NA", None], "queue": ["bill", None, "bug"], "count": [1, 2.5, None]
    }  # fmt: skip


def test_of_two_sheets_none_is_guessed(tmp_path: Path) -> None:
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        for name in ("one", "two"):
            pd.DataFrame({"a": ["b"]}).to_excel(book, sheet_name=name, index=False)
    with pytest.raises(PipelineError, match=r"2 sheets have cells \(one, two\)"):
        read_foreign(tmp_path / "t.xlsx")
    pd.DataFrame().to_excel(tmp_path / "t.xlsx")
    with pytest.raises(PipelineError, match="no sheet has cells"):
        read_foreign(tmp_path / "t.xlsx")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.xls", b"PK", "save it as xlsx or csv"),
        ("t.xlsx", b"PK", "cannot be read as xlsx"),
        ("t.xlsx", None, "no such file"),
        ("t.txt", b"a", "unknown suffix '.txt'"),
        ("t.csv", b"text,label\n", "no rows"),
        ("t.csv", "text,label\na,b\n".encode("utf-16")[:-1], "encoding cannot be told"),
        ("t.csv", b"text,label\n\x81,b\n", "encoding cannot be told"),
        ("t.csv", "text,label\nסרט נפלא,b\n".encode("cp1255"), "encoding cannot be told"),
        ("t.csv", bytes.fromhex("d0cf11e0a1b11ae1"), "with a password: save it as xlsx"),
        ("t.csv", None, "no such file"),
    ],
)
def test_what_is_no_table_is_refused(name: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PipelineError, match=said) as caught:
        read_foreign(file)
    assert str(caught.value).startswith(str(file))


def test_a_utf8_file_with_a_line_of_another_program_is_refused(tmp_path: Path) -> None:
    """Read as cp1252 whole, its other umlauts would be two letters each."""
    lines = [b"text,label", *("für immer,gut".encode() for _ in range(5)), "größer,gut".encode("cp1252")]
    file = tmp_path / "rows.csv"
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(PipelineError, match="line 7 is not UTF-8, but 5 other lines with such letters are"):
        read_foreign(file)
    file.write_bytes(b"\n".join([lines[0], lines[-1], lines[1]]))  # as many of both: cp1252
    assert read_foreign(file).rows["text"].tolist()[0] == "größer"
