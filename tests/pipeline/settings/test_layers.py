"""Layers are read as they are written, and a mistake in them is told."""

import pytest

from pipeline.settings.fields import check_layers, layers_option, layers_text, parse_layers
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError


@pytest.mark.parametrize(
    ("written", "layers", "text"),
    [
        ("0-4", (0, 1, 2, 3, 4), "0-4"),
        ("3, 0,1", (0, 1, 3), "0-1,3"),
        ("0-2,5,1-3", (0, 1, 2, 3, 5), "0-3,5"),
        ([5, 0, 0], (0, 5), "0,5"),
        ("", (), ""),
        ([], (), ""),
    ],
)
def test_layers_are_read_and_written(written: object, layers: tuple[int, ...], text: str) -> None:
    assert parse_layers(written) == layers
    assert layers_text(layers) == text
    assert parse_layers(text) == layers


@pytest.mark.parametrize("written", ["0-4,5", [0, 1, 2, 3, 4, 5], (5, 4, 3, 2, 1, 0)])
def test_equal_layers_are_equal_recipes(written: object) -> None:
    recipe = Recipe.parse({"drop_layers": written}, "test")
    assert recipe == Recipe(drop_layers=(0, 1, 2, 3, 4, 5))
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize(
    "written", ["x", "0,-1", "4-2", "1-x", "1000", [-1], 3, 0.5, True, {"0": 1}, [True], [0.5], [[0]]]
)
def test_what_is_no_list_of_layers_is_refused(written: object) -> None:
    with pytest.raises(PipelineError, match="drop_layers: .*write layers as 0-4"):
        Recipe.parse({"drop_layers": written}, "test")


def test_an_option_that_no_recipe_reads_is_checked_too() -> None:
    assert layers_option(None) == ()
    with pytest.raises(PipelineError, match="--drop-layers 2-1: '2-1'"):
        layers_option("2-1")


def test_layers_must_exist_and_one_must_stay() -> None:
    check_layers((0, 1, 2), 4)
    with pytest.raises(PipelineError, match=r"has no layer 4,7; its 4 are 0-3"):
        check_layers((0, 4, 7), 4)
    with pytest.raises(PipelineError, match="all layers"):
        check_layers((0, 1, 2, 3), 4)
