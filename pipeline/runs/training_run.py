"""TrainingRun: one training run up to its record. Training for one task is joint training of one."""

import time
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from pipeline.data.batches import Piece, inputs_of
from pipeline.data.labels import Prediction
from pipeline.data.split import at_most
from pipeline.methods.attention import attention_table, site_attention
from pipeline.methods.layernorms import copied_parameters
from pipeline.methods.registry import members_of
from pipeline.models.backbone import adapter_hashes, unchanged_parts
from pipeline.models.tensors import rounded
from pipeline.models.transfer_model import MultitaskModel
from pipeline.records.run_record import Cost, Parameters, RunRecord, TaskScore
from pipeline.records.store import Artifact, Manifest, SourceRun
from pipeline.runs.build import Built
from pipeline.runs.initial import Chooser, InitialModel
from pipeline.runs.outcome import (
    get_or_train,
    overlap_notes,
    provenance,
    save_artifact,
    save_weights,
    seen_rows,
    tell_seen,
)
from pipeline.runs.planned import PlannedRun
from pipeline.runs.scoring import Batching, Evaluations, Scoring, score_again, solve_head
from pipeline.settings.recipe import MIN_STEPS, WARM_STEPS
from pipeline.stats.metrics import fit_temperature
from pipeline.system.atomic import check_writable
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process
from pipeline.system.streams import notice
from pipeline.training.devices import (
    HALF,
    SMALLER_STEPS,
    check_memory,
    check_sharding,
    full_memory_explained,
    is_sharded,
    make_accelerator,
)
from pipeline.training.fit import Loss, Penalty, TrainingData, fit
from pipeline.training.objectives import Regularised, Term, balanced_weights, objective_of
from pipeline.training.progress import Progress, tracking
from pipeline.training.surgery import Surgery, weighting_of
from pipeline.training.terms import OF_OUTPUTS, OF_WEIGHTS, terms_of

TRAIN_ROWS = 1000
"""Maximum number of training rows of a task that are scored."""
COSINE_ROWS = 1000
"""Maximum number of dev rows to test whether a cosine head reads two classes in the wrong order."""


