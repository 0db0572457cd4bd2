"""The adapter methods by kind; add the adapter that a recipe describes to a backbone, or load it."""

from collections.abc import Collection, Mapping, Sequence

from transformers import PreTrainedModel

from pipeline.methods.bitfit import BITFIT
from pipeline.methods.houlsby import BOTTLENECK
from pipeline.methods.ia3 import IA3
from pipeline.methods.layernorms import add_layernorms, replaced_norms, train_layernorms
from pipeline.methods.lora import LORA
from pipeline.methods.pal import PAL
from pipeline.methods.prefix import PREFIX
from pipeline.methods.prefix_tuning import PREFIX_TUNING
from pipeline.methods.saved import SavedModules, SiteAdapter, StockAdapter
from pipeline.methods.unipelt import UNIPELT
from pipeline.models.switching import activate, module_parameter_names
from pipeline.settings.parts import AdapterKind
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError

METHODS: dict[AdapterKind, StockAdapter | SiteAdapter] = {
    "houlsby": BOTTLENECK,
    "pfeiffer": BOTTLENECK,
    "pal": PAL,
    "prefix": PREFIX,
    "prefix-tuning": PREFIX_TUNING,
    "lora": LORA,
    "ia3": IA3,
    "bitfit": BITFIT,
    "unipelt": UNIPELT,
}

_PADDING = "AdapterHub's result depends there on how much padding a batch has"
_RELATIVE = "its attention uses distances between tokens, and a prefix has no position"
_ONE_PROJECTION = "it projects query, key and value jointly, and AdapterHub has no prefixes for that"
_UNFIT: Mapping[str, tuple[str, Mapping[AdapterKind, str]]] = {
    "distilbert": ("DistilBERT", {"prefix-tuning": _PADDING, "unipelt": _PADDING}),
    "deberta-v2": ("DeBERTa", {"prefix": _RELATIVE, "unipelt": "its gates would also read relative positions"}),
    "modernbert": (
        "ModernBERT",
        {
            "pal": "it has no LayerNorm after the feed-forward layer",
            "prefix": _ONE_PROJECTION,
            "prefix-tuning": _ONE_PROJECTION,
            "unipelt": _ONE_PROJECTION,
            "bitfit": "it has no biases",
        },
    ),
}
"""By model type: its name, and why a kind cannot work there. Bottlenecks (AdapterHub 1.3) work everywhere."""
_INSTEAD: tuple[AdapterKind, ...] = ("prefix", "prefix-tuning", "lora")


def check_fits(recipe: Recipe, family: str) -> None:
    """Raise a :class:`PipelineError` if the recipe's adapter does not fit a backbone of this model type."""
    name, unfit = _UNFIT.get(family, ("", {}))
    kind = recipe.adapter.kind
    if recipe.has_modules and kind in unfit:
        other = next(kind for kind in _INSTEAD if kind not in unfit)
        raise PipelineError(f"{kind} on a {name}: {unfit[kind]}: use --adapter {other}")


def add_modules(backbone: PreTrainedModel, tasks: Sequence[str], recipe: Recipe) -> None:
    """Add a fresh adapter for each of ``tasks`` to ``backbone`` (:meth:`StockAdapter.add`); the first is active.

    Adapters train. With "full+adapter" so does the backbone, except LayerNorms that every task has a copy of.
    """
    check_fits(recipe, backbone.config.model_type)
    METHODS[recipe.adapter.kind].add(backbone, tasks, recipe)
    for task in tasks if recipe.bottleneck.train_layernorm and len(tasks) > 1 else ():
        add_layernorms(backbone, task, recipe.adapter.drop_layers)
    added = module_parameter_names(backbone)
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(recipe.trainable == "full+adapter" or name in added)
    if recipe.bottleneck.train_layernorm and len(tasks) == 1:
        train_layernorms(backbone, recipe.adapter.drop_layers)
    for norm in replaced_norms(backbone):
        for parameter in norm.parameters(recurse=False):
            parameter.requires_grad_(False)
    activate(backbone, tasks[0])


def load_modules(backbone: PreTrainedModel, saved: SavedModules, drop_layers: Collection[int] = ()) -> None:
    """Load an adapter (:meth:`StockAdapter.load`) that was trained on this backbone, frozen and active."""
    check_fits(saved.recipe, backbone.config.model_type)
    METHODS[saved.recipe.adapter.kind].load(backbone, saved, drop_layers)
    backbone.requires_grad_(False)
    activate(backbone, saved.task)
