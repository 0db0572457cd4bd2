"""Whatever is wrong with a file that someone else wrote is reported in one line with its name."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from pipeline.system import reading
from pipeline.system.errors import PipelineError
from pipeline.system.reading import ModelFiles, read_json, read_model, read_toml


class Point(BaseModel):
    x: int


def toml(file: Path) -> object:
    return read_toml(file)


def json(file: Path) -> object:
    return read_json(file, "write it again")


def model(file: Path) -> object:
    return read_model(Point, file, "write it again")


def fifo(file: Path) -> None:
    os.mkfifo(file)


def circle(file: Path) -> None:
    file.symlink_to(file)


BAD: dict[str, tuple[Callable[[Path], object], bytes | Callable[[Path], None] | None, str]] = {
    "missing": (toml, None, "no such file"),
    "a folder": (json, Path.mkdir, "there is a folder where a file is needed"),
    "a pipe nobody writes to": (json, fifo, "not a regular file"),
    "a circle of links": (json, circle, "its links go round in a circle"),
    "not UTF-8": (toml, b'a = "\xff"', "not UTF-8 text (byte 5)"),
    "not TOML": (toml, b"a = = 1", "cannot be read (Invalid value (at line 1, column 5)): write it as TOML"),
    "TOML nested 10^5 deep": (toml, b"a = " + b"[" * 10**5 + b"]" * 10**5, "cannot be read"),
    "a number of 5,000 digits": (toml, b"a = " + b"9" * 5000, "cannot be read (Exceeds the limit"),
    "JSON nested 10^5 deep": (json, b"[" * 10**5 + b"]" * 10**5, "nested too deeply): write it again"),
    "JSON cut off": (json, b'{"x": ', "cannot be read (Expecting value"),
    "another model": (model, b'{"x": "one"}', "x: Input should be a valid integer"),
    "a model nested 10^5 deep": (model, b'{"x": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "write it again"),
    "a model with a number of 5,000 digits": (model, b'{"x": ' + b"9" * 5000 + b"}", "write it again"),
}


@pytest.mark.timeout(20)  # an opened pipe would wait for ever
@pytest.mark.parametrize("name", BAD)
def test_one_line_with_the_files_name(name: str, tmp_path: Path) -> None:
    read, content, expected = BAD[name]
    file = tmp_path / "given"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        content(file)
    with pytest.raises(PipelineError) as caught:
        read(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: ") and expected in message
    assert "\n" not in message and len(message) < len(str(file)) + 400


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_bytes(b"\xef\xbb\xbfa = 1")
    assert read_toml(file) == {"a": 1}


def test_a_bug_stays_a_bug(tmp_path: Path) -> None:
    class Broken(BaseModel):
        def __init__(self) -> None:
            raise ZeroDivisionError

    file = tmp_path / "given"
    file.write_text("{}")
    with pytest.raises(ZeroDivisionError):
        read_model(Broken, file, "")


def nested() -> object:
    value: list[object] = []
    for _ in range(10**5):
        value = [value]
    return value


def test_a_model_is_parsed_once_until_its_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, files = tmp_path / "point.json", ModelFiles(Point, "write it again")
    assert files.read(file) is None
    file.write_text('{"x": 1}')
    first = files.read(file)
    assert first == Point(x=1) and files.read(file) is first
    file.write_text('{"x": 20}')
    assert files.read(file) == Point(x=20)
    damaged, lost = tmp_path / "damaged.json", tmp_path / "link.json"
    damaged.write_text("{")
    lost.symlink_to(tmp_path / "nothing")
    found = files.read_all([file, damaged, tmp_path / "missing.json", lost])
    assert {path: type(each) for path, each in found.items()} == {
        file: Point, damaged: PipelineError, lost: PipelineError,
    }  # fmt: skip

    def late(*arguments: object) -> object:
        file.unlink()
        return read_model(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "read_model", late)
    assert ModelFiles(Point, "write it again").read(file) is None
