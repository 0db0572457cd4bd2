"""A trained fusion over fewer adapters: those that its attention shows to matter, without training anew."""

import time
from dataclasses import dataclass
from typing import Any

from pipeline.data.tasks import Task
from pipeline.methods.attention import source_shares
from pipeline.methods.fusion import prune_fusion
from pipeline.models.transfer_model import TransferModel
from pipeline.records.ledger import Cost, RunRecord, SourceRun, TaskScore, run_name
from pipeline.records.store import Artifact, Manifest
from pipeline.runs.artifacts import save_artifact
from pipeline.runs.restore import restore_artifact
from pipeline.runs.scoring import scoring_of
from pipeline.runs.workspace import Workspace, provenance
from pipeline.system.errors import PipelineError
from pipeline.training.cost import peak_memory_mb, reset_peak_memory
from pipeline.training.devices import make_accelerator, process_count


def prune(target: str, workspace: Workspace, *, keep: int, using: str = "fusion", force: bool = False) -> RunRecord:
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
    pruning = Pruning(task, _fusion(task, using, workspace), keep, workspace)
    if not force and (record := pruning.finished()) is not None:
        return record
    with workspace.ledger.lock(pruning.name):
        # Another command may have finished it between the first look and the lock.
        record = None if force else pruning.finished()
        return record or pruning.make()


@dataclass(frozen=True)
class Pruning:
    """A fusion and how many of its sources are to stay."""

    task: Task
    fusion: Artifact
    keep: int
    workspace: Workspace

    def __post_init__(self) -> None:
        count = len(self.fusion.manifest.sources)
        if not 1 <= self.keep < count:
            raise PipelineError(
                f"--keep {self.keep}: fusion {self.fusion.manifest.run} has {count} sources: give 1 to {count - 1}"
            )

    @property
    def identity(self) -> dict[str, Any]:
        manifest, data = self.fusion.manifest, self.workspace.task_data(self.task, None, 0)
        return {
            "kind": "fusion",
            "tasks": {
                self.task.name: {
                    "meaning": self.task.meaning,
                    "recipe": manifest.recipe.identity,
                    "data": {"train": manifest.train_rows, "dev": data.fingerprint["dev"]},
                }
            },
            "seed": manifest.seed,
            "backbone": self.workspace.backbone.identity,
            "pruned": {"digest": manifest.digest, "sources": [source.digest for source in manifest.sources]},
            "keep": self.keep,
        }

    @property
    def name(self) -> str:
        return run_name(self.identity)

    def finished(self) -> RunRecord | None:
        """The ledger's record, if its artifact is still there."""
        record = self.workspace.ledger.find(self.name)
        if record is None:
            return None
        artifact = self.workspace.store.find_unchanged(self.name, record.artifact_digest)
        return None if artifact is None else record.model_copy(update={"artifact": str(artifact.folder)})

    def make(self) -> RunRecord:
        """Score the sources, leave the others out, score the task, and keep all of it."""

        manifest, workspace = self.fusion.manifest, self.workspace
        accelerator = make_accelerator("fp32")
        model = restore_artifact(self.fusion, self.task, workspace.backbone, workspace.store)
        model = accelerator.prepare(model)
        recipe, rows = manifest.recipe, workspace.task_data(self.task, None, 0).dev
        scoring = scoring_of(self.task, rows, recipe, workspace.backbone, accelerator)
        reset_peak_memory()
        started = time.perf_counter()
        tasks = [source.task for source in manifest.sources]
        shares = source_shares(model.backbone, tasks, scoring.inputs())
        # Of equal shares the first in the fusion's order.
        kept = prune_fusion(model.backbone, tasks, sorted(tasks, key=lambda name: -shares[name])[: self.keep])
        predicting = time.perf_counter()
        prediction = scoring.predict(model)
        ended = time.perf_counter()
        dev_score = scoring.value(prediction)
        sources = tuple(source for source in manifest.sources if source.task in kept)
        artifact = self._save(model, dev_score, sources)
        record = RunRecord(
            run=self.name,
            kind="fusion",
            seed=manifest.seed,
            identity=self.identity,
            sources=sources,
            backbone=workspace.backbone.name,
            best_epoch=0,
            scores={
                self.task.name: TaskScore(
                    metric=self.task.metric, dev=dev_score, rows=len(rows), recipe=recipe, limit=manifest.limit
                )
            },
            cost=Cost(
                trainable_parameters=_trained_parameters(model),
                seconds=round(ended - started, 3),
                examples_per_second=round(len(rows) / (ended - predicting), 2),
                peak_memory_mb=peak_memory_mb(),
            ),
            artifact=str(artifact.folder),
            artifact_digest=artifact.manifest.digest,
            provenance=provenance(),
        )
        curve = [{"epoch": 0.0, "dev": dev_score, **{f"share of {name}": share for name, share in shares.items()}}]
        workspace.ledger.finish(record, curve, {self.task.name: scoring.table(prediction)})
        return record

    def _save(self, model: TransferModel, dev_score: float, sources: tuple[SourceRun, ...]) -> Artifact:
        old = self.fusion.manifest
        values = {"run": self.name, "dev": dev_score, "sources": sources, "pruned_from": old.run, "files": {}}
        names = [source.task for source in sources]
        return save_artifact(self.workspace.store, old.model_copy(update=values), model, names)


def _fusion(task: Task, using: str, workspace: Workspace) -> Artifact:
    """The fusion that ``using`` means; by itself never one that was pruned, or pruning again would prune that."""

    def fits(manifest: Manifest) -> bool:
        if manifest.kind != "fusion" or manifest.task != task.name:
            return False
        if using != "fusion":
            return manifest.run == using
        return manifest.pruned_from is None and manifest.backbone_weights == workspace.backbone.weights_hash

    found = [artifact for artifact in workspace.store.artifacts() if fits(artifact.manifest)]
    if not found:
        wanted = "fusion" if using == "fusion" else f"fusion {using}"
        raise PipelineError(
            f"no {wanted} of '{task.name}' on backbone '{workspace.backbone_name}' in {workspace.store_root}: train one"
            f" with python -m pipeline fuse --target {task.name}"
        )
    return workspace.store.current(max(found, key=lambda artifact: (artifact.manifest.dev, artifact.manifest.run)))


def _trained_parameters(model: TransferModel) -> int:
    """What training made of the model: fusion layers and head."""
    fusion = sum(p.numel() for name, p in model.backbone.named_parameters() if "adapter_fusion_layer" in name)
    return fusion + sum(parameter.numel() for parameter in model.head.parameters())
