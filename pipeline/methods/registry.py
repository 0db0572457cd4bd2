"""The kinds of adapters and the forms of fusion; add what a recipe describes to a backbone, or load it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import get_args

from adapters.composition import Fuse
from torch import nn
from transformers import PreTrainedModel

from pipeline.methods.bitfit import BITFIT
from pipeline.methods.fast_fusion import FusionSite
from pipeline.methods.houlsby import BOTTLENECK, load_adapter
from pipeline.methods.ia3 import IA3
from pipeline.methods.layernorms import add_layernorms, replaced_norms, train_layernorms
from pipeline.methods.lora import LORA
from pipeline.methods.pal import PAL
from pipeline.methods.prefix import PREFIX
from pipeline.methods.prefix_tuning import PREFIX_TUNING
from pipeline.methods.saved import (
    FusionLayer,
    FusionMethod,
    SavedModules,
    SiteAdapter,
    StockAdapter,
    fused_sites,
    sites_of,
)
from pipeline.methods.unipelt import UNIPELT
from pipeline.models.layout import activate, kept_indices, module_parameter_names
from pipeline.settings.parts import AdapterKind, FusionForm, FusionImplementation
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

FORMS: dict[FusionForm, FusionMethod] = {
    form: import_module(f"pipeline.methods.{form}").FORM for form in get_args(FusionForm)
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


def members_of(recipe: Recipe, task: str, sources: Iterable[str]) -> list[str]:
    """The adapters that a fusion for ``task`` mixes: ``sources``, in order, and a fresh one for ``task``, if any."""
    return [*sources] if recipe.form.fuses_own else [*sources, task]


def add_fusion(
    backbone: PreTrainedModel, sources: Mapping[str, SavedModules], recipe: Recipe, task: str, anchor: str | None = None
) -> None:
    """Load the adapters ``sources``, by name, and add a fresh, active, trainable fusion for ``task`` over them.

    If the recipe says so, an adapter for the target trains too. The order of ``sources`` affects the result.

    Args:
        anchor: the source that the fusion is initialised to, if its form has an anchor.

    Raises:
        PipelineError: an adapter's files do not fit its recipe, the recipe needs the target's adapter and it is not
            among ``sources``, or a rank is above the backbone's width.
    """
    form = FORMS[recipe.fusion.form]
    if why := form.misfit(recipe, backbone.config.hidden_size):
        raise PipelineError(why)
    members = _put_in(backbone, sources, recipe, task, recipe.adapter.drop_layers)
    backbone.train_adapter_fusion(Fuse(*members))
    form.put_in(backbone, members, task, recipe, anchor)
    for name, parameter in backbone.named_parameters():
        if recipe.form.trains_own and f".adapters.{task}." in name:
            parameter.requires_grad_(True)


def _put_in(
    backbone: PreTrainedModel,
    sources: Mapping[str, SavedModules],
    recipe: Recipe,
    task: str,
    drop_layers: Collection[int],
) -> list[str]:
    """Load ``sources``, add a fresh adapter for ``task`` if the recipe has one, and fuse them; returns the members."""
    for name, source in sources.items():
        load_adapter(backbone, name, source, drop_layers)
    members = members_of(recipe, task, sources)
    if not recipe.form.fuses_own:
        BOTTLENECK.put_in(backbone, task, recipe, drop_layers)
    backbone.add_adapter_fusion(Fuse(*members), set_active=True)
    # AdapterHub adds a fusion layer to every layer, even those without adapters. It would be saved untrained, counted
    # and regularised, and DDP would wait for its gradient.
    for site in sites_of(backbone):
        if not site.adapters:
            site.adapter_fusion_layer.clear()
    return members


def use_fusion_implementation(backbone: nn.Module, implementation: FusionImplementation) -> None:
    """Compute every fusion in ``backbone`` with our fast code or AdapterHub's; parameters and results stay the same."""
    for site in sites_of(backbone):
        vars(site).pop("compose_fuse", None)
        if implementation == "fast":
            site.compose_fuse = FusionSite(site, site.compose_fuse)


def save_fusion(backbone: PreTrainedModel, sources: Iterable[str], saved: SavedModules) -> None:
    """Write the fusion over ``sources`` that was trained for ``saved``."""
    FORMS[saved.recipe.fusion.form].save(backbone, members_of(saved.recipe, saved.task, sources), saved)


def load_fusion(
    backbone: PreTrainedModel,
    sources: Mapping[str, SavedModules],
    saved: SavedModules,
    drop_layers: Collection[int] = (),
) -> None:
    """Load adapters and a saved fusion over them, frozen and active, without their parts in ``drop_layers``.

    Raises a :class:`PipelineError` if files do not fit their recipe.
    """
    recipe, form = saved.recipe, FORMS[saved.recipe.fusion.form]
    members = _put_in(backbone, sources, recipe, saved.task, {*recipe.adapter.drop_layers, *drop_layers})
    form.put_in(backbone, members, saved.task, recipe, None)
    form.load(backbone, members, saved, kept_indices(backbone, recipe.adapter.drop_layers))
    backbone.requires_grad_(False)


def prune_fusion(backbone: PreTrainedModel, sources: Sequence[str], kept: Collection[str]) -> list[str]:
    """Reduce a trained fusion to the adapters ``kept``, frozen and active (Rücklé et al. 2021).

    The softmax is renormalised over them; Q, K and V stay as trained. Returns ``kept`` in the fusion's order.
    """
    names = [name for name in sources if name in kept]
    _fuse_only(backbone, sources, names)
    backbone.delete_adapter_fusion(Fuse(*sources))
    for name in set(sources) - set(names):
        backbone.delete_adapter(name)
    # Last, because AdapterHub mistakes a deleted fusion for the active one if that has its first adapters.
    backbone.set_active_adapters(Fuse(*names))
    return names


@contextmanager
def leaving_out(backbone: PreTrainedModel, members: Sequence[str], name: str) -> Iterator[None]:
    """Within the block, compute the active fusion over ``members`` without the adapter ``name``.

    The result is that of :func:`prune_fusion`: a softmax is renormalised over the other adapters, a gated fusion loses
    one term. The caller ensures that ``name`` is one of several members.
    """
    others = [member for member in members if member != name]
    _fuse_only(backbone, members, others)
    backbone.set_active_adapters(Fuse(*others))
    try:
        yield
    finally:
        backbone.delete_adapter_fusion(Fuse(*others))
        backbone.set_active_adapters(Fuse(*members))


def _fuse_only(backbone: PreTrainedModel, members: Sequence[str], names: Sequence[str]) -> None:
    """Add a fusion over ``names``, a subset of ``members``, with the layers of the fusion over all members."""
    # AdapterHub names a fusion after its adapters; its own call would create fresh layers under the new name.
    backbone.adapters_config.add_fusion(list(names))
    for site, layer in fused_sites(backbone, members):
        if isinstance(layer, FusionLayer):
            layer = layer.over([members.index(name) for name in names])
        site.adapter_fusion_layer[Fuse(*names).name] = layer
