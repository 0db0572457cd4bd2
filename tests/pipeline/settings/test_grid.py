"""Grids of a study, of which a row stands for every combination of its values, and what a row tunes."""

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


# Tuning.

TUNED: dict[str, Any] = {"name": "small", "methods": ["full", "adapter"], "targets": ["sst"], "seeds": [1]}


def tuned(row: dict[str, Any], given: dict[str, Any] | None = None, **changes: Any) -> Study:
    values = TUNED | {"rows": {"full": {"method": "full", **row}}} | changes
    return parse_study(values, "small.toml", given=given or {})


def test_a_row_has_a_trial_for_every_combination_the_last_key_fastest() -> None:
    study = tuned({"tune": {"epochs": [2, 4], "bottleneck": [8, 16, 32]}})
    trials = study.row("full").trials
    assert trials == [{"epochs": epochs, "bottleneck": width} for epochs in (2, 4) for width in (8, 16, 32)]
    recipes = [study.recipe_for("full", "sst", trial=trial) for trial in trials]
    assert [(recipe.epochs, recipe.bottleneck.width) for recipe in recipes] == [tuple(t.values()) for t in trials]
    assert study.row("adapter").trials == [{}]
    assert parse_study(study.model_dump(), "again") == study


def test_a_trials_values_are_over_every_recipe_but_the_rows_own() -> None:
    changes: dict[str, Any] = {
        "recipe": {"epochs": 1, "batch_size": 4},
        "tasks": {"sst": {"epochs": 2}},
        "curve": {"rows": [8], "recipe": {"epochs": 3}},
    }
    study = tuned({"tune": {"epochs": [5, 6]}}, **changes)
    recipe = study.recipe_for("full", "sst", curve=True, trial={"epochs": 6})
    assert (recipe.epochs, recipe.batch_size) == (6, 4)


def test_rows_tune_what_their_method_does_unless_they_say() -> None:
    rows = {"wide": {"method": "adapter"}, "fixed": {"like": "wide", "tune": {}}, "own": {"method": "adapter"}}
    rows["own"] |= {"tune": {"epochs": [1, 2, 3]}}
    study = tuned({}, methods=["full", "adapter", *rows], rows=rows, tune={"adapter": {"learning_rate": [1e-4, 1e-3]}})
    assert {name: len(study.row(name).trials) for name in study.methods} == {
        "full": 1, "adapter": 2, "wide": 2, "fixed": 1, "own": 3,
    }  # fmt: skip
    assert "(full fine-tuning 1; fixed 1; adapter 2; wide 2; own 3)" in study.unequal_trials
    rows |= {f"wide-{number}": {"like": "wide"} for number in range(4)}
    many = tuned({}, methods=["full", "adapter", *rows], rows=rows, tune={"adapter": {"learning_rate": [1e-4, 1e-3]}})
    assert "(full fine-tuning 1; fixed 1; own 3; the 6 others 2 each)" in many.unequal_trials


def test_only_an_ensemble_that_selects_has_the_trials_of_its_members() -> None:
    joined = {rule: {"method": "ensemble", "of": ["full", "adapter"], "rule": rule} for rule in ("uniform", "mean")}
    study = tuned({}, methods=["full", "adapter", *joined], rows=joined, scoring="half")
    assert [study.trials_on_target(name) for name in study.methods] == [1, 1, 1, 2]
    several = {rule: row | {"experts": 3} for rule, row in joined.items()}
    study = tuned({}, methods=[*several], rows=several, scoring="half")
    assert [study.trials_on_target(name) for name in study.methods] == [1, 6]
    both = tuned({}, methods=["full", *joined], rows=joined, scoring="half", tune={"full": {"epochs": [1, 2]}})
    assert both.trials_on_target("uniform") == both.trials_on_target("mean") == 3


def test_what_the_command_line_gives_is_tuned_no_longer() -> None:
    tune = {"adapter": {"epochs": [3, 4]}}
    given = tuned({"tune": {"epochs": [2, 4], "batch_size": [8, 16]}}, given={"epochs": 7}, tune=tune)
    assert [len(given.row(name).trials) for name in given.methods] == [2, 1]
    assert {given.recipe_for("full", "sst", trial=trial).epochs for trial in given.row("full").trials} == {7}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"tune": 3}, "rows.full.tune:"),
        ({"tune": {"epochs": 3}}, "rows.full.tune.epochs:"),
        ({"tune": {"epochs": []}}, "rows.full.tune.epochs:"),
        ({"tune": {"epochs": [2, 3, 2]}}, "rows.full.tune.epochs: 2 is listed twice"),
        ({"tune": {"extra": [{"sick": {}}, {"sick": {}}]}}, "rows.full.tune.extra:"),
        ({"tune": {"eponchs": [2]}}, "rows.full.tune.eponchs:"),
        ({"tune": {"epochs": [2, 0]}}, "rows.full.tune.epochs:"),
        ({"tune": {"bottleneck": [8, "wide"]}}, "rows.full.tune.bottleneck:"),
        ({"tune": {"encoding": ["cross"], "head": ["cosine"]}}, "rows.full.tune.head: 'cosine'"),
        ({"tune": {"trainable": ["full", "fusion"]}}, "rows.full.tune.trainable:"),
        ({"tune": {"merge": ["mean", "ties"]}}, "rows.full.tune.merge:"),
        ({"tune": {"epochs": list(range(1, 1002))}}, "rows.full.tune: 1001"),
        ({"tune": {"epochs": [2]}, "recipe": {"epochs": 3}}, "rows.full.tune.epochs:"),
        ({"tune": {"pal_size": [12]}, "recipe": {"pal": {"size": 24}}}, "rows.full.tune.pal_size:"),
        ({"tune": {"epochs": [2]}, "tasks": {"sst": {"epochs": 3}}}, "rows.full.tune.epochs:"),
        ({"tune": {"epochs": [2, 3]}, "grid": {"epochs": [4]}}, "rows.full-1.tune.epochs:"),
        ({"of_study": {"tune": {"ful": {"epochs": [1]}}}}, "tune.ful"),
        ({"of_study": {"tune": {"full": {"epochs": [0, 1]}}}}, "rows.full.tune.epochs:"),
        ({"of_study": {"tune_on": "seed 1"}}, "tune_on:"),
    ],
    ids=lambda value: shortened(value),
)
def test_what_cannot_be_tuned_is_told_once(row: dict[str, Any], told: str) -> None:
    own = {key: value for key, value in row.items() if key != "of_study"}
    with pytest.raises(PipelineError) as caught:
        tuned(own, **row.get("of_study", {}))
    assert told in str(caught.value)
    assert str(caught.value).startswith("small.toml: 1 problem\n")
