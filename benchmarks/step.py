"""A training step of a whole model on one batch, with this project or with AdapterHub."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from pipeline.data.batches import Batch, Piece, collate
from pipeline.runs.training_run import TrainingRun
from pipeline.training.optim import parameter_groups, peak_rates

from .memory import saved_mb
from .ours import build, loss_of, make_run, source_folders
from .plain import PlainClassifier, load_fusion
from .rows import generated_split
from .setting import Setting


@dataclass(frozen=True)
class Step:
    """Forward, backward and optimiser step, always on the same batch."""

    model: nn.Module
    loss: Callable[[], Tensor]
    optimizer: AdamW
    after: Callable[[], object] = lambda: None

    def __call__(self) -> None:
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.after()

    def saved_mb(self) -> float:
        """MB that the forward pass keeps for the backward pass, at the peak, once the loss is computed."""
        return saved_mb(self.model, self.loss)


def fusion_run(setting: Setting, backbone: Path, adapters: int) -> TrainingRun:
    return make_run(setting, "fusion", backbone, adapters=adapters, fusion="standard")


def fusion_batch(run: TrainingRun, rows: int, tokens: int, device: str) -> Batch:
    """``rows`` inputs of ``tokens`` random tokens each."""
    split = generated_split(np.full(rows, tokens), run.task.outputs)
    batch = collate(split, np.arange(rows), run.backbone.tokenizer.pad_token_id)
    return {name: tensor.to(device) for name, tensor in batch.items()}


def our_step(run: TrainingRun, batch: Batch, device: str) -> Step:
    """Stage two as this project trains it."""
    built, loss = build(run), loss_of(run)
    model = built.model.to(device).train()

    def total() -> Tensor:
        return _sum([loss(model, Piece(batch)), *(penalty() for penalty in built.penalties)])

    return Step(model, total, optimizer_of(run, model))


def stock_step(run: TrainingRun, batch: Batch, device: str) -> Step:
    """Stage two with AdapterHub only: the same backbone, adapters, loss, regulariser and optimiser."""
    torch.manual_seed(0)
    encoder = load_fusion(Path(run.backbone.name), source_folders(run))
    model = PlainClassifier(encoder, run.task.outputs).to(device).train()

    def total() -> Tensor:
        outputs = model(batch["input_ids"], batch["attention_mask"])
        return F.cross_entropy(outputs, batch["labels"]) + encoder.get_fusion_regularization_loss()

    return Step(model, total, optimizer_of(run, model))


def optimizer_of(run: TrainingRun, model: nn.Module) -> AdamW:
    """AdamW as ``fit`` makes it, at its peak rate."""
    return AdamW(parameter_groups(model, peak_rates(model, run.recipe), run.recipe.weight_decay), fused=True)


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum()
