"""Joint training: one backbone and a head a task, trained on all tasks by a mixing rule."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.data.batches import inputs_of
from pipeline.data.load import TaskData
from pipeline.data.tasks import Task
from pipeline.records.ledger import OtherScore, Parameters, RunRecord, SourceRun, run_name
from pipeline.runs.inputs import training_splits
from pipeline.runs.keeping import cost_of, save_weights
from pipeline.runs.once import get_or_train
from pipeline.runs.run import source_run, tell_overlap, training_data
from pipeline.runs.scoring import Evaluations, Scoring, scoring_of
from pipeline.runs.workspace import Workspace, provenance
from pipeline.settings.recipe import Recipe, check_seed
from pipeline.settings.study_rows import MAY_TRAIN
from pipeline.stats.metrics import load_metric
from pipeline.system.errors import raise_all

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn

    from pipeline.data.batches import Piece
    from pipeline.models.transfer_model import MultitaskModel
    from pipeline.stats.prediction import Prediction
    from pipeline.training.fit import Fitted, GradientRule, TrainingData

# What of a recipe each task has for itself; the rest is about the one model and its training.
_OWN = frozenset(
    {"encoding", "pooling", "head", "cosine_scale", "one_logit", "extra", "head_dropout", "max_length", "batch_size"}
    | {"loss_weight", "pair_order", "average_orders", "truncation"}
)


@dataclass(frozen=True)
class Part:
    """A task of a multitask run, with its resolved recipe."""

    task: Task
    recipe: Recipe
    limit: int | None
    data: TaskData


class MultitaskRun:
    """A model for several tasks: its identity, and its training if the ledger does not have it yet.

    Args:
        start: the fine-tuning whose backbone the model begins with.
        keep_weights: leave the trained model beside the record.
        wanted_surgery: whether gradient surgery was asked for, though with one task it has no effect.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        workspace: Workspace,
        seed: int,
        start: RunRecord | None = None,
        keep_weights: bool = False,
        wanted_surgery: bool = False,
    ) -> None:
        self.workspace, self.seed, self.start, self.keep_weights = workspace, seed, start, keep_weights
        self.backbone = workspace.backbone
        self.parts = {part.task.name: part for part in sorted(parts, key=lambda part: part.task.name)}
        self.wanted_surgery = wanted_surgery

    @property
    def first(self) -> Part:
        """The part under whose task the run's record stands; all are equals."""
        return next(iter(self.parts.values()))

    @property
    def sources(self) -> tuple[SourceRun, ...]:
        return (source_run(self.start),) if self.start is not None else ()

    @cached_property
    def identity(self) -> dict[str, Any]:
        first, *others = (
            {
                "task": {"name": name, **part.task.meaning},
                "recipe": part.recipe.identity,
                "data": part.data.fingerprint,
            }
            for name, part in self.parts.items()
        )
        return {
            "kind": "multitask",
            **first,
            "others": others,
            "seed": self.seed,
            "backbone": self.backbone.identity,
            "sources": [{"task": source.task, "digest": source.digest} for source in self.sources],
        }

    @cached_property
    def name(self) -> str:
        return run_name(self.identity)

    @property
    def title(self) -> str:
        before = f" after {self.start.task}" if self.start is not None else ""
        return f"multitask {'+'.join(self.parts)}{before} seed {self.seed}"

    def finished(self) -> RunRecord | None:
        """The ledger's record, with the model if it is wanted."""
        record = self.workspace.ledger.find(self.name)
        return None if record is None else self.workspace.ledger.with_weights(record, self.keep_weights)

    def get(self, force: bool = False) -> RunRecord:
        """The finished record: from the ledger, or by training (from the last checkpoint, if there is one)."""
        return get_or_train(self, force)

    def train(self) -> RunRecord:
        """Train, score every task and write everything; see :meth:`get`."""
        from pipeline.runs.restore import build_multitask
        from pipeline.training.devices import make_accelerator
        from pipeline.training.divergence import divergence_of
        from pipeline.training.fit import fit
        from pipeline.training.mixing import mixed
        from pipeline.training.terms import loss_with, terms_of
        from pipeline.training.terms.term import Regularised

        recipe, ledger = self.first.recipe, self.workspace.ledger
        accelerator = make_accelerator(
            recipe.precision, self.workspace.track, ledger.folder(self.name), resting=len(self.parts) > 1
        )
        if accelerator.is_main_process:
            for part in self.parts.values():
                tell_overlap(part.data, part.task)
        if self.workspace.track:
            accelerator.init_trackers("", config={})
        scorings = {
            name: scoring_of(part.task, part.data.dev, part.recipe, self.backbone, accelerator)
            for name, part in self.parts.items()
        }
        for part in self.parts.values():
            load_metric(part.task.metric)  # its import takes seconds, which are not the run's
        data = {name: self._data(part, accelerator) for name, part in self.parts.items()}
        rows = {name: len(part.data.train) for name, part in self.parts.items()}
        model = build_multitask(self.parts, self.workspace, self.seed, self.start)
        combine = self._surgery(model)

        def forward(model: Callable[..., Tensor], piece: Piece) -> Tensor:
            return model(piece.task, **inputs_of(piece.batch))

        def objective(outputs: Tensor, piece: Piece) -> Tensor:
            return scorings[piece.task].objective.loss(outputs, piece.batch["labels"])

        divergences = {name: divergence_of(part.task, part.recipe) for name, part in self.parts.items()}
        terms = terms_of(
            Regularised(
                recipe,
                model,
                forward,
                divergences.__getitem__,
                lambda task: model.of(task).backbone,
                self.backbone.tensor_names,
            )
        )
        regularised = loss_with(forward, objective, terms.of_outputs)

        def loss(model: nn.Module, piece: Piece) -> Tensor:
            return regularised(model, piece) * self.parts[piece.task].recipe.loss_weight

        def predict() -> dict[str, Prediction]:
            return {name: scoring.predict(model.of(name)) for name, scoring in scorings.items()}

        def value(predictions: Mapping[str, Prediction]) -> dict[str, float]:
            return {name: scorings[name].value(prediction) for name, prediction in predictions.items()}

        evaluations = Evaluations(predict, value)
        fitted = fit(
            model,
            recipe=recipe,
            seed=self.seed,
            data=mixed(data, rows, recipe, self.seed),
            loss=loss,
            evaluate=evaluations,
            metric="mean",
            accelerator=accelerator,
            title=self.title,
            penalties=terms.of_weights,
            pretrained=self.backbone.tensor_names,
            combine=combine,
            companions=terms.of_outputs,
            checkpoint_file=ledger.checkpoint_file(self.name),
            checkpoint_seconds=self.workspace.checkpoint_seconds,
        )
        predictions = evaluations.best(fitted)
        if self.workspace.track:
            accelerator.end_training()
        if accelerator.is_main_process:
            self._finish(model, fitted, scorings, predictions)
        accelerator.wait_for_everyone()
        record = self.finished()
        assert record is not None
        return record

    def _surgery(self, model: MultitaskModel) -> GradientRule | None:
        """What combines the tasks' gradients, if there is anything to combine; and whether memory is enough for it."""
        from pipeline.training.cost import check_memory
        from pipeline.training.devices import is_main_process
        from pipeline.training.surgery import Surgery, weighting_of

        surgery, encoder = self.first.recipe.gradient_surgery, model.of(self.first.task.name).backbone
        own = set(self.backbone.tensor_names)
        shared = [p for name, p in encoder.named_parameters() if name in own and p.requires_grad]
        if surgery == "none" or not shared:
            if self.wanted_surgery and is_main_process():
                why = "the tasks share nothing that trains" if len(self.parts) > 1 else "there is one task"
                print(f"{self.title}: gradient surgery has no effect, since {why}", file=sys.stderr)
            check_memory(model, self.title)
            return None
        check_memory(model, self.title, held=(len(self.parts) - 1) * sum(parameter.nbytes for parameter in shared))
        return Surgery(weighting_of(surgery, len(self.parts)), model.parameters())

    def _data(self, part: Part, accelerator: Accelerator) -> TrainingData:
        recipe, tokenizer = part.recipe, self.backbone.tokenizer
        splits = training_splits(part.data.train, recipe, tokenizer)
        return training_data(splits, recipe, self.seed, tokenizer.pad_token_id, accelerator)

    def _finish(
        self,
        model: MultitaskModel,
        fitted: Fitted,
        scorings: Mapping[str, Scoring],
        predictions: Mapping[str, Prediction],
    ) -> None:
        first, *others = self.parts
        dev = {name: scoring.value(predictions[name]) for name, scoring in scorings.items()}
        data, heads = self.first.data, [model.of(name).head for name in self.parts]
        weights = None
        if self.keep_weights:
            file = self.workspace.ledger.weights_file(self.name)
            weights = save_weights(model, file, from_pretrained=self.start is None)
        record = RunRecord(
            run=self.name,
            kind="multitask",
            task=first,
            seed=self.seed,
            limit=self.first.limit,
            recipe=self.first.recipe,
            identity=self.identity,
            sources=self.sources,
            backbone=self.backbone.name,
            metric=self.first.task.metric,
            dev=dev[first],
            best_epoch=fitted.best_epoch,
            rows={"train": len(data.train), "dev": len(data.dev), "dev_in_train": data.dev_in_train},
            added=dict(data.added),
            others={
                name: OtherScore(
                    metric=self.parts[name].task.metric,
                    dev=dev[name],
                    rows=len(self.parts[name].data.dev),
                    train_rows=len(self.parts[name].data.train),
                    added=dict(self.parts[name].data.added),
                    recipe=self.parts[name].recipe,
                )
                for name in others
            },
            cost=cost_of(model, fitted),
            parameters=Parameters(
                backbone=self.backbone.parameters, head=sum(p.numel() for head in heads for p in head.parameters())
            ),
            weights_sha256=weights,
            provenance=provenance(),
        )
        tables = {name: scoring.table(predictions[name]) for name, scoring in scorings.items()}
        own = tables.pop(first)
        self.workspace.ledger.finish(record, fitted.curve, own, tables)


