"""The model of a run before its first step, and what was chosen to make it: adapters, their gates, a warm start."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from pipeline.methods.fusion import members_of
from pipeline.methods.gated import set_gates
from pipeline.models.backbone import Backbone
from pipeline.records.store import Artifact
from pipeline.runs.build import Built, Parts, build_for_training
from pipeline.runs.gates import choose_gates
from pipeline.runs.ranking import best_sources
from pipeline.runs.request import RunRequest
from pipeline.runs.scoring import Scoring
from pipeline.runs.starting import choose_anchor, choose_start
from pipeline.runs.workspace import Workspace
from pipeline.stats.probe import LEAST

MOST_SOURCES = 16
"""Sources that gates are tried for; of more, those that linear probes read best alone."""


@dataclass(frozen=True)
class InitialModel:
    """A model before its first step, and how it was chosen."""

    built: Built
    adapters: tuple[Artifact, ...]
    """What it is built on."""
    initial: Artifact | None
    """The adapter that it starts as, if any."""
    chosen: Mapping[str, dict[str, float]]
    """Fields of the run's record."""
    seconds: float
    """What choosing took, without building the model."""


def initial_model(
    request: RunRequest,
    parts: Parts,
    rows: pd.DataFrame,
    scoring: Scoring,
    backbone: Backbone,
    workspace: Workspace,
    title: str,
) -> InitialModel:
    """Choose what the recipe leaves to be chosen, then build the model.

    Args:
        parts: those of ``request``, resolved.
        rows: labelled training rows of the first task.
        scoring: of that task.
        title: of the run, for the line on stderr that tells a choice.
    """
    started = time.perf_counter()
    task, recipe, _ = next(iter(parts.values()))
    adapters, others = request.adapters, [each for each in request.adapters if each.manifest.task != task.name]
    fuses = recipe.trainable == "fusion"
    is_gated = fuses and recipe.fusion.form == "gated"
    is_probed = is_gated and recipe.gated.start == "probe"

    initial, chosen = None, dict[str, dict[str, float]]()
    if fuses and recipe.fusion.form == "anchored":
        initial, chosen = choose_anchor(adapters, recipe, scoring, workspace)
    elif adapters and (request.kind == "adapter" or (is_gated and recipe.gated.own == "warm")):
        initial = choose_start(adapters, recipe, scoring, rows, backbone, title)

    def over(sources: Sequence[Artifact]) -> tuple[Artifact, ...]:
        """The target's own adapter, if it is there, and ``sources``."""
        return tuple(each for each in adapters if each in sources or each.manifest.task == task.name)

    def built(fused: tuple[Artifact, ...]) -> Built:
        return build_for_training(replace(request, adapters=fused), parts, backbone, workspace.ledger, initial)

    most = recipe.fusion.best if fuses else None
    if is_probed and len(rows) >= LEAST:
        most = min(most or MOST_SOURCES, MOST_SOURCES)
    if most is not None:
        others = best_sources(most, others, task, recipe, rows, backbone, scoring.accelerator, workspace.ledger)
    fused = over(others) if fuses else adapters
    seconds = time.perf_counter() - started
    start = built(fused)
    if not is_probed:
        return InitialModel(start, fused, initial, chosen, seconds)

    def members(fused: Sequence[Artifact]) -> list[str]:
        return members_of(recipe, task.name, [each.manifest.task for each in fused])

    candidates = members(fused)
    gated = [name for name in candidates if name != task.name or recipe.gated.own == "none"]
    encoder = start.model.of(task.name).backbone
    started = time.perf_counter()
    gates = choose_gates(encoder, candidates, gated, task, recipe, rows, backbone, scoring.accelerator)
    seconds += time.perf_counter() - started
    fused = over([each for each in others if each.manifest.task in gates])
    start = built(fused)
    set_gates(start.model.of(task.name).backbone, members(fused), gates)
    return InitialModel(start, fused, initial, {"gates": gates}, seconds)
