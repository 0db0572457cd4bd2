"""Rows that are like others are the same rows written out."""

import tomllib
from typing import Any

import pytest

from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError

HEADER = """
name = "small"
methods = ["full", "mean", "cosine", "extra", "first", "frozen-bert", "sweep", "wide", "fusion"]
targets = ["sst", "sts"]
sources = ["quora"]
seeds = [1]
"""
INHERITED = """
[rows.extra]
like = "cosine"
title = "more rows"
tasks = { sts = { extra = { sick = {} } } }
[rows.cosine]
like = "mean"
recipe = { encoding = "siamese" }
tasks = { sts = { head = "cosine", cosine_scale = "shifted" } }
[rows.mean]
like = "multitask"
title = "mean"
targets = ["sts"]
published = "+mean"
recipe = { pooling = "mean", epochs = 2 }
[rows.first]
like = "extra"
method = "full"
targets = ["sst"]
published = "first"
recipe = { epochs = 3 }
tasks = { sts = { cosine_scale = "clamped", extra = { imdb = {} } }, sst = { pooling = "cls" } }
[rows.frozen-bert]
like = "mean"
recipe = { trainable = "head" }
[rows.sweep]
method = "adapter"
grid = { bottleneck = [8, 16] }
recipe = { epochs = 2 }
[rows.wide]
like = "sweep"
title = "wide"
recipe = { epochs = 3, head_dropout = 0.0 }
[rows.fusion]
like = "adapter"
recipe = { epochs = 1 }
"""
WRITTEN_OUT = """
[rows.extra]
method = "multitask"
title = "more rows"
targets = ["sts"]
recipe = { pooling = "mean", epochs = 2, encoding = "siamese" }
tasks = { sts = { head = "cosine", cosine_scale = "shifted", extra = { sick = {} } } }
[rows.cosine]
method = "multitask"
targets = ["sts"]
recipe = { pooling = "mean", epochs = 2, encoding = "siamese" }
tasks = { sts = { head = "cosine", cosine_scale = "shifted" } }
[rows.mean]
method = "multitask"
title = "mean"
targets = ["sts"]
published = "+mean"
recipe = { pooling = "mean", epochs = 2 }
[rows.first]
method = "full"
targets = ["sst"]
published = "first"
recipe = { pooling = "mean", epochs = 3, encoding = "siamese" }
tasks = { sts = { head = "cosine", cosine_scale = "clamped", extra = { imdb = {} } }, sst = { pooling = "cls" } }
[rows.frozen-bert]
method = "multitask"
targets = ["sts"]
recipe = { pooling = "mean", epochs = 2, trainable = "head" }
[rows.sweep]
method = "adapter"
grid = { bottleneck = [8, 16] }
recipe = { epochs = 2 }
[rows.wide]
method = "adapter"
title = "wide"
grid = { bottleneck = [8, 16] }
recipe = { epochs = 3, head_dropout = 0.0 }
[rows.fusion]
method = "fusion"
recipe = { epochs = 1 }
"""


def parse(text: str) -> Study:
    return parse_study(tomllib.loads(HEADER + text), "small.toml")


def mistakes(rows: dict[str, Any], **changes: Any) -> list[str]:
    small = {"name": "small", "methods": ["full"], "targets": ["sst", "sts"], "seeds": [1], "rows": rows}
    with pytest.raises(PipelineError) as caught:
        parse_study(small | changes, "small.toml")
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_a_study_whose_rows_are_like_others_is_the_same_study_written_out() -> None:
    study = parse(INHERITED)
    assert study == parse(WRITTEN_OUT)
    assert list(study.rows) == list(parse(WRITTEN_OUT).rows)
    assert parse_study(study.model_dump(), "again") == study


def test_a_row_has_its_own_title_and_published_names() -> None:
    study = parse(INHERITED)
    assert [study.title(name) for name in ("mean", "cosine", "extra", "first")] == [
        "mean",
        "cosine",
        "more rows",
        "first",
    ]
    assert [study.published_names(name) for name in ("mean", "cosine", "first")] == [("+mean",), (), ("first",)]


def test_every_row_that_cannot_be_copied_is_reported_with_the_other_mistakes() -> None:
    rows = {
        "a": {"like": "b"},
        "b": {"like": "c", "recipe": {"epochs": 0}},
        "c": {"like": "a"},
        "self": {"like": "self"},
        "stray": {"like": "nothing"},
        "number": {"like": 3},
        "tail": {"like": "c"},
        "none": {"colour": 1},
    }
    lines = mistakes(rows, limit=0)
    circles = [line for line in lines if "like each other" in line]
    assert len(circles) == 2
    assert any(sorted(line.split("(")[1].rstrip(")").split(" -> ")[1:]) == ["a", "b", "c"] for line in circles)
    assert "rows.self.like: rows cannot be like each other (self -> self)" in circles
    others = {line for line in lines if line not in circles and not line.startswith("rows.b.")}
    assert {line.split(" (got")[0] for line in others} == {
        "rows.stray.like: there is no row 'nothing'",
        "rows.number.like: there is no row 3",
        "rows.none.method: missing",
        "rows.none.colour: unknown key",
        "limit: Input should be greater than or equal to 1",
    }
    assert any(line.startswith("rows.b.recipe: epochs") for line in lines)
