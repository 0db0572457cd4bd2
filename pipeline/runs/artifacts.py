"""What a run puts into the store: AdapterHub's files, the head, and LayerNorms that trained with an adapter."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from pipeline.methods.fusion import save_fusion
from pipeline.methods.registry import METHODS
from pipeline.models.transfer_model import TransferModel
from pipeline.records.store import HEAD, LAYERNORMS, Artifact, Manifest, Store
from pipeline.runs.weights import copied


def save_artifact(store: Store, manifest: Manifest, model: TransferModel, sources: Sequence[str] = ()) -> Artifact:
    """Write an adapter, or a fusion over the adapters of ``sources``, with its head into ``store``.

    Args:
        manifest: without files.
        model: as it was trained, what trained requiring gradients.
        sources: the tasks of a fusion's adapters, in its order.
    """
    norms: Mapping[str, Tensor] = {}
    if manifest.recipe.bottleneck.train_layernorm:
        # Of the backbone only adapters and LayerNorms train here; families name the latter differently.
        trained = {name: p for name, p in model.backbone.named_parameters() if p.requires_grad}
        norms = {name: p for name, p in trained.items() if ".adapters." not in name}

    def write(folder: Path) -> None:
        if manifest.kind == "fusion":
            save_fusion(model.backbone, sources, folder)
        else:
            METHODS[manifest.recipe.adapter.kind].save(model.backbone, manifest.task, folder)
        for name, tensors in ((HEAD, dict(model.head.named_parameters())), (LAYERNORMS, norms)):
            if tensors:
                save_file(copied(tensors), folder / name)

    return store.save(manifest, write)
