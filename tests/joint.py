"""Requests to train one model for several tasks at once."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.runs.request import Part, RunRequest
from pipeline.settings.recipe import Recipe


def joint_request(
    tasks: Sequence[str], recipes: Mapping[str, Recipe], *, seed: int, limits: Mapping[str, int | None], **rest: Any
) -> RunRequest:
    return RunRequest("multitask", tuple(Part(task, recipes[task], limits[task]) for task in tasks), seed, **rest)
