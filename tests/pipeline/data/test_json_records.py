"""Tables in JSON: lists of records and objects of lists are read, and anything else is refused by its name."""

from pathlib import Path

import pandas as pd
import pytest

from pipeline.data.foreign import read_foreign
from pipeline.data.tables import read_table, write_table
from pipeline.system.errors import PipelineError

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
    assert type(rows["label"][0]) is int


def test_what_is_written_is_a_list_of_records(tmp_path: Path) -> None:
    table = pd.DataFrame(ROWS, dtype=object)
    write_table(table, tmp_path / "a.json")
    assert pd.read_json(tmp_path / "a.json")["text"].tolist() == ["né, \n", "NA"]
    assert read_table(tmp_path / "a.json").to_dict("records") == ROWS


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value: line 1"),
        ('[{"text": "a"},\n {"text" "b"}]', "delimiter: line 2 column 10"),
        ("[]", "no rows"),
        ("{}", "no rows"),
        ('["a", "b"]', "no list of rows"),
        ('{"data": {"text": "a"}}', "no list of rows"),
        ("7", "no list of rows"),
        ('{"text": ["a", "b"], "label": [1]}', "same length"),
        ("[" * 10**5, "nested too deeply"),
        ('[{"a": 1}] x', "line 1 is not JSON"),
    ],
)
def test_what_holds_no_rows_is_refused_in_one_line(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(PipelineError, match=reason) as caught:
        read_table(tmp_path / "a.json")
    assert "\n" not in str(caught.value)
