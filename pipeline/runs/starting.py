"""What an adapter begins as: fresh, or as another task's adapter (intermediate-task transfer, Poth et al. 2021)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torch import Tensor, nn

from pipeline.models.heads import pair_features
from pipeline.records.store import Artifact, why_recipe_not_fused
from pipeline.runs.inputs import scored_splits
from pipeline.settings.layers import layers_text
from pipeline.settings.recipe import Recipe
from pipeline.stats.metrics import score
from pipeline.stats.probe import LEAST, most_fitting, probe

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from accelerate import Accelerator

    from pipeline.runs.run import Run

ROWS = 2000
"""Training rows that a candidate is judged by; of more, a sample."""


class _Features(nn.Module):
    """In the place of a head: what a linear one would read."""

    def forward(self, u: Tensor, v: Tensor | None = None) -> Tensor:
        return u if v is None else pair_features(u, v)


def choose_start(run: Run, accelerator: Accelerator) -> Artifact | None:
    """Of the adapters that a run may begin as, the one off whose sentence vectors its task is best read.

    Judged on training rows, by :func:`pipeline.stats.probe.probe`. None where none is shown to be better than the bare
    backbone, which is what a fresh adapter begins as.
    """
    candidates = {artifact.manifest.task: artifact for artifact in run.request.adapters}
    if run.request.kind != "adapter" or not candidates:
        return None
    rows = run.data.train
    if len(rows) < LEAST:
        if accelerator.is_main_process:
            print(f"{run.title} begins fresh: {len(rows)} rows are too few to choose by", file=sys.stderr)
        return None
    if len(rows) > ROWS:
        rows = rows.sample(ROWS, random_state=0)
    bare = _probe(run, rows, None, accelerator)
    probes = {task: _probe(run, rows, candidate, accelerator) for task, candidate in candidates.items()}
    metric, labels = run.task.metric, rows["label"].to_numpy()
    best = most_fitting(metric, probes, bare, labels)
    if accelerator.is_main_process:
        values = {"no adapter": bare, **probes}
        told = ", ".join(f"{name} {score(metric, found, labels):.3f}" for name, found in values.items())
        begins = f"begins as the adapter of {best}" if best else "begins fresh"
        print(f"{run.title} {begins}; linear probes of train, {metric}: {told}", file=sys.stderr)
    return candidates[best] if best else None


def _probe(run: Run, rows: pd.DataFrame, candidate: Artifact | None, accelerator: Accelerator) -> np.ndarray:
    from pipeline.methods.houlsby import load_adapter
    from pipeline.models.transfer_model import TransferModel
    from pipeline.runs.restore import modules_of
    from pipeline.training.predict import mean_outputs

    recipe = run.recipe
    assert recipe.encoding is not None and recipe.pooling is not None
    encoder = run.backbone.load()
    if candidate is not None:
        candidate.verify()
        load_adapter(encoder, candidate.manifest.task, modules_of(candidate), recipe.drop_layers)
    model = TransferModel(encoder, _Features(), recipe.encoding, recipe.pooling).requires_grad_(False)
    vectors = mean_outputs(
        model.to(accelerator.device),
        scored_splits(rows, recipe, run.backbone.tokenizer)[:1],
        batch_size=2 * recipe.batch_size,
        pad_token_id=run.backbone.tokenizer.pad_token_id,
        accelerator=accelerator,
    )
    classes = run.task.outputs if run.task.kind == "classes" else None
    return probe(vectors.numpy(), rows["label"].to_numpy(), classes)


def why_not_started_from(source: Recipe, pair: bool, recipe: Recipe) -> str | None:
    """Why an adapter of ``recipe`` cannot begin as one that ``source`` makes, or None if it can; both resolved.

    Args:
        pair: whether the source's task has two texts.
    """
    assert recipe.encoding is not None
    if why := why_recipe_not_fused(source, pair, recipe.encoding, recipe.adapter):
        return why
    if source.bottleneck != recipe.bottleneck:
        return f"is {source.bottleneck} wide, not {recipe.bottleneck} (--bottleneck)"
    if missing := layers_text(tuple(sorted({*source.drop_layers} - {*recipe.drop_layers}))):
        return f"leaves out layers {missing} (--drop-layers)"
    return None
