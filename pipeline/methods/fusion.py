"""AdapterFusion through AdapterHub (Pfeiffer et al. 2021): attention over the adapters, for each token.

At each site with frozen adapter outputs z_n and sub-layer output h, ``s = softmax_n(Q h . K z_n)`` and
``o = sum_n s_n V z_n``. Houlsby adapters give two sites a layer, Pfeiffer adapters one; 3d^2 + 2d parameters a site.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from adapters.composition import Fuse
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.methods.anchored import AnchoredFusion, load_anchored, save_anchored
from pipeline.methods.bank import sites_of
from pipeline.methods.fast_fusion import FusionSite
from pipeline.methods.houlsby import load_adapter
from pipeline.methods.saved import SavedModules, check_config
from pipeline.models.layout import kept_indices
from pipeline.models.tensors import fill, in_layers, read_tensors
from pipeline.settings.parts import FusionImplementation

FUSION_FILE = "model_adapter_fusion.safetensors"
FUSION_CONFIG = "adapter_fusion_config.json"


def add_fusion(
    backbone: PreTrainedModel, sources: Mapping[str, SavedModules], drop_layers: Collection[int] = ()
) -> None:
    """Load the adapters ``sources``, by name, and put a fresh fusion layer over them, alone trainable and active.

    Neither adapters nor fusion stand in ``drop_layers``. The order of ``sources`` matters to the result. A
    :class:`PipelineError` is raised if the files of an adapter are not what its recipe makes.
    """
    _put_in(backbone, sources, drop_layers)
    backbone.train_adapter_fusion(Fuse(*sources))


def _put_in(backbone: PreTrainedModel, sources: Mapping[str, SavedModules], drop_layers: Collection[int]) -> None:
    """Load ``sources`` and put a fresh fusion over them."""
    for name, source in sources.items():
        load_adapter(backbone, name, source, drop_layers)
    backbone.add_adapter_fusion(Fuse(*sources), set_active=True)
    # AdapterHub puts a fusion layer into every layer, also where its adapters were left out. It would be saved
    # untrained, counted and pulled to the identity, and DDP would wait for its gradient.
    for site in sites_of(backbone):
        if not site.adapters:
            site.adapter_fusion_layer.clear()


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


def save_fusion(backbone: PreTrainedModel, sources: Iterable[str], folder: Path) -> None:
    """Write ``adapter_fusion_config.json`` and ``model_adapter_fusion.safetensors`` as stock AdapterHub does.

    An anchored fusion has a file of its own beside them (:func:`save_anchored`).
    """
    if any(isinstance(module, AnchoredFusion) for module in backbone.modules()):
        save_anchored(backbone, list(sources), folder)
    else:
        backbone.save_adapter_fusion(str(folder), Fuse(*sources), use_safetensors=True)


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
    _put_in(backbone, sources, {*recipe.adapter.drop_layers, *drop_layers})
    trained = kept_indices(backbone, recipe.adapter.drop_layers)
    if recipe.fusion.form == "anchored":
        load_anchored(backbone, list(sources), saved, trained)
    else:
        name = Fuse(*sources).name
        config, _ = backbone.adapters_config.get_fusion(name)
        check_config(saved.folder / FUSION_CONFIG, name, config.to_dict(), saved.remedy)
        mark = f".adapter_fusion_layer.{name}."
        own = {key: tensor for key, tensor in backbone.named_parameters() if mark in key}
        fill(own, read_tensors(saved.folder / FUSION_FILE, in_layers(own, trained), saved.remedy))
    backbone.requires_grad_(False)


def prune_fusion(backbone: PreTrainedModel, sources: Sequence[str], kept: Collection[str]) -> list[str]:
    """Put the trained fusion layers over ``kept`` alone, frozen and active (Rücklé et al. 2021).

    Leaving adapters out only renormalises the softmax over the others: Q, K and V stay as trained. Returns ``kept`` in
    the fusion's order.
    """
    names = [name for name in sources if name in kept]
    whole, part = Fuse(*sources), Fuse(*names)
    sites = sites_of(backbone)
    trained = {site: site.adapter_fusion_layer[whole.name] for site in sites if whole.name in site.adapter_fusion_layer}
    backbone.set_active_adapters(None)
    backbone.delete_adapter_fusion(whole)
    for name in set(sources) - set(names):
        backbone.delete_adapter(name)
    # AdapterHub knows a fusion by the names of its adapters; under the new name it makes fresh layers.
    backbone.add_adapter_fusion(part)
    for site in sites:
        site.adapter_fusion_layer.clear()
    for site, layer in trained.items():
        if isinstance(layer, AnchoredFusion):
            layer = layer.over([sources.index(name) for name in names])
        site.adapter_fusion_layer[part.name] = layer
    backbone.set_active_adapters(part)
    return names
