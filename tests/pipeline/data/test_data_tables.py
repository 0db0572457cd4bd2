"""Tables come back as they were written, in all four forms; a file that is no table is told where it breaks."""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd
import pytest

from pipeline.data.tables import SUFFIXES, read_table, write_table
from pipeline.errors import PipelineError

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


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_random_texts_come_back_as_written(suffix: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    alphabet = "ab ,;\t\n\"'\\|#éßЖ中🙂\ufeff\u200b"
    texts = ["x" + "".join(rng.choices(alphabet, k=rng.randrange(20))) for _ in range(300)]
    assert round_trip(texts, suffix, tmp_path) == texts


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"], ids=ascii)
def test_only_a_line_feed_ends_a_line(suffix: str, character: str, tmp_path: Path) -> None:
    texts = [f"a{character}b", f"{character}", "c"]
    assert round_trip(texts, suffix, tmp_path) == texts


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_carriage_return_inside_a_text_does_not_end_its_row(suffix: str, tmp_path: Path) -> None:
    texts = ["a\rb", "a\r\nb"]
    assert round_trip(texts, suffix, tmp_path) == texts


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_numbers_keep_their_value(suffix: str, tmp_path: Path) -> None:
    numbers = [0.1 + 0.2, 1e-17, -3.5, 5.0]
    file = tmp_path / f"table{suffix}"
    write_table(pd.DataFrame({"value": numbers}), file)
    found = [float(value) for value in read_table(file)["value"]]
    # pandas writes JSON with at most 15 digits after the point.
    assert found == (numbers if suffix != ".jsonl" else pytest.approx(numbers, rel=1e-9, abs=1e-9))


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


def test_a_csv_with_tabs_only_below_its_header_stays_comma_separated(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("sentence,label\ngood\tbut dear,1\n")
    assert read_table(file).to_dict("records") == [{"sentence": "good\tbut dear", "label": "1"}]


@pytest.mark.parametrize("rows", ["good, and cheap,1\nbad, and dear,0\n", "good,1\nbad, and dear,0\n"])
def test_rows_with_more_cells_than_the_header_are_refused(rows: str, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("sentence,label\n" + rows)
    with pytest.raises(PipelineError, match=r"table\.csv"):
        read_table(file)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_a_byte_order_mark_is_no_part_of_the_first_column(suffix: str, tmp_path: Path) -> None:
    plain, marked = tmp_path / f"plain{suffix}", tmp_path / f"marked{suffix}"
    write_table(pd.DataFrame({"id": ["1"], "text": ["é"]}), plain)
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert read_table(marked).to_dict("records") == [{"id": "1", "text": "é"}]


def test_jsonl_keeps_integers_beside_nulls_and_skips_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "table.jsonl"
    file.write_text('{"label": 1}\n\n{"label": null}\n')
    first, second = read_table(file)["label"].tolist()
    assert (first, type(first), second) == (1, int, None)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"a": 1}\n{"a": 2\n', "line 2 is not JSON"),
        ('{"a": 1}\n\n[1, 2]\n', r"line 3 is not a JSON object: '\[1, 2\]'"),
        ("a,b\n1,2\n", "line 1 is not JSON"),
    ],
)
def test_a_bad_jsonl_line_is_named(lines: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "table.jsonl"
    file.write_text(lines)
    with pytest.raises(PipelineError, match=said) as caught:
        read_table(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_text_that_is_not_utf8_is_named_by_line_and_bytes(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"table{suffix}"
    file.write_bytes(b"text\nfine\ncaf\xe9\nfine\n" + b"na\xefve\n" * 4)
    with pytest.raises(PipelineError) as caught:
        read_table(file)
    message = str(caught.value)
    assert "not UTF-8 in 5 line(s): line 3: b'caf\\xe9'; line 5: b'na\\xefve'; line 6:" in message
    assert "line 7" not in message
    assert "iconv" in message


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("table.xlsx", b"", r"unknown suffix '\.xlsx': use one of \.parquet, \.csv"),
        ("table", b"", "unknown suffix ''"),
        ("table.csv", None, "no such file"),
        ("table.csv", b"", "no rows: the file is empty"),
        ("table.tsv", b'a\tb\n"open\t1\n', "cannot be read as tsv"),
        ("table.parquet", b"PAR1 and no more", "cannot be read as parquet"),
        ("table.parquet", b"", "cannot be read as parquet"),
    ],
)
def test_a_file_that_is_no_table_is_named_with_the_reason(
    name: str, content: bytes | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PipelineError, match=said) as caught:
        read_table(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_is_not_written_under_an_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="unknown suffix"):
        write_table(pd.DataFrame({"a": [1]}), tmp_path / "table.xlsx")
    assert not list(tmp_path.iterdir())
