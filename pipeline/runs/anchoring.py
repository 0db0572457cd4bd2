"""Which adapter an anchored fusion begins as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.records.store import Artifact
from pipeline.settings.recipe import Recipe

if TYPE_CHECKING:
    from pipeline.runs.run import Run
    from pipeline.runs.scoring import Scoring


_HEAD_KEYS = ("head", "encoding", "pooling", "one_logit", "cosine_scale")


@dataclass(frozen=True)
class Anchor:
    """What a fusion begins as, and what that was chosen from."""

    adapter: Artifact | None = None
    candidates: Mapping[str, float] = field(default_factory=dict)
    """Dev scores by task; none where there was nothing to choose."""


def choose_anchor(run: Run, scoring: Scoring) -> Anchor:
    """Of the target's own adapter and those of tasks with the same labels, the one with the best dev score.

    With few target rows, a related task with many may have the better adapter; since its labels mean the same, its head
    answers for the target as it is. Where there is nothing to choose, the target's own adapter; None if it has none.
    """
    adapters, recipe, task = run.request.adapters, run.recipe, run.task
    if recipe.trainable != "fusion" or recipe.fusion != "anchored":
        return Anchor()
    own = next((adapter for adapter in adapters if adapter.manifest.task == task.name), None)
    able = [
        adapter
        for adapter in adapters
        if (adapter.manifest.meaning, adapter.manifest.pair) == (task.meaning, task.is_pair)
        and same_head(adapter.manifest.recipe, recipe)
    ]
    if not recipe.head_start or not able:
        return Anchor(own)
    if len(able) == 1:
        return Anchor(able[0])
    candidates = {adapter.manifest.task: _dev(run, adapter, scoring) for adapter in able}
    # Of equal ones the target's own, then the first by name.
    best = max(able, key=lambda adapter: (candidates[adapter.manifest.task], adapter is own))
    return Anchor(best, candidates)


def same_head(one: Recipe, other: Recipe) -> bool:
    """Whether a head trained under one recipe fits a model of the other."""
    return all(getattr(one, key) == getattr(other, key) for key in _HEAD_KEYS)


def _dev(run: Run, adapter: Artifact, scoring: Scoring) -> float:
    from pipeline.runs.restore import build_from_artifact

    model = build_from_artifact(adapter, run.task, run.backbone, run.workspace.store, run.recipe.drop_layers)
    return scoring.value(scoring.predict(model.to(scoring.accelerator.device)))