def multitask_run(
    tasks: Sequence[str],
    recipes: Mapping[str, Recipe],
    workspace: Workspace,
    *,
    seed: int,
    limits: Mapping[str, int | None],
    start: RunRecord | None = None,
    keep_weights: bool = False,
) -> MultitaskRun:
    """The run that trains one model for all of ``tasks`` at once; its order does not count.

    The kept epoch is the one with the best mean of the tasks' dev scores. A run of one task is full fine-tuning.

    Args:
        recipes: one a task; they may differ in what a task has for itself (encoding, pooling, head and its dropout,
            length, batch size, weight of its loss) and in nothing else.
        limits: training rows of each task; None is all.
        start: a full fine-tuning, whose backbone is gone on from; its head stays behind.
        keep_weights: leave the trained model beside the record.

    Raises:
        PipelineError: no task, one named twice, recipes that differ otherwise or that train what tasks cannot share,
            gradient surgery in several processes.
    """
    check_seed(seed)
    parts = []
    for name in tasks:
        task, recipe = workspace.task(name), recipes[name]
        resolved = workspace.resolve(recipe, task, joint=True)
        if len(tasks) == 1:  # there is nothing to mix, to combine or to split
            resolved = resolved.model_copy(
                update={"mixing": "simultaneous", "gradient_surgery": "none", "split_layers": 0}
            )
        data = workspace.task_data(task, limits[name], seed, resolved.extra)
        parts.append(Part(task, resolved, limits[name], data))
    raise_all("multitask", _mistakes(parts))
    wanted_surgery = any(recipes[name].gradient_surgery != "none" for name in tasks)
    return MultitaskRun(parts, workspace, seed, start, keep_weights, wanted_surgery)


def _mistakes(parts: Sequence[Part]) -> list[str]:
    from pipeline.training.devices import process_count

    if not parts:
        return ["no task to train on"]
    names = [part.task.name for part in parts]
    problems = [f"task '{name}' is named more than once" for name in sorted(set(names)) if names.count(name) > 1]
    for trainable in sorted({part.recipe.trainable for part in parts} - set(MAY_TRAIN["multitask"])):
        allowed = ", ".join(f"'{name}'" for name in MAY_TRAIN["multitask"])
        problems.append(f"joint training cannot have trainable = '{trainable}': use one of {allowed}")
    if process_count() > 1 and any(part.recipe.gradient_surgery != "none" for part in parts):
        problems.append("gradient_surgery works in one process only: launch one, or leave it out")
    for key in sorted(set(Recipe.model_fields) - _OWN):
        values = {part.task.name: getattr(part.recipe, key) for part in parts}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items())
            problems.append(f"{key} must be the same for all tasks ({listed})")
    return problems
