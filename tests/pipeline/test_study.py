"""Every shipped study is valid with all its recipes, and a bad one is told all its mistakes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stages
from pipeline.errors import PipelineError
from pipeline.recipe import Recipe
from pipeline.study import TRAINABLE, Study, read_study, study_names

STUDIES = Path(stages.__file__).parent / "studies"
SHIPPED = sorted(file.stem for file in STUDIES.iterdir() if file.suffix == ".toml")
SMALL: dict[str, Any] = {"name": "small", "methods": ["full", "adapter"], "targets": ["sst", "sts"], "seeds": [1, 2]}


def parse(**changes: Any) -> Study:
    return Study.parse(SMALL | changes, "small.toml")


def test_the_default_and_the_demo_study_are_shipped() -> None:
    assert {"default", "demo"} <= set(SHIPPED)
    assert study_names(STUDIES) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_study_parses_with_all_its_recipes(name: str) -> None:
    study = read_study(name, STUDIES, {})
    assert study.name == name
    assert study.description
    assert study.reference in study.methods
    assert set(study.recipes) <= set(study.methods)
    for method in study.methods:
        assert study.recipe_for(method).trainable == TRAINABLE[method]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_study_survives_json(name: str) -> None:
    study = read_study(name, STUDIES, {})
    assert Study.model_validate_json(study.model_dump_json()) == study


def test_the_recipe_of_a_method_is_the_studys_with_its_own_keys_over_it() -> None:
    study = parse(recipe={"epochs": 3, "batch_size": 8}, recipes={"full": {"epochs": 5}})
    assert study.recipe_for("full") == Recipe(trainable="full", epochs=5, batch_size=8)
    assert study.recipe_for("adapter") == Recipe(trainable="adapter", epochs=3, batch_size=8)


def test_what_a_method_trains_is_not_for_a_recipe_to_say() -> None:
    assert parse(recipe={"trainable": "head"}).recipe_for("full").trainable == "full"


def test_values_put_over_a_study_hold_for_every_method() -> None:
    study = parse(recipe={"epochs": 3}, recipes={"full": {"epochs": 5, "batch_size": 4}})
    changed = study.with_recipe(epochs=1)
    assert [changed.recipe_for(method).epochs for method in ("full", "adapter")] == [1, 1]
    assert changed.recipe_for("full").batch_size == 4
    assert changed.model_dump(exclude={"recipe", "recipes"}) == study.model_dump(exclude={"recipe", "recipes"})
    assert study.recipe_for("full").epochs == 5


def test_bad_values_put_over_a_study_are_refused() -> None:
    with pytest.raises(PipelineError, match="study small.*\n.*epochs"):
        parse().with_recipe(epochs=0)


def test_overrides_stand_in_place_of_the_files_keys() -> None:
    study = read_study("default", STUDIES, {"targets": ["sst", "sts"], "seeds": [9], "limit": 100})
    assert (study.targets, study.seeds, study.limit) == (("sst", "sts"), (9,), 100)
    assert study.methods == read_study("default", STUDIES, {}).methods


def test_bad_overrides_are_told_with_the_files_own_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('methods = ["full"]\ntargets = ["sst"]\ncolour = 1\n')
    with pytest.raises(PipelineError) as caught:
        read_study(str(file), STUDIES, {"seeds": [1, 1]})
    message = str(caught.value)
    assert message.startswith(f"{file}: 2 mistakes")
    assert "colour: unknown key" in message
    assert "seeds: a value stands twice (got [1, 1])" in message


def test_a_study_is_found_by_its_file_and_named_like_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('methods = ["full"]\ntargets = ["sst"]\nseeds = [1]\n')
    assert read_study(str(file), STUDIES, {}).name == "mine"
    file.write_text('name = "other"\n' + file.read_text())
    assert read_study(str(file), STUDIES, {}).name == "other"


@pytest.mark.parametrize("name", ["nothing", "nothing.toml"])
def test_an_unknown_study_is_answered_with_those_there_are(name: str) -> None:
    with pytest.raises(PipelineError) as caught:
        read_study(name, STUDIES, {})
    assert f"unknown study '{name}'" in str(caught.value)
    assert ", ".join(SHIPPED) in str(caught.value)


@pytest.mark.parametrize("content", [b"seeds = [", b'name = "\xff"'])
def test_an_unreadable_study_file_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    with pytest.raises(PipelineError, match="not a readable TOML file") as caught:
        read_study(str(file), STUDIES, {})
    assert str(file) in str(caught.value)


BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing at all": (
        dict.fromkeys(SMALL, ()),
        ["name: ", "methods: Tuple should have at least 1 item", "targets: Tuple", "seeds: Tuple"],
    ),
    "one of each kind": (
        {"colour": 1, "limit": 0, "methods": ["full", "lora"], "seeds": [1, 2, 1], "targets": ["sst", "../sts"]},
        ["colour: unknown key", "limit: Input", "methods.1: Input", "targets.1: String", "seeds: a value stands twice"],
    ),
    "values that stand twice": (
        {"methods": ["full", "full"], "targets": ["sst", "sst"], "seeds": [3, 3]},
        ["methods: a value stands twice", "targets: a value stands twice", "seeds: a value stands twice"],
    ),
    "too few tasks": (
        {"methods": ["fusion", "sequential"], "targets": ["sst"]},
        ["targets: fusion needs at least two tasks", "targets: sequential tuning needs at least two"],
    ),
    "mistakes in recipes": (
        {"recipes": {"full": {"epochs": 0, "epoch": 1}, "adapter": {"bottleneck": "wide"}}, "targets": ["a", "a"]},
        [
            "targets: a value stands twice",
            "recipe of full: epochs: Input",
            "recipe of full: epoch: unknown key",
            "recipe of adapter: bottleneck: Input",
        ],
    ),
    "a mistake of the study and one of a recipe": (
        {"colour": 1, "recipes": {"full": {"epochs": 0}}},
        ["colour: unknown key", "recipe of full: epochs: Input"],
    ),
    "a recipe whose keys do not go together": (
        {"recipes": {"adapter": {"encoding": "cross", "head": "cosine"}}},
        ["recipe of adapter: head: 'cosine' compares two sentence vectors"],
    ),
    "a recipe for a method there is none of": (
        {"recipes": {"lora": {"epochs": 2}}, "limit": "all"},
        ["recipes.lora", "limit: Input should be a valid integer"],
    ),
    "a recipe that is no table": ({"recipe": 3, "target_limit": -1}, ["recipe: Input", "target_limit: Input"]),
    "seeds that no generator takes": ({"seeds": [-1, 2], "limit": 0}, ["seeds", "limit: Input"]),
}


@pytest.mark.parametrize(("changes", "expected"), BAD.values(), ids=list(BAD))
def test_a_bad_study_is_told_all_its_mistakes_at_once(changes: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(PipelineError) as caught:
        parse(**changes)
    heading, *lines = (line.strip() for line in str(caught.value).splitlines())
    assert heading == f"small.toml: {len(lines)} mistake{'s' if len(lines) > 1 else ''}"
    assert not [start for start in expected if not any(line.startswith(start) for line in lines)], lines
    assert len(lines) == len(expected), lines


def test_a_mistake_in_the_shared_recipe_is_told_once_and_not_for_every_method() -> None:
    with pytest.raises(PipelineError, match="1 mistake\n.*epochs"):
        parse(recipe={"epochs": 0})


def test_sources_make_fusion_possible_with_one_target() -> None:
    assert parse(methods=["fusion"], targets=["sst"], sources=["imdb"], reference="fusion").sources == ("imdb",)
