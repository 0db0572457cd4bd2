"""Initial gates of a fusion: linear probes choose which sources to mix, and how strongly, before training.

What a source adds in one layer is read by all layers above it, so sources interfere: two adapters at full strength are
often worth less than one of them. Forward selection, as for ensembles (Caruana et al. 2004), finds the few that help
together: each step adds the source and gate with which ridge regression on the head's inputs explains most of the
variance of held-out labels, until no step is worth it. The first source must explain significantly more than no source:
a useless one at full strength does harm.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from accelerate import Accelerator
from transformers import PreTrainedModel

from pipeline.data.split import at_most
from pipeline.data.tasks import Task
from pipeline.methods.gated import set_gates
from pipeline.models.backbone import Backbone
from pipeline.runs.probing import TESTED_ROWS, features_of, probe
from pipeline.settings.parts import even_gate, gates_text
from pipeline.settings.recipe import Recipe
from pipeline.stats.probe import LEAST_ROWS, most_explaining
from pipeline.system.streams import notice

ADDED_ROWS = 512
"""Training rows for choosing further sources, without a significance test but in many more passes than the first."""
GATES = (1.0, 0.5)
"""Gates to try for a further source. The first source is tried at 1 only."""
CANDIDATES = 4
"""Number of sources to try as further ones: those that score best by themselves."""
LEAST_GAIN = 0.005
"""Share of the labels' variance that a further source must explain. It is about the noise of 300 rows, but a linear
probe sees little of a source that helps only together with another."""


def choose_gates(
    encoder: PreTrainedModel,
    members: Sequence[str],
    sources: Sequence[str],
    task: Task,
    recipe: Recipe,
    rows: pd.DataFrame,
    backbone: Backbone,
    accelerator: Accelerator,
    warm: bool = False,
) -> dict[str, float]:
    """The sources to fuse, each with the gate that it starts with at all sites.

    If no source is shown to help, the best one with a gate of 0; with too few rows to tell, all with even gates.

    Args:
        encoder: with a freshly initialised gated fusion over ``members``; its gates are overwritten.
        sources: the ``members`` that have a gate.
        recipe: of the fusion, resolved for ``task``.
        rows: labelled training rows of ``task``.
        warm: whether the target's own adapter is warm-started. All sources then join one that is already there.
    """
    if len(rows) < LEAST_ROWS:
        return dict.fromkeys(sources, even_gate(len(sources)))
    whole, sample = at_most(rows, TESTED_ROWS), at_most(rows, ADDED_ROWS)
    encoder.to(accelerator.device)

    def fit(gates: Mapping[str, float], rows: pd.DataFrame) -> np.ndarray:
        set_gates(encoder, members, gates)
        return probe(features_of(encoder, recipe, rows, backbone, accelerator), task, rows)

    none, alone = fit({}, whole), {name: fit({name: 1.0}, whole) for name in sources}
    order = sorted(sources, key=lambda name: -alone[name].mean())
    first, reached, gates = order[0], none.mean(), dict[str, float]()
    steps = [f"{'the warm start' if warm else 'none'} {reached:.3f}"]
    if not warm:
        steps.append(f"{first} {alone[first].mean():.3f}")
        if most_explaining(alone, none) is None:
            steps.append(f"not significantly more, with {len(whole)} rows")
            return _announced({first: 0.0}, steps, task)
        gates, reached = {first: 1.0}, alone[first].mean()
    if len(sample) < len(whole):
        reached = fit(gates, sample).mean()
        steps.append(f"on {len(sample)} rows {reached:.3f}")
    while True:
        tried = {
            (name, gate): fit({**gates, name: gate}, sample).mean()
            for name in order[: CANDIDATES + len(gates)]
            for gate in GATES
            if name not in gates
        }
        helpful = {each: best for each, best in tried.items() if best >= reached + LEAST_GAIN}
        if not helpful:
            break
        # On a tie prefer full strength: it passes more of the source on to the layers above.
        name, gate = max(helpful, key=lambda each: helpful[each] - (LEAST_GAIN if each[1] < 1 else 0.0))
        gates[name], reached = gate, helpful[name, gate]
        steps.append(f"with {name} {reached:.3f}")
    return _announced(gates or {first: 0.0}, steps, task)


def _announced(gates: dict[str, float], steps: Sequence[str], task: Task) -> dict[str, float]:
    notice(f"{task.name}: gates start at {gates_text(gates)}; variance explained: {', '.join(steps)}")
    return gates
