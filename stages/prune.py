"""A trained fusion over fewer adapters: those that its attention shows to matter, without training anew."""

import time
from typing import Any

from pipeline.data.canonical import fingerprint
from pipeline.data.tasks import Task
from pipeline.methods.attention import source_shares
from pipeline.methods.fusion import members_of, prune_fusion
from pipeline.methods.gated import own_member
from pipeline.records.ledger import Cost, RunRecord, run_name
from pipeline.records.store import Artifact
from pipeline.runs.once import Made
from pipeline.runs.restore import on_own_backbone, restore
from pipeline.runs.scoring import Scoring
from pipeline.runs.weights import save_artifact
from pipeline.runs.workspace import Workspace, provenance
from pipeline.system.errors import PipelineError
from pipeline.training.devices import make_accelerator
from pipeline.training.memory import peak_memory_mb, reset_peak_memory
from pipeline.training.process_group import process_count


def prune(
    target: str, workspace: Workspace, *, keep: int, using: str = "fusion", force: bool = False
) -> Made[RunRecord]:
    """Keep the ``keep`` sources of a fusion for ``target`` that get most attention on dev, as an artifact of its own.

    It is scored on dev anew, in fp32. Its cost is that of scoring: nothing is trained.

    Args:
        using: the run of a fusion, or ``fusion``: the best trained for the target.

    Raises:
        PipelineError: there is no such fusion, or it has not more sources than ``keep``.
    """
    if process_count() > 1:
        raise PipelineError("prune trains nothing and runs in one process: start it without accelerate launch")
    task = workspace.task(target)
    fusion = _fusion(task, using, workspace)
    workspace = on_own_backbone(workspace, fusion)
    manifest, data = fusion.manifest, workspace.task_data(task, None, 0)
    if not 1 <= keep < len(manifest.sources):
        count = len(manifest.sources)
        sources = f"{count} sources: give 1 to {count - 1}" if count > 1 else "one source: there is none to remove"
        raise PipelineError(f"--keep {keep}: fusion {manifest.run} has {sources}")
    identity = {
        "kind": "fusion",
        "tasks": {
            task.name: {
                "meaning": task.meaning,
                "recipe": manifest.recipe.identity,
                "data": {"train": manifest.train_rows, "dev": data.fingerprint["dev"]},
            }
        },
        "seed": manifest.seed,
        "backbone": workspace.backbone.identity,
        "pruned": {"digest": manifest.digest, "sources": [source.digest for source in manifest.sources]},
        "keep": keep,
    }
    run = run_name(identity)
    if not force and (record := workspace.finished(run, with_model=True)) is not None:
        return Made(record, is_new=False)
    with workspace.ledger.lock(run):
        # Another command may have finished it between the first look and the lock.
        record = None if force else workspace.finished(run, with_model=True)
        if record is not None:
            return Made(record, is_new=False)
        return Made(_pruned(fusion, task, keep, workspace, identity), is_new=True)


def _pruned(fusion: Artifact, task: Task, keep: int, workspace: Workspace, identity: dict[str, Any]) -> RunRecord:
    """Score the sources, leave the others out, score the task, and keep all of it."""
    manifest, run = fusion.manifest, run_name(identity)
    accelerator = make_accelerator("fp32")
    model = accelerator.prepare(restore(fusion, task, workspace))
    rows = workspace.task_data(task, None, 0).dev
    scoring = Scoring(task, rows, manifest.recipe, workspace.backbone, accelerator)
    reset_peak_memory()
    started = time.perf_counter()
    tasks = [source.task for source in manifest.sources]
    members = members_of(manifest.recipe, task.name, tasks)
    own = own_member(manifest.recipe, task.name, members)
    shares = source_shares(model.backbone, members, scoring.inputs())
    # Of equal shares the first in the fusion's order; the target's own adapter stays if it has no gate.
    ranked = sorted(tasks, key=lambda name: (name != own, -shares[name]))
    kept = prune_fusion(model.backbone, members, {*ranked[:keep], *({own} if own else ())})
    predicting = time.perf_counter()
    prediction = scoring.predict(model)
    ended = time.perf_counter()
    score, table = scoring.scored(prediction)
    sources = tuple(source for source in manifest.sources if source.task in kept)
    changes = {
        "run": run,
        "dev": score.dev,
        "dev_rows": len(rows),
        "dev_fingerprint": fingerprint(rows),
        "part_of_dev": workspace.chooses_by_part(task, rows),
        "sources": sources,
        "pruned_from": manifest.run,
        "files": {},
    }
    names = [source.task for source in sources]
    artifact = save_artifact(workspace.store, manifest.model_copy(update=changes), model, names)
    # What training made of the model: fusion layers, an own adapter and the head.
    marks = ("adapter_fusion_layer", *([f".adapters.{task.name}."] if manifest.recipe.trains_own else []))
    trained = [p for name, p in model.backbone.named_parameters() if any(mark in name for mark in marks)]
    record = RunRecord(
        run=run,
        kind="fusion",
        seed=manifest.seed,
        identity=identity,
        sources=sources,
        backbone=workspace.backbone.name,
        best_epoch=0,
        scores={task.name: score.model_copy(update={"recipe": manifest.recipe, "limit": manifest.limit})},
        cost=Cost(
            trainable_parameters=sum(p.numel() for p in (*trained, *model.head.parameters())),
            seconds=round(ended - started, 3),
            examples_per_second=round(len(rows) / (ended - predicting), 2),
            peak_memory_mb=peak_memory_mb(),
        ),
        artifact=str(artifact.folder),
        artifact_digest=artifact.manifest.digest,
        manifest=artifact.manifest,
        provenance=provenance(),
    )
    curve = [{"epoch": 0.0, "dev": score.dev, **{_SHARE + name: share for name, share in shares.items()}}]
    workspace.ledger.finish(record, curve, {task.name: table})
    return record


_SHARE = "share of "


def shares_of(record: RunRecord, workspace: Workspace) -> dict[str, float]:
    """By source of the fusion that a pruned one was made from, its mean share there."""
    curve = workspace.ledger.curve(record.run).iloc[0]
    return {str(name).removeprefix(_SHARE): float(curve[name]) for name in curve.index if str(name).startswith(_SHARE)}


def _fusion(task: Task, using: str, workspace: Workspace) -> Artifact:
    """The fusion that ``using`` means; by itself never one that was pruned, or pruning again would prune that."""
    fusions = [a for a in workspace.store.artifacts() if (a.manifest.kind, a.manifest.task) == ("fusion", task.name)]
    if using != "fusion":
        candidates = [artifact for artifact in fusions if artifact.manifest.run == using]
    else:
        candidates = [artifact for artifact in fusions if artifact.manifest.pruned_from is None]
        if workspace.backbone_name:
            weights = workspace.backbone.weights_hash
            candidates = [artifact for artifact in candidates if artifact.manifest.backbone_weights == weights]
    if not candidates:
        wanted = "fusion" if using == "fusion" else f"fusion {using}"
        on = f" on backbone '{workspace.backbone_name}'" if workspace.backbone_name else ""
        raise PipelineError(
            f"no {wanted} of '{task.name}'{on} in {workspace.store_root}: train one"
            f" with python -m pipeline fuse --target {task.name}"
        )
    return workspace.store.current(max(candidates, key=lambda artifact: artifact.manifest.rank))
