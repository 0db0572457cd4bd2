"""Which adapter a run is initialised from: one of its sources for an anchored fusion, another task's for an adapter.

The latter is intermediate-task transfer (Poth et al. 2021).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pipeline.data.split import at_most
from pipeline.models.backbone import Backbone
from pipeline.records.store import Artifact
from pipeline.runs.build import same_head
from pipeline.runs.probing import TESTED_ROWS, probe, sentence_vectors
from pipeline.runs.restore import restore
from pipeline.runs.scoring import Scoring
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.stats.probe import LEAST_ROWS, most_explaining
from pipeline.system.streams import notice


def choose_anchor(
    adapters: Sequence[Artifact], recipe: Recipe, scoring: Scoring, workspace: Workspace
) -> tuple[Artifact | None, dict[str, dict[str, float]]]:
    """The adapter with the best dev score among the target's own and those of tasks with the same labels.

    With few target rows, a related task with many may have the better adapter. Its labels mean the same, so its head
    works for the target unchanged. Without a choice it is the target's own adapter; None if it has none.

    Returns:
        The adapter; and the scores on dev and on the test rows that it was chosen by, by record field and task;
        empty if there was no choice.
    """
    task = scoring.task
    own = next((adapter for adapter in adapters if adapter.manifest.task == task.name), None)
    able = [
        adapter
        for adapter in adapters
        if (adapter.manifest.meaning, adapter.manifest.pair) == (task.meaning, task.is_pair)
        and same_head(adapter.manifest.recipe, recipe)
    ]
    if not recipe.fusion.head_start or not able:
        return own, {}
    if len(able) == 1:
        return able[0], {}
    candidates, scores = dict[str, float](), dict[str, float]()
    for adapter in able:
        name = adapter.manifest.task
        model = restore(adapter, task, workspace, recipe.adapter.drop_layers).to(scoring.accelerator.device)
        candidates[name] = scoring.value(scoring.predict(model))
        if scoring.test is not None:
            scores[name] = scoring.test.value(scoring.test.predict(model))
    # On a tie the target's own, then the first by name.
    best = max(able, key=lambda adapter: (candidates[adapter.manifest.task], adapter is own))
    return best, {"anchor_candidates": candidates, "anchor_scores": scores}


def choose_start(
    candidates: Sequence[Artifact],
    recipe: Recipe,
    scoring: Scoring,
    rows: pd.DataFrame,
    backbone: Backbone,
    title: str,
    tested: bool,
) -> Artifact | None:
    """The adapter of another task from whose sentence vectors a linear probe explains most of the target's labels.

    Uses :func:`probe` on training rows. None unless the best adapter explains more than the bare backbone, which is
    what a fresh adapter starts as; if ``tested``, significantly more, as for the first source of a gated fusion.

    Args:
        candidates: one per task.
        recipe: of the adapter to be trained, resolved.
        title: of the run, for the line on stderr that reports the choice.
    """
    task = scoring.task
    fresh = "starts from a new adapter: {}, and this equals a run without a warm start (extract without --start-from)"
    if len(rows) < LEAST_ROWS:
        notice(f"{title} {fresh.format(f'{len(rows)} rows are too few to select a source')}")
        return None
    rows = at_most(rows, TESTED_ROWS)
    by_task = {artifact.manifest.task: artifact for artifact in candidates}
    bare, *others = (
        probe(sentence_vectors(each, recipe, rows, backbone, scoring.accelerator), task, rows)
        for each in (None, *candidates)
    )
    probes = dict(zip(by_task, others, strict=True))
    best = most_explaining(probes, bare, tested)
    listed = ", ".join(f"{name} {each.mean():.3f}" for name, each in {"no adapter": bare, **probes}.items())
    significantly = " significantly" if tested else ""
    gain = probes[best] - bare if best else np.zeros(1)
    # A difference below its standard error may be chance; taking the source costs nothing, so it is taken.
    unclear = best and gain.mean() < gain.std(ddof=1) / np.sqrt(len(gain))
    start = (
        f"is warm-started from {best}{', though no source clearly helps' if unclear else ''}"
        if best
        else fresh.format(f"no source helps{significantly} with {len(rows)} rows")
    )
    notice(f"{title} {start}; variance of train explained: {listed}")
    return by_task[best] if best else None
