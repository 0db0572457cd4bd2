"""A trained fusion over fewer adapters: those that its attention shows to matter, without training anew."""

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pipeline.data.task_data import TaskData
from pipeline.data.tasks import Task
from pipeline.methods.attention import source_shares
from pipeline.methods.gated import own_member
from pipeline.methods.registry import members_of, prune_fusion
from pipeline.models.transfer_model import TransferModel
from pipeline.records.run_record import Cost, Parameters, RunRecord, TaskScore
from pipeline.records.store import Artifact
from pipeline.runs.build import restore
from pipeline.runs.kept_models import best_of, on_own_backbone
from pipeline.runs.outcome import Made, Trainable, get_or_train, provenance, save_artifact, seen_rows
from pipeline.runs.scoring import Scoring
from pipeline.runs.workspace import Workspace
from pipeline.stats.metrics import fit_temperature
from pipeline.system.errors import PipelineError
from pipeline.system.process import process_count
from pipeline.training.devices import make_accelerator, peak_memory_mb, reset_peak_memory


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
    fusions = [a for a in workspace.store.artifacts() if (a.manifest.kind, a.manifest.task) == ("fusion", task.name)]
    if using != "fusion":
        candidates = [artifact for artifact in fusions if artifact.manifest.run == using]
    else:  # by itself never one that was pruned, or pruning again would prune that
        candidates = [artifact for artifact in fusions if artifact.manifest.pruned_from is None]
        if workspace.backbone_name:
            weights = workspace.backbone.weights_hash
            candidates = [artifact for artifact in candidates if artifact.manifest.backbone_weights == weights]
    fusion = best_of(candidates, "fusion", task)
    if fusion is None:
        wanted = "fusion" if using == "fusion" else f"fusion {using}"
        on = f" on backbone '{workspace.backbone_name}'" if workspace.backbone_name else ""
        raise PipelineError(
            f"no {wanted} of '{task.name}'{on} in {workspace.store_root}: train one"
            f" with python -m pipeline fuse --target {task.name}"
        )
    workspace = on_own_backbone(workspace, fusion)
    count = len(fusion.manifest.sources)
    own = own_member(fusion.manifest.recipe, task.name, [source.task for source in fusion.manifest.sources])
    least, besides = (1, "") if own is None else (2, " besides the target's own adapter")
    if not least <= keep < count:
        none_left = f"one source{besides}: there is none to remove"
        sources = f"{count} sources: give {least} to {count - 1}" if count > least else none_left
        raise PipelineError(f"--keep {keep}: fusion {fusion.manifest.run} has {sources}")
    return get_or_train(_Pruning(workspace, task, fusion, keep), force)


