"""Tables come back as they were written, in all four forms; a file that is no table is told where it breaks."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data.tables import SUFFIXES, read_foreign, read_table, write_table
from pipeline.system.errors import PipelineError

DELIMITED = (".csv", ".tsv")
WORDS = ["NA", "null", "nan", "NaN", "None", "n/a", "-", "true", "1", "01", "1.0", "1e5", "inf", "#", "\\n"]


def round_trip(texts: list[str], suffix: str, folder: Path) -> list[str]:
    file = folder / f"table{suffix}"
    write_table(pd.DataFrame({"id": [str(row) for row in range(len(texts))], "text": texts}), file)
    back = read_table(file)
    assert list(back.columns) == ["id", "text"]
    assert back["id"].tolist() == [str(row) for row in range(len(texts))]
    return back["text"].tolist()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_words_that_mean_nothing_elsewhere_stay_text(suffix: str, tmp_path: Path) -> None:
    assert round_trip(WORDS, suffix, tmp_path) == WORDS


# Any text, and more often what tables are made of.
TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from('a ,\t\n\r"\\\0\ufeff'))


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=4), width=st.integers(1, 3))
def test_any_text_comes_back_as_written(suffix: str, rows: list[tuple[str, ...]], width: int) -> None:
    table = pd.DataFrame([row[:width] for row in rows], columns=list("abc")[:width], dtype=object)
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"table{suffix}"
        write_table(table, file)
        back = read_table(file)
    assert list(back.columns) == list(table.columns)
    empty = None if suffix in (*DELIMITED, ".xlsx") else ""  # an empty cell is a missing text
    expected = [[text or empty for text in row[:width]] for row in rows]
    while suffix == ".xlsx" and expected and not any(expected[-1]):  # a sheet ends with its last filled row
        del expected[-1]
    assert back.to_numpy(dtype=object).tolist() == expected


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"], ids=ascii)
def test_only_a_line_feed_ends_a_line(suffix: str, character: str, tmp_path: Path) -> None:
    texts = [f"a{character}b", f"{character}", "c"]
    assert round_trip(texts, suffix, tmp_path) == texts


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_numbers_keep_their_value(suffix: str, tmp_path: Path) -> None:
    numbers = [0.1 + 0.2, 1e-17, -3.5, 5.0]
    file = tmp_path / f"table{suffix}"
    write_table(pd.DataFrame({"value": numbers}), file)
    found = [float(value) for value in read_table(file)["value"]]
    assert found == (numbers if suffix != ".xlsx" else pytest.approx(numbers, rel=1e-15, abs=0))


@pytest.mark.parametrize("suffix", DELIMITED)
def test_only_an_empty_cell_is_empty(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"table{suffix}"
    separator = "," if suffix == ".csv" else "\t"
    file.write_text(f"id{separator}text\n1{separator}\n2{separator}NA\n")
    assert read_table(file)["text"].isna().tolist() == [True, False]


def test_a_csv_with_tabs_in_its_header_is_read_as_tab_separated(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("id\tsentence\tlabel\n7\tgood, and cheap\t1\n")
    assert read_table(file).to_dict("records") == [{"id": "7", "sentence": "good, and cheap", "label": "1"}]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=ascii)
@pytest.mark.parametrize("suffix", DELIMITED)
def test_a_blank_line_between_rows_is_a_row(suffix: str, end: str, tmp_path: Path) -> None:
    file, separator = tmp_path / f"table{suffix}", "," if suffix == ".csv" else "\t"
    lines = ["", "id,text", "1,a", "", "3,c", "   ", "5,", "", ""]
    file.write_text(end.join(lines).replace(",", separator), newline="")
    rows = read_table(file).to_numpy().tolist()
    assert rows == [["1", "a"], [None, None], ["3", "c"], [None, None], ["5", None]]


@pytest.mark.parametrize("suffix", DELIMITED)
def test_in_a_table_of_one_column_a_blank_line_is_an_empty_cell(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"table{suffix}"
    file.write_text('text\na\n\n""\n  \nb\n\n\n')
    assert read_table(file)["text"].tolist() == ["a", None, None, "  ", "b"]


def test_a_quote_inside_a_cell_and_a_cell_of_a_million_letters_are_text(tmp_path: Path) -> None:
    file, long = tmp_path / "table.csv", "x" * 1_000_000
    file.write_text(f'text,label\na 5" disk,1\n{long},0\n"two\nlines, and ""quotes""",1\n')
    assert read_table(file)["text"].tolist() == ['a 5" disk', long, 'two\nlines, and "quotes"']


