"""The weights that runs keep beside their records."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.models.tensors import fill, read_tensors
from pipeline.models.transfer_model import MultitaskModel
from pipeline.records.ledger import Kind, Ledger, RunRecord
from pipeline.records.store import HEAD, Artifact
from pipeline.system.atomic import new_file, sha256_file
from pipeline.system.errors import PipelineError

ARTIFACT_KINDS: frozenset[Kind] = frozenset({"adapter", "fusion"})
"""Kinds of runs that put what they trained into the store."""


def trained_parameters(model: nn.Module, from_pretrained: bool) -> dict[str, Tensor]:
    """The parameters of ``model`` that the pretrained backbone does not determine, by name.

    Args:
        from_pretrained: whether training started there. If not, even frozen parameters may differ from it.
    """
    return {name: p for name, p in model.named_parameters() if p.requires_grad or not from_pretrained}


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU, apart from the graph."""
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def save_weights(model: MultitaskModel, file: Path, from_pretrained: bool) -> str:
    """Write :func:`trained_parameters` to ``file``; returns its sha256."""
    with new_file(file) as temporary:
        save_file(copied(trained_parameters(_named(model), from_pretrained)), temporary)
    return sha256_file(file)


def load_weights(model: nn.Module, record: RunRecord, ledger: Ledger, part: str = "") -> None:
    """Give ``model`` the weights that a run kept.

    Args:
        model: as it was before training, so that the trained parameters require gradients.
        part: the prefix of its parameters' names in the run's model, if it is only a part of that.

    Raises:
        PipelineError: the file is missing, damaged, or not what the run's recipe trains.
    """
    file = ledger.weights_file(record.run)
    remedy = f"delete {file.parent}, and the run is made again"
    if not file.is_file() or sha256_file(file) != record.weights_sha256:
        raise PipelineError(f"{file}: missing or damaged: {remedy}")
    from_pretrained = not record.sources or record.kind in ARTIFACT_KINDS
    own = {f"{part}{name}": p for name, p in trained_parameters(_named(model), from_pretrained).items()}
    fill(own, read_tensors(file, own, remedy, part))


def load_head(artifact: Artifact, head: nn.Module) -> None:
    """Load the head of ``artifact`` into ``head``.

    Raises:
        PipelineError: the file is not what the head needs; a head without weights (cosine) has none.
    """
    file, parameters = artifact.folder / HEAD, dict(head.named_parameters())
    if parameters:
        fill(parameters, read_tensors(file, parameters, artifact.remedy))
    elif file.exists():
        raise PipelineError(f"{file}: its recipe's head has no weights: {artifact.remedy}")


def _named(model: nn.Module) -> nn.Module:
    """The module whose parameter names the file has: of one task its own model's, not those within a joint model."""
    return model.models[0] if isinstance(model, MultitaskModel) and len(model.models) == 1 else model