class TrainingRun(PlannedRun):
    """A run that is trained unless the ledger has it already.

    The kept epoch has the best dev score, or for several tasks the best mean. If dev only selects, the kept model
    predicts the test rows once.
    """

    def finished(self) -> RunRecord | None:
        """The ledger's record, if everything that the run leaves is still there."""
        return self.workspace.finished(self.name, self.request.keep_weights or self.kind.artifact is not None)

    def get(self, force: bool = False) -> RunRecord:
        """The finished record: from the ledger, or by training (from the last checkpoint, if there is one)."""
        return get_or_train(self, force).record

    def train(self) -> RunRecord:
        """Train, score every task and write everything; see :meth:`get`."""
        check_sharding(self.title, self.recipe, (*OF_OUTPUTS, *OF_WEIGHTS), len(self.parts))
        workspace, recipes = self.workspace, {name: part.recipe.flat() for name, part in self.parts.items()}
        accelerator = make_accelerator(
            self.recipe.precision, workspace.track, workspace.ledger.folder(self.name), resting=len(self.parts) > 1
        )
        if accelerator.is_main_process:
            provenance()  # before training: the code on disk may change meanwhile
            for name, rows in self.data.items():
                for note in overlap_notes(name, rows):
                    workspace.tell_once(note)
            if self.kind.artifact:  # fail now rather than after hours
                check_writable(self.workspace.store.root / f"{self.kind.artifact}s" / self.task.name / self.name)
        settings = {"seed": self.request.seed, **recipes[self.task.name]} if len(recipes) == 1 else recipes
        tracked = tracking(accelerator, workspace.track, self.name, self.title, settings, workspace.reports)
        with full_memory_explained(self.title, SMALLER_STEPS), tracked:
            self._train(accelerator)
        record = self.finished()
        if record is None:
            places = f"{workspace.ledger.folder(self.name)} or {workspace.store_root}"
            raise PipelineError(f"{self.title}: files of its run are gone from {places}: run the same command again")
        return record

    def _train(self, accelerator: Accelerator) -> None:
        scorings = {name: self._scoring(name, rows.dev, accelerator, rows.test) for name, rows in self.data.items()}
        start = self._initial_model(scorings[self.task.name])
        model = start.built.model
        combine = self._surgery(model)
        batching = Batching(self, accelerator)
        data = batching.training_data(model, scorings)
        self._tell_cut(batching, scorings)
        self._tell_few_steps(data.epochs * data.batches_per_epoch)
        encoder = model.of(self.task.name).backbone
        is_fusion = self.recipe.trainable == "fusion"
        fused = self.recipe.form.names_of([each.manifest for each in start.adapters]) if is_fusion else []
        frozen = [name for name in fused if not self.recipe.form.trains_own or name != self.task.name]
        hashes = adapter_hashes(encoder, frozen)
        # A sharded copy has one dtype for all its weights.
        half = None if is_sharded() else HALF.get(accelerator.mixed_precision)
        with rounded(model, self.backbone.tensor_names, half):
            tests = {name: scoring.test for name, scoring in scorings.items() if scoring.test is not None}
            self._tell_reversed(model, accelerator)
            starts = {}
            for name, test in tests.items() if self.recipe.score_start else ():
                own = model.of(name).to(accelerator.device)
                scorings[name].choose_threshold(own)
                starts[name] = test.value(test.predict(own))
            shown = {
                name: self._scoring(name, at_most(rows.train, TRAIN_ROWS), accelerator)
                for name, rows in self.data.items()
                if self.recipe.score_train
            }
            evaluations = Evaluations(model, scorings, shown)
            fitted = self._fit(start.built, data, evaluations, combine, accelerator)
            best = evaluations.best(fitted)
            # Once, and after all choices; the model holds the kept weights.
            tested = {name: test.predict(model.of(name)) for name, test in tests.items()}
        earlier = self.workspace.ledger.lineage(self.request.start) if self.kind.is_by_source else []
        scored = {step.task: score_again(encoder, step, self.workspace, accelerator) for step in earlier}
        unchanged = {} if self.request.start else unchanged_parts(encoder, self.backbone, hashes)
        if accelerator.is_main_process:
            scored |= {
                name: self._scored(scorings[name], prediction, tested.get(name), starts.get(name))
                for name, prediction in best.items()
            }
            self._finish(start, fitted, scored, scorings[self.task.name], hashes, unchanged)
        accelerator.wait_for_everyone()

    def _scoring(
        self, name: str, rows: pd.DataFrame, accelerator: Accelerator, test: pd.DataFrame | None = None
    ) -> Scoring:
        part = self.parts[name]
        return Scoring(part.task, rows, part.recipe, self.backbone, accelerator, test)

    def _initial_model(self, scoring: Scoring) -> InitialModel:
        """Build the model before its first step, and warn if its sources have seen rows that select the epoch."""
        request, workspace, start = self.request, self.workspace, Chooser(self, scoring).initial_model()
        if is_main_process() and request.adapters and not workspace.is_study:
            option = "--start-from" if request.kind == "adapter" else "--sources"
            tell_seen(self.task, scoring.rows, self._built_on(start), workspace, option)
        return start

    def _built_on(self, start: InitialModel) -> tuple[SourceRun, ...]:
        """The runs whose weights the model started from or reads.

        An adapter builds only on the one that it starts from, not on the other candidates.
        """
        taken = () if self.request.kind == "adapter" else start.adapters
        return self.sources((*taken, *(() if start.initial is None else (start.initial,))))

    def _tell_cut(self, batching: Batching, scorings: Mapping[str, Scoring]) -> None:
        """Say how many rows of each task are longer than the model reads."""
        for name, scoring in scorings.items():
            tested = () if scoring.test is None else (scoring.test.splits[0],)
            splits = (batching.splits[name][0], scoring.splits[0], *tested)
            read, most = self.parts[name].recipe.max_length, self.backbone.max_length
            assert read is not None
            if cut := sum(split.cut_rows for split in splits):
                remedy = f"--max-length N reads more, up to {most}" if read < most else "the backbone reads no more"
                rows = sum(map(len, splits))
                note = f"note: {cut:,} of {rows:,} rows of {name} are longer than {read} tokens and are cut ({remedy})"
                self.workspace.tell_once(note, about=("cut", name, read))

    def _tell_few_steps(self, steps: int) -> None:
        """Warn if the number of epochs, which overrides the least number of steps, gives fewer steps than that."""
        given, usual = self.request.parts[0].recipe, WARM_STEPS if self.request.is_warm_started else MIN_STEPS
        if given.epochs is not None and given.min_steps is None and steps < usual and is_main_process():
            note = (
                f"note: epochs = {given.epochs} leaves {steps} optimiser steps on {'+'.join(self.parts)}; without it"
                f" there are at least {usual}: scores may still be rising (--min-steps {usual})"
            )
            self.workspace.tell_once(note, about=("steps", *self.parts))

    def _tell_reversed(self, model: MultitaskModel, accelerator: Accelerator) -> None:
        """Warn if a cosine head would be trained to call those texts similar that are now the less similar ones."""
        for name, part in self.parts.items():
            if part.recipe.head != "cosine" or part.task.kind != "classes":
                continue
            scoring = self._scoring(name, at_most(self.data[name].dev, COSINE_ROWS), accelerator)
            if note := scoring.reversed_note(model.of(name).to(accelerator.device)):
                self.workspace.tell_once(f"note: {note}", about=("reversed", name))

    def _fit(
        self,
        built: Built,
        data: TrainingData,
        evaluations: Evaluations,
        combine: Surgery | None,
        accelerator: Accelerator,
    ) -> Progress:
        if self.recipe.is_solved:  # a probe's head, in closed form: without steps, and scored once
            progress, started, rows = Progress(), time.perf_counter(), self.data[self.task.name].train
            model = built.model.of(self.task.name).to(accelerator.device)
            solve_head(model, self.task, self.recipe, rows, self.backbone, accelerator)
            progress.train_seconds, progress.examples = time.perf_counter() - started, len(rows)
            progress.add_point(0, None, evaluations(model), 0.0, {})
            return progress
        loss, terms, penalties = self.loss(built, accelerator.device)
        return fit(
            built.model,
            recipe=self.recipe,
            seed=self.recipe.shuffle_seed(self.request.seed),
            data=data,
            loss=loss,
            evaluate=evaluations,
            metric=self.task.metric if len(self.parts) == 1 else "mean",
            accelerator=accelerator,
            title=self.title,
            penalties=(*built.penalties, *penalties),
            without_decay=built.without_decay,
            pretrained=self.backbone.tensor_names,
            combine=combine,
            companions=[*terms, evaluations],
            checkpoint_file=self.workspace.ledger.checkpoint_file(self.name),
            checkpoint_seconds=self.workspace.checkpoint_seconds,
        )

    def loss(self, built: Built, device: torch.device) -> tuple[Loss, list[Term], list[Penalty]]:
        """The loss of a piece of a batch, scaled by the weight of its task; the terms in it; and those of weights."""
        parts, objectives = self.parts, {}
        for name, part in parts.items():
            weights = None
            if part.recipe.class_weights == "balanced":
                weights = balanced_weights(self.data[name].train["label"].to_numpy(), part.task.outputs).to(device)
            objectives[name] = objective_of(part.task, part.recipe, weights)

        def forward(model: Callable[..., Tensor], piece: Piece) -> Tensor:
            return model(piece.task, **inputs_of(piece.batch))

        terms, penalties = terms_of(
            Regularised(
                self.recipe,
                built.model,
                forward,
                lambda name: objectives[name].divergence,
                lambda name: built.model.of(name).encoders,
                {*self.backbone.tensor_names, *copied_parameters(built.model.of(self.task.name).backbone)},
                built.without_decay,
            )
        )

        def loss(model: nn.Module, piece: Piece) -> Tensor:
            outputs = forward(model, piece)
            error = objectives[piece.task].loss(outputs, piece.batch["labels"])
            regularised = sum((term(model, piece, outputs) for term in terms), error)
            return regularised * parts[piece.task].recipe.joint.loss_weight

        return loss, terms, penalties

    def _surgery(self, model: MultitaskModel) -> Surgery | None:
        """The method that combines the tasks' gradients, if there are any to combine; fails if memory is too small."""
        surgery, encoder = self.recipe.joint.gradient_surgery, model.of(self.task.name).backbone
        own = set(self.backbone.tensor_names)
        shared = [p for name, p in encoder.named_parameters() if name in own and p.requires_grad]
        if surgery == "none" or not shared:
            if is_main_process() and any(part.recipe.joint.gradient_surgery != "none" for part in self.request.parts):
                why = "the tasks share nothing that trains" if len(self.parts) > 1 else "there is one task"
                notice(f"{self.title}: gradient surgery has no effect, since {why}")
            check_memory(model, self.title)
            return None
        check_memory(model, self.title, held=(len(self.parts) - 1) * sum(parameter.nbytes for parameter in shared))
        return Surgery(weighting_of(surgery, len(self.parts)), model.parameters())

    def _scored(
        self, scoring: Scoring, prediction: Prediction, tested: Prediction | None, start: float | None
    ) -> tuple[TaskScore, pd.DataFrame]:
        """The score on a task of the run, which says how the task was trained, and the predictions."""
        (score, table), name = scoring.scored(prediction, tested), scoring.task.name
        data, part = self.data[name], self.parts[name]
        trained = {
            "recipe": part.recipe,
            "pair": part.task.is_pair,
            "train_rows": len(data.train),
            "limit": part.limit,
            "dev_interval": scoring.interval(prediction),
            "temperature": fit_temperature(prediction, scoring.rows["label"].to_numpy()),
            "dev_in_train": data.dev_in_train,
            "test_in_train": data.test_in_train,
            "start": start,
            "added": dict(data.added),
            "dropped": dict(data.dropped),
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

        ``scored`` has all tasks, also those before the last in sequential fine-tuning; ``hashes`` are of the tensors of
        adapters that must not change.
        """
        request, ledger, attention = self.request, self.workspace.ledger, None
        model, sources = start.built.model, self.sources(start.adapters)
        fused = self.recipe.form.names_of(sources)
        if self.kind.artifact == "fusion":
            names = members_of(self.recipe, self.task.name, fused)
            weights = site_attention(model.of(self.task.name).backbone.eval(), names, scoring.inputs())
            attention = attention_table(weights, names)
        weights_sha256, artifact = None, None
        keeps_weights = request.keep_weights or self.kind.keeps_weights
        if self.kind.artifact or keeps_weights:
            seen = seen_rows(self.data, self._built_on(start), self.workspace)
        if self.kind.artifact:
            artifact = self._artifact(model, scored[self.task.name][0], sources, seen)
        elif keeps_weights:
            weights_sha256 = save_weights(model, self.name, ledger, request.start is None, seen)
        record = RunRecord(
            run=self.name,
            kind=request.kind,
            seed=request.seed,
            identity=self.identity,
            sources=tuple(
                each.model_copy(update={"tensors": hashes.get(name)}) for name, each in zip(fused, sources, strict=True)
            ),
            anchor=None if start.initial is None else start.initial.manifest.task,
            started_from=None if start.initial is None else start.initial.manifest.as_source,
            anchor_candidates=start.choice.anchor_candidates,
            anchor_scores=start.choice.anchor_scores,
            gates=start.choice.gates or {},
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
                model=sum(p.numel() for p in model.parameters()),
            ),
            artifact=None if artifact is None else str(artifact.folder),
            artifact_digest=None if artifact is None else artifact.manifest.digest,
            manifest=None if artifact is None else artifact.manifest,
            weights_sha256=weights_sha256,
            provenance=provenance(),
        )
        ledger.finish(record, fitted.curve, {name: table for name, (_, table) in scored.items()}, attention)

    def _artifact(
        self, model: MultitaskModel, score: TaskScore, sources: Sequence[SourceRun], seen: pd.DataFrame
    ) -> Artifact:
        """What trained, put into the store."""
        request, task, backbone = self.request, self.task, self.backbone
        assert self.kind.artifact is not None
        rows = self.data[task.name].dev
        manifest = Manifest(
            kind=self.kind.artifact,
            task=task.name,
            run=self.name,
            seed=request.seed,
            limit=self.parts[task.name].limit,
            recipe=self.recipe,
            train_rows=self.data[task.name].fingerprint["train"],
            pair=task.is_pair,
            meaning=task.meaning,
            metric=task.metric,
            dev=score.dev,
            dev_interval=score.dev_interval,
            temperature=score.temperature,
            dev_rows=len(rows),
            dev_fingerprint=self.data[task.name].fingerprint["dev"],
            part_of_dev=self.workspace.splits.chooses_by_part(task, rows),
            backbone=backbone.name,
            backbone_weights=backbone.weights_hash,
            # An adapter needs none of those that it may have been warm-started from.
            sources=tuple(sources) if self.kind.artifact == "fusion" else (),
        )
        return save_artifact(self.workspace.store, manifest, model.of(task.name), seen)
