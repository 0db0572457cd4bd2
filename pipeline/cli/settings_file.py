"""Read common options from a file: ``pipeline.toml``, or ``[tool.adapter-fusion]`` in pyproject.toml.

Uses the nearest file from the working folder upwards, as ruff does; files are not merged.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, ArgumentCollection, Token
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pipeline.cli.options import DATA, PLACES
from pipeline.system.errors import raise_all, validation_problems
from pipeline.system.reading import read_toml

OWN, SHARED, SECTION = "pipeline.toml", "pyproject.toml", "adapter-fusion"
_Text = Annotated[str, Field(pattern=r"\S")]
_Texts = Annotated[list[_Text], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    backbone: _Text | None = None
    data: Annotated[_Texts, Field(min_length=1)] | None = None
    store: _Text | None = None
    reports: _Text | None = None


def fill_in(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill in a command's missing place options from the settings file.

    Ignores settings for which the command has no option. If nothing sets ``data``, it is the folder ``data``, if that
    exists.

    Raises:
        PipelineError: as for :func:`settings`.
    """
    own = [each for each in arguments if PLACES in (each.parameter.group or ())]  # type: ignore[operator]
    if not own:
        return
    values = settings()
    if DATA.is_dir():
        values.setdefault("data", [str(DATA)])
    for argument in own:
        given = [] if argument.has_tokens else values.get(argument.name.removeprefix("--"), [])
        _, takes_several = argument.token_count()
        for index, value in enumerate(given if takes_several else given[:1]):
            argument.append(Token(keyword=argument.name, value=value, source=OWN, index=index))


def settings() -> dict[str, list[str]]:
    """The values of the nearest settings file, by key; paths are relative to the file.

    Raises:
        PipelineError: the file cannot be read, or has an unknown key or a value that is no path; all mistakes at once.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was deleted
        return {}
    for folder in (here, *here.parents):
        where, table = _table_in(folder)
        if table is not None:
            try:
                values = _Settings.model_validate(table).model_dump(exclude_none=True)
            except ValidationError as error:
                raise_all(where, validation_problems(error))
            # Paths in the working folder's file stay as written, because messages and records name them.
            base = Path() if folder == here else folder
            listed = {key: [value] if isinstance(value, str) else value for key, value in values.items()}
            return {key: [_place(key, value, base) for value in own] for key, own in listed.items()}
    return {}


def _table_in(folder: Path) -> tuple[str, Any]:
    """The settings file in ``folder``, for messages, and its table; None if there is none."""
    if (folder / OWN).is_file():
        return str(folder / OWN), read_toml(folder / OWN)
    tool = read_toml(folder / SHARED).get("tool") if (folder / SHARED).is_file() else None
    return f"{folder / SHARED}: [tool.{SECTION}]", tool.get(SECTION) if isinstance(tool, Mapping) else None


def _place(key: str, value: str, folder: Path) -> str:
    """``value`` of ``key`` in the file in ``folder``, relative to the working folder."""
    is_path = key != "backbone" or value.startswith((".", "/")) or (folder / value).is_dir()
    return str(folder / value) if is_path else value
