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


def test_a_study_whose_rows_are_like_others_is_the_same_study_written_out() -> None:
    study = parse(INHERITED)
    assert study == parse(WRITTEN_OUT)
    assert list(study.rows) == list(parse(WRITTEN_OUT).rows)
    assert parse_study(study.model_dump(), "again") == study
    titles = [study.title(name) for name in ("mean", "cosine", "extra", "first")]
    assert titles == ["mean", "cosine", "more rows", "first"]
    assert [study.published_names(name) for name in ("mean", "cosine", "first")] == [("+mean",), (), ("first",)]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ({"a": {"like": "b"}, "b": {"like": "c"}, "c": {"like": "a"}}, "rows.c.like: .*a -> b -> c -> a"),
        ({"self": {"like": "self"}}, "rows.self.like: .*self -> self"),
        ({"stray": {"like": "nothing"}}, "rows.stray.like: there is no row 'nothing'"),
        ({"number": {"like": 3}}, "rows.number.like: "),
        ({"b": {"like": "full", "recipe": {"epochs": 0}}, "d": {"like": "b"}}, "1 problem\n  rows.b.recipe: epochs"),
    ],
    ids=str,
)
def test_a_row_that_cannot_be_copied_is_told(rows: dict[str, Any], told: str) -> None:
    small = {"name": "small", "methods": ["full"], "targets": ["sst", "sts"], "seeds": [1], "rows": rows}
    with pytest.raises(PipelineError, match=told):
        parse_study(small, "small.toml")
