"""TrainingRun: one training run from request to record. Training for one task is joint training of one."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd
from accelerate import Accelerator
from torch import Tensor, nn

from pipeline.data.batches import Piece, inputs_of
from pipeline.data.load import TaskData
from pipeline.data.tasks import Task
from pipeline.data.tokens import TokenisedSplit, joined
from pipeline.methods.attention import attention_table, site_attention
from pipeline.models.backbone import adapter_hashes, unchanged_parts
from pipeline.models.prefix_cache import PrefixCache
from pipeline.models.transfer_model import MultitaskModel
from pipeline.records.ledger import Cost, Parameters, RunRecord, SourceRun, TaskScore, run_name
from pipeline.records.store import Artifact, Manifest
from pipeline.runs.anchoring import Anchor, choose_anchor
from pipeline.runs.artifacts import save_artifact
from pipeline.runs.build import build_for_training
from pipeline.runs.forgetting import lineage, score_again
from pipeline.runs.inputs import training_data, training_splits
from pipeline.runs.joint import check_joint, resolve_joint
from pipeline.runs.once import get_or_train
from pipeline.runs.overlap import tell_overlap
from pipeline.runs.request import RunRequest
from pipeline.runs.scoring import Evaluations, Scoring, scoring_of
from pipeline.runs.starting import choose_start
from pipeline.runs.weights import ARTIFACT_KINDS, save_weights
from pipeline.runs.workspace import Workspace, provenance
from pipeline.settings.recipe import Recipe, check_seed
from pipeline.stats.metrics import Prediction, load_metric
from pipeline.system.atomic import check_writable
from pipeline.training.cost import check_memory
from pipeline.training.devices import is_main_process, make_accelerator
from pipeline.training.divergence import divergence_of
from pipeline.training.fit import Fitted, GradientRule, Loss, TrainingData, fit
from pipeline.training.mixing import mixed
from pipeline.training.surgery import Surgery, weighting_of
from pipeline.training.terms import Terms, loss_with, terms_of
from pipeline.training.terms.term import Regularised

_KEEPS_WEIGHTS = frozenset({"full", "frozen"})
"""Kinds of runs that keep their weights unasked. Sequential tuning makes a model for every ordered pair of tasks; to
keep them all would fill disks."""


@dataclass(frozen=True)
class Findings:
    """What is measured on a trained model."""

    predictions: Mapping[str, pd.DataFrame]
    """Of each task, on dev."""
    adapters: Mapping[str, str]
    """sha256 over the tensors of each frozen adapter before training."""
    unchanged: Mapping[str, str]
    earlier: Mapping[str, tuple[TaskScore, pd.DataFrame]]
    """Scores and predictions on the tasks that sequential tuning went through before."""
    initial: Artifact | None
    """The adapter that the model started as."""
    candidates: Mapping[str, float]
    """Dev scores of the adapters that a fusion's anchor was chosen from."""


