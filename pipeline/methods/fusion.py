"""AdapterFusion through AdapterHub (Pfeiffer et al. 2021): attention over the adapters, for each token.

At each site with frozen adapter outputs z_n and sub-layer output h, ``s = softmax_n(Q h . K z_n)`` and
``o = sum_n s_n V z_n``. Houlsby adapters give two sites a layer, Pfeiffer adapters one; 3d^2 + 2d parameters a site.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import torch
from adapters.composition import Fuse
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.methods.anchored import ANCHORED_FILE, AnchoredFusion, anchor_fusion, save_as_stock
from pipeline.methods.bank import sites_of
from pipeline.methods.fast_fusion import FusionSite
from pipeline.methods.fused_sites import fused_sites, load_sites, save_sites
from pipeline.methods.gated import GATED_FILE, GatedFusion, gate_fusion
from pipeline.methods.houlsby import bottleneck_method, load_adapter
from pipeline.methods.saved import SavedModules, check_config
from pipeline.models.layout import kept_indices
from pipeline.models.tensors import fill, in_layers, read_tensors
from pipeline.settings.parts import FusionForm, FusionImplementation
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError

FUSION_FILE = "model_adapter_fusion.safetensors"
FUSION_CONFIG = "adapter_fusion_config.json"


def members_of(recipe: Recipe, task: str, sources: Iterable[str]) -> list[str]:
    """The adapters that a fusion for ``task`` mixes: ``sources``, in their order, and an own one that it trains."""
    return [*sources] if recipe.fuses_own else [*sources, task]


def own_member(recipe: Recipe, task: str, members: Collection[str]) -> str | None:
    """The one of ``members`` that a gated fusion does not gate, if any."""
    return task if task in members and recipe.fusion.form == "gated" and recipe.gated.own != "none" else None


def add_fusion(
    backbone: PreTrainedModel,
    sources: Mapping[str, SavedModules],
    recipe: Recipe,
    task: str,
    anchors: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Load the adapters ``sources``, by name, and put a fresh, active fusion for ``task`` over them, which trains.

    The target's own adapter trains too where the recipe says so. The order of ``sources`` matters to the result.

    Args:
        anchors: the initial b of an anchored fusion by source; zero for the others.

    Raises:
        PipelineError: the files of an adapter are not what its recipe makes, or the recipe needs an adapter of the
            target's own that is not there.
    """
    members = _put_in(backbone, sources, recipe, task, recipe.adapter.drop_layers)
    if recipe.fusion.form == "gated" and recipe.gated.own in ("trained", "frozen") and task not in members:
        raise PipelineError(
            f"own_adapter = '{recipe.gated.own}' is the target's adapter of stage one, which is not among the sources:"
            f" name {task} too, or leave own_adapter out"
        )
    backbone.train_adapter_fusion(Fuse(*members))
    _shape(backbone, members, recipe, task, anchors)
    for name, parameter in backbone.named_parameters():
        if recipe.trains_own and f".adapters.{task}." in name:
            parameter.requires_grad_(True)


def _put_in(
    backbone: PreTrainedModel,
    sources: Mapping[str, SavedModules],
    recipe: Recipe,
    task: str,
    drop_layers: Collection[int],
) -> list[str]:
    """Load ``sources``, and put AdapterHub's fusion over them and a fresh own adapter; returns what is fused."""
    for name, source in sources.items():
        load_adapter(backbone, name, source, drop_layers)
    members = members_of(recipe, task, sources)
    if not recipe.fuses_own:
        bottleneck_method(recipe).put_in(backbone, task, recipe, drop_layers)
    backbone.add_adapter_fusion(Fuse(*members), set_active=True)
    # AdapterHub puts a fusion layer into every layer, also where its adapters were left out. It would be saved
    # untrained, counted and pulled to the identity, and DDP would wait for its gradient.
    for site in sites_of(backbone):
        if not site.adapters:
            site.adapter_fusion_layer.clear()
    return members


def _shape(
    backbone: PreTrainedModel, members: Sequence[str], recipe: Recipe, task: str, anchors: Mapping[str, float]
) -> None:
    """Give AdapterHub's fusion layers over ``members`` the recipe's form, fresh."""
    if recipe.fusion.form == "anchored":
        anchor_fusion(backbone, members, recipe.anchor.rank, anchors)
    elif recipe.fusion.form == "gated":
        gate_fusion(backbone, members, own_member(recipe, task, members), recipe.gated)


def use_fusion_implementation(backbone: nn.Module, implementation: FusionImplementation) -> None:
    """Compute every fusion in ``backbone`` the fast way or AdapterHub's own: the same parameters and function."""
    for site in sites_of(backbone):
        vars(site).pop("compose_fuse", None)
        if implementation == "fast":
            site.compose_fuse = FusionSite(site, site.compose_fuse)


def value_regularisation(backbone: PreTrainedModel, weight: float) -> Callable[[], Tensor]:
    """``weight * sum over sites of ||V - I||_F^2``, to be added to the loss of every step.

    For weight 0.01 it equals AdapterHub's ``get_fusion_regularization_loss``, which its trainer back-propagates after
    the optimiser has stepped: one step late.
    """
    values = [backbone.get_parameter(name) for name in sorted(value_names(backbone))]

    def penalty() -> Tensor:
        eye = torch.eye(backbone.config.hidden_size, device=values[0].device)
        return weight * torch.stack([(value - eye).square().sum() for value in values]).sum()

    return penalty


