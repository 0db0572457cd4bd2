"""Grids of a study: a row stands for every combination of its values."""

from typing import Any

import pytest

from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError, shortened

SMALL: dict[str, Any] = {"name": "small", "methods": ["full", "sweep"], "targets": ["sst"], "seeds": [1]}


def parse(row: dict[str, Any], **changes: Any) -> Study:
    return parse_study(SMALL | {"rows": {"sweep": {"method": "full", **row}}} | changes, "small.toml")


def test_a_grid_is_a_row_for_every_combination_the_last_key_fastest() -> None:
    study = parse({"grid": {"epochs": [2, 4], "head_dropout": [0.0, 0.3]}, "recipe": {"epochs": 9, "batch_size": 8}})
    assert study.methods == ("full", "sweep-1", "sweep-2", "sweep-3", "sweep-4")
    recipes = [study.recipe_for(name, "sst") for name in study.methods[1:]]
    assert [(r.epochs, r.head_dropout, r.batch_size) for r in recipes] == [
        (2, 0.0, 8), (2, 0.3, 8), (4, 0.0, 8), (4, 0.3, 8),
    ]  # fmt: skip
    assert study.title("sweep-2") == "sweep, epochs 2, head_dropout 0.3"
    # What is kept of a study has no grid any more, and is the same study.
    assert parse_study(study.model_dump(), "again") == study


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"grid": [1, 2]}, "rows.sweep.grid:"),
        ({"grid": {"epochs": 3}}, "rows.sweep.grid.epochs:"),
        ({"grid": {"epochs": []}}, "rows.sweep.grid.epochs:"),
        ({"grid": {"epochs": [2, 0]}}, "rows.sweep-2.recipe: epochs:"),
        ({"grid": {"eponchs": [2]}}, "rows.sweep-1.recipe:"),
        ({"grid": {"epochs": [10**5000]}}, "rows.sweep-1.recipe: epochs:"),
        ({"grid": {"epochs": [2]}, "recipe": 3}, "rows.sweep.recipe:"),
        ({"grid": {"epochs": [2]}, "published": 3}, "rows.sweep.published:"),
        ({"grid": {"epochs": [2, 3]}, "published": ["a"]}, "rows.sweep.published:"),
    ],
    ids=lambda value: shortened(value),
)
def test_a_bad_grid_is_told(row: dict[str, Any], told: str) -> None:
    with pytest.raises(PipelineError) as caught:
        parse(row)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "changes", "key"),
    [
        ({"fusion": {"of": "adapter"}}, {}, "rows.fusion.of: 'adapter'"),
        ({"other": {"method": "adapter", "of": "adapter"}}, {}, "rows.other.of: 'adapter'"),
        ({"fusion": {"of": "plain", "own": ["plain", "adapter"]}}, {}, "rows.fusion.own: 'adapter'"),
        ({"merge": {}}, {"methods": ["merge"]}, "rows.merge.of: 'adapter'"),
        ({}, {"methods": ["full", "fusion"]}, "rows.fusion.of: 'adapter'"),
        ({}, {"reference": "adapter"}, "reference: 'adapter'"),
    ],
)
def test_a_grid_cannot_stand_for_one_row(rows: dict[str, Any], changes: dict[str, Any], key: str) -> None:
    rows = rows | {"plain": {"method": "adapter"}, "adapter": {"grid": {"bottleneck": [8, 16]}}}
    with pytest.raises(PipelineError) as caught:
        parse({}, rows=rows, **{"methods": ["full", "adapter"], "targets": ["sst", "sts"]} | changes)
    where, _, name = key.partition(": ")
    assert f"  {where}: " in str(caught.value) and name in str(caught.value)


def test_a_row_built_on_one_of_a_grid_has_its_recipe() -> None:
    rows = {
        "adapter": {"recipe": {"adapter": "pfeiffer", "epochs": 9}, "grid": {"bottleneck": [8, 16]}},
        "fusion": {"of": "adapter-2"},
        "read": {"method": "fusion", "of": "adapter-1", "variant_of": "forms-2"},
        "forms": {"method": "fusion", "of": "adapter-1", "grid": {"fusion": ["standard", "anchored"]}},
    }
    methods = ["full", "adapter", *list(rows)[1:]]
    study = parse({}, rows=rows, methods=methods, targets=["sst", "sts"], reference="adapter-1")
    recipe = study.recipe_for(study.row("fusion").of or "", "sts")
    assert (recipe.adapter.kind, recipe.bottleneck.width, recipe.epochs) == ("pfeiffer", 16, 9)
    with pytest.raises(PipelineError, match="rows.read.variant_of: 'forms'"):
        parse({}, rows={**rows, "read": {**rows["read"], "variant_of": "forms"}}, targets=["sst", "sts"])


@pytest.mark.parametrize("given", [{"smart": 2.0}, {"smart": {"weight": 2.0}, "epochs": 3}], ids=str)
def test_values_put_over_a_study_are_no_longer_keys_of_a_grid(given: dict[str, Any]) -> None:
    rows = {"sweep": {"method": "full", "grid": {"smart": [1.0, 5.0], "batch_size": [8, 16]}}}
    study = parse_study(SMALL | {"rows": rows}, "small.toml", given=given)
    recipes = [study.recipe_for(name, "sst") for name in study.methods[1:]]
    assert [(recipe.smart.weight, recipe.batch_size) for recipe in recipes] == [(2.0, 8), (2.0, 16)]
    alone = parse_study(SMALL | {"rows": rows}, "small.toml", given={**given, "batch_size": 4})
    assert alone.methods == ("full", "sweep")


@pytest.mark.parametrize("key", ["of", "members"])
def test_of_a_grid_an_ensemble_joins_all_rows(key: str) -> None:
    rows = {"full": {"grid": {"epochs": [2, 4]}}, "all": {"method": "ensemble", key: ["full", "frozen"]}}
    study = parse({}, rows=rows, methods=["frozen", "all"], scoring="half")
    assert study.row("all").members == ("full-1", "full-2", "frozen")