class TrainingRun:
    """A request in a workspace: its identity, and its training if the ledger does not have it yet.

    The kept epoch is the one with the best dev score, of several tasks with the best mean.

    Raises:
        PipelineError: recipes that do not fit their task, or for several tasks that differ in more than a task may have
            of its own; a task that is named twice; gradient surgery in several processes.
    """

    def __init__(self, request: RunRequest, workspace: Workspace) -> None:
        check_seed(request.seed)
        self.request, self.workspace = request, workspace
        named = sorted(((workspace.task(part.task), part) for part in request.parts), key=lambda pair: pair[0].name)
        self.backbone = workspace.backbone
        is_joint = request.kind == "multitask"
        resolved = [workspace.resolve(part.recipe, task, joint=is_joint) for task, part in named]
        if is_joint:
            resolved = resolve_joint(resolved)
            check_joint([task for task, _ in named], resolved)
        self.tasks: dict[str, Task] = {task.name: task for task, _ in named}
        self.recipes: dict[str, Recipe] = dict(zip(self.tasks, resolved, strict=True))
        self.limits = {task.name: part.limit for task, part in named}

    @property
    def task(self) -> Task:
        """The only task, or the first by name."""
        return next(iter(self.tasks.values()))

    @property
    def recipe(self) -> Recipe:
        """What the tasks' recipes agree in: all that concerns the encoder and its training."""
        return self.recipes[self.task.name]

    @property
    def parts(self) -> dict[str, tuple[Task, Recipe]]:
        """Each task with its resolved recipe."""
        return {name: (task, self.recipes[name]) for name, task in self.tasks.items()}

    @cached_property
    def data(self) -> dict[str, TaskData]:
        """The rows of each task."""
        return {
            name: self.workspace.task_data(task, self.limits[name], self.request.seed, self.recipes[name].extra)
            for name, task in self.tasks.items()
        }

    @cached_property
    def sources(self) -> tuple[SourceRun, ...]:
        start = self.request.start
        if start is not None:
            assert start.weights_sha256 is not None
            return (SourceRun(task=start.task, run=start.run, digest=start.weights_sha256),)
        manifests = [artifact.manifest for artifact in self.request.adapters]
        return tuple(SourceRun(task=each.task, run=each.run, digest=each.digest) for each in manifests)

    @cached_property
    def identity(self) -> dict[str, Any]:
        return {
            "kind": self.request.kind,
            "tasks": {
                name: {
                    "meaning": task.meaning,
                    "recipe": self.recipes[name].identity,
                    "data": self.data[name].fingerprint,
                }
                for name, task in self.tasks.items()
            },
            "seed": self.request.seed,
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
        return f"{self.request.kind} {'+'.join(self.tasks)}{source} seed {self.request.seed}"

    def finished(self) -> RunRecord | None:
        """The ledger's record, if everything the run leaves behind is still there."""
        record = self.workspace.ledger.find(self.name)
        if record is None:
            return None
        if self.request.kind in ARTIFACT_KINDS:
            artifact = self.workspace.store.find_unchanged(self.name, record.artifact_digest)
            return None if artifact is None else record.model_copy(update={"artifact": str(artifact.folder)})
        weights_due = self.request.keep_weights or record.weights_sha256 is not None
        return None if weights_due and not self.workspace.ledger.weights_file(record.run).is_file() else record

    def get(self, force: bool = False) -> RunRecord:
        """The finished record: from the ledger, or by training (from the last checkpoint, if there is one)."""
        return get_or_train(self, force)

    def train(self) -> RunRecord:
        """Train, score every task and write everything; see :meth:`get`."""
        recipe, ledger, seed = self.recipe, self.workspace.ledger, self.request.seed
        accelerator = make_accelerator(
            recipe.precision, self.workspace.track, ledger.folder(self.name), resting=len(self.tasks) > 1
        )
        if accelerator.is_main_process:
            for name, task in self.tasks.items():
                tell_overlap(self.data[name], task)
            if self.request.kind in ARTIFACT_KINDS:
                # Now rather than after hours.
                check_writable(self.workspace.store.root / f"{self.request.kind}s" / self.task.name / self.name)
        if self.workspace.track:
            accelerator.init_trackers("", config={})
        scorings = {
            name: scoring_of(task, self.data[name].dev, self.recipes[name], self.backbone, accelerator)
            for name, task in self.tasks.items()
        }
        anchor = self._initial_adapter(scorings[self.task.name], accelerator)
        built = build_for_training(self.request, self.parts, self.backbone, ledger, anchor.adapter)
        model = built.model
        combine = self._surgery(model)
        scorings, data = self._with_caches(model, scorings, accelerator)
        frozen = self.request.adapters if recipe.trainable == "fusion" else ()
        encoder = model.of(self.task.name).backbone
        adapters = adapter_hashes(encoder, [source.manifest.task for source in frozen])
        for task in self.tasks.values():
            load_metric(task.metric)  # its import takes seconds, which are not the run's

        loss, terms = self._loss(model, scorings)
        evaluations = self._evaluations(model, scorings)
        fitted = fit(
            model,
            recipe=recipe,
            seed=seed,
            data=mixed(data, {name: len(rows.train) for name, rows in self.data.items()}, recipe, seed),
            loss=loss,
            evaluate=evaluations,
            metric=self.task.metric if len(self.tasks) == 1 else "mean",
            accelerator=accelerator,
            title=self.title,
            penalties=(*built.penalties, *terms.of_weights),
            without_decay=built.without_decay,
            pretrained=self.backbone.tensor_names,
            combine=combine,
            companions=terms.of_outputs,
            checkpoint_file=ledger.checkpoint_file(self.name),
            checkpoint_seconds=self.workspace.checkpoint_seconds,
        )
        best = evaluations.best(fitted)
        earlier = lineage(self.request.start, ledger) if self.request.kind == "sequential" else []
        findings = Findings(
            predictions={name: scoring.table(best[name]) for name, scoring in scorings.items()},
            adapters=adapters,
            unchanged={} if self.request.start else unchanged_parts(encoder, self.backbone, adapters),
            earlier={step.task: score_again(encoder, step, self.workspace, accelerator) for step in earlier},
            initial=anchor.adapter,
            candidates=anchor.candidates,
        )
        if self.workspace.track:
            accelerator.end_training()
        if accelerator.is_main_process:
            scores = {name: scorings[name].value(prediction) for name, prediction in best.items()}
            attention = self._attention(model, scorings[self.task.name])
            self._finish(model, fitted, scores, findings, attention)
        accelerator.wait_for_everyone()
        record = self.finished()
        assert record is not None
        return record

    def _loss(self, model: MultitaskModel, scorings: Mapping[str, Scoring]) -> tuple[Loss, Terms]:
        """The loss of a piece, weighted by its task, and the terms in it."""

        def forward(model: Callable[..., Tensor], piece: Piece) -> Tensor:
            return model(piece.task, **inputs_of(piece.batch))

        def objective(outputs: Tensor, piece: Piece) -> Tensor:
            return scorings[piece.task].objective.loss(outputs, piece.batch["labels"])

        divergences = {name: divergence_of(task, self.recipes[name]) for name, task in self.tasks.items()}
        terms = terms_of(
            Regularised(
                self.recipe,
                model,
                forward,
                divergences.__getitem__,
                lambda name: model.of(name).backbone,
                self.backbone.tensor_names,
            )
        )
        regularised = loss_with(forward, objective, terms.of_outputs)

        def loss(model: nn.Module, piece: Piece) -> Tensor:
            return regularised(model, piece) * self.recipes[piece.task].joint.loss_weight

        return loss, terms

    def _evaluations(
        self, model: MultitaskModel, scorings: Mapping[str, Scoring]
    ) -> Evaluations[dict[str, Prediction]]:
        """Predictions for every task at each score; several tasks are scored one by one."""

        def predict() -> dict[str, Prediction]:
            return {name: scoring.predict(model.of(name)) for name, scoring in scorings.items()}

        def value(predictions: Mapping[str, Prediction]) -> float | dict[str, float]:
            scores = {name: scorings[name].value(prediction) for name, prediction in predictions.items()}
            return scores if len(scores) > 1 else scores[self.task.name]

        return Evaluations(predict, value)

    def _initial_adapter(self, scoring: Scoring, accelerator: Accelerator) -> Anchor:
        """The adapter that the model starts as, where it may start as one."""
        request, recipe = self.request, self.recipe
        if recipe.trainable == "fusion" and recipe.fusion.form == "anchored":
            return choose_anchor(request.adapters, recipe, scoring, self.backbone, self.workspace.store)
        if request.kind == "adapter" and request.adapters:
            rows = self.data[self.task.name].train
            return Anchor(
                choose_start(request.adapters, self.task, recipe, rows, self.backbone, accelerator, self.title)
            )
        return Anchor()

    def _surgery(self, model: MultitaskModel) -> GradientRule | None:
        """What combines the tasks' gradients, if there is anything to combine; and whether memory is enough for it."""
        surgery, encoder = self.recipe.joint.gradient_surgery, model.of(self.task.name).backbone
        own = set(self.backbone.tensor_names)
        shared = [p for name, p in encoder.named_parameters() if name in own and p.requires_grad]
        if surgery == "none" or not shared:
            if is_main_process() and any(part.recipe.joint.gradient_surgery != "none" for part in self.request.parts):
                why = "the tasks share nothing that trains" if len(self.tasks) > 1 else "there is one task"
                print(f"{self.title}: gradient surgery has no effect, since {why}", file=sys.stderr)
            check_memory(model, self.title)
            return None
        check_memory(model, self.title, held=(len(self.tasks) - 1) * sum(parameter.nbytes for parameter in shared))
        return Surgery(weighting_of(surgery, len(self.tasks)), model.parameters())

    def _with_caches(
        self, model: MultitaskModel, scorings: Mapping[str, Scoring], accelerator: Accelerator
    ) -> tuple[dict[str, Scoring], dict[str, TrainingData]]:
        """Scoring and training data of each task.

        A single task's share a cache of what frozen layers compute: for dev, which is read after every epoch, and with
        the memory left for train.
        """
        tokenizer, seed = self.backbone.tokenizer, self.request.seed
        splits = {name: training_splits(rows.train, self.recipes[name], tokenizer) for name, rows in self.data.items()}
        extend = None
        scorings = dict(scorings)
        if len(self.tasks) == 1:
            name, recipe = self.task.name, self.recipe

            def cache(rows: Sequence[TokenisedSplit], max_bytes: float) -> PrefixCache:
                return PrefixCache(
                    model.of(name),
                    joined(rows),
                    max_bytes=max_bytes,
                    batch_size=2 * recipe.batch_size,
                    pad_token_id=tokenizer.pad_token_id,
                    accelerator=accelerator,
                )

            bound = self.workspace.cache_gb * 2**30
            dev = cache(scorings[name].splits, bound)
            scorings[name] = replace(scorings[name], extend=dev.extend)
            # Rows that are read once are not worth caching, and SMART runs all layers, on perturbed embeddings.
            again = recipe.epochs_over(len(self.data[name].train)) > 1 and not recipe.smart.weight
            extend = cache(splits[name], bound - dev.bytes if again else 0).extend
        data = {
            name: training_data(own, self.recipes[name], seed, tokenizer.pad_token_id, accelerator, extend)
            for name, own in splits.items()
        }
        return scorings, data

    def _manifest(self, dev: float) -> Manifest:
        kind = "fusion" if self.request.kind == "fusion" else "adapter"
        return Manifest(
            kind=kind,
            task=self.task.name,
            run=self.name,
            seed=self.request.seed,
            limit=self.limits[self.task.name],
            recipe=self.recipe,
            train_rows=self.data[self.task.name].fingerprint["train"],
            pair=self.task.is_pair,
            meaning=self.task.meaning,
            metric=self.task.metric,
            dev=dev,
            backbone=self.backbone.name,
            backbone_weights=self.backbone.weights_hash,
            # An adapter needs none of those that it may have been warm-started from.
            sources=self.sources if kind == "fusion" else (),
        )

    def _attention(self, model: MultitaskModel, scoring: Scoring) -> pd.DataFrame | None:
        if self.request.kind != "fusion":
            return None
        names = [artifact.manifest.task for artifact in self.request.adapters]
        return attention_table(site_attention(model.of(self.task.name).backbone.eval(), names, scoring.inputs()), names)

    def _finish(
        self,
        model: MultitaskModel,
        fitted: Fitted,
        scores: Mapping[str, float],
        findings: Findings,
        attention: pd.DataFrame | None,
    ) -> None:
        """Artifact first, then the ledger's files, ``run.json`` last: what it names is in place when it appears."""
        request, ledger = self.request, self.workspace.ledger
        artifact, weights = None, None
        if request.kind in ARTIFACT_KINDS:
            artifact = save_artifact(
                self.workspace.store,
                self._manifest(fitted.best_score),
                model.of(self.task.name),
                [adapter.manifest.task for adapter in request.adapters],
            )
        if request.keep_weights or request.kind in _KEEPS_WEIGHTS:
            weights = save_weights(model, ledger.weights_file(self.name), from_pretrained=request.start is None)
        own = {
            name: TaskScore(
                metric=task.metric,
                dev=scores[name],
                rows=len(self.data[name].dev),
                recipe=self.recipes[name],
                train_rows=len(self.data[name].train),
                limit=self.limits[name],
                dev_in_train=self.data[name].dev_in_train,
                added=dict(self.data[name].added),
            )
            for name, task in self.tasks.items()
        }
        record = RunRecord(
            run=self.name,
            kind=request.kind,
            seed=request.seed,
            identity=self.identity,
            sources=tuple(
                source.model_copy(update={"tensors": findings.adapters.get(source.task)}) for source in self.sources
            ),
            backbone=self.backbone.name,
            best_epoch=fitted.best_epoch,
            scores={task: score for task, (score, _) in findings.earlier.items()} | own,
            unchanged=dict(findings.unchanged),
            anchor=findings.initial.manifest.task if findings.initial is not None else None,
            anchor_candidates=dict(findings.candidates),
            cost=Cost(
                trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
                seconds=round(fitted.seconds, 3),
                examples_per_second=round(fitted.examples_per_second, 2),
                peak_memory_mb=fitted.peak_memory_mb,
            ),
            parameters=Parameters(
                backbone=self.backbone.parameters,
                head=sum(p.numel() for name in self.tasks for p in model.of(name).head.parameters()),
            ),
            artifact=str(artifact.folder) if artifact else None,
            artifact_digest=artifact.manifest.digest if artifact else None,
            weights_sha256=weights,
            provenance=provenance(),
        )
        tables = {task: table for task, (_, table) in findings.earlier.items()} | dict(findings.predictions)
        ledger.finish(record, fitted.curve, tables, attention)
