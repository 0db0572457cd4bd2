"""The cost of SMART and the proximal point: a training step with them against the plain step."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pipeline.data.batches import Batch, Piece, collate, inputs_of
from pipeline.runs.training_run import TrainingRun
from pipeline.training.objectives import Regularised, class_divergence, objective_of
from pipeline.training.terms import terms_of

from .backbones import MINILM, NANO, backbone_folder
from .flops import flop_of
from .ours import build, make_run
from .report import Report
from .rows import generated_split
from .setting import Setting
from .step import Step, optimizer_of
from .timing import Row, interleave, milliseconds, ratio

TERMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "smart": {"smart": 1.0},
    "bregman": {"bregman": 1.0},
    "both": {"smart": 1.0, "bregman": 1.0},
}

_CALLS = 5  # A call takes half a second: a single one measures the machine as much as the step.


def run(setting: Setting) -> Report:
    backbone = backbone_folder(setting, NANO if setting.quick else MINILM)
    rows, tokens = (2, 8) if setting.quick else (32, 32)
    return Report(
        (
            f"Forward, backward and AdamW step on {rows} inputs of {tokens} tokens, fp32; random weights. SMART"
            " adds two forward passes and, to find its direction, one backward pass to the embeddings; the proximal"
            " point adds a forward pass of its teacher and the teacher's update. FLOP of matrix products; MB kept for"
            " the backward pass once the loss is computed.",
            f"Medians (lowest to highest) of rounds in which the peers ran in turn, {_CALLS} steps each.",
        ),
        tuple(_table(setting, backbone, trainable, rows, tokens) for trainable in ("full", "adapter")),
    )


def _table(setting: Setting, backbone: Path, trainable: str, rows: int, tokens: int) -> list[Row]:
    runs = {name: make_run(setting, trainable, backbone, **values) for name, values in TERMS.items()}
    steps = {name: regularised_step(run, rows, tokens, setting.device) for name, run in runs.items()}
    calls = 1 if setting.quick else _CALLS
    found = interleave({name: milliseconds(step, calls) for name, step in steps.items()}, setting.repeats)
    flop = {name: flop_of(step) for name, step in steps.items()}
    return [
        {
            trainable: name,
            "ms": sample,
            "of the plain step": ratio(sample, found["plain"]),
            "of its FLOP": flop[name] / flop["plain"],
            "MB": steps[name].saved_mb(),
        }
        for name, sample in found.items()
    ]


def regularised_step(run: TrainingRun, rows: int, tokens: int, device: str) -> Step:
    """A training step on one task with the terms of the run's recipe, as in :class:`TrainingRun` and ``fit``."""
    model, objective = build(run).model.of(run.task.name).to(device).train(), objective_of(run.task, run.recipe)
    split = generated_split(np.full(rows, tokens), run.task.outputs)
    batch: Batch = collate(split, np.arange(rows), run.backbone.tokenizer.pad_token_id)
    piece = Piece({name: tensor.to(device) for name, tensor in batch.items()})

    def forward(model: Any, piece: Piece) -> Tensor:
        outputs: Tensor = model(**inputs_of(piece.batch))
        return outputs

    regularised = Regularised(run.recipe, model, forward, lambda _: class_divergence, lambda _: model.encoders)
    terms, _ = terms_of(regularised)
    for term in terms:
        term.start({})

    def loss() -> Tensor:
        outputs = forward(model, piece)
        return sum((term(model, piece, outputs) for term in terms), objective.loss(outputs, piece.batch["labels"]))

    def after_step() -> None:
        for term in terms:
            term.after_step(1, 100)

    return Step(model, loss, optimizer_of(run, model), after_step)
