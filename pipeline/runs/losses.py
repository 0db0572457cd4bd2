"""The loss of a run: the objective of each task, and its regularisers."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from pipeline.data.batches import Piece, inputs_of
from pipeline.data.task_data import TaskData
from pipeline.data.tasks import Task
from pipeline.methods.layernorms import copied_parameters
from pipeline.models.backbone import Backbone
from pipeline.runs.build import Built
from pipeline.runs.request import Part, Parts, first_of
from pipeline.training.fit import Loss
from pipeline.training.objectives import Objective, balanced_weights, objective_of
from pipeline.training.terms import Terms, terms_of
from pipeline.training.terms.term import Regularised


def loss_of(
    parts: Parts,
    data: Mapping[str, TaskData],
    built: Built,
    backbone: Backbone,
    device: torch.device,
) -> tuple[Loss, Terms]:
    """The loss of a piece of a batch, scaled by the weight of its task, and its regularising terms."""

    def forward(model: Callable[..., Tensor], piece: Piece) -> Tensor:
        return model(piece.task, **inputs_of(piece.batch))

    objectives = {name: _objective(part, data[name], device) for name, part in parts.items()}
    first = first_of(parts)
    terms = terms_of(
        Regularised(
            first.recipe,
            built.model,
            forward,
            lambda name: objectives[name].divergence,
            lambda name: built.model.of(name).encoders,
            {*backbone.tensor_names, *copied_parameters(built.model.of(first.task.name).backbone)},
            built.without_decay,
        )
    )

    def loss(model: nn.Module, piece: Piece) -> Tensor:
        outputs = forward(model, piece)
        error = objectives[piece.task].loss(outputs, piece.batch["labels"])
        regularised = sum((term(model, piece, outputs) for term in terms.of_outputs), error)
        return regularised * parts[piece.task].recipe.joint.loss_weight

    return loss, terms


def _objective(part: Part[Task], data: TaskData, device: torch.device) -> Objective:
    """The objective of a task, with the class weights of its training rows on ``device``."""
    weights = None
    if part.recipe.class_weights == "balanced":
        weights = balanced_weights(data.train["label"].to_numpy(), part.task.outputs).to(device)
    return objective_of(part.task, part.recipe, weights)
