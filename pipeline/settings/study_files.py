"""Studies in files: list them, and read one with the options of a command."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.settings.parse_study import parse_study
from pipeline.settings.raw import listed
from pipeline.settings.recipe import table
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError
from pipeline.system.reading import present, read_toml


def read_study(
    name: str, folder: Path, overrides: Mapping[str, Any], recipe: Mapping[str, Any] = MappingProxyType({})
) -> Study:
    """Read the study ``name`` in ``folder``, or a TOML file; ``overrides`` replace its keys.

    ``recipe`` overrides the recipes of all its rows, as ``given`` does in :func:`parse_study`.

    The file's settings for tasks and rows that the overrides leave out are ignored. In the overrides, ``curve`` says
    whether to use a curve, the study's or the default one, and ``curve_rows`` are its points. ``scoring`` is the word
    for all tasks that have none; the rest of the study's ``[scoring]`` stays.
    """
    file = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    if not present(file):
        if present(local := Path(f"{name}.toml")):
            raise PipelineError(f"unknown study '{name}': did you mean {local}?")
        known = ", ".join(study_names(folder))
        raise PipelineError(f"unknown study '{name}': name one of {known}, or a TOML file")
    values = {"name": file.stem, **read_toml(file)}
    known_tasks = [task for key in ("targets", "sources") for task in listed(values.get(key))]
    changes = dict(overrides)
    curve, points = changes.pop("curve", None), changes.pop("curve_rows", None)
    if curve is False and points is not None:
        raise PipelineError("--curve-rows with --no-curve: give one of them")
    if curve is False:
        values.pop("curve", None)
    elif points is not None:
        values["curve"] = {**table(values.get("curve")), "rows": points}
    elif curve:
        values.setdefault("curve", {})
    if isinstance(values.get("scoring"), Mapping) and "scoring" in changes:
        changes["scoring"] = {**values["scoring"], "rows": changes["scoring"]}
    if "methods" in changes and values.get("reference") not in changes["methods"]:
        values.pop("reference", None)
    if {"targets", "sources"} & {*changes} and "description" in values:  # it describes other tasks
        tasks = {key: ", ".join(map(str, listed(changes.get(key, values.get(key))))) for key in ("targets", "sources")}
        values["description"] = f"On {tasks['targets']}" + (
            f", with sources {tasks['sources']}" if tasks["sources"] else ""
        )
    where = str(file) if name.endswith(".toml") else f"study '{name}'"  # a shipped study is not a file of the user's
    flags = [f"--{'no-' * (value is False)}{key.replace('_', '-')}" for key, value in overrides.items()]
    given = ", ".join([*flags, *(["training options"] if recipe else [])])
    return parse_study({**values, **changes}, f"{where} with {given}" if given else where, known_tasks, given=recipe)


def name_of_study(study: str) -> str:
    """The name under which a study's results are kept; ``study`` is that name, or the TOML file of the study."""
    return str(read_toml(Path(study)).get("name", Path(study).stem)) if study.endswith(".toml") else study


def study_names(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.toml"))
