"""The shipped studies, one TOML file each, and the study files of users."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import table
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError
from pipeline.system.reading import present, read_toml

STUDIES = Path(__file__).parent


def find_study(name: str, recipe: Mapping[str, Any] = MappingProxyType({}), **overrides: Any) -> Study:
    """Read a shipped study, or a TOML file; ``overrides`` that are not None replace its keys.

    ``recipe`` overrides the recipes of all its rows, as ``given`` does in :func:`parse_study`.

    The file's settings for tasks and rows that the overrides leave out are ignored. In the overrides, ``curve`` says
    whether to use a curve, the study's or the default one, and ``curve_rows`` are its points. ``scoring`` is the word
    for all tasks that have none; the rest of the study's ``[scoring]`` stays.
    """
    is_file = name.endswith(".toml")
    file = Path(name) if is_file else STUDIES / f"{name}.toml"
    if not present(file):
        if present(local := Path(f"{name}.toml")):
            raise PipelineError(f"unknown study '{name}': did you mean {local}?")
        raise PipelineError(f"unknown study '{name}': name one of {', '.join(study_names())}, or a TOML file")
    values = {"name": file.stem, **read_toml(file)}
    known_tasks = [task for key in ("targets", "sources") if isinstance(values.get(key), list) for task in values[key]]
    changes = {key: value for key, value in overrides.items() if value is not None}
    flags = [f"--{'no-' * (value is False)}{key.replace('_', '-')}" for key, value in changes.items()]
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
    if {"targets", "sources"} & {*changes}:
        values.pop("description", None)  # it describes other tasks
    where = str(file) if is_file else f"study '{name}'"  # a shipped study is not a file of the user's
    given = ", ".join([*flags, *(["training options"] if recipe else [])])
    return parse_study({**values, **changes}, f"{where} with {given}" if given else where, known_tasks, given=recipe)


def study_names() -> list[str]:
    """The shipped studies."""
    return sorted(file.stem for file in STUDIES.glob("*.toml"))


def name_of_study(study: str) -> str:
    """The name under which a study's results are kept; ``study`` is that name, or the TOML file of the study."""
    return str(read_toml(Path(study)).get("name", Path(study).stem)) if study.endswith(".toml") else study
