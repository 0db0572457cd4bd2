"""The reference of settings says what the code has; ``UPDATE_DOCS=1`` writes it anew."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from pipeline.settings.recipe import FLAGS, PARTS, Recipe
from pipeline.stats.names import METRICS_OF

FILE = Path(__file__).parents[1] / "docs/settings.md"
_HEAD = """# Settings

Every key of a recipe. "Not set" means: from the task, from the method, or off. A key of a part is written in its table
or under its flat name; the first keys belong to no part. [Recipes](recipes.md) says which to use for what.
"""


def _default(value: Any) -> str:
    return {None: "not set", (): "none"}.get(value, str(value).lower())


def _rows(fields: dict[str, FieldInfo], flat: dict[str, str]) -> Iterator[str]:
    for key, field in fields.items():
        names = f"`{key}` | `{flat[key]}`" if flat else f"`{key}`"
        yield f"| {names} | {_default(field.default)} | {(field.description or '').replace('|', chr(92) + '|')} |"


def reference() -> str:
    text = [_HEAD, "| key | default | |", "| --- | --- | --- |"]
    text += _rows({key: field for key, field in Recipe.model_fields.items() if key not in PARTS}, {})
    for name, part in PARTS.items():
        flat = {key: flag for flag, (owner, key) in FLAGS.items() if owner == name}
        text += [
            "",
            f"## {name}",
            "",
            *([part.__doc__, ""] if part.__doc__ else []),
            "| key | flat | default | |",
            "| --- | --- | --- | --- |",
        ]
        text += _rows(part.model_fields, flat)
    text += ["", "## Metrics", "", "What the `metric` of a task may be:", "", "| kind | metrics |", "| --- | --- |"]
    text += [f"| {kind} | {', '.join(f'`{name}`' for name in names)} |" for kind, names in METRICS_OF.items()]
    return "\n".join(text) + "\n"


def test_every_setting_stands_in_the_reference_as_it_is() -> None:
    if os.environ.get("UPDATE_DOCS"):
        FILE.write_text(reference(), encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == reference()
