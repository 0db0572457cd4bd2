"""Inference with trained models: their inputs, the head's outputs, and predictions."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from accelerate import Accelerator
from torch import Tensor

from pipeline.data.prediction import Prediction
from pipeline.data.tasks import Task
from pipeline.data.tokens import Cut, TokenisedSplit
from pipeline.models.rounding import round_for_good
from pipeline.models.transfer_model import JointModel, TransferModel
from pipeline.runs.build import outputs_of
from pipeline.runs.kept_models import Target
from pipeline.runs.restore import restore, restore_together
from pipeline.runs.scoring import splits_of
from pipeline.training.devices import HALF
from pipeline.training.objectives import objective_of
from pipeline.training.predict import Compute, mean_outputs


def predictions_of(
    targets: Sequence[Target],
    rows: pd.DataFrame,
    drop_layers: tuple[int, ...],
    batch_size: int,
    accelerator: Accelerator,
) -> tuple[list[Prediction], Cut]:
    """One prediction per target, from one forward pass over the rows; and how many rows each target cuts."""
    first, workspace, longest = targets[0], targets[0].workspace, targets[0].recipe.max_length
    assert longest is not None  # a trained model's recipe is resolved
    if rows.empty:
        return [_nothing(target.task) for target in targets], Cut(0, longest)
    model: TransferModel | JointModel
    if len(targets) == 1:
        model = restore(first.trained, first.task, workspace, drop_layers)
    else:
        trained, tasks = [each.trained for each in targets], [each.task for each in targets]
        model = restore_together(trained, tasks, workspace, drop_layers)
    round_for_good(model, workspace.backbone.tensor_names, HALF.get(accelerator.mixed_precision))
    inputs = inputs_of(first, rows)
    outputs = head_outputs(accelerator.prepare(model), targets, inputs, batch_size, accelerator)
    # the next pass builds another model
    accelerator.free_memory()
    each = zip(targets, outputs, strict=True)
    predictions = [objective_of(target.task, target.recipe).predict(own) for target, own in each]
    return predictions, Cut(inputs[0].cut_rows, longest)


def inputs_of(target: Target, rows: pd.DataFrame, *, cached: bool = True) -> list[TokenisedSplit]:
    """Canonical rows as the model reads them, in both orders if it averages over the orders of a pair.

    Unless ``cached``, the tokens are not saved to disk.
    """
    tokenizer = target.workspace.backbone.tokenizer
    return splits_of(rows, target.recipe, tokenizer, target.recipe.pairs.average_orders, cached)


def head_outputs(
    model: TransferModel | JointModel,
    targets: Sequence[Target],
    inputs: list[TokenisedSplit],
    batch_size: int,
    compute: Compute,
) -> list[Tensor]:
    """Each target's outputs (B, k) for B rows, computed by its restored ``model``, which is on the device already."""
    outputs = mean_outputs(
        model,
        inputs,
        batch_size=batch_size,
        pad_token_id=targets[0].workspace.backbone.tokenizer.pad_token_id,
        accelerator=compute,
    )
    return list(outputs.split([outputs_of(target.recipe, target.task) for target in targets], dim=-1))


def _nothing(task: Task) -> Prediction:
    """The prediction for no rows."""
    dtype = {"score": "float64", "classes": "int64", "labels": "U1"}[task.kind]
    return Prediction(np.empty(0, dtype), np.empty((0, task.outputs)) if task.classes else None)
