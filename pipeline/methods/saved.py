"""Modules on disk, and AdapterHub's configuration of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import read_json


@dataclass(frozen=True)
class SavedModules:
    """A task's modules, or the fusion trained for it, in a folder. The recipe says what the folder must hold."""

    task: str
    """The task that they were trained for: AdapterHub's files name an adapter after it."""
    recipe: Recipe
    folder: Path
    remedy: str = "train it again"
    """What a user should do about a file that is damaged, for messages."""


def check_config(file: Path, name: str, expected: Mapping[str, Any], remedy: str) -> None:
    """Check AdapterHub's configuration ``file`` against what the recipe makes.

    Nothing here is built from the file. Who gives the folder to stock AdapterHub gets what the file says, and that has
    to be the same.

    Args:
        name: of the adapter or fusion.
        expected: the settings of its modules.

    Raises:
        PipelineError: it cannot be read, or says something else; the first difference is named.
    """
    read = read_json(file, remedy)
    settings = read.get("config") if isinstance(read, dict) else None
    if not isinstance(settings, dict):
        raise PipelineError(f"{file}: not a configuration of AdapterHub's: {remedy}")
    found, wanted = {**settings, "name": read.get("name")}, {**expected, "name": name}
    for key in sorted(found.keys() | wanted.keys()):
        if key not in found:
            raise PipelineError(f"{file}: does not fit its recipe (it lacks {key}): {remedy}")
        if key not in wanted:
            raise PipelineError(f"{file}: does not fit its recipe (AdapterHub knows no {shortened(key)}): {remedy}")
        if found[key] != wanted[key]:
            difference = f"{key} is {shortened(found[key])}, not {wanted[key]!r}"
            raise PipelineError(f"{file}: does not fit its recipe ({difference}): {remedy}")
