"""One training run from request to ledger: what every stage that trains for one task has in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.data.batches import Piece, inputs_of, padding_worth_a_pass, training_batches
from pipeline.data.load import TaskData
from pipeline.data.pair_order import in_random_order, joined
from pipeline.data.tasks import Task
from pipeline.data.tokens import TokenisedSplit
from pipeline.records.ledger import OtherScore, Parameters, RunRecord, SourceRun, run_name
from pipeline.runs.anchoring import choose_anchor
from pipeline.runs.forgetting import lineage, score_again
from pipeline.runs.inputs import training_splits
from pipeline.runs.keeping import ARTIFACT_KINDS, cost_of, keeps_weights, save_artifact, save_weights
from pipeline.runs.once import get_or_train
from pipeline.runs.request import RunRequest
from pipeline.runs.scoring import Evaluations, Scoring, scoring_of
from pipeline.runs.starting import choose_start
from pipeline.runs.terms import terms_of
from pipeline.runs.workspace import Workspace, provenance
from pipeline.settings.recipe import Recipe, check_seed
from pipeline.stats.metrics import load_metric
from pipeline.system.atomic import check_writable

if TYPE_CHECKING:
    import pandas as pd
    from accelerate import Accelerator
    from torch import Tensor

    from pipeline.models.prefix_cache import PrefixCache
    from pipeline.models.transfer_model import TransferModel
    from pipeline.training.fit import Fitted, TrainingData
    from pipeline.training.predict import Extend


class Run:
    """A request in a workspace: its identity, and its training if the ledger does not have it yet."""

    def __init__(self, request: RunRequest, workspace: Workspace) -> None:
        check_seed(request.seed)
        self.request, self.workspace = request, workspace
        self.task: Task = workspace.task(request.task)
        self.backbone = workspace.backbone
        self.recipe = workspace.resolve(request.recipe, self.task)

    @cached_property
    def data(self) -> TaskData:
        return self.workspace.task_data(self.task, self.request.limit, self.request.seed, self.recipe.extra)

    @cached_property
    def sources(self) -> tuple[SourceRun, ...]:
        start = self.request.start
        if start is not None:
            return (source_run(start),)
        return tuple(
            SourceRun(task=artifact.manifest.task, run=artifact.manifest.run, digest=artifact.manifest.digest)
            for artifact in self.request.adapters
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        return {
            "kind": self.request.kind,
            "task": {"name": self.task.name, **self.task.meaning},
            "recipe": self.recipe.identity,
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
        if self.request.kind in ARTIFACT_KINDS:
            artifact = self.workspace.store.find(self.name)
            if artifact is None or artifact.manifest.digest != record.artifact_digest:
                return None
            return record.model_copy(update={"artifact": str(artifact.folder)})
        return self.workspace.ledger.with_weights(record, self.request.keep_weights)

    def get(self, force: bool = False) -> RunRecord:
        """The finished record: from the ledger, or by training (from the last checkpoint, if there is one)."""
        return get_or_train(self, force)

    def train(self) -> RunRecord:
        """Train, score and write everything; see :meth:`get`."""
        from pipeline.models.unchanged import adapter_hashes, unchanged_parts
        from pipeline.runs.restore import build_for_training
        from pipeline.training.devices import make_accelerator
        from pipeline.training.divergence import divergence_of
        from pipeline.training.fit import fit
        from pipeline.training.terms import loss_with

        recipe, task, ledger = self.recipe, self.task, self.workspace.ledger
        accelerator = make_accelerator(recipe.precision, self.workspace.track, ledger.folder(self.name))
        if accelerator.is_main_process:
            tell_overlap(self.data, task)
            if (kind := ARTIFACT_KINDS.get(self.request.kind)) is not None:
                # Now rather than after hours.
                check_writable(self.workspace.store.root / f"{kind}s" / task.name / self.name)
        if self.workspace.track:
            accelerator.init_trackers("", config={})
        tokenizer = self.backbone.tokenizer
        train = training_splits(self.data.train, recipe, tokenizer)
        scoring = scoring_of(task, self.data.dev, recipe, self.backbone, accelerator)
        anchored = choose_anchor(self, scoring)
        anchor = anchored.adapter or choose_start(self, accelerator)
        built = build_for_training(self.request, recipe, task, self.backbone, ledger, anchor)
        model, objective = built.model, scoring.objective
        known_dev, known_train = self._caches(model, joined(scoring.splits), joined(train), accelerator)
        scoring = replace(scoring, extend=known_dev.extend)
        frozen = self.request.adapters if recipe.trainable == "fusion" else ()
        adapters = adapter_hashes(model.backbone, [source.manifest.task for source in frozen])
        load_metric(task.metric)  # its import takes seconds, which are not the run's

        def forward(model: Callable[..., Tensor], piece: Piece) -> Tensor:
            return model(**inputs_of(piece.batch))

        divergence = divergence_of(task, recipe)
        terms = terms_of(recipe, model, forward, lambda _: divergence, lambda _: model.backbone)
        evaluations = Evaluations(lambda: scoring.predict(model), scoring.value)
        fitted = fit(
            model,
            recipe=recipe,
            seed=self.request.seed,
            data=training_data(
                train, recipe, self.request.seed, tokenizer.pad_token_id, accelerator, known_train.extend
            ),
            loss=loss_with(forward, lambda outputs, piece: objective.loss(outputs, piece.batch["labels"]), terms),
            evaluate=evaluations,
            metric=task.metric,
            accelerator=accelerator,
            title=self.title,
            penalties=built.penalties,
            without_decay=built.without_decay,
            pretrained=self.backbone.tensor_names,
            companions=terms,
            checkpoint_file=ledger.checkpoint_file(self.name),
            checkpoint_seconds=self.workspace.checkpoint_seconds,
        )
        found = Findings(
            anchor=anchor.manifest.task if anchor is not None else None,
            anchor_candidates=anchored.candidates,
            predictions=scoring.table(evaluations.best(fitted)),
            adapters=adapters,
            unchanged=unchanged_parts(model.backbone, self.backbone, adapters),
            others={
                record.task: score_again(model.backbone, record, self.workspace, accelerator)
                for record in lineage(self.request.start, ledger)
            },
        )
        if self.workspace.track:
            accelerator.end_training()
        if accelerator.is_main_process:
            self._finish(model, fitted, replace(found, attention=self._attention(model, scoring)))
        accelerator.wait_for_everyone()
        record = self.finished()
        assert record is not None
        return record

    def _caches(
        self, model: TransferModel, dev: TokenisedSplit, train: TokenisedSplit, accelerator: Accelerator
    ) -> tuple[PrefixCache, PrefixCache]:
        """What frozen layers give for dev, read after every epoch, and with the memory left for train."""
        from pipeline.models.prefix_cache import PrefixCache

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
        # Rows that are read once are not worth keeping, and SMART runs all layers, above perturbed embeddings.
        again = self.recipe.epochs_over(len(self.data.train)) > 1 and not self.recipe.smart
        return known_dev, cache(train, bound - known_dev.bytes if again else 0)

    def _attention(self, model: TransferModel, scoring: Scoring) -> pd.DataFrame | None:
        if self.request.kind != "fusion":
            return None
        from pipeline.methods.attention import attention_table, site_attention

        names = [artifact.manifest.task for artifact in self.request.adapters]
        return attention_table(site_attention(model.backbone.eval(), names, scoring.inputs()), names)

    def _finish(self, model: TransferModel, fitted: Fitted, found: Findings) -> None:
        """Artifact first, then the ledger's files, ``run.json`` last: what it names is in place when it appears."""
        artifact, weights = save_artifact(self, model, fitted.best_score), None
        if keeps_weights(self.request):
            file = self.workspace.ledger.weights_file(self.name)
            weights = save_weights(model, file, from_pretrained=self.request.start is None)
        record = RunRecord(
            run=self.name,
            kind=self.request.kind,
            task=self.task.name,
            seed=self.request.seed,
            limit=self.request.limit,
            recipe=self.recipe,
            identity=self.identity,
            sources=tuple(
                source.model_copy(update={"tensors": found.adapters.get(source.task)}) for source in self.sources
            ),
            backbone=self.backbone.name,
            metric=self.task.metric,
            dev=fitted.best_score,
            best_epoch=fitted.best_epoch,
            rows={"train": len(self.data.train), "dev": len(self.data.dev), "dev_in_train": self.data.dev_in_train},
            added=dict(self.data.added),
            others={task: score for task, (score, _) in found.others.items()},
            unchanged=found.unchanged,
            anchor=found.anchor,
            anchor_candidates=dict(found.anchor_candidates),
            cost=cost_of(model, fitted),
            parameters=Parameters(
                backbone=self.backbone.parameters, head=sum(p.numel() for p in model.head.parameters())
            ),
            artifact=str(artifact.folder) if artifact else None,
            artifact_digest=artifact.manifest.digest if artifact else None,
            weights_sha256=weights,
            provenance=provenance(),
        )
        tables = {task: table for task, (_, table) in found.others.items()}
        self.workspace.ledger.finish(record, fitted.curve, found.predictions, tables, found.attention)


