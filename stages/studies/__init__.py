"""The shipped studies, one TOML file each."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.settings.parse_study import read_study
from pipeline.settings.study import Study

STUDIES = Path(__file__).parent


def find_study(name: str, recipe: Mapping[str, Any] = MappingProxyType({}), **overrides: object) -> Study:
    """A shipped study or a study file, with the given keys in place of its own; None leaves a key alone.

    ``recipe`` is over the recipes of all rows.
    """
    return read_study(name, STUDIES, {key: value for key, value in overrides.items() if value is not None}, recipe)
