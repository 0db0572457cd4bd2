"""The training settings in which rows differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.data.tasks.extra import Extra, parse_extra
from pipeline.records.studies import Line
from pipeline.reporting.cells import line_cell
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, runs_of
from pipeline.reporting.text import MISSING
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import keys_in_effect
from pipeline.system.backbone_name import backbone_text

# The row's name or the main table already shows these.
_LEFT_OUT = {"trainable", "epochs", "min_steps"}


def settings_table(runs: StudyRuns) -> Table | None:
    """A column per setting in which the main table's runs differ; None if all agree."""
    trained = [row for row in runs.rows if not KINDS[runs.study.row(row).method].is_ensemble and runs.all(row)]
    groups = {row: [(scored, _in_effect(runs.recipe_of(scored))) for scored in runs.all(row)] for row in trained}
    recipes = [recipe for group in groups.values() for _, recipe in group]
    usual = Recipe().flat().items()
    keys = [key for key, value in usual if key not in _LEFT_OUT and _differs(recipes, key, value)]
    backbones = {row: runs.study.row(row).backbone or runs.result.backbone for row in groups}
    differ = len(set(backbones.values())) > 1
    if not keys and not differ:
        return None
    rows = [
        {
            "method": line_cell(runs, Line(row), runs_of(runs.all(row))),
            **({"backbone": Cell(backbone_text(backbones[row]))} if differ else {}),
            **{key.replace("_", " "): Cell(_value(group, key)) for key in keys},
        }
        for row, group in groups.items()
    ]
    return Table.of("settings", rows)


def _in_effect(recipe: Recipe) -> dict[str, Any]:
    """The settings that have an effect, flattened."""
    effective = keys_in_effect(recipe)
    return {key: value for key, value in recipe.flat().items() if key in effective}


def _differs(recipes: Sequence[Mapping[str, Any]], key: str, usual: Any) -> bool:
    """Whether ``key`` differs between runs, or affects only some runs and is not ``usual`` there."""
    values = {str(recipe[key]) for recipe in recipes if key in recipe}
    of_some = any(key not in recipe for recipe in recipes)
    return len(values) > 1 or (of_some and not values <= {str(usual)})


def _value(group: list[tuple[Scored, dict[str, Any]]], key: str) -> str:
    """One value, or several with their tasks."""
    tasks: dict[str, dict[str, None]] = {}
    for scored, recipe in group:
        tasks.setdefault(_shown(recipe.get(key)), {})[scored.entry.target] = None
    if len(tasks) == 1:
        return next(iter(tasks))
    return "; ".join(f"{value} ({', '.join(names)})" for value, names in tasks.items())


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):  # only extra data is a table
        return ", ".join(str(Extra.model_validate(source)) for source in parse_extra(value)) or MISSING
    return MISSING if value is None else str(value)
