"""What a user can fix is reported with its place and reason; everything else stays a bug."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel
from safetensors import SafetensorError

from pipeline.system.errors import PipelineError, raise_all, writing
from pipeline.system.reading import ModelFiles, read_json, read_model, read_toml

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file size limit is reached",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOTDIR: "there is a file where a folder is needed",
    errno.EEXIST: "there is a file where a folder is needed",
    errno.EISDIR: "there is a folder where a file is needed",
    errno.ENOENT: "no such file",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "its links go round in a circle",
    errno.EIO: "the disk fails",
    errno.ENOMEM: "out of memory",
}
UNKNOWN = [errno.EINTR, errno.EBUSY, errno.EBADF]
FORMS = [
    'Error while serializing: IoError(Os {{ code: {number}, kind: Other, message: "no" }})',
    "Error while serializing: I/O error: no (os error {number})",
]


def message_for(error: Exception) -> str:
    with pytest.raises(PipelineError) as caught, writing(Path("/some/file")):
        raise error
    assert caught.value.__cause__ is error
    return str(caught.value)


@pytest.mark.parametrize("number", REASONS, ids=errno.errorcode.get)
def test_a_refused_write_is_reported_with_path_and_reason(number: int) -> None:
    assert message_for(OSError(number, os.strerror(number))).startswith(f"cannot write /some/file: {REASONS[number]}.")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", REASONS, ids=errno.errorcode.get)
def test_safetensors_errors_are_reported_alike(number: int, form: str) -> None:
    error = SafetensorError(form.format(number=number))
    assert message_for(error) == message_for(OSError(number, ""))


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, os.strerror(number)) for number in UNKNOWN),
        *(SafetensorError(form.format(number=number)) for form in FORMS for number in UNKNOWN),
        SafetensorError("Error while deserializing header: InvalidHeader"),
        ValueError("code: 28, os error 28"),
        KeyboardInterrupt(),
        PipelineError("already said"),
    ],
    ids=repr,
)
def test_anything_else_goes_through_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, writing(Path("/some/file")):
        raise error
    assert caught.value is error


def test_each_problem_is_told_once() -> None:
    with pytest.raises(PipelineError, match=r"^file: 2 problems\n  a\n  b$"):
        raise_all("file", ["a", "b", "a"])


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


def test_a_model_is_parsed_once_until_its_file_changes(tmp_path: Path) -> None:
    file, files = tmp_path / "point.json", ModelFiles(Point, "write it again")
    assert files.read(file) is None
    file.write_text('{"x": 1}')
    first = files.read(file)
    assert first == Point(x=1) and files.read(file) is first
    file.write_text('{"x": 20}')
    assert files.read(file) == Point(x=20)
    file.unlink()
    assert files.read(file) is None
