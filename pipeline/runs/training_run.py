"""TrainingRun: one training run from request to record. Training for one task is joint training of one."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import pandas as pd
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from pipeline.data.batches import Piece, inputs_of, padding_worth_a_pass, training_batches
from pipeline.data.sample import at_most
from pipeline.data.task_data import TaskData
from pipeline.data.tokens import TokenisedSplit, in_random_order, joined
from pipeline.methods.attention import attention_table, site_attention
from pipeline.methods.fusion import members_of
from pipeline.models.backbone import adapter_hashes, unchanged_parts
from pipeline.models.prefix_cache import PrefixCache
from pipeline.models.transfer_model import MultitaskModel, TransferModel
from pipeline.records.ledger import Cost, Parameters, RunRecord, SourceRun, TaskScore, run_name
from pipeline.records.store import Artifact, Manifest
from pipeline.runs.initial import Chooser, InitialModel, initial_model
from pipeline.runs.once import get_or_train
from pipeline.runs.request import RunRequest, resolve_parts
from pipeline.runs.scoring import TRAIN_ROWS, Evaluations, Scoring, TrainScores, score_again, splits_of
from pipeline.runs.seen import overlap_notes, seen_notes
from pipeline.runs.weights import ARTIFACT_KINDS, save_artifact, save_weights
from pipeline.runs.workspace import Workspace, provenance
from pipeline.stats.metrics import Prediction
from pipeline.system.atomic import check_writable
from pipeline.system.process import is_main_process
from pipeline.training.checkpoint import Progress
from pipeline.training.devices import make_accelerator
from pipeline.training.fit import Loss, TrainingData, fit
from pipeline.training.memory import check_memory
from pipeline.training.mixing import mixed
from pipeline.training.objectives import Objective, balanced_weights, objective_of
from pipeline.training.predict import Extend
from pipeline.training.sharding import check_sharding
from pipeline.training.surgery import Surgery, weighting_of
from pipeline.training.terms import OF_OUTPUTS, OF_WEIGHTS, Terms, loss_with, terms_of
from pipeline.training.terms.term import Regularised, divergence_of
from pipeline.training.tracking import tracking

_KEEPS_WEIGHTS = frozenset({"frozen"})
"""Kinds of runs that keep their weights unasked: those of a head are few. A study makes a whole model for every task
and seed, and for every ordered pair of tasks; to keep them all would fill disks."""

_POOLED = frozenset({"prefix-tuning", "unipelt"})
"""Kinds of adapters whose numbers of all layers are in one tensor."""


class TrainingRun:
    """A request in a workspace: its identity, and its training if the ledger does not have it yet.

    The kept epoch is the one with the best dev score, of several tasks with the best mean. Where dev only chooses, its
    model predicts the test rows, once. ``task`` is the only task or the first by name, and ``recipe`` its
    recipe: in all that concerns the encoder and its training, the recipes agree.

    Raises:
        PipelineError: as :func:`pipeline.runs.request.resolve_parts`.
    """

    def __init__(self, request: RunRequest, workspace: Workspace) -> None:
        self.request, self.workspace = request, workspace
        self.parts = resolve_parts(request, workspace)
        self.backbone = workspace.backbone_for(*(part.recipe for part in self.parts.values()))
        self.task, self.recipe, _ = next(iter(self.parts.values()))

    @cached_property
    def data(self) -> dict[str, TaskData]:
        """The rows of each task."""
        seed, found = self.request.seed, dict[str, TaskData]()
        for name, part in self.parts.items():
            rows = self.workspace.task_data(part.task, part.limit, seed, part.recipe.extra)
            found[name] = rows.permuted(seed) if part.recipe.permute_labels else rows
        return found

    def sources(self, adapters: Sequence[Artifact]) -> tuple[SourceRun, ...]:
        """What the run builds on: the run that it continues, else ``adapters``."""
        start = self.request.start
        if start is not None:
            assert start.weights_sha256 is not None
            return (SourceRun(task=start.task, run=start.run, digest=start.weights_sha256),)
        manifests = [artifact.manifest for artifact in adapters]
        return tuple(SourceRun(task=each.task, run=each.run, digest=each.digest) for each in manifests)

    @cached_property
    def identity(self) -> dict[str, Any]:
        smart = self.recipe.smart
        in_turn, is_adapter = self.request.in_turn, self.request.kind == "adapter"
        probed = bool(self.request.adapters) and not in_turn and (is_adapter or self.recipe.probes_sources)
        return {
            "kind": self.request.kind,
            "tasks": {
                name: {
                    "meaning": part.task.meaning,
                    "recipe": part.recipe.identity,
                    "data": self.data[name].fingerprint,
                }
                for name, part in self.parts.items()
            },
            "seed": self.request.seed,
            "backbone": self.backbone.identity,
            # The digest of a source's contents, not its name: what counts is what was built on.
            "sources": [
                {"task": source.task, "digest": source.digest} for source in self.sources(self.request.adapters)
            ],
            # A warm-started adapter has the same sources, of which it may start as none.
            **({"start": "in turn"} if in_turn else {}),
            # Probes for a head that is a cosine once read what a linear one would.
            **({"probe": "cosine"} if probed and self.recipe.head == "cosine" else {}),
            # SMART's direction once got smaller with the number of rows that were computed at once.
            **({"ascent": "sum"} if smart.weight and smart.direction == "reference" else {}),
            # The fresh head of a model that starts as another's was once drawn by the seed alone.
            **({"head": "own draw"} if self._may_start else {}),
            # Joint training once began with fresh heads for all tasks, those tuned on before too.
            **({"heads": "kept"} if self.request.kind == "multitask" and self.request.start is not None else {}),
            # Gates that are vectors once decayed towards zero.
            **({"gates": "without decay"} if self._has_vector_gates else {}),
            # AdapterHub's prefixes once kept the layers below the lowest one from being frozen.
            **({"below": "frozen"} if self._begins_above and self.recipe.adapter.kind in _POOLED else {}),
            # ModernBERT's last LayerNorm was once taken for one below its layers.
            **({"norms": "last"} if self._begins_above and self._trains_last_norm else {}),
        }

    @property
    def _has_vector_gates(self) -> bool:
        recipe = self.recipe
        return recipe.trainable == "fusion" and recipe.fusion.form == "gated" and recipe.gated.gate == "vector"

    @property
    def _begins_above(self) -> bool:
        """Whether the lowest layer has no adapter."""
        return self.recipe.has_modules and 0 in self.recipe.adapter.drop_layers

    @property
    def _trains_last_norm(self) -> bool:
        return self.recipe.bottleneck.train_layernorm and self.workspace.family == "modernbert"

    @property
    def _may_start(self) -> bool:
        """Whether its model starts as another's, or may do so, with a fresh head."""
        request, recipe = self.request, self.recipe
        if request.start is not None:
            return request.start.kind != "frozen"
        is_warm = recipe.trainable == "fusion" and recipe.fusion.form == "gated" and recipe.gated.own == "warm"
        return bool(request.adapters) and (request.kind == "adapter" or is_warm)

    @cached_property
    def name(self) -> str:
        return run_name(self.identity)

    @property
    def title(self) -> str:
        start = self.request.start
        source = "" if start is None else " after linear probing" if start.kind == "frozen" else f" from {start.task}"
        if self.request.in_turn:
            source = f" from {self.request.adapters[0].manifest.task}"
        return f"{self.request.kind} {'+'.join(self.parts)}{source} seed {self.request.seed}"

    def finished(self) -> RunRecord | None:
        """The ledger's record, if everything the run leaves behind is still there."""
        return self.workspace.finished(self.name, self.request.keep_weights or self.request.kind in ARTIFACT_KINDS)

    def get(self, force: bool = False) -> RunRecord:
        """The finished record: from the ledger, or by training (from the last checkpoint, if there is one)."""
        return get_or_train(self, force)

    def train(self) -> RunRecord:
        """Train, score every task and write everything; see :meth:`get`."""
        check_sharding(self.title, self.recipe, (*OF_OUTPUTS, *OF_WEIGHTS), len(self.parts))
        workspace, recipes = self.workspace, {name: part.recipe.flat() for name, part in self.parts.items()}
        accelerator = make_accelerator(
            self.recipe.precision, workspace.track, workspace.ledger.folder(self.name), resting=len(self.parts) > 1
        )
        if accelerator.is_main_process:
            for name, rows in self.data.items():
                for note in overlap_notes(name, rows):
                    workspace.tell_once(note)
            if self.request.kind in ARTIFACT_KINDS:
                # Now rather than after hours.
                kind = "fusion" if self.request.kind == "fusion" else "adapter"
                check_writable(self.workspace.store.root / f"{kind}s" / self.task.name / self.name)
        settings = {"seed": self.request.seed, **recipes[self.task.name]} if len(recipes) == 1 else recipes
        with tracking(accelerator, workspace.track, self.name, self.title, settings, workspace.reports):
            self._train(accelerator)
        record = self.finished()
        assert record is not None
        return record

    def _train(self, accelerator: Accelerator) -> None:
        recipe, ledger, seed = self.recipe, self.workspace.ledger, self.request.seed
        scorings = {
            name: Scoring(part.task, self.data[name].dev, part.recipe, self.backbone, accelerator, self.data[name].test)
            for name, part in self.parts.items()
        }
        rows, scoring = self.data[self.task.name].train, scorings[self.task.name]
        chooser = Chooser(self.request, self.parts, rows, scoring, self.backbone, self.workspace, self.title)
        start = initial_model(self.request, self.parts, self.backbone, ledger, self.name, chooser.choose)
        built, adapters = start.built, start.adapters
        model = built.model
        if accelerator.is_main_process and self.request.adapters and not self.workspace.held_out:
            for note in seen_notes(self.task, scoring.rows, self.sources(adapters), self.workspace):
                self.workspace.tell_once(f"note: {note}")
        combine = self._surgery(model)
        data = self._training_data(model, scorings, accelerator)
        encoder = model.of(self.task.name).backbone
        fused = [each.manifest.task for each in adapters] if recipe.trainable == "fusion" else []
        frozen = [name for name in fused if not recipe.trains_own or name != self.task.name]
        hashes = adapter_hashes(encoder, frozen)
        tests = {name: scoring.test for name, scoring in scorings.items() if scoring.test is not None}
        starts = {}
        for name, test in tests.items() if recipe.score_start else ():
            own = model.of(name).to(accelerator.device)
            scorings[name].choose_threshold(own)
            starts[name] = test.value(test.predict(own))

        loss, terms = self._loss(model, accelerator.device)
        evaluations = Evaluations(model, scorings)
        fitted = fit(
            model,
            recipe=recipe,
            seed=seed,
            data=mixed(data, {name: len(rows.train) for name, rows in self.data.items()}, recipe, seed),
            loss=loss,
            evaluate=evaluations,
            metric=self.task.metric if len(self.parts) == 1 else "mean",
            accelerator=accelerator,
            title=self.title,
            penalties=(*built.penalties, *terms.of_weights),
            without_decay=built.without_decay,
            pretrained=self.backbone.tensor_names,
            combine=combine,
            companions=(*terms.of_outputs, *self._train_scores(model, accelerator)),
            checkpoint_file=ledger.checkpoint_file(self.name),
            checkpoint_seconds=self.workspace.checkpoint_seconds,
        )
        best = evaluations.best(fitted)
        # Once, and after all choices; the model holds the kept weights.
        tested = {name: test.predict(model.of(name)) for name, test in tests.items()}
        earlier = ledger.lineage(self.request.start) if self.request.kind == "sequential" else []
        scored = {step.task: score_again(encoder, step, self.workspace, accelerator) for step in earlier}
        unchanged = {} if self.request.start else unchanged_parts(encoder, self.backbone, hashes)
        if accelerator.is_main_process:
            scored |= {
                name: self._scored(scorings[name], prediction, tested.get(name), starts.get(name))
                for name, prediction in best.items()
            }
            self._finish(start, fitted, scored, scorings[self.task.name], hashes, unchanged)
        accelerator.wait_for_everyone()

    def _train_scores(self, model: MultitaskModel, accelerator: Accelerator) -> list[TrainScores]:
        """What scores training rows, if that is asked for."""
        if not self.recipe.score_train:
            return []
        shown = {name: at_most(rows.train, TRAIN_ROWS) for name, rows in self.data.items()}
        scorings = {
            name: Scoring(part.task, shown[name], part.recipe, self.backbone, accelerator)
            for name, part in self.parts.items()
        }
        return [TrainScores(model, scorings)]

    def _loss(self, model: MultitaskModel, device: torch.device) -> tuple[Loss, Terms]:
        """The loss of a piece, weighted by its task, and the terms in it."""

        def forward(model: Callable[..., Tensor], piece: Piece) -> Tensor:
            return model(piece.task, **inputs_of(piece.batch))

        losses = {name: self._objective(name, device).loss for name in self.parts}

        def objective(outputs: Tensor, piece: Piece) -> Tensor:
            return losses[piece.task](outputs, piece.batch["labels"])

        terms = terms_of(
            Regularised(
                self.recipe,
                model,
                forward,
                lambda name: divergence_of(self.parts[name].task, self.parts[name].recipe),
                lambda name: model.of(name).backbone,
                self.backbone.tensor_names,
            )
        )
        regularised = loss_with(forward, objective, terms.of_outputs)

        def loss(model: nn.Module, piece: Piece) -> Tensor:
            return regularised(model, piece) * self.parts[piece.task].recipe.joint.loss_weight

        return loss, terms

    def _objective(self, name: str, device: torch.device) -> Objective:
        """The objective of a task, with the class weights of its training rows on ``device``."""
        part, weights = self.parts[name], None
        if part.recipe.class_weights == "balanced":
            labels = self.data[name].train["label"].to_numpy()
            weights = balanced_weights(labels, part.task.outputs).to(device)
        return objective_of(part.task, part.recipe, weights)

    def _surgery(self, model: MultitaskModel) -> Surgery | None:
        """What combines the tasks' gradients, if there is anything to combine; and whether memory is enough for it."""
        surgery, encoder = self.recipe.joint.gradient_surgery, model.of(self.task.name).backbone
        own = set(self.backbone.tensor_names)
        shared = [p for name, p in encoder.named_parameters() if name in own and p.requires_grad]
        if surgery == "none" or not shared:
            if is_main_process() and any(part.recipe.joint.gradient_surgery != "none" for part in self.request.parts):
                why = "the tasks share nothing that trains" if len(self.parts) > 1 else "there is one task"
                print(f"{self.title}: gradient surgery has no effect, since {why}", file=sys.stderr)
            check_memory(model, self.title)
            return None
        check_memory(model, self.title, held=(len(self.parts) - 1) * sum(parameter.nbytes for parameter in shared))
        return Surgery(weighting_of(surgery, len(self.parts)), model.parameters())

    def _training_data(
        self, model: MultitaskModel, scorings: Mapping[str, Scoring], accelerator: Accelerator
    ) -> dict[str, TrainingData]:
        """The training data of each task.

        A single task has a cache of what frozen layers compute: for dev, which is read after every epoch, in its
        scoring, and with the memory left for train.
        """
        tokenizer = self.backbone.tokenizer
        splits = {
            name: splits_of(self.data[name].train, part.recipe, tokenizer, part.recipe.pairs.order == "random")
            for name, part in self.parts.items()
        }
        extend = None
        if len(self.parts) == 1:
            name, recipe, bound = self.task.name, self.recipe, self.workspace.cache_gb * 2**30
            cache = partial(
                PrefixCache,
                model.of(name),
                batch_size=2 * recipe.batch_size,
                pad_token_id=tokenizer.pad_token_id,
                accelerator=accelerator,
            )
            dev = cache(joined(scorings[name].splits), max_bytes=bound)
            scorings[name].extend = dev.extend
            # Rows that are read once are not worth caching, and SMART runs all layers, on perturbed embeddings.
            again = recipe.epochs_over(len(self.data[name].train)) > 1 and not recipe.smart.weight
            train = cache(joined(splits[name]), max_bytes=bound - dev.bytes if again else 0)
            extend = train.extend if train.bytes else None
        return {name: self._batches(model.of(name), name, own, accelerator, extend) for name, own in splits.items()}

    def _batches(
        self,
        model: TransferModel,
        name: str,
        splits: Sequence[TokenisedSplit],
        accelerator: Accelerator,
        extend: Extend | None,
    ) -> TrainingData:
        """The batches of one task; ``extend`` adds to each piece what is known of its inputs."""
        recipe, seed, pad_token_id = self.parts[name].recipe, self.request.seed, self.backbone.tokenizer.pad_token_id
        pieces, rows = recipe.gradient_accumulation_steps * accelerator.num_processes, len(splits[0])
        # What a cache extends keeps its padding.
        worth = model.most_padding if extend is None else padding_worth_a_pass
        most_padding = worth(accelerator.device, recipe.precision)

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

    def _scored(
        self, scoring: Scoring, prediction: Prediction, tested: Prediction | None, start: float | None
    ) -> tuple[TaskScore, pd.DataFrame]:
        """The score on a task of the run, which says how the task was trained, and the predictions."""
        (score, table), name = scoring.scored(prediction, tested), scoring.task.name
        data, part = self.data[name], self.parts[name]
        trained = {
            "recipe": part.recipe,
            "train_rows": len(data.train),
            "limit": part.limit,
            "dev_in_train": data.dev_in_train,
            "test_in_train": data.test_in_train,
            "start": start,
            "added": dict(data.added),
        }
        return score.model_copy(update=trained), table

    def _finish(
        self,
        start: InitialModel,
        fitted: Progress,
        scored: Mapping[str, tuple[TaskScore, pd.DataFrame]],
        scoring: Scoring,
        hashes: Mapping[str, str],
        unchanged: dict[str, str],
    ) -> None:
        """Artifact first, then the ledger's files, ``run.json`` last: what it names is in place when it appears.

        ``scored`` has all tasks, also those that sequential tuning went through before; ``hashes`` are of the tensors
        of adapters that were to stay as they are.
        """
        request, ledger, attention = self.request, self.workspace.ledger, None
        model, sources = start.built.model, self.sources(start.adapters)
        if request.kind == "fusion":
            names = members_of(self.recipe, self.task.name, [source.task for source in sources])
            weights = site_attention(model.of(self.task.name).backbone.eval(), names, scoring.inputs())
            attention = attention_table(weights, names)
        artifact = self._artifact(model, fitted.best_score, sources) if request.kind in ARTIFACT_KINDS else None
        weights_sha256 = None
        if request.keep_weights or request.kind in _KEEPS_WEIGHTS:
            file = ledger.weights_file(self.name)
            weights_sha256 = save_weights(model, file, from_pretrained=request.start is None)
        record = RunRecord(
            run=self.name,
            kind=request.kind,
            seed=request.seed,
            identity=self.identity,
            sources=tuple(each.model_copy(update={"tensors": hashes.get(each.task)}) for each in sources),
            anchor=None if start.initial is None else start.initial.manifest.task,
            **start.choice.record,
            backbone=self.backbone.name,
            best_epoch=fitted.best_epoch,
            scores={name: score for name, (score, _) in scored.items()},
            unchanged=unchanged,
            cost=Cost(
                trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
                seconds=round(start.choice.seconds + fitted.seconds, 3),
                examples_per_second=round(fitted.examples_per_second, 2),
                peak_memory_mb=fitted.peak_memory_mb,
            ),
            parameters=Parameters(
                backbone=self.backbone.parameters,
                head=sum(p.numel() for name in self.parts for p in model.of(name).head.parameters()),
            ),
            artifact=None if artifact is None else str(artifact.folder),
            artifact_digest=None if artifact is None else artifact.manifest.digest,
            manifest=None if artifact is None else artifact.manifest,
            weights_sha256=weights_sha256,
            provenance=provenance(),
        )
        ledger.finish(record, fitted.curve, {name: table for name, (_, table) in scored.items()}, attention)

    def _artifact(self, model: MultitaskModel, dev: float, sources: Sequence[SourceRun]) -> Artifact:
        """What trained, put into the store."""
        request, task, backbone, is_fusion = self.request, self.task, self.backbone, self.request.kind == "fusion"
        rows = self.data[task.name].dev
        manifest = Manifest(
            kind="fusion" if is_fusion else "adapter",
            task=task.name,
            run=self.name,
            seed=request.seed,
            limit=self.parts[task.name].limit,
            recipe=self.recipe,
            train_rows=self.data[task.name].fingerprint["train"],
            pair=task.is_pair,
            meaning=task.meaning,
            metric=task.metric,
            dev=dev,
            dev_rows=len(rows),
            part_of_dev=self.workspace.chooses_by_part(task, rows),
            backbone=backbone.name,
            backbone_weights=backbone.weights_hash,
            # An adapter needs none of those that it may have been warm-started from.
            sources=tuple(sources) if is_fusion else (),
        )
        return save_artifact(self.workspace.store, manifest, model.of(task.name), [each.task for each in sources])
