"""What a run leaves behind beside its scores: an artifact in the store, or weights in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.records.ledger import Cost, Kind, RunRecord
from pipeline.records.store import Artifact, Manifest

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pipeline.models.transfer_model import TransferModel
    from pipeline.runs.request import RunRequest
    from pipeline.runs.run import Run
    from pipeline.training.fit import Fitted

ARTIFACT_KINDS: Mapping[Kind, Any] = {"adapter": "adapter", "fusion": "fusion"}
# Sequential tuning makes a model for every ordered pair of tasks; keeping the weights of all would fill disks.
_KEEPS_WEIGHTS: frozenset[Kind] = frozenset({"full", "frozen"})


def save_artifact(run: Run, model: TransferModel, dev: float) -> Artifact | None:
    """Put what was trained into the store, if it is an adapter or a fusion."""
    request = run.request
    kind = ARTIFACT_KINDS.get(request.kind)
    if kind is None:
        return None
    from pipeline.methods.fusion import save_fusion
    from pipeline.methods.modules import save_modules

    backbone = model.backbone
    if kind == "adapter":

        def write(folder: Path) -> None:
            save_modules(backbone, run.task.name, run.recipe, folder)
    else:
        names = [artifact.manifest.task for artifact in request.adapters]

        def write(folder: Path) -> None:
            save_fusion(backbone, names, folder)

    state = _copied(kept_parameters(model, from_pretrained=True))
    manifest = Manifest(
        kind=kind,
        task=run.task.name,
        run=run.name,
        seed=request.seed,
        limit=request.limit,
        recipe=run.recipe,
        train_rows=run.data.fingerprint["train"],
        pair=run.task.is_pair,
        meaning=run.task.meaning,
        metric=run.task.metric,
        dev=dev,
        backbone=run.backbone.name,
        backbone_weights=run.backbone.weights_hash,
        # An adapter needs none of those it might have begun as.
        sources=run.sources if kind == "fusion" else (),
    )
    return run.workspace.store.save(
        manifest,
        write,
        head={name.removeprefix("head."): value for name, value in state.items() if name.startswith("head.")},
        layernorms={
            name.removeprefix("backbone."): value
            for name, value in state.items()
            # Of the backbone only adapters and LayerNorms train here; families name the latter differently.
            if run.recipe.train_layernorm and name.startswith("backbone.") and ".adapters." not in name
        },
    )


def keeps_weights(request: RunRequest) -> bool:
    """Whether a run leaves its weights beside its record: others start from them, or they predict."""
    return request.keep_weights or request.kind in _KEEPS_WEIGHTS


def save_weights(model: nn.Module, file: Path, from_pretrained: bool) -> str:
    """Keep :func:`kept_parameters`; returns the file's sha256."""
    from safetensors.torch import save_file

    from pipeline.system.atomic import new_file, sha256_file

    with new_file(file) as temporary:
        save_file(_copied(kept_parameters(model, from_pretrained)), temporary)
    return sha256_file(file)


def kept_parameters(model: nn.Module, from_pretrained: bool) -> dict[str, Tensor]:
    """The parameters of ``model`` that the pretrained backbone does not tell, by name.

    Args:
        from_pretrained: whether training began there. If not, what is frozen need not be as it was pretrained.
    """
    return {name: p for name, p in model.named_parameters() if p.requires_grad or not from_pretrained}


def began_pretrained(record: RunRecord) -> bool:
    """Whether the training that ``record`` describes began with the pretrained backbone, and not with another run's."""
    return not record.sources or record.kind in ARTIFACT_KINDS


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def cost_of(model: nn.Module, fitted: Fitted) -> Cost:
    return Cost(
        trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        seconds=round(fitted.seconds, 3),
        examples_per_second=round(fitted.examples_per_second, 2),
        peak_memory_mb=fitted.peak_memory_mb,
    )
