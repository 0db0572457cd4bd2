"""Linear probes rank many adapters before training, to choose those that a fusion should mix.

Probing the target's rows through an adapter ranks sources nearly as well as training with each of them (Poth, Pfeiffer,
Rücklé, Gurevych 2021). In a large store, all adapters are first probed at their bottlenecks only
(:mod:`pipeline.methods.units`); the best of these then run as whole models.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from torch import Tensor

from pipeline.data.batches import BACKBONE_INPUTS, collate, sentences_of
from pipeline.data.split import at_most
from pipeline.data.tasks import Task
from pipeline.methods.units import UnitReader
from pipeline.models.backbone import Backbone
from pipeline.models.heads import pair_features
from pipeline.records.store import Artifact
from pipeline.runs.build import modules_of
from pipeline.runs.probing import probe, sentence_vectors
from pipeline.runs.scoring import splits_of
from pipeline.settings.recipe import Recipe
from pipeline.stats.probe import LEAST_ROWS
from pipeline.system.errors import PipelineError, few
from pipeline.system.streams import notice

RANKED_ROWS = 256
"""Training rows for a probe. If there are more, it reads a seeded sample."""
WHOLE = 16
"""Minimum number of adapters that run as whole models; twice as many as are wanted, if that is more."""
_BATCH = 16


def best_sources(
    count: int,
    candidates: Sequence[Artifact],
    task: Task,
    recipe: Recipe,
    rows: pd.DataFrame,
    backbone: Backbone,
    accelerator: Accelerator,
) -> list[Artifact]:
    """The ``count`` adapters of other tasks on which linear probes of ``task`` do best, in the order of ``candidates``.

    Args:
        candidates: intact adapters of this backbone, one per task.
        recipe: the fusion's, resolved for ``task``.
        rows: labelled training rows of ``task``.

    Raises:
        PipelineError: too few rows to choose by.
    """
    if len(candidates) <= count:
        return list(candidates)
    if len(rows) < LEAST_ROWS:
        raise PipelineError(
            f"best_sources {count} (--sources best:{count}): {len(rows)} training rows of {task.name} are too few to"
            f" rank sources by (at least {LEAST_ROWS}): name the sources"
        )
    rows = at_most(rows, RANKED_ROWS)

    def explained(features: np.ndarray) -> float:
        return float(probe(features, task, rows).mean())

    for candidate in candidates:
        candidate.verify()
    kept, most = list(candidates), max(WHOLE, 2 * count)
    if len(kept) > most:
        units = _units(kept, recipe, rows, backbone, accelerator)
        kept = _highest([explained(each) for each in units], kept, most)
    fits = [explained(sentence_vectors(each, recipe, rows, backbone, accelerator)) for each in kept]
    chosen = _highest(fits, kept, count)
    if accelerator.is_main_process:
        order = np.argsort(fits, kind="stable")[::-1]
        listed = few([f"{kept[place].manifest.task} {fits[place]:.3f}" for place in order], 2 * count)
        before = f", of {len(candidates):,} probed at their bottlenecks," if len(kept) < len(candidates) else ""
        notice(
            f"{task.name}: variance of the labels that linear probes explain, by source{before} on {len(rows)} training"
            f" rows: {', '.join(listed)}; chosen: {', '.join(each.manifest.task for each in chosen)}"
        )
    return chosen


def _highest(fits: Sequence[float], candidates: Sequence[Artifact], count: int) -> list[Artifact]:
    """The ``count`` that fit best, in their original order; on a tie the first."""
    best = sorted(range(len(fits)), key=lambda place: -fits[place])[:count]
    return [candidates[place] for place in sorted(best)]


def _units(
    candidates: Sequence[Artifact], recipe: Recipe, rows: pd.DataFrame, backbone: Backbone, accelerator: Accelerator
) -> Iterator[np.ndarray]:
    """Each candidate's units on ``rows`` beside the bare backbone's sentence vectors, (rows, features).

    With these vectors, the ranking is closer to that of the whole models than with the units alone.
    """
    assert recipe.pooling is not None
    reader = UnitReader(backbone.load().to(accelerator.device), [modules_of(each) for each in candidates])
    (split,) = splits_of(rows, recipe, backbone.tokenizer, both_orders=False)
    inputs, pairs = (split, None) if split.b is None else sentences_of(split, np.arange(len(split)))
    order = np.argsort(inputs.lengths, kind="stable")  # inputs of similar length share a batch
    vectors, units = list[Tensor](), list[list[Tensor]]()
    for first in range(0, len(order), _BATCH):
        batch = collate(inputs, order[first : first + _BATCH], backbone.tokenizer.pad_token_id)
        tensors = {key: batch[key].to(accelerator.device) for key in BACKBONE_INPUTS if key in batch}
        with accelerator.autocast():
            bare, read = reader.read(tensors, recipe.pooling)
        vectors.append(bare.float().cpu())
        units.append([each.float().cpu() for each in read])
    back = torch.from_numpy(np.argsort(order, kind="stable"))
    for each in zip(*units, strict=True):
        features = torch.cat([torch.cat(vectors), torch.cat(each)], dim=1)[back]
        if pairs is not None:
            one, other = torch.from_numpy(pairs).view(2, -1)
            features = pair_features(features[one], features[other])
        yield features.numpy()
