"""Predictions for a whole split, in the split's order."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from pipeline.data.batches import collate, evaluation_order
from pipeline.data.tokens import TokenisedSplit
from pipeline.errors import PipelineError
from pipeline.training.objectives import Objective, Prediction


def predict_split(
    model: nn.Module,
    split: TokenisedSplit,
    objective: Objective,
    *,
    batch_size: int,
    pad_token_id: int,
    accelerator: Accelerator,
) -> Prediction:
    """Run ``model`` over ``split`` in length order and put the results back in the order of its rows.

    Each process takes its share of the batches; all get the whole result.
    """
    model.eval()
    mine = evaluation_order(split.lengths, batch_size)[accelerator.process_index :: accelerator.num_processes]
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    with torch.inference_mode():
        for rows in mine:
            batch = collate(split, rows, pad_token_id)
            inputs = {
                name: tensor.to(accelerator.device) for name, tensor in batch.items() if name not in ("rows", "labels")
            }
            found.append((batch["rows"], model(**inputs).float().cpu()))
    if accelerator.num_processes > 1:
        found = gather_object(found)
    order = torch.cat([rows for rows, _ in found])
    outputs = torch.cat([values for _, values in found])
    if not torch.isfinite(outputs).all():
        raise PipelineError(
            "the model's outputs are no longer finite numbers; lower --learning-rate or use --precision fp32"
        )
    restored = torch.empty_like(outputs)
    restored[order] = outputs
    return objective.predict(restored)
