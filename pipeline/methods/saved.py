"""Adapters and fusions on disk, and AdapterHub's configuration of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import read_json


@dataclass(frozen=True)
class SavedModules:
    """A task's adapter, or the fusion trained for it, in a folder. The recipe determines what the folder must hold."""

    task: str
    """The task that it was trained for, which is its name in AdapterHub's files."""
    recipe: Recipe
    folder: Path
    remedy: str = "train it again"
    """What a user should do about a damaged file, for messages."""


def check_config(file: Path, name: str, expected: Mapping[str, Any], remedy: str) -> None:
    """Check AdapterHub's configuration of the adapter or fusion ``name`` against what the recipe makes.

    Nothing here is built from the file, but stock AdapterHub builds from it, and must get the same.

    Raises:
        PipelineError: it cannot be read, or differs from ``expected``; the first difference is named.
    """
    read = read_json(file, remedy)
    settings = read.get("config") if isinstance(read, dict) else None
    if not isinstance(settings, dict):
        raise PipelineError(f"{file}: not a configuration of AdapterHub's: {remedy}")
    actual, wanted = {**settings, "name": read.get("name")}, {**expected, "name": name}
    for key in sorted(actual.keys() | wanted.keys()):
        if key not in actual:
            difference = f"it lacks {key}"
        elif key not in wanted:
            difference = f"AdapterHub knows no {shortened(key)}"
        elif actual[key] != wanted[key]:
            difference = f"{key} is {shortened(actual[key])}, not {wanted[key]!r}"
        else:
            continue
        raise PipelineError(f"{file}: does not fit its recipe ({difference}): {remedy}")
