"""What a user can fix is reported with its place and reason; everything else stays a bug."""

import errno
import os
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from safetensors import SafetensorError

from pipeline.system.errors import PipelineError, raise_all, validation_problems, writing

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
    errno.ENOENT: "nothing can be made there",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "its links go round in a circle",
    errno.EIO: "the disk fails",
}
UNKNOWN = [errno.EINTR, errno.ENOMEM, errno.EBUSY, errno.EBADF]
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


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: int = Field(gt=0)


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    parts: tuple[Inner, ...] = ()

    @field_validator("name")
    @classmethod
    def _short(cls, name: str) -> str:
        if len(name) > 3:
            raise ValueError("too long")
        return name


def test_each_mistake_is_one_line_with_its_key_and_value() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"name": "long name", "parts": [{"size": 0}, {"size": "big"}, {}, {"size": 1, "x": 2}]})
    assert validation_problems(caught.value) == [
        "name: too long (got 'long name')",
        "parts.0.size: Input should be greater than 0 (got 0)",
        "parts.1.size: Input should be a valid integer, unable to parse string as an integer (got 'big')",
        "parts.2.size: missing",
        "parts.3.x: unknown key",
    ]


@pytest.mark.parametrize(
    ("problems", "message"),
    [
        (["a"], "file: 1 problem\n  a"),
        (["a", "b: c"], "file: 2 problems\n  a\n  b: c"),
        (["a", "b", "a"], "file: 2 problems\n  a\n  b"),
    ],
)
def test_all_problems_are_raised_in_one_error(problems: list[str], message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        raise_all("file", problems)
    assert str(caught.value) == message
