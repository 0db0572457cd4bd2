"""One training run from request to ledger: what every stage that trains has in common."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pipeline.data.batches import inputs_of, training_batches
from pipeline.data.load import TaskData
from pipeline.data.tokens import TokenisedSplit, tokenise
from pipeline.ledger import Cost, Kind, Parameters, RunRecord, SourceRun, run_name
from pipeline.metrics import load_metric, score
from pipeline.recipe import Recipe, check_seed
from pipeline.store import Artifact, Manifest
from pipeline.tasks import Task
from stages.request import RunRequest
from stages.workspace import Workspace, provenance

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn

    from pipeline.models.frozen_prefix import PrefixCache
    from pipeline.models.transfer_model import TransferModel
    from pipeline.training.fit import Fitted
    from pipeline.training.objectives import Prediction
    from pipeline.training.predict import Extend

_ARTIFACT_KINDS: Mapping[Kind, Any] = {"adapter": "adapter", "fusion": "fusion"}
# Sequential tuning makes a model for every ordered pair of tasks; keeping the weights of all would fill disks.
_KEEPS_WEIGHTS: frozenset[Kind] = frozenset({"full", "frozen"})


class Run:
    """A request in a workspace: its identity, and its training if the ledger does not have it yet."""

    def __init__(self, request: RunRequest, workspace: Workspace) -> None:
        from pipeline.training.devices import resolve_precision

        check_seed(request.seed)
        self.request, self.workspace = request, workspace
        self.task: Task = workspace.task(request.task)
        self.backbone = workspace.backbone
        precision = resolve_precision(request.recipe.precision)
        self.recipe = request.recipe.resolve(self.task, precision, self.backbone.max_length, self.backbone.layers)

    @cached_property
    def data(self) -> TaskData:
        return self.workspace.task_data(self.task, self.request.limit, self.request.seed)

    @cached_property
    def sources(self) -> tuple[SourceRun, ...]:
        start = self.request.start
        if start is not None:
            assert start.weights_sha256 is not None
            return (SourceRun(task=start.task, run=start.run, digest=start.weights_sha256),)
        return tuple(
            SourceRun(task=artifact.manifest.task, run=artifact.manifest.run, digest=artifact.manifest.digest)
            for artifact in self.request.adapters
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        return {
            "kind": self.request.kind,
            "task": {"name": self.task.name, **self.task.meaning},
            "recipe": self.recipe.model_dump(mode="json"),
            "seed": self.request.seed,
            "data": self.data.fingerprint,
            "backbone": self.backbone.identity,
            # The digest of a source's contents, not its name: what counts is what was built on.
            "sources": [{"task": source.task, "digest": source.digest} for source in self.sources],
        }

    @cached_property
    def name(self) -> str:
        return run_name(self.identity)

    @property
    def title(self) -> str:
        source = f" from {self.request.start.task}" if self.request.start else ""
        return f"{self.request.kind} {self.task.name}{source} seed {self.request.seed}"

    def finished(self) -> RunRecord | None:
        """The ledger's record, if everything the run leaves behind is still there."""
        record = self.workspace.ledger.find(self.name)
        if record is None:
            return None
        kind = _ARTIFACT_KINDS.get(self.request.kind)
        if kind is not None:
            artifact = self.workspace.store.find(self.name)
            if artifact is None or artifact.manifest.digest != record.artifact_digest:
                return None
            return record.model_copy(update={"artifact": str(artifact.folder)})
        if record.weights_sha256 is not None and not self.workspace.ledger.weights_file(self.name).is_file():
            return None
        return record

    def get(self, force: bool = False) -> RunRecord:
        """The finished record: from the ledger, or by training (from the last checkpoint, if there is one)."""
        if not force and (record := self.finished()) is not None:
            return record
        from pipeline.training.devices import full_memory_explained, is_main_process, wait_for_everyone

        # Of the processes that train this run together, one holds the lock against other commands.
        with self.workspace.ledger.lock(self.name) if is_main_process() else nullcontext():
            if force and is_main_process():
                self.workspace.ledger.drop_checkpoint(self.name)
            wait_for_everyone()
            # Another command may have finished it between the first look and the lock.
            if not force and (record := self.finished()) is not None:
                return record
            remedy = "give --gradient-accumulation-steps 2, a smaller --batch-size or a smaller --max-length"
            with full_memory_explained(self.title, remedy):
                return self._train()

    def _train(self) -> RunRecord:
        from pipeline.training.devices import make_accelerator
        from pipeline.training.objectives import objective_for
        from pipeline.training.predict import predict_split
        from stages.build import build_for_training

        recipe, task, ledger = self.recipe, self.task, self.workspace.ledger
        assert recipe.encoding is not None and recipe.head is not None and recipe.max_length is not None
        accelerator = make_accelerator(recipe.precision, self.workspace.track, ledger.folder(self.name))
        if accelerator.is_main_process:
            self._tell_overlap()
        if self.workspace.track:
            accelerator.init_trackers("", config={})
        tokenizer = self.backbone.tokenizer
        train, dev = (
            tokenise(rows, tokenizer, recipe.encoding, recipe.max_length) for rows in (self.data.train, self.data.dev)
        )
        built = build_for_training(self.request, recipe, task, self.backbone, ledger)
        objective = objective_for(task, recipe.head)
        known_dev, known_train = self._caches(built.model, dev, train, accelerator)

        def predict(model: Any) -> Prediction:
            return predict_split(
                model,
                dev,
                objective,
                batch_size=2 * recipe.batch_size,
                pad_token_id=tokenizer.pad_token_id,
                accelerator=accelerator,
                extend=known_dev.extend,
            )

        from pipeline.training.fit import fit

        load_metric(task.metric)  # its import takes seconds, which are not the run's
        fitted = fit(
            built.model,
            recipe=recipe,
            seed=self.request.seed,
            data=_training_data(
                train, recipe, self.request.seed, tokenizer.pad_token_id, accelerator.num_processes, known_train.extend
            ),
            loss=lambda model, batch: objective.loss(model(**inputs_of(batch)), batch["labels"]),
            evaluate=lambda model: score(task.metric, predict(model).values, self.data.dev["label"].to_numpy()),
            metric=task.metric,
            accelerator=accelerator,
            title=self.title,
            penalties=built.penalties,
            without_decay=built.without_decay,
            checkpoint_file=ledger.checkpoint_file(self.name),
            checkpoint_seconds=self.workspace.checkpoint_seconds,
        )
        if recipe.trainable != "full" and not recipe.train_layernorm:
            self.backbone.check_unchanged(built.model.backbone)
        prediction = predict(built.model)
        if self.workspace.track:
            accelerator.end_training()
        if accelerator.is_main_process:
            self._finish(built.model, fitted, prediction)
        accelerator.wait_for_everyone()
        record = self.finished()
        assert record is not None
        return record

    def _caches(
        self, model: TransferModel, dev: TokenisedSplit, train: TokenisedSplit, accelerator: Accelerator
    ) -> tuple[PrefixCache, PrefixCache]:
        """What frozen layers give for dev, read after every epoch, and with the memory left for train."""
        from pipeline.models.frozen_prefix import PrefixCache

        def cache(split: TokenisedSplit, max_bytes: float) -> PrefixCache:
            return PrefixCache(
                model,
                split,
                max_bytes=max_bytes,
                batch_size=2 * self.recipe.batch_size,
                pad_token_id=self.backbone.tokenizer.pad_token_id,
                accelerator=accelerator,
            )

        bound = self.workspace.cache_gb * 2**30
        known_dev = cache(dev, bound)
        # Rows that are read once are not worth keeping.
        return known_dev, cache(train, bound - known_dev.bytes if self.recipe.epochs_over(len(train)) > 1 else 0)

    def _finish(self, model: TransferModel, fitted: Fitted, prediction: Prediction) -> None:
        """Artifact first, then the ledger's files, ``run.json`` last: what it names is in place when it appears."""
        artifact = self._save_artifact(model, fitted)
        record = RunRecord(
            run=self.name,
            kind=self.request.kind,
            task=self.task.name,
            seed=self.request.seed,
            limit=self.request.limit,
            recipe=self.recipe,
            identity=self.identity,
            sources=self.sources,
            backbone=self.backbone.name,
            metric=self.task.metric,
            dev=fitted.best_score,
            best_epoch=fitted.best_epoch,
            rows={"train": len(self.data.train), "dev": len(self.data.dev), "dev_in_train": self.data.dev_in_train},
            cost=Cost(
                trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
                seconds=round(fitted.seconds, 3),
                examples_per_second=round(fitted.examples_per_second, 2),
                peak_memory_mb=fitted.peak_memory_mb,
            ),
            parameters=self._parameters(model),
            artifact=str(artifact.folder) if artifact else None,
            artifact_digest=artifact.manifest.digest if artifact else None,
            weights_sha256=self._keep_weights(model),
            provenance=provenance(),
        )
        self.workspace.ledger.finish(record, fitted.curve, prediction_table(self.data.dev, prediction))

    def _parameters(self, model: nn.Module) -> Parameters:
        heads = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("backbone."))
        return Parameters(backbone=self.backbone.parameters, head=heads)

    def _save_artifact(self, model: TransferModel, fitted: Fitted) -> Artifact | None:
        kind = _ARTIFACT_KINDS.get(self.request.kind)
        if kind is None:
            return None
        from pipeline.models.adaptation.fusion import save_fusion
        from pipeline.models.adaptation.houlsby import save_adapter

        backbone = model.backbone
        if kind == "adapter":

            def write(folder: Path) -> None:
                save_adapter(backbone, self.task.name, folder)
        else:
            names = [artifact.manifest.task for artifact in self.request.adapters]

            def write(folder: Path) -> None:
                save_fusion(backbone, names, folder)

        state = model.trainable_state()
        manifest = Manifest(
            kind=kind,
            task=self.task.name,
            run=self.name,
            seed=self.request.seed,
            limit=self.request.limit,
            recipe=self.recipe,
            train_rows=self.data.fingerprint["train"],
            pair=self.task.is_pair,
            meaning=self.task.meaning,
            metric=self.task.metric,
            dev=fitted.best_score,
            backbone=self.backbone.name,
            backbone_weights=self.backbone.weights_hash,
            sources=self.sources,
        )
        return self.workspace.store.save(
            manifest,
            write,
            head={name.removeprefix("head."): value for name, value in state.items() if name.startswith("head.")},
            layernorms={
                name.removeprefix("backbone."): value
                for name, value in state.items()
                # Of the backbone only adapters and LayerNorms train here; families name the latter differently.
                if self.recipe.train_layernorm and name.startswith("backbone.") and ".adapters." not in name
            },
        )

    def _tell_overlap(self) -> None:
        data, name = self.data, self.task.name
        if data.dropped:
            print(f"{name}: {data.dropped} rows that also stand in dev are dropped from train", file=sys.stderr)
        if data.dev_in_train:
            print(
                f"{name}: {data.dev_in_train} rows of dev also stand in train (--drop-overlap drops those from train)",
                file=sys.stderr,
            )

    def _keep_weights(self, model: TransferModel) -> str | None:
        if self.request.kind not in _KEEPS_WEIGHTS:
            return None
        from safetensors.torch import save_file

        from pipeline.atomic import new_file, sha256_file

        file = self.workspace.ledger.weights_file(self.name)
        with new_file(file) as temporary:
            save_file(model.trainable_state(), temporary)
        return sha256_file(file)


def prediction_table(rows: pd.DataFrame, prediction: Prediction) -> pd.DataFrame:
    """``id``, ``label`` where known, ``prediction``, and for classes ``probability_<number of the class>``."""
    table = pd.DataFrame({"id": rows["id"]})
    if "label" in rows:
        table["label"] = rows["label"]
    table["prediction"] = prediction.values
    if prediction.probabilities is not None:
        for index in range(prediction.probabilities.shape[1]):
            table[f"probability_{index}"] = prediction.probabilities[:, index]
    return table


def _training_data(
    split: TokenisedSplit, recipe: Recipe, seed: int, pad_token_id: int, processes: int, extend: Extend
) -> Any:
    from pipeline.training.fit import TrainingData

    pieces = recipe.gradient_accumulation_steps * processes
    return TrainingData(
        batches=lambda epoch, first: (
            [extend(piece) for piece in batch]
            for batch in training_batches(split, recipe.batch_size, pieces, seed, epoch, pad_token_id, first=first)
        ),
        batches_per_epoch=recipe.steps_over(len(split)),
        epochs=recipe.epochs_over(len(split)),
    )
