"""What identifies a training run: everything that its numbers depend on. Its name is a hash of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.data.task_data import TaskData
from pipeline.models.backbone import Backbone
from pipeline.records.store import SourceRun
from pipeline.runs.initial import most_sources
from pipeline.runs.ranking import run_whole
from pipeline.runs.request import Parts, RunRequest, first_of
from pipeline.settings.recipe import Recipe
from pipeline.stats.probe import LEAST_ROWS


class Facts(NamedTuple):
    """What a correction may depend on."""

    request: RunRequest
    recipe: Recipe
    family: str
    """The backbone's model type."""
    rows: int
    """Training rows of the first task."""


class Correction(NamedTuple):
    """A change of the code that changed numbers. The runs that it concerns got new names, all others kept theirs."""

    key: str
    value: str
    concerns: Callable[[Facts], bool]


def identity_of(
    request: RunRequest,
    parts: Parts,
    data: Mapping[str, TaskData],
    sources: Sequence[SourceRun],
    backbone: Backbone,
    family: str,
) -> dict[str, Any]:
    """The identity of the run that ``request`` asks for.

    Args:
        parts: its parts, resolved, by task.
        data: the rows of each task.
        sources: what the run builds on. The digest of a source's contents identifies it, not its name.
    """
    first = first_of(parts)
    facts = Facts(request, first.recipe, family, rows=len(data[first.task.name].train))
    return {
        "kind": request.kind,
        "tasks": {
            name: {"meaning": part.task.meaning, "recipe": part.recipe.identity, "data": data[name].fingerprint}
            for name, part in parts.items()
        },
        "seed": request.seed,
        "backbone": backbone.identity,
        "sources": [{"task": source.task, "digest": source.digest} for source in sources],
        # A warm-started adapter has the same sources, and may start from none of them.
        **({"start": "in turn"} if request.in_turn else {}),
        **{each.key: each.value for each in CORRECTIONS if each.concerns(facts)},
    }


def _probes_cosine(facts: Facts) -> bool:
    request, recipe = facts.request, facts.recipe
    probed = bool(request.adapters) and not request.in_turn and (request.kind == "adapter" or recipe.probes_sources)
    return probed and recipe.head == "cosine"


def _may_start_as_another(facts: Facts) -> bool:
    """Whether the model starts as another's, or may do so, with a fresh head."""
    request, recipe = facts.request, facts.recipe
    if request.start is not None:
        return request.probe is None
    return request.may_be_warm_started(recipe)


def _has_vector_gates(facts: Facts) -> bool:
    return facts.recipe.fuses_as == "gated" and facts.recipe.gated.gate == "vector"


def _has_undecayed(recipe: Recipe) -> bool:
    """Whether a fusion has weights that decay leaves alone."""
    return recipe.fuses_as in ("gated", "standard")


def _pulls_copied_norms(facts: Facts) -> bool:
    """Whether each of several tasks trains LayerNorms of its own under L2-SP."""
    recipe, several = facts.recipe, len(facts.request.parts) > 1
    return several and bool(recipe.l2_sp) and recipe.has_modules and recipe.bottleneck.train_layernorm


def _probes_gates_of_many_rows(facts: Facts) -> bool:
    recipe = facts.recipe
    probed = bool(facts.request.adapters) and recipe.fuses_as == "gated" and recipe.gated.start == "probe"
    return probed and facts.rows > 512


def _probes_gate_of_own(facts: Facts) -> bool:
    """Whether probes choose if the target's own adapter is fused, as they choose its other sources."""
    request, recipe = facts.request, facts.recipe
    probed = recipe.fuses_as == "gated" and recipe.gated.start == "probe" and facts.rows >= LEAST_ROWS
    target = request.parts[0].task.name
    return probed and recipe.gated.own == "none" and any(each.manifest.task == target for each in request.adapters)


def _ranks_pfeiffers_by_units(facts: Facts) -> bool:
    """Whether bottlenecks that read the layer's output are first probed alone, before the best are run whole."""
    request, recipe = facts.request, facts.recipe
    if recipe.fuses_as is None or recipe.adapter.kind != "pfeiffer":
        return False
    most, target = most_sources(recipe, facts.rows), request.parts[0].task.name
    others = sum(each.manifest.task != target for each in request.adapters)
    return most is not None and others > run_whole(most)


def _begins_above(facts: Facts) -> bool:
    """Whether the lowest layer has no adapter."""
    return facts.recipe.has_modules and 0 in facts.recipe.adapter.drop_layers


CORRECTIONS = (
    # Probes read what a linear head would, for a cosine too.
    Correction("probe", "cosine", _probes_cosine),
    # SMART's direction got smaller with the number of rows that were computed at once.
    Correction(
        "ascent",
        "sum",
        lambda facts: bool(facts.recipe.smart.weight) and facts.recipe.smart.direction == "reference",
    ),
    # The fresh head of a model that starts as another's was drawn from the seed alone.
    Correction("head", "own draw", _may_start_as_another),
    # Joint training drew fresh heads for all tasks, those that the model had been tuned on too.
    Correction("heads", "kept", lambda facts: facts.request.kind == "multitask" and facts.request.start is not None),
    # Gates that are vectors decayed towards zero.
    Correction("gates", "without decay", _has_vector_gates),
    # L2-SP pulled gates and value matrices of a fusion to zero.
    Correction("l2_sp", "spares", lambda facts: bool(facts.recipe.l2_sp) and _has_undecayed(facts.recipe)),
    # L2-SP pulled a task's own copies of LayerNorms to zero.
    Correction("l2_sp_copies", "to their start", _pulls_copied_norms),
    # Of two encoders SMART perturbed the first alone.
    Correction(
        "perturbed",
        "both encoders",
        lambda facts: bool(facts.recipe.smart.weight) and facts.recipe.pretrained.second_encoder != "none",
    ),
    # Whether the first source of a fusion helps was tested on 512 rows at most.
    Correction("probed", "2000 rows", _probes_gates_of_many_rows),
    # The target's own adapter stayed beside the sources that probes chose, with a gate of 0.
    Correction("own", "chosen", _probes_gate_of_own),
    # Of many adapters Pfeiffer's were probed as if they read the FFN's output.
    Correction("ranked", "as read", _ranks_pfeiffers_by_units),
    # AdapterHub's prefixes, whose numbers of all layers are in one tensor, kept what is below them from being frozen.
    Correction(
        "below",
        "frozen",
        lambda facts: _begins_above(facts) and facts.recipe.adapter.kind in ("prefix-tuning", "unipelt"),
    ),
    # ModernBERT's last LayerNorm was taken for one below its layers.
    Correction(
        "norms",
        "last",
        lambda facts: _begins_above(facts) and facts.recipe.bottleneck.train_layernorm and facts.family == "modernbert",
    ),
)
"""Each with what was wrong before it. To be emptied with the next ``SCHEMA`` of the ledger, which renames all runs."""