def value_names(backbone: PreTrainedModel) -> set[str]:
    """The parameters V, exempt from weight decay: they are pulled to the identity, not to zero."""
    names = (name for name, _ in backbone.named_parameters())
    return {name for name in names if "adapter_fusion_layer" in name and name.endswith("value.weight")}


_FILES: dict[FusionForm, str] = {"anchored": ANCHORED_FILE, "gated": GATED_FILE}
"""Forms of our own, which AdapterHub has no file for."""


def save_fusion(backbone: PreTrainedModel, sources: Iterable[str], saved: SavedModules) -> None:
    """Write the fusion over ``sources`` that was trained for ``saved``.

    A standard fusion is written as stock AdapterHub does, ``adapter_fusion_config.json`` and
    ``model_adapter_fusion.safetensors``; so is an anchored one that has the same function. The other forms have a file
    of their own, which holds the target's adapter too if it trained with them.
    """
    recipe, members = saved.recipe, members_of(saved.recipe, saved.task, sources)
    if recipe.fusion.form in _FILES:
        own = saved.task if recipe.trains_own else None
        save_sites(backbone, members, own, saved, _FILES[recipe.fusion.form])
    if recipe.fusion.form == "anchored":
        save_as_stock(backbone, members, saved.folder)
    elif recipe.fusion.form == "standard":
        backbone.save_adapter_fusion(str(saved.folder), Fuse(*members), use_safetensors=True)


def load_fusion(
    backbone: PreTrainedModel,
    sources: Mapping[str, SavedModules],
    saved: SavedModules,
    drop_layers: Collection[int] = (),
) -> None:
    """Load adapters and a saved fusion over them, frozen and active, without their parts in ``drop_layers``.

    A :class:`PipelineError` is raised if the files of one are not what its recipe makes.
    """
    recipe = saved.recipe
    members = _put_in(backbone, sources, recipe, saved.task, {*recipe.adapter.drop_layers, *drop_layers})
    trained = kept_indices(backbone, recipe.adapter.drop_layers)
    _shape(backbone, members, recipe, saved.task, {})
    if recipe.fusion.form in _FILES:
        own = saved.task if recipe.trains_own else None
        load_sites(backbone, members, own, saved, _FILES[recipe.fusion.form], trained)
    else:
        name = Fuse(*members).name
        config, _ = backbone.adapters_config.get_fusion(name)
        check_config(saved.folder / FUSION_CONFIG, name, config.to_dict(), saved.remedy)
        mark = f".adapter_fusion_layer.{name}."
        own_tensors = {key: tensor for key, tensor in backbone.named_parameters() if mark in key}
        fill(own_tensors, read_tensors(saved.folder / FUSION_FILE, in_layers(own_tensors, trained), saved.remedy))
    backbone.requires_grad_(False)


def prune_fusion(backbone: PreTrainedModel, sources: Sequence[str], kept: Collection[str]) -> list[str]:
    """Put the trained fusion layers over ``kept`` alone, frozen and active (Rücklé et al. 2021).

    Leaving adapters out only renormalises the softmax over the others: Q, K and V stay as trained. Returns ``kept`` in
    the fusion's order.
    """
    names = [name for name in sources if name in kept]
    _fuse_only(backbone, sources, names)
    backbone.delete_adapter_fusion(Fuse(*sources))
    for name in set(sources) - set(names):
        backbone.delete_adapter(name)
    # Only now: to AdapterHub a deleted fusion is the active one if that is over its first adapters.
    backbone.set_active_adapters(Fuse(*names))
    return names


@contextmanager
def leaving_out(backbone: PreTrainedModel, members: Sequence[str], name: str) -> Iterator[None]:
    """Compute the active fusion over ``members`` without the adapter ``name``, until the context ends.

    It is the fusion that :func:`prune_fusion` would leave: a softmax is renormalised over the other adapters, a gated
    fusion loses one term. Nothing is deleted, and what was trained stays as it is.

    Raises:
        ValueError: it is none of the members, or the only one.
    """
    others = [member for member in members if member != name]
    if not others or len(others) == len(members):
        raise ValueError(f"adapter '{name}' cannot be left out of a fusion of {', '.join(members)}")
    _fuse_only(backbone, members, others)
    backbone.set_active_adapters(Fuse(*others))
    try:
        yield
    finally:
        backbone.delete_adapter_fusion(Fuse(*others))
        backbone.set_active_adapters(Fuse(*members))


def _fuse_only(backbone: PreTrainedModel, members: Sequence[str], names: Sequence[str]) -> None:
    """Add a fusion over some of ``members`` that has the layers of the one over all of them."""
    # AdapterHub knows a fusion by the names of its adapters. Its own call would make fresh layers under the new one.
    backbone.adapters_config.add_fusion(list(names))
    for site, layer in fused_sites(backbone, members):
        if isinstance(layer, AnchoredFusion | GatedFusion):
            layer = layer.over([members.index(name) for name in names])
        site.adapter_fusion_layer[Fuse(*names).name] = layer
