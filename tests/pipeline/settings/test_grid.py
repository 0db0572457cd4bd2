"""Grids of a study: a row stands for every combination of its values."""

from typing import Any

import pytest

from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError, shortened

ON_CURVE: dict[str, Any] = {
    "sweep": {"method": "full", "grid": {"smart": [1.0, 5.0], "batch_size": [8, 16]}},
    "all": {"method": "ensemble", "of": ["full", "sweep"]},
    "frozen": {"grid": {"smart": [1.0, 5.0]}},
    "lp-ft": {"method": "full", "of": "frozen-2"},
    "again": {"method": "sequential", "of": "sweep-1"},
}


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
        ({"grid": {}}, "rows.sweep.grid:"),
        ({"grid": [1, 2]}, "rows.sweep.grid:"),
        ({"grid": {"epochs": 3}}, "rows.sweep.grid.epochs:"),
        ({"grid": {"epochs": []}}, "rows.sweep.grid.epochs:"),
        ({"grid": {"epochs": [2, 0]}}, "rows.sweep-2.recipe: epochs:"),
        ({"grid": {"eponchs": [2]}}, "rows.sweep-1.recipe:"),
        ({"grid": {"epochs": [10**5000]}}, "rows.sweep-1.recipe: epochs:"),
        (
            {"grid": {"head_dropout": [0.1, 0.3]}, "tasks": {"sts": {"epochs": 2}, "sst": {"head_dropout": 0.2}}},
            "rows.sweep.grid.head_dropout: tasks.sst has it",
        ),
        (
            {"grid": {"pal_size": [12, 24]}, "tasks": {"sst": {"pal": {"size": 12}}}},
            "rows.sweep.grid.pal_size: tasks.sst has it",
        ),
        ({"grid": {"epochs": [2]}, "recipe": 3}, "rows.sweep.recipe:"),
        ({"grid": {"epochs": [2]}, "published": 3}, "rows.sweep-1.published:"),
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
    assert str(caught.value).splitlines() == [
        "small.toml: 1 problem",
        f"  {key} is a grid (adapter-1 to adapter-2): name one of its rows, or write tune instead of grid",
    ]


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
    with pytest.raises(PipelineError, match="rows.read.variant_of: 'forms' is a grid"):
        parse({}, rows={**rows, "read": {**rows["read"], "variant_of": "forms"}}, targets=["sst", "sts"])


@pytest.mark.parametrize("used", [{}, {"methods": ["full", "all"], "scoring": "half"}], ids=["row", "member"])
@pytest.mark.parametrize("given", [{"smart": 2.0}, {"smart": {"weight": 2.0}, "epochs": 3}], ids=str)
def test_values_put_over_a_study_do_not_replace_those_of_a_grid(used: dict[str, Any], given: dict[str, Any]) -> None:
    rows = {
        "sweep": {"method": "full", "grid": {"smart": [1.0, 5.0], "batch_size": [8, 16]}},
        "all": {"method": "ensemble", "of": ["full", "sweep"]},
    }
    with pytest.raises(PipelineError) as caught:
        parse_study(SMALL | {"rows": rows} | used, "small.toml", given=given)
    told = "smart: rows.sweep is a grid of it: leave the option out, or the row (--methods)"
    assert str(caught.value).splitlines() == ["small.toml: 1 problem", f"  {told}"]


@pytest.mark.parametrize(
    ("row", "methods", "grid"),
    [
        ("sweep", None, "sweep"),
        ("sweep", ["sweep-2"], "sweep"),
        ("all", ["all"], "sweep"),
        ("lp-ft", ["lp-ft"], "frozen"),
        ("sweep", ["full"], None),
        ("again", ["again"], None),  # the curve has the recipes of sources from the main table
    ],
)
@pytest.mark.parametrize("recipe", [{"smart": 2.0}, {"smart": {"weight": 2.0}, "epochs": 30}], ids=str)
def test_the_curves_recipe_does_not_replace_the_values_of_a_grid(
    row: str, methods: list[str] | None, grid: str | None, recipe: dict[str, Any]
) -> None:
    curve: dict[str, Any] = {"rows": [100], "recipe": recipe}
    changes = {"methods": ["full", row], "sources": ["mr"], "scoring": "half", "rows": ON_CURVE}
    if methods is not None:
        curve["methods"] = methods
    if grid is None:
        assert parse({}, curve=curve, **changes).curve_rows()
        return
    with pytest.raises(PipelineError) as caught:
        parse({}, curve=curve, **changes)
    told = f"rows.{grid}.grid.smart: curve.recipe sets it for all its cells: leave it out of one of them"
    assert str(caught.value).splitlines() == ["small.toml: 1 problem", f"  {told}"]
    # A curve without a point of its own trains nothing.
    assert parse({}, curve=curve, limit=100, **changes).curve_rows() == {}


@pytest.mark.parametrize("key", ["of", "members"])
def test_of_a_grid_an_ensemble_joins_all_rows(key: str) -> None:
    rows = {"full": {"grid": {"epochs": [2, 4]}}, "all": {"method": "ensemble", key: ["full", "frozen"]}}
    study = parse({}, rows=rows, methods=["frozen", "all"], scoring="half")
    assert study.row("all").members == ("full-1", "full-2", "frozen")