# Content of a file, and what is said of it after its name.
NOT_AS_PROMISED = {
    "a quote never closed.tsv": ('a\tb\nx\t1\n"open\t1\ny\t0\n', "quote that opens a cell in line 3 is not closed"),
    "a quote never closed.csv": ('a,b\nx,1\n"open,1\ny,0\n', "quote that opens a cell in line 3 is not closed"),
    "a quote closed in a word.tsv": ('a\tb\n"so" it is\t1\n', "quote that opens a cell in line 2 is not closed"),
    "a quote closed in a word.csv": ('a,b\n"x\ny","so" it\n', "quote that opens a cell in line 2 is not closed"),
    "a quote closed by the next row's.tsv": ('a\tb\n"so\t1\n"no\t0\n', "quote that opens a cell in line 2 is not"),
    "rows in a first cell.tsv": ('a\tb\n"so\t1\nx\t1\nno"\t0\n', "opens a cell in line 2 closes in line 4, with whole"),
    "rows in a last cell.tsv": ('a\tb\n1\t"so\n0\tno"\n', "opens a cell in line 2 closes in line 3, with whole rows"),
    "rows in a cell.csv": ('a\tb\tc\n1\t"so\tx\n0\tno"\ty\n', "opens a cell in line 2 closes in line 3, with whole"),
    "a cell too many.csv": (
        "a,b\ngood, and cheap,1\n",
        "line 2 has 3 cells, and the header 2: quote text that contains ','",
    ),
    "a cell too many.tsv": ("a\tb\nx\t1\nx\ty\t1\n", r"line 3 has 3 cells, and the header 2: quote .* '\\t'"),
    "a cell too many, after a text of two lines.csv": ('a,b\n"x\ny",1\nx,y,1\n', "line 4 has 3 cells"),
    "a cell too few.csv": ("a,b,c\nx,y,1\nx,1\n", "line 3 has 2 cells, and the header 3: "),
    "a cell too few.tsv": ("a\tb\nx\n", "line 2 has 1 cell, and the header 2: "),
    "one name twice.csv": ("a,b,a\n1,2,3\n", "more than one column is called 'a': give each another name"),
    "nothing.csv": ("", "no rows: the file is empty"),
    "blank lines alone.tsv": ("\n\r\n\n", "no rows: the file is empty"),
    "blank lines alone.jsonl": ("\n\n", "line 1 is not a JSON object"),
    "a blank line.jsonl": ('{"a": 1}\n  \n{"a": 2}\n', "line 2 is not a JSON object"),
    "no JSON.jsonl": ('{"a": 1}\n{"a": 2\n', "line 2 is not a JSON object"),
    "no object.jsonl": ('{"a": 1}\n[1, 2]\n', r"line 2 is not a JSON object: '\[1, 2\]'"),
    "a number of 5,000 digits.jsonl": (f'{{"a": {"9" * 5000}}}', "line 1 is not a JSON object"),
    "nested deep.jsonl": ('{"a": ' + "[" * 10**5 + "]" * 10**5 + "}", "line 1 is not a JSON object"),
    "nothing.json": ("", "Expecting value: line 1"),
    "no colon.json": ('[{"text": "a"},\n {"text" "b"}]', "delimiter: line 2 column 10"),
    "an empty list.json": ("[]", "no list of rows"),
    "an empty object.json": ("{}", "no list of rows"),
    "a list of texts.json": ('["a", "b"]', "no list of rows"),
    "an object of objects.json": ('{"data": {"text": "a"}}', "no list of rows"),
    "a number.json": ("7", "no list of rows"),
    "columns of unlike lengths.json": ('{"text": ["a", "b"], "label": [1]}', "same length"),
    "nested deep.json": ("[" * 10**5, "nested too deeply"),
    "more after the list.json": ('[{"a": 1}] x', "line 1 is not a JSON object"),
    "no parquet.parquet": ("PAR1 and no more", r"cannot be read \(.*write it again as parquet"),
    "nothing.parquet": ("", r"cannot be read \(.*write it again as parquet"),
}


@pytest.mark.parametrize("name", NOT_AS_PROMISED)
def test_what_the_header_does_not_promise_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    file, (content, reason) = tmp_path / name, NOT_AS_PROMISED[name]
    file.write_text(content, newline="")
    with pytest.raises(PipelineError, match=reason) as caught:
        read_table(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "content",
    [
        'a\tb\n1\t"two\nlines"\n',
        'a\tb\n1\t"two\nlines and a\ttab\n"\n',
        '"a"\t"b"\n"1"\t"a\tb\nc"\n"2"\t"d\ne\tf"\n',
        'a\n"one\ncolumn"\n',
    ],
)
def test_line_breaks_in_a_cell_are_text_where_they_hold_no_row(content: str, tmp_path: Path) -> None:
    file = tmp_path / "table.tsv"
    file.write_text(content)
    assert read_table(file).to_dict("list") == pd.read_csv(file, sep="\t", dtype=object).to_dict("list")


