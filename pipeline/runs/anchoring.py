"""Which adapter an anchored fusion starts as."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.models.backbone import Backbone
from pipeline.records.store import Artifact, Store
from pipeline.runs.build import same_head
from pipeline.runs.restore import restore_artifact
from pipeline.runs.scoring import Scoring
from pipeline.settings.recipe import Recipe


@dataclass(frozen=True)
class Anchor:
    """What a fusion starts as, and what that was chosen from."""

    adapter: Artifact | None = None
    candidates: Mapping[str, float] = field(default_factory=dict)
    """Dev scores by task; empty where there was no choice."""


def choose_anchor(
    adapters: Sequence[Artifact], recipe: Recipe, scoring: Scoring, backbone: Backbone, store: Store
) -> Anchor:
    """Of the target's own adapter and those of tasks with the same labels, the one with the best dev score.

    With few target rows, a related task with many may have the better adapter. Its labels mean the same, so its head
    answers for the target as it is. Without a choice it is the target's own adapter; None if it has none.

    Args:
        recipe: the fusion's, resolved.
        scoring: the target's.
    """
    task = scoring.task
    own = next((adapter for adapter in adapters if adapter.manifest.task == task.name), None)
    able = [
        adapter
        for adapter in adapters
        if (adapter.manifest.meaning, adapter.manifest.pair) == (task.meaning, task.is_pair)
        and same_head(adapter.manifest.recipe, recipe)
    ]
    if not recipe.fusion.head_start or not able:
        return Anchor(own)
    if len(able) == 1:
        return Anchor(able[0])
    candidates = {}
    for adapter in able:
        model = restore_artifact(adapter, task, backbone, store, recipe.adapter.drop_layers)
        candidates[adapter.manifest.task] = scoring.value(scoring.predict(model.to(scoring.accelerator.device)))
    # Of equal ones the target's own, then the first by name.
    return Anchor(max(able, key=lambda adapter: (candidates[adapter.manifest.task], adapter is own)), candidates)
