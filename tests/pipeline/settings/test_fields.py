"""Numbers of settings are numbers, true is no 1, and layers are read as they are written."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from pipeline.settings.kinds import Row
from pipeline.settings.parts import check_layers, layers_text, parse_layers
from pipeline.settings.recipe import PARTS, Recipe
from pipeline.settings.study import Curve, Resources, ScoredRows, Study
from pipeline.system.errors import PipelineError

MODELS: list[type[BaseModel]] = [Study, Row, Curve, ScoredRows, Resources, Recipe, *PARTS.values()]


def is_number(annotation: Any) -> bool:
    """Whether a value of it may be a number, or a tuple of numbers."""
    return annotation in (int, float) or any(map(is_number, get_args(annotation)))


def is_tuple(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(map(is_tuple, get_args(annotation)))


def numbers() -> Iterator[Any]:
    for model in MODELS:
        for name, field in model.model_fields.items():
            if is_number(field.annotation) and name not in ("drop_layers", "extra"):
                value = [True] if is_tuple(field.annotation) else True
                yield pytest.param(model, name, value, id=f"{model.__name__}.{name}")


@pytest.mark.parametrize(("model", "name", "value"), [*numbers()])
def test_true_is_no_number(model: type[BaseModel], name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate({name: value})
    told = [error["msg"] for error in caught.value.errors() if error["loc"][0] == name]
    assert "Value error, write a number, not true or false" in told


# Layers.


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


def test_layers_must_exist_and_one_must_stay() -> None:
    check_layers((0, 1, 2), 4)
    with pytest.raises(PipelineError, match=r"has no layer 4,7; its 4 are 0-3"):
        check_layers((0, 4, 7), 4)
    with pytest.raises(PipelineError, match="all layers"):
        check_layers((0, 1, 2, 3), 4)
