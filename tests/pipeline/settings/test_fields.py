"""Numbers of settings are numbers: true is no 1."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import PARTS, Recipe
from pipeline.settings.rows import Row
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


def test_all_mistakes_are_told_with_their_keys() -> None:
    given = {"name": "small", "methods": ["full"], "targets": ["sst"], "seeds": [2, True], "limit": True}
    with pytest.raises(PipelineError) as caught:
        parse_study(given, "small.toml")
    assert [line.strip() for line in str(caught.value).splitlines()] == [
        "small.toml: 2 problems",
        "seeds.1: write a number, not true or false (got True)",
        "limit: write a number, not true or false (got True)",
    ]