@dataclass
class _Pruning(Trainable[RunRecord]):
    """A pruned fusion before it is made."""

    workspace: Workspace
    task: Task
    fusion: Artifact
    keep: int

    @property
    def data(self) -> TaskData:
        return self.workspace.splits.of(self.task, None, 0)

    @cached_property
    def identity(self) -> dict[str, Any]:
        manifest = self.fusion.manifest
        return {
            "kind": "fusion",
            "tasks": {
                self.task.name: {
                    "meaning": self.task.meaning,
                    "recipe": manifest.recipe.identity,
                    "data": {"train": manifest.train_rows, "dev": self.data.fingerprint["dev"]},
                }
            },
            "seed": manifest.seed,
            "backbone": self.workspace.backbone.identity,
            "pruned": {"digest": manifest.digest, "sources": [source.digest for source in manifest.sources]},
            "keep": self.keep,
        }

    def finished(self) -> RunRecord | None:
        return self.workspace.finished(self.name, with_model=True)

    def train(self) -> RunRecord:
        """Keep the best sources, score the fusion of these, and write all of it."""
        task, workspace, rows = self.task, self.workspace, self.data.dev
        accelerator = make_accelerator("fp32")
        model = accelerator.prepare(restore(self.fusion, task, workspace))
        scoring = Scoring(task, rows, self.fusion.manifest.recipe, workspace.backbone, accelerator)
        reset_peak_memory()
        started = time.perf_counter()
        shares, kept = self._keep_best(model, scoring)
        predicting = time.perf_counter()
        prediction = scoring.predict_choosing(model)
        ended = time.perf_counter()
        score, table = scoring.scored(prediction)
        temperature = fit_temperature(prediction, rows["label"].to_numpy())
        score = score.model_copy(update={"dev_interval": scoring.interval(prediction), "temperature": temperature})
        # What training made of the model: fusion layers, an own adapter and the head.
        own = [f".adapters.{task.name}."] if self.fusion.manifest.recipe.form.trains_own else []
        marks = ("adapter_fusion_layer", *own)
        trained = [p for name, p in model.backbone.named_parameters() if any(mark in name for mark in marks)]
        cost = Cost(
            trainable_parameters=sum(p.numel() for p in (*trained, *model.head.parameters())),
            seconds=round(ended - started, 3),
            examples_per_second=round(len(rows) / (ended - predicting), 2),
            peak_memory_mb=peak_memory_mb(),
        )
        record = self._record(model, self._artifact(model, kept, score), score, cost)
        curve = [{"epoch": 0.0, "dev": score.dev, **{_SHARE + name: share for name, share in shares.items()}}]
        workspace.ledger.finish(record, curve, {task.name: table})
        return record

    def _keep_best(self, model: TransferModel, scoring: Scoring) -> tuple[dict[str, float], list[str]]:
        """Leave out all but the sources that get most attention: the share of each source, and the names kept."""
        manifest = self.fusion.manifest
        names = manifest.recipe.form.names_of(manifest.sources)
        members = members_of(manifest.recipe, self.task.name, names)
        own = own_member(manifest.recipe, self.task.name, members)
        shares = source_shares(model.backbone, members, scoring.inputs())
        # Of equal shares the first in the fusion's order; the target's own adapter stays if it has no gate.
        ranked = sorted(names, key=lambda name: (name != own, -shares[name]))
        return shares, prune_fusion(model.backbone, members, {*ranked[: self.keep], *({own} if own else ())})

    def _artifact(self, model: TransferModel, kept: Collection[str], score: TaskScore) -> Artifact:
        """What is left of the fusion, put into the store."""
        manifest, rows = self.fusion.manifest, self.data.dev
        named = zip(manifest.recipe.form.names_of(manifest.sources), manifest.sources, strict=True)
        sources = tuple(source for name, source in named if name in kept)
        changes = {
            "run": self.name,
            "dev": score.dev,
            "dev_interval": score.dev_interval,
            "temperature": score.temperature,
            "dev_rows": len(rows),
            "dev_fingerprint": self.data.fingerprint["dev"],
            "part_of_dev": manifest.part_of_dev or self.workspace.splits.chooses_by_part(self.task, rows),
            "sources": sources,
            "pruned_from": manifest.run,
            "files": {},
        }
        untrained = replace(self.data, train=self.data.train.iloc[:0], added={})
        seen = seen_rows({self.task.name: untrained}, [manifest.as_source], self.workspace)
        return save_artifact(self.workspace.store, manifest.model_copy(update=changes), model, seen)

    def _record(self, model: TransferModel, artifact: Artifact, score: TaskScore, cost: Cost) -> RunRecord:
        manifest, whole = artifact.manifest, self.workspace.ledger.find(self.fusion.manifest.run)
        # Pruning trains on no rows, so train_rows stays 0; what the fusion was trained on holds for what is left of it.
        trained: dict[str, Any] = {"recipe": manifest.recipe, "limit": manifest.limit, "pair": manifest.pair}
        if whole is not None:
            own = whole.score(self.task.name)
            trained |= {"added": own.added, "dropped": own.dropped}
            if whole.fingerprints(self.task.name).get("dev") == self.data.fingerprint["dev"]:
                trained["dev_in_train"] = own.dev_in_train
        return RunRecord(
            run=self.name,
            kind="fusion",
            seed=manifest.seed,
            identity=self.identity,
            sources=manifest.sources,
            started_from=None if whole is None else whole.started_from,
            backbone=self.workspace.backbone.name,
            best_epoch=0,
            scores={self.task.name: score.model_copy(update=trained)},
            cost=cost,
            parameters=Parameters(
                backbone=self.workspace.backbone.parameters,
                head=sum(p.numel() for p in model.head.parameters()),
                model=sum(p.numel() for p in model.parameters()),
            ),
            artifact=str(artifact.folder),
            artifact_digest=manifest.digest,
            manifest=manifest,
            provenance=provenance(),
        )


_SHARE = "share of "


def shares_of(record: RunRecord, workspace: Workspace) -> dict[str, dict[str, float]]:
    """The mean shares of the sources that a pruned fusion "keeps" and "leaves out", in the fusion it was made from."""
    curve, form = workspace.ledger.curve(record.run).iloc[0], record.recipe.form
    kept = {*form.names_of(record.sources), *([record.task] if form.trains_own else [])}
    shares = {
        name.removeprefix(_SHARE): float(curve[name]) for name in map(str, curve.index) if name.startswith(_SHARE)
    }
    return {
        "keeps": {name: share for name, share in shares.items() if name in kept},
        "leaves out": {name: share for name, share in shares.items() if name not in kept},
    }
