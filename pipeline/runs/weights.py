"""What runs save: an artifact in the store, or weights beside the record."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.data.tables import write_table
from pipeline.methods.fusion import save_fusion
from pipeline.methods.registry import METHODS
from pipeline.methods.saved import SavedModules
from pipeline.models.heads import is_threshold
from pipeline.models.tensors import fill, read_tensors
from pipeline.models.transfer_model import MultitaskModel, TransferModel
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.store import HEAD, LAYERNORMS, SEEN, Artifact, Manifest, Store
from pipeline.settings.kinds import KINDS
from pipeline.system.atomic import new_file, sha256_file
from pipeline.system.errors import PipelineError


def save_artifact(
    store: Store,
    manifest: Manifest,
    model: TransferModel,
    sources: Sequence[str] = (),
    seen: pd.DataFrame | None = None,
) -> Artifact:
    """Write an adapter, or a fusion over the adapters of the tasks ``sources``, with its head into ``store``.

    The parameters of ``model`` that require gradients count as trained. ``manifest`` comes without files; for ``seen``
    see :func:`pipeline.runs.seen.seen_rows`.
    """
    norms: Mapping[str, Tensor] = {}
    if manifest.recipe.bottleneck.train_layernorm:
        # Only adapters and LayerNorms of the backbone train here; families name the latter differently.
        trained = _trained(model.backbone, from_pretrained=True)
        norms = {name: p for name, p in trained.items() if ".adapters." not in name}

    def write(folder: Path) -> None:
        if manifest.kind == "fusion":
            save_fusion(model.backbone, sources, SavedModules(manifest.task, manifest.recipe, folder))
        else:
            METHODS[manifest.recipe.adapter.kind].save(model.backbone, manifest.task, folder)
        for name, tensors in ((HEAD, dict(model.head.named_parameters())), (LAYERNORMS, norms)):
            if tensors:
                _save(tensors, folder / name)
        if seen is not None:
            write_table(seen, folder / SEEN)

    return store.save(manifest, write)


def load_head(artifact: Artifact, head: nn.Module) -> None:
    """Load the head of ``artifact`` into ``head``.

    Raises:
        PipelineError: the file does not fit the head; a head without weights (cosine) has no file.
    """
    file, parameters = artifact.folder / HEAD, dict(head.named_parameters())
    if parameters:
        fill(parameters, read_tensors(file, parameters, artifact.remedy))
    elif file.exists():
        raise PipelineError(f"{file}: its recipe's head has no weights: {artifact.remedy}")


@torch.no_grad()
def load_mean_head(artifacts: Sequence[Artifact], head: nn.Module) -> None:
    """Load the mean of several artifacts' heads; for linear heads it answers with the mean of their logits."""
    parameters, loaded = dict(head.named_parameters()), []
    for artifact in artifacts:
        load_head(artifact, head)
        loaded.append({name: parameter.clone() for name, parameter in parameters.items()})
    for name, parameter in parameters.items():
        parameter.copy_(torch.stack([each[name] for each in loaded]).mean(0))


def save_weights(model: MultitaskModel, run: str, ledger: Ledger, from_pretrained: bool) -> str:
    """Write the parameters that the pretrained backbone does not determine; returns the file's sha256.

    If a run is trained again, it counts as unfinished once its weights are replaced: its old record has their hash.

    Args:
        from_pretrained: whether training started from the backbone. If not, even frozen parameters may differ from it.
    """
    file = ledger.weights_file(run)
    with new_file(file) as temporary:
        _save(_trained(model, from_pretrained), temporary)
        ledger.withdraw(run)
    return sha256_file(file)


def load_weights(model: nn.Module, record: RunRecord, ledger: Ledger, part: str = "") -> None:
    """Load the weights that a run kept into ``model``.

    Args:
        model: in the state before training, so that the trained parameters require gradients.
        part: the prefix of its parameters' names, if it is only a part of the run's model.

    Raises:
        PipelineError: the file is missing, damaged, or does not match what the run's recipe trains.
    """
    file = ledger.weights_file(record.run)
    remedy = f"delete {file.parent}, and the run is trained again"
    if not file.is_file() or sha256_file(file) != record.weights_sha256:
        raise PipelineError(f"{file}: missing or damaged: {remedy}")
    from_pretrained = not record.sources or KINDS[record.kind].artifact is not None
    own = _trained(model, from_pretrained, part)
    fill(own, read_tensors(file, own, remedy, part))


def _trained(model: nn.Module, from_pretrained: bool, part: str = "") -> dict[str, nn.Parameter]:
    if isinstance(model, MultitaskModel) and len(model.models) == 1:
        model = model.models[0]  # in files, a single task's parameters have no prefix
    named = ((f"{part}{name}", p) for name, p in model.named_parameters())
    return {name: p for name, p in named if p.requires_grad or not from_pretrained or is_threshold(name)}


def _save(tensors: Mapping[str, Tensor], file: Path) -> None:
    save_file({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, file)
