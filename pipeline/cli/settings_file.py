"""Read common options from a file: ``pipeline.toml``, or ``[tool.adapter-fusion]`` in pyproject.toml.

Uses the nearest file from the working folder upwards, as ruff does; files are not merged.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cyclopts import App, ArgumentCollection, Token

from pipeline.cli.options import DATA, PLACES
from pipeline.system.errors import PipelineError, raise_all, shortened
from pipeline.system.reading import read_toml

OWN, SHARED, SECTION = "pipeline.toml", "pyproject.toml", "adapter-fusion"
KEYS = ("backbone", "data", "store", "reports")


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
        own = _in(folder)
        if own is not None:
            # Paths in the working folder's file stay as written, because messages and records name them.
            base = Path() if folder == here else folder
            return {key: [_place(key, value, base) for value in values] for key, values in own.items()}
    return {}


def _in(folder: Path) -> dict[str, list[str]] | None:
    """The settings file in ``folder``; None if there is none."""
    where, table = f"{folder / SHARED}: [tool.{SECTION}]", None
    if (folder / OWN).is_file():
        where, table = str(folder / OWN), read_toml(folder / OWN)
    elif (folder / SHARED).is_file():
        tool = read_toml(folder / SHARED).get("tool")
        table = tool.get(SECTION) if isinstance(tool, Mapping) else None
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise PipelineError(f"{where}: write a table with the keys {', '.join(KEYS)}")
    raise_all(where, list(_problems(table)))
    return {key: [value] if isinstance(value, str) else list(value) for key, value in table.items()}


def _problems(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        several = value if key == "data" and isinstance(value, list) and value else [value]
        if key not in KEYS:
            yield f"{shortened(key)}: unknown key: the keys are {', '.join(KEYS)}"
        elif not all(isinstance(each, str) and each.strip() for each in several):
            what = "a folder, or a list of folders," if key == "data" else "a folder"
            what = "a folder or a Hub id" if key == "backbone" else what
            yield f"{key}: write {what} in quotes (got {shortened(value)})"


def _place(key: str, value: str, folder: Path) -> str:
    """``value`` of ``key`` in the file in ``folder``, relative to the working folder."""
    is_path = key != "backbone" or value.startswith((".", "/")) or (folder / value).is_dir()
    return str(folder / value) if is_path else value
