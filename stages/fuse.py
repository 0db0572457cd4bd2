"""Stage two: knowledge composition, fusion layers over the adapters of several tasks for one target."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.records.ledger import RunRecord
from pipeline.records.store import Artifact, Manifest, why_not_fused
from pipeline.runs.request import RunRequest
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.layers import layers_text
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError, raise_all


@dataclass(frozen=True)
class SourceName:
    """``sst``, or ``sst@RUN`` for one adapter among several of a task."""

    task: str
    run: str | None = None

    def means(self, adapter: Manifest) -> bool:
        """Whether ``adapter`` is the one, or one of those that it may stand for."""
        return adapter.task == self.task and self.run in (None, adapter.run)


def parse_sources(text: str, workspace: Workspace, option: str = "--adapters") -> list[SourceName]:
    """The names in ``sst,quora@3f2a...,sts``, aliases resolved.

    Raises:
        PipelineError: an unknown task, or one named twice.
    """
    parts = [part.strip().partition("@") for part in text.split(",") if part.strip()]
    names = [SourceName(workspace.task(task).name, run or None) for task, _, run in parts]
    if not names:
        raise PipelineError(f"{option} names no task: write for example {option} sst,quora,sts")
    tasks = [name.task for name in names]
    twice = sorted({task for task in tasks if tasks.count(task) > 1})
    if twice:
        raise PipelineError(f"{option} names {', '.join(twice)} more than once: one adapter a task can be used")
    return names


class Fusion:
    """A fusion for ``target`` whose adapters are yet to be chosen.

    ``encoding`` is how its adapters must encode pairs: as the target does. A target with one text says nothing about
    its partners' pairs; then the recipe does, or cross.
    """

    def __init__(self, target: str, recipe: Recipe, workspace: Workspace) -> None:
        self.task, self.recipe, self.workspace = workspace.task(target), recipe, workspace
        resolved = workspace.resolve(recipe, self.task) if self.task.is_pair else recipe
        self.encoding = resolved.encoding or "cross"

    def choose(self, names: Sequence[SourceName] | None, seed: int) -> tuple[Artifact, ...]:
        """The adapters to fuse, in order of task name: equal sources are one run however they were listed.

        Of several adapters of a task: the one named, else one that leaves out the recipe's layers and no more, then the
        same seed, then the best dev score. Without ``names`` every task with an adapter that fits takes part.

        Raises:
            PipelineError: one is missing or does not fit, with the command that makes it.
        """
        store, kind = self.workspace.store, self.recipe.adapter.kind
        verdicts = [(a, self._why_not(a.manifest)) for a in store.artifacts() if a.manifest.kind == "adapter"]
        fitting = {adapter.manifest.task for adapter, why in verdicts if why is None}
        chosen, problems = [], []
        for name in names or [SourceName(task) for task in sorted({*fitting, self.task.name})]:
            meant = [(adapter, why) for adapter, why in verdicts if name.means(adapter.manifest)]
            if candidates := [adapter for adapter, why in meant if why is None]:
                chosen.append(max(candidates, key=lambda adapter: self._preference(adapter.manifest, seed)))
            elif meant:
                (adapter, why), *_ = meant
                other = f" --adapter {kind}" if adapter.manifest.recipe.adapter.kind != kind else ""
                command = f"{self._extract_command(name.task)}{other}"
                problems.append(f"{name.task}: adapter {adapter.manifest.run} {why}: {command}")
            else:
                missing = f"no adapter {name.run}" if name.run else "no adapter"
                remedy = "see python -m pipeline store list" if name.run else self._extract_command(name.task)
                problems.append(f"{name.task}: {missing} in {store.root}: {remedy}")
        raise_all("fuse", problems)
        if len(chosen) < 2:
            raise PipelineError(
                f"fuse needs adapters of at least two tasks, but only '{chosen[0].manifest.task}' is here: train"
                f" another, for example {self._extract_command('TASK', 'cross')}"
            )
        return tuple(store.current(a) for a in sorted(chosen, key=lambda a: a.manifest.task))

    def run(self, chosen: Sequence[Artifact], *, seed: int, limit: int | None) -> TrainingRun:
        """The run that fuses ``chosen``, whoever chose them; there is no fusion in layers that they leave out.

        Raises:
            PipelineError: one of them does not fit the backbone or the recipe, or they leave out different layers.
        """
        for manifest in (artifact.manifest for artifact in chosen):
            if why := self._why_not(manifest):
                raise PipelineError(f"fuse: adapter {manifest.run} of {manifest.task} {why}")
        adapters = {artifact.manifest.task: artifact.manifest.recipe for artifact in chosen}
        recipe = self.recipe.changed({"drop_layers": dropped_layers(self.recipe, adapters)})
        request = RunRequest.single("fusion", self.task.name, recipe, seed, limit, adapters=tuple(chosen))
        return TrainingRun(request, self.workspace)

    def _why_not(self, adapter: Manifest) -> str | None:
        return why_not_fused(adapter, self.workspace.backbone.weights_hash, self.encoding, self.recipe.adapter.kind)

    def _preference(self, manifest: Manifest, seed: int) -> tuple[Any, ...]:
        own, wanted = {*manifest.recipe.adapter.drop_layers}, {*self.recipe.adapter.drop_layers}
        # An adapter with more layers than the fusion fits; one that lacks a layer which others have does not.
        return own == wanted, own <= wanted, manifest.seed == seed, manifest.dev, manifest.run

    def _extract_command(self, task: str, encoding: str | None = None) -> str:
        place = self.workspace
        data = f" --data {place.data}" if place.data else ""
        store = f" --store {place.store_root}" if str(place.store_root) != "adapters_store" else ""
        siamese = " --encoding siamese" if (encoding or self.encoding) == "siamese" else ""
        return f"python -m pipeline extract --task {task} --backbone {place.backbone_name}{data}{store}{siamese}"


def fuse(
    target: str,
    recipe: Recipe,
    workspace: Workspace,
    *,
    seed: int,
    limit: int | None = None,
    adapters: str | None = None,
    force: bool = False,
) -> RunRecord:
    """Train fusion layers for ``target`` and put them into the store.

    Without ``limit``, stage two reads the rows stage one read: the limit of the target's own adapter.
    """
    names = parse_sources(adapters, workspace) if adapters is not None else None
    fusion = Fusion(target, recipe, workspace)
    chosen = fusion.choose(names, seed)
    own = next((a.manifest for a in chosen if a.manifest.task == fusion.task.name), None)
    if own is not None and limit is None:
        limit = own.limit
    run = fusion.run(chosen, seed=seed, limit=limit)
    if own is not None and own.train_rows != run.data[own.task].fingerprint["train"]:
        print(
            f"note: stage two should read the rows of stage one, but adapter {own.run} of {own.task} was trained on"
            f" others (--seed {own.seed}, --limit {own.limit or 'all'}; compare --data and --drop-overlap too)",
            file=sys.stderr,
        )
    return run.get(force)


def dropped_layers(recipe: Recipe, adapters: Mapping[str, Recipe]) -> tuple[int, ...]:
    """The layers without fusion: those of the recipe and of the adapters (by task), which must agree in the rest.

    AdapterHub takes the order of residual and LayerNorm from the last adapter of a fusion, and fails where that one
    is left out.
    """
    dropped = {*recipe.adapter.drop_layers}
    found = {task: tuple(sorted(dropped.union(own.adapter.drop_layers))) for task, own in adapters.items()}
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{task}: {layers_text(layers) or 'none'}" for task, layers in found.items())
        every = layers_text(tuple({layer for layers in found.values() for layer in layers}))
        raise PipelineError(
            f"fuse: the adapters leave out different layers ({listed}): give --drop-layers {every}, or name adapters"
            " that agree (--adapters TASK@RUN)"
        )
    return next(iter(found.values()))