@pytest.mark.parametrize(
    ("index", "columns"),
    [
        (["id"], {"id": ["b", "a"], "text": ["x", "y"]}),
        (["id", "part"], {"id": ["b", "a"], "part": [1, 2], "text": ["x", "y"]}),
        (["text"], {"text": ["x", "y"]}),
        ([None], {"text": ["x", "y"]}),
        ([None, "id"], {"id": ["b", "a"], "text": ["x", "y"]}),
    ],
    ids=["ids", "two levels", "as a column is called", "without a name", "a level without a name"],
)
@pytest.mark.parametrize("suffix", [".parquet", ".PARQUET"])
def test_a_named_index_of_parquet_is_a_column(
    suffix: str, index: list[str | None], columns: dict[str, list[object]], tmp_path: Path
) -> None:
    levels: dict[str | None, list[object]] = {"id": ["b", "a"], "part": [1, 2], "text": ["p", "q"], None: [7, 8]}
    rows = pd.MultiIndex.from_arrays([levels[name] for name in index], names=index)
    file = tmp_path / f"table{suffix}"
    pd.DataFrame({"text": ["x", "y"]}, index=rows if len(index) > 1 else rows.get_level_values(0)).to_parquet(file)
    table = read_foreign(file).rows
    assert table.to_dict("list") == columns
    assert table.index.tolist() == [1, 2]


def test_damaged_parquet_is_told_in_one_line_or_read(tmp_path: Path) -> None:
    file, rng = tmp_path / "table.parquet", random.Random(0)
    write_table(pd.DataFrame({"id": ["1", "2"], "text": ["a", "é"]}), file)
    good, refused = file.read_bytes(), 0
    for _ in range(150):
        damaged = bytearray(good)
        for place in rng.sample(range(len(good)), 3):
            damaged[place] = rng.randrange(256)
        file.write_bytes(damaged)
        try:
            read_table(file)
        except PipelineError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 50


@pytest.mark.timeout(20)  # an opened pipe would wait for ever
@pytest.mark.parametrize(
    ("make", "reason"), [(os.mkfifo, "not a regular file"), (Path.mkdir, "there is a folder where")]
)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_no_file_is_not_opened(suffix: str, make: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    make(tmp_path / f"table{suffix}")
    with pytest.raises(PipelineError, match=reason):
        read_table(tmp_path / f"table{suffix}")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_a_byte_order_mark_is_no_part_of_the_first_column(suffix: str, tmp_path: Path) -> None:
    plain, marked = tmp_path / f"plain{suffix}", tmp_path / f"marked{suffix}"
    write_table(pd.DataFrame({"id": ["1"], "text": ["é"]}), plain)
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert read_table(marked).to_dict("records") == [{"id": "1", "text": "é"}]


def test_jsonl_keeps_integers_beside_nulls(tmp_path: Path) -> None:
    file = tmp_path / "table.jsonl"
    file.write_text('{"label": 1}\r\n{"label": null}\n\n')
    first, second = read_table(file)["label"].tolist()
    assert (first, type(first), second) == (1, int, None)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_text_that_is_not_utf8_is_refused(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"table{suffix}").write_bytes(b"text\nfine\ncaf\xe9\n")
    with pytest.raises(PipelineError, match="not UTF-8 text .byte 13."):
        read_table(tmp_path / f"table{suffix}")


def test_a_table_is_not_written_under_an_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="unknown suffix"):
        write_table(pd.DataFrame({"a": [1]}), tmp_path / "table.txt")
    assert not list(tmp_path.iterdir())


ROWS = [{"text": "né, \n", "label": 1}, {"text": "NA", "label": None}]


@pytest.mark.parametrize(
    "content",
    [
        '[{"text": "né, \\n", "label": 1}, {"text": "NA"}]',
        '\n[\n {"text": "n\\u00e9, \\n", "label": 1},\n {"text": "NA", "label": null}\n]\n',
        '{"text": ["né, \\n", "NA"], "label": [1, null]}',
        '{"text": "né, \\n", "label": 1}\n{"text": "NA", "label": null}\n',
    ],
    ids=["records", "indented", "columns", "lines"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_rows_are_read_with_their_types(content: str, encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content, encoding=encoding)
    rows = read_foreign(tmp_path / "a.json").rows
    assert rows.where(rows.notna(), None).to_dict("records") == ROWS
    assert type(rows["label"].iloc[0]) is int


def test_what_is_written_is_a_list_of_records(tmp_path: Path) -> None:
    table = pd.DataFrame(ROWS, dtype=object)
    write_table(table, tmp_path / "a.json")
    assert pd.read_json(tmp_path / "a.json")["text"].tolist() == ["né, \n", "NA"]
    assert read_table(tmp_path / "a.json").to_dict("records") == ROWS
