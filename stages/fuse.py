"""Stage two: knowledge composition, fusion layers over the adapters of several tasks for one target."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.data.tasks import Encoding, Task
from pipeline.records.ledger import RunRecord
from pipeline.records.store import Artifact, Manifest, fitting_adapters, why_not_fused
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


def parse_sources(text: str, workspace: Workspace, option: str = "--adapters") -> list[SourceName]:
    """The names in ``sst,quora@3f2a...,sts``, aliases resolved.

    Raises:
        PipelineError: an unknown task, or one named twice.
    """
    names = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        task, _, run = part.partition("@")
        names.append(SourceName(workspace.task(task).name, run or None))
    if not names:
        raise PipelineError(f"{option} names no task: write for example {option} sst,quora,sts")
    tasks = [name.task for name in names]
    twice = sorted({task for task in tasks if tasks.count(task) > 1})
    if twice:
        raise PipelineError(f"{option} names {', '.join(twice)} more than once: one adapter a task can be used")
    return names


def choose_adapters(
    target: str, names: Sequence[SourceName] | None, recipe: Recipe, workspace: Workspace, seed: int
) -> tuple[Artifact, ...]:
    """The adapters to fuse, in order of task name: equal sources are one run however they were listed.

    Of several adapters of a task: the one named, else one that leaves out the recipe's layers and no more, then the
    same seed, then the best dev score.

    Raises:
        PipelineError: one is missing or does not fit, with the command that makes it.
    """
    task = workspace.task(target)
    artifacts = workspace.store.artifacts()
    encoding = pair_encoding(task, recipe)
    fitting = fitting_adapters(artifacts, workspace.backbone.weights_hash, encoding, recipe.adapter.kind)
    if names is None:
        names = [SourceName(name) for name in sorted({*fitting, task.name})]
    chosen, problems = [], []
    for name in names:
        candidates = [a for a in fitting.get(name.task, []) if name.run in (None, a.manifest.run)]
        if candidates:
            chosen.append(max(candidates, key=lambda a: _preference(a.manifest, recipe, seed)))
        else:
            problems.append(_why_missing(name, artifacts, workspace, encoding, recipe))
    raise_all("fuse", problems)
    if len(chosen) < 2:
        raise PipelineError(
            f"fuse needs adapters of at least two tasks, but only '{chosen[0].manifest.task}' is here: train another,"
            f" for example {_extract_command('TASK', workspace, 'cross')}"
        )
    return tuple(workspace.store.current(a) for a in sorted(chosen, key=lambda a: a.manifest.task))


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
    chosen = choose_adapters(target, names, recipe, workspace, seed)
    own = next((a.manifest for a in chosen if a.manifest.task == workspace.task(target).name), None)
    if own is not None and limit is None:
        limit = own.limit
    run = fusion_run(target, recipe, workspace, chosen, seed=seed, limit=limit)
    if own is not None and own.train_rows != run.data[own.task].fingerprint["train"]:
        print(
            f"note: stage two should read the rows of stage one, but adapter {own.run} of {own.task} was trained on"
            f" others (--seed {own.seed}, --limit {own.limit or 'all'}; compare --data and --drop-overlap too)",
            file=sys.stderr,
        )
    return run.get(force)


def fusion_run(
    target: str, recipe: Recipe, workspace: Workspace, chosen: Sequence[Artifact], *, seed: int, limit: int | None
) -> TrainingRun:
    """The run that fuses ``chosen``, whoever chose them; there is no fusion in layers that they leave out.

    Raises:
        PipelineError: one of them does not fit the backbone or the recipe, or they leave out different layers.
    """
    encoding = pair_encoding(workspace.task(target), recipe)
    for manifest in (artifact.manifest for artifact in chosen):
        if why := why_not_fused(manifest, workspace.backbone.weights_hash, encoding, recipe.adapter.kind):
            raise PipelineError(f"fuse: adapter {manifest.run} of {manifest.task} {why}")
    adapters = {artifact.manifest.task: artifact.manifest.recipe for artifact in chosen}
    recipe = recipe.changed({"drop_layers": dropped_layers(recipe, adapters)})
    return TrainingRun(RunRequest.single("fusion", target, recipe, seed, limit, adapters=tuple(chosen)), workspace)


def _preference(manifest: Manifest, recipe: Recipe, seed: int) -> tuple[Any, ...]:
    own, wanted = set(manifest.recipe.adapter.drop_layers), set(recipe.adapter.drop_layers)
    # An adapter with more layers than the fusion fits; one that lacks a layer which others have does not.
    return own == wanted, own <= wanted, manifest.seed == seed, manifest.dev, manifest.run


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


def pair_encoding(task: Task, recipe: Recipe) -> Encoding:
    """How the adapters of a fusion must encode pairs: as the target does.

    A target with one text says nothing about its partners' pairs; then the recipe does, or cross.
    """
    encoding = recipe.resolve(task, "fp32").encoding if task.is_pair else recipe.encoding or "cross"
    assert encoding is not None
    return encoding


def _extract_command(task: str, workspace: Workspace, encoding: str) -> str:
    data = f" --data {workspace.data}" if workspace.data else ""
    store = f" --store {workspace.store_root}" if str(workspace.store_root) != "adapters_store" else ""
    siamese = " --encoding siamese" if encoding == "siamese" else ""
    return f"python -m pipeline extract --task {task} --backbone {workspace.backbone_name}{data}{store}{siamese}"


def _why_missing(
    name: SourceName, artifacts: Sequence[Artifact], workspace: Workspace, encoding: str, recipe: Recipe
) -> str:
    command = _extract_command(name.task, workspace, encoding)
    others = [a.manifest for a in artifacts if a.manifest.kind == "adapter" and a.manifest.task == name.task]
    if name.run is not None:
        others = [manifest for manifest in others if manifest.run == name.run]
        if not others:
            return f"{name.task}: no adapter {name.run} in {workspace.store_root}: see python -m pipeline store list"
    for manifest in others:
        why = why_not_fused(manifest, workspace.backbone.weights_hash, encoding, recipe.adapter.kind)
        kind = f" --adapter {wanted}" if manifest.recipe.adapter.kind != (wanted := recipe.adapter.kind) else ""
        return f"{name.task}: adapter {manifest.run} {why}: {command}{kind}"
    return f"{name.task}: no adapter in {workspace.store_root}: {command}"
