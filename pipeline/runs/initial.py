"""The model of a run before its first step, and what was chosen to make it: adapters, their gates, a warm start."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from pydantic import BaseModel, Field

from pipeline.methods.fusion import members_of
from pipeline.methods.gated import set_gates
from pipeline.models.backbone import Backbone
from pipeline.records.ledger import Ledger
from pipeline.records.store import Artifact
from pipeline.runs.build import Built, Parts, build_for_training
from pipeline.runs.gates import choose_gates
from pipeline.runs.ranking import best_sources
from pipeline.runs.request import RunRequest
from pipeline.runs.scoring import Scoring
from pipeline.runs.starting import choose_anchor, choose_start
from pipeline.runs.workspace import Workspace
from pipeline.stats.probe import LEAST
from pipeline.system.atomic import make_folder, write_json
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process
from pipeline.system.reading import present, read_model

MOST_SOURCES = 16
"""Sources that gates are tried for; of more, those that linear probes read best alone."""


class Choice(BaseModel, frozen=True):
    """What was chosen before the first step. It stands beside the checkpoint: a run resumes with what it began with,
    though another machine might choose otherwise."""

    fused: tuple[str, ...] = Field(description="the runs of the adapters that the model is built on")
    initial: str | None = Field(description="the run of the adapter that it starts as, if any")
    anchor_candidates: dict[str, float] = {}
    anchor_scores: dict[str, float] = {}
    gates: dict[str, float] | None = Field(None, description="where the gates of these tasks start, if probes chose")
    seconds: float = Field(description="what choosing took, without building the model")

    @property
    def record(self) -> dict[str, dict[str, float]]:
        """Fields of the run's record."""
        found = {"anchor_candidates": self.anchor_candidates, "anchor_scores": self.anchor_scores, "gates": self.gates}
        return {key: value for key, value in found.items() if value}


@dataclass(frozen=True)
class InitialModel:
    """A model before its first step, and how it was chosen."""

    built: Built
    adapters: tuple[Artifact, ...]
    """What it is built on."""
    initial: Artifact | None
    """The adapter that it starts as, if any."""
    choice: Choice


def initial_model(
    request: RunRequest, parts: Parts, backbone: Backbone, ledger: Ledger, run: str, choose: Callable[[], Choice]
) -> InitialModel:
    """Let :func:`chosen` choose, unless ``run`` has chosen before; then build the model.

    Args:
        parts: those of ``request``, resolved.
        run: its name; what it has chosen is kept with its checkpoint.
        choose: :func:`chosen` with its arguments.
    """
    by_run = {adapter.manifest.run: adapter for adapter in request.adapters}
    file = ledger.checkpoint_file(run).parent / "choice.json"
    choice = _kept(file, by_run)
    if choice is None:
        choice = choose()
        if request.adapters and is_main_process():
            make_folder(file.parent)
            write_json(file, choice.model_dump(mode="json"))
    fused = tuple(by_run[name] for name in choice.fused)
    initial = None if choice.initial is None else by_run[choice.initial]
    built = build_for_training(replace(request, adapters=fused), parts, backbone, ledger, initial)
    if choice.gates is not None:
        task, recipe, _ = next(iter(parts.values()))
        members = members_of(recipe, task.name, [each.manifest.task for each in fused])
        set_gates(built.model.of(task.name).backbone, members, choice.gates)
    return InitialModel(built, fused, initial, choice)


def _kept(file: Path, by_run: Mapping[str, Artifact]) -> Choice | None:
    """What stands in ``file``, if it is whole and of these adapters."""
    if not present(file):
        return None
    with suppress(PipelineError):
        choice = read_model(Choice, file, "delete it")
        if {*choice.fused, *(() if choice.initial is None else (choice.initial,))} <= by_run.keys():
            return choice
    return None


def chosen(
    request: RunRequest,
    parts: Parts,
    rows: pd.DataFrame,
    scoring: Scoring,
    backbone: Backbone,
    workspace: Workspace,
    title: str,
) -> Choice:
    """Choose what the recipe leaves to be chosen: adapters, their gates, an adapter to start as.

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

    initial, scores = None, dict[str, dict[str, float]]()
    if request.in_turn:
        (initial,) = adapters
    elif fuses and recipe.fusion.form == "anchored":
        initial, scores = choose_anchor(adapters, recipe, scoring, workspace)
    elif adapters and (request.kind == "adapter" or (is_gated and recipe.gated.own == "warm")):
        initial = choose_start(adapters, recipe, scoring, rows, backbone, title)

    def over(sources: Sequence[Artifact]) -> tuple[Artifact, ...]:
        """The target's own adapter, if it is there, and ``sources``."""
        return tuple(each for each in adapters if each in sources or each.manifest.task == task.name)

    most = recipe.fusion.best if fuses else None
    if is_probed and len(rows) >= LEAST:
        most = min(most or MOST_SOURCES, MOST_SOURCES)
    if most is not None:
        others = best_sources(most, others, task, recipe, rows, backbone, scoring.accelerator, workspace.ledger)
        if initial is not None and recipe.fusion.form == "anchored":  # it starts as this one
            others = [*others, initial]
    fused = over(others) if fuses else adapters
    seconds, gates = time.perf_counter() - started, None
    if is_probed:
        whole = build_for_training(replace(request, adapters=fused), parts, backbone, workspace.ledger, initial)
        candidates = members_of(recipe, task.name, [each.manifest.task for each in fused])
        gated = [name for name in candidates if name != task.name or recipe.gated.own == "none"]
        encoder, started = whole.model.of(task.name).backbone, time.perf_counter()
        warm = initial is not None
        gates = choose_gates(encoder, candidates, gated, task, recipe, rows, backbone, scoring.accelerator, warm)
        fused = over([each for each in others if each.manifest.task in gates])
        seconds += time.perf_counter() - started
    return Choice(
        fused=tuple(each.manifest.run for each in fused),
        initial=None if initial is None else initial.manifest.run,
        gates=gates,
        seconds=seconds,
        **scores,
    )
