"""The model of a run before its first step, and the choices that made it: adapters, their gates, a warm start."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from pydantic import BaseModel, Field

from pipeline.data.tasks import Task
from pipeline.methods.fusion import members_of
from pipeline.methods.gated import own_member, set_gates
from pipeline.models.backbone import Backbone
from pipeline.records.store import Artifact
from pipeline.runs.build import Built, build_for_training
from pipeline.runs.gates import choose_gates
from pipeline.runs.ranking import best_sources
from pipeline.runs.request import Parts, RunRequest, first_of
from pipeline.runs.scoring import Scoring
from pipeline.runs.starting import choose_anchor, choose_start
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.stats.probe import LEAST_ROWS
from pipeline.system.atomic import make_folder, write_json
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process
from pipeline.system.reading import present, read_model

MOST_SOURCES = 16
"""Sources that gates are tried for. If there are more, those on which a linear probe scores best by themselves."""


class Choice(BaseModel, frozen=True):
    """The choices made before the first step. They are kept with the checkpoint, so that a run resumes with them even
    on a machine that would choose otherwise."""

    fused: tuple[str, ...] = Field(description="the runs of the adapters that the model is built on")
    initial: str | None = Field(description="the run of the adapter that it starts as, if any")
    anchor_candidates: dict[str, float] = {}
    anchor_scores: dict[str, float] = {}
    gates: dict[str, float] | None = Field(None, description="where the gates of these tasks start, if probes chose")
    seconds: float = Field(description="what choosing took, without building the model")

    @property
    def record(self) -> dict[str, dict[str, float]]:
        """The choice as fields of the run's record."""
        fields = {"anchor_candidates": self.anchor_candidates, "anchor_scores": self.anchor_scores, "gates": self.gates}
        return {key: value for key, value in fields.items() if value}


@dataclass(frozen=True)
class InitialModel:
    """A model before its first step, and how it was chosen."""

    built: Built
    adapters: tuple[Artifact, ...]
    """The adapters that it is built on."""
    initial: Artifact | None
    """The adapter that it is initialised from, if any."""
    choice: Choice


def initial_model(chooser: "Chooser", run: str) -> InitialModel:
    """Build the model of ``run`` from the choice kept with its checkpoint, or else from a new choice of ``chooser``."""
    request, parts, ledger = chooser.request, chooser.parts, chooser.workspace.ledger
    by_run = {adapter.manifest.run: adapter for adapter in request.adapters}
    file = ledger.checkpoint_file(run).parent / "choice.json"
    choice = _kept(file, by_run)
    if choice is None:
        choice = chooser.choose()
        if request.adapters and is_main_process():
            make_folder(file.parent)
            write_json(file, choice.model_dump(mode="json"))
    fused = tuple(by_run[name] for name in choice.fused)
    initial = None if choice.initial is None else by_run[choice.initial]
    built = build_for_training(replace(request, adapters=fused), parts, chooser.backbone, ledger, initial)
    if choice.gates is not None:
        members = members_of(chooser.recipe, chooser.task.name, [each.manifest.task for each in fused])
        set_gates(built.model.of(chooser.task.name).backbone, members, choice.gates)
    return InitialModel(built, fused, initial, choice)


def _kept(file: Path, by_run: Mapping[str, Artifact]) -> Choice | None:
    """Read the choice in ``file``; None if it is damaged or concerns other adapters."""
    if not present(file):
        return None
    with suppress(PipelineError):
        choice = read_model(Choice, file, "delete it")
        if {*choice.fused, *(() if choice.initial is None else (choice.initial,))} <= by_run.keys():
            return choice
    return None


@dataclass(frozen=True)
class Chooser:
    """Makes the choices that a recipe leaves open: which adapters, their gates, and an adapter to start from."""

    request: RunRequest
    parts: Parts
    """The resolved parts of ``request``."""
    rows: pd.DataFrame
    """Labelled training rows of the first task."""
    scoring: Scoring
    """How that task is scored."""
    backbone: Backbone
    workspace: Workspace
    title: str
    """Title of the run, for the line on stderr that reports a choice."""

    @property
    def task(self) -> Task:
        return first_of(self.parts).task

    @property
    def recipe(self) -> Recipe:
        return first_of(self.parts).recipe

    def choose(self) -> Choice:
        task, recipe, accelerator = self.task, self.recipe, self.scoring.accelerator
        started = time.perf_counter()
        initial, scores = self._start()
        fused = self._fused(initial)
        seconds, gates = time.perf_counter() - started, None
        if recipe.form.probes_gates:
            # The fusion's encoder before its gates are chosen.
            request = replace(self.request, adapters=fused)
            built = build_for_training(request, self.parts, self.backbone, self.workspace.ledger, initial)
            encoder = built.model.of(task.name).backbone
            members = members_of(recipe, task.name, [each.manifest.task for each in fused])
            own = own_member(recipe, task.name, members)
            sources, warm = [name for name in members if name != own], initial is not None
            started = time.perf_counter()  # building the model is no part of the choice
            gates = choose_gates(encoder, members, sources, task, recipe, self.rows, self.backbone, accelerator, warm)
            fused = tuple(each for each in fused if each.manifest.task in {*gates, own})  # the own one may have no gate
            seconds += time.perf_counter() - started
        return Choice(
            fused=tuple(each.manifest.run for each in fused),
            initial=None if initial is None else initial.manifest.run,
            gates=gates,
            seconds=seconds,
            **scores,
        )

    def _start(self) -> tuple[Artifact | None, dict[str, dict[str, float]]]:
        """The adapter to start from, if any, and the scores from :func:`choose_anchor`."""
        request, recipe = self.request, self.recipe
        if request.in_turn:
            return request.adapters[0], {}
        if recipe.form.anchored:
            return choose_anchor(request.adapters, recipe, self.scoring, self.workspace)
        if request.may_be_warm_started(recipe):
            start = choose_start(
                request.adapters, recipe, self.scoring, self.rows, self.backbone, self.title, request.tested
            )
            return start, {}
        return None, {}

    def _fused(self, initial: Artifact | None) -> tuple[Artifact, ...]:
        """The adapters that the model is built on, before probes choose among them: for a fusion the target's own, if
        it exists, and the best of the others."""
        adapters, recipe, most = self.request.adapters, self.recipe, self.recipe.fusion.best
        if recipe.form.probes_gates and len(self.rows) >= LEAST_ROWS:
            most = min(most or MOST_SOURCES, MOST_SOURCES)
        if recipe.fuses_as is None or most is None:
            return adapters
        others = [each for each in adapters if each.manifest.task != self.task.name]
        accelerator = self.scoring.accelerator
        taken = best_sources(most, others, self.task, recipe, self.rows, self.backbone, accelerator)
        if initial is not None and recipe.form.anchored:  # it starts as this one
            taken = [*taken, initial]
        return tuple(each for each in adapters if each in taken or each not in others)
