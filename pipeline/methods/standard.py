"""AdapterFusion as published, with AdapterHub's layers (Pfeiffer et al. 2021): attention over the adapters.

At each site with frozen adapter outputs z_n and sub-layer output h, ``s = softmax_n(Q h . K z_n)`` and
``o = sum_n s_n V z_n``. Houlsby adapters give two sites per layer, Pfeiffer adapters one. 3d^2 + 2d parameters a site.
"""

from collections.abc import Callable, Sequence

import torch
from adapters.composition import Fuse
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.methods.saved import FusionMethod, SavedModules, check_config
from pipeline.models.tensors import fill, in_layers, read_tensors
from pipeline.settings.recipe import Recipe

FUSION_FILE = "model_adapter_fusion.safetensors"
FUSION_CONFIG = "adapter_fusion_config.json"


class Standard(FusionMethod):
    """AdapterHub's layers, in its files."""

    def save(self, backbone: PreTrainedModel, members: Sequence[str], saved: SavedModules) -> None:
        """Write ``adapter_fusion_config.json`` and ``model_adapter_fusion.safetensors`` as stock AdapterHub does."""
        saved.folder.mkdir(parents=True, exist_ok=True)
        backbone.save_adapter_fusion(str(saved.folder), Fuse(*members), use_safetensors=True)

    def load(
        self, backbone: PreTrainedModel, members: Sequence[str], saved: SavedModules, trained: Sequence[int]
    ) -> None:
        name = Fuse(*members).name
        config, _ = backbone.adapters_config.get_fusion(name)
        check_config(saved.folder / FUSION_CONFIG, name, config.to_dict(), saved.remedy)
        mark = f".adapter_fusion_layer.{name}."
        layers = {key: tensor for key, tensor in backbone.named_parameters() if mark in key}
        fill(layers, read_tensors(saved.folder / FUSION_FILE, in_layers(layers, trained), saved.remedy))

    def without_decay(self, backbone: PreTrainedModel) -> set[str]:
        """The parameters V: they are pulled to the identity, not to zero."""
        names = (name for name, _ in backbone.named_parameters())
        return {name for name in names if "adapter_fusion_layer" in name and name.endswith("value.weight")}

    def penalty(self, backbone: PreTrainedModel, recipe: Recipe) -> Callable[[], Tensor]:
        """``weight * sum over sites of ||V - I||_F^2``.

        With weight 0.01 it equals AdapterHub's ``get_fusion_regularization_loss``, which AdapterHub's trainer
        back-propagates one step late, after the optimiser's step.
        """
        values = [backbone.get_parameter(name) for name in sorted(self.without_decay(backbone))]

        def penalty() -> Tensor:
            eye = torch.eye(backbone.config.hidden_size, device=values[0].device)
            excess = torch.stack([(value - eye).square().sum() for value in values]).sum()
            return recipe.standard.regularization * excess

        return penalty


FORM = Standard()