@dataclass(frozen=True)
class Findings:
    """What is measured on a trained model."""

    predictions: pd.DataFrame
    adapters: Mapping[str, str]
    """sha256 over the tensors of each frozen adapter before training."""
    unchanged: Mapping[str, str]
    others: Mapping[str, tuple[OtherScore, pd.DataFrame]]
    """Scores and predictions on the tasks that sequential tuning came from."""
    anchor: str | None = None
    anchor_candidates: Mapping[str, float] = field(default_factory=dict)
    """Dev scores of the adapters that a fusion's anchor was chosen from."""
    attention: pd.DataFrame | None = None


def source_run(start: RunRecord) -> SourceRun:
    """How a run names the fine-tuning that it starts from."""
    assert start.weights_sha256 is not None
    return SourceRun(task=start.task, run=start.run, digest=start.weights_sha256)


def tell_overlap(data: TaskData, task: Task) -> None:
    """Say on stderr which rows stand both in train and in dev, and what came of them."""
    name = task.name
    for other, rows in data.dropped.items():
        print(f"{name}: {rows} training rows that also stand in dev of {other} are left out", file=sys.stderr)
    for other, added in data.added.items():
        left_out = added.in_dev + added.in_test + added.in_other_dev
        print(
            f"{name}: {added.rows} training rows of {other} are added ({added.in_train} also stand in train);"
            f" {left_out} are left out, since they stand in dev or test",
            file=sys.stderr,
        )
    if data.dev_in_train:
        print(
            f"{name}: {data.dev_in_train} rows of dev also stand in train (--drop-overlap drops those from train)",
            file=sys.stderr,
        )


def training_data(
    splits: Sequence[TokenisedSplit],
    recipe: Recipe,
    seed: int,
    pad_token_id: int,
    accelerator: Accelerator,
    extend: Extend | None = None,
) -> TrainingData:
    """The batches of one task; ``extend`` adds to each piece what is known of its inputs.

    Args:
        splits: the rows, and where pairs train in random order, the same with each pair the other way round.
    """
    from pipeline.training.fit import TrainingData

    pieces, rows = recipe.gradient_accumulation_steps * accelerator.num_processes, len(splits[0])
    most_padding = padding_worth_a_pass(accelerator.device)

    def of_epoch(epoch: int) -> TokenisedSplit:
        return splits[0] if len(splits) == 1 else in_random_order(splits[0], splits[1], seed, epoch)

    return TrainingData(
        batches=lambda epoch, first: (
            [Piece(part if extend is None else extend(part)) for part in batch]
            for batch in training_batches(
                of_epoch(epoch), recipe.batch_size, pieces, seed, epoch, pad_token_id, first, most_padding
            )
        ),
        batches_per_epoch=recipe.steps_over(rows),
        epochs=recipe.epochs_over(rows),
    )
