"""Build the model of a run: fresh for training, or as it was kept for prediction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pipeline.data.tasks import Task
from pipeline.methods.anchored import anchor_fusion
from pipeline.methods.fusion import (
    add_fusion,
    load_fusion,
    use_fusion_implementation,
    value_names,
    value_regularisation,
)
from pipeline.methods.houlsby import load_adapter
from pipeline.methods.layernorms import load_layernorms
from pipeline.methods.modules import add_modules, load_modules
from pipeline.methods.parallel import parallel_adapters
from pipeline.methods.saved import SavedModules
from pipeline.methods.stock import begin_as
from pipeline.models.backbone import Backbone
from pipeline.models.heads import build_head
from pipeline.models.patches.lean import make_lean
from pipeline.models.split import split_encoder
from pipeline.models.tensors import fill, read_tensors
from pipeline.models.transfer_model import JointModel, MultitaskModel, TransferModel
from pipeline.records.store import LAYERNORMS, MANIFEST, Artifact, Store
from pipeline.runs.anchoring import same_head
from pipeline.runs.keeping import began_pretrained, kept_parameters
from pipeline.settings.layers import check_layers
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipeline.records.ledger import Ledger, RunRecord
    from pipeline.runs.multitask import Part
    from pipeline.runs.request import RunRequest
    from pipeline.runs.workspace import Workspace
    from pipeline.training.fit import Penalty


@dataclass(frozen=True)
class Built:
    model: TransferModel
    penalties: Sequence[Penalty] = ()
    without_decay: Collection[str] = ()


def build_for_training(
    request: RunRequest,
    recipe: Recipe,
    task: Task,
    backbone: Backbone,
    ledger: Ledger,
    anchor: Artifact | None = None,
) -> Built:
    """A model with just the parameters of ``recipe.trainable`` and the head requiring gradients.

    The same request, seed and anchor give the same initial weights.

    Args:
        anchor: what an anchored fusion begins as, with its head (:func:`~pipeline.runs.anchoring.choose_anchor`), or an
            adapter (:func:`~pipeline.runs.starting.choose_start`).
    """
    torch.manual_seed(request.seed)
    encoder = backbone.load(recipe.hidden_dropout)
    if request.start is not None:
        _load_start(encoder, request.start, ledger)
    if recipe.trainable != "fusion":
        _set_up(encoder, [task.name], recipe)
        if anchor is not None:
            anchor.verify()
            begin_as(encoder, task.name, modules_of(anchor))
        (second,) = _second_encoders(backbone, recipe, 1)
        return Built(assemble(encoder, recipe, task, second))
    for artifact in request.adapters:
        artifact.verify()
    sources = {artifact.manifest.task: modules_of(artifact) for artifact in request.adapters}
    add_fusion(encoder, sources, recipe.drop_layers)
    backbone.check_pretrained(encoder)
    if recipe.fusion == "anchored":
        bias = {anchor.manifest.task: recipe.anchor} if anchor is not None else {}
        anchor_fusion(encoder, list(sources), recipe.fusion_rank, bias)
    use_fusion_implementation(encoder, recipe.fusion_impl)
    model = assemble(encoder, recipe, task)
    own = next((artifact for artifact in request.adapters if artifact.manifest.task == task.name), None)
    if own is not None:
        _check_meaning(own.manifest.meaning, own.manifest.pair, task, own.manifest.run)
    start = anchor if recipe.fusion == "anchored" else own
    if recipe.head_start and start is not None and same_head(start.manifest.recipe, recipe):
        start.load_head(model.head)
    if recipe.fusion == "anchored":
        # A bias pulled to zero would slowly loosen the anchor.
        return Built(model, without_decay={name for name, _ in model.named_parameters() if name.endswith("score_bias")})
    return Built(
        model,
        penalties=[value_regularisation(encoder, recipe.fusion_regularization)],
        without_decay={f"backbone.{name}" for name in value_names(encoder)},
    )


def build_from_artifact(
    artifact: Artifact, task: Task, backbone: Backbone, store: Store, drop_layers: tuple[int, ...] = ()
) -> TransferModel:
    """The trained model of an artifact, frozen; without what was trained in ``drop_layers``.

    Raises:
        PipelineError: it was trained on another backbone, a file is damaged, an adapter of a fusion is gone, or
            nothing is left in any layer.
    """
    _check_artifact(artifact, task, backbone)
    manifest = artifact.manifest
    drop_layers = tuple(sorted({*drop_layers, *manifest.recipe.drop_layers}))
    check_layers(drop_layers, backbone.layers)
    encoder = backbone.load()
    trained: Collection[str] = ()
    if manifest.kind == "adapter":
        load_modules(encoder, modules_of(artifact), drop_layers)
        if manifest.recipe.train_layernorm:
            trained = load_layernorms(encoder, artifact.folder / LAYERNORMS, modules_of(artifact), drop_layers)
    else:
        sources = {}
        for source in manifest.sources:
            found = store.find(source.run)
            if found is None or found.manifest.digest != source.digest:
                raise PipelineError(
                    f"fusion {manifest.run} needs adapter {source.run} of task '{source.task}', which is not in"
                    f" {store.root}: import it, or fuse again (python -m pipeline fuse --target {manifest.task})"
                )
            found.verify()
            sources[source.task] = modules_of(found)
        load_fusion(encoder, sources, modules_of(artifact), drop_layers)
        use_fusion_implementation(encoder, manifest.recipe.fusion_impl)
    backbone.check_pretrained(encoder, trained)
    model = assemble(encoder, manifest.recipe, task)
    artifact.load_head(model.head)
    return model.requires_grad_(False).eval()


def build_joint(
    chosen: Sequence[tuple[Artifact, Task]], backbone: Backbone, drop_layers: tuple[int, ...] = ()
) -> JointModel:
    """One model for the adapters of several tasks, frozen: one forward pass answers all.

    The adapters stand at the same sites and read inputs made in the same way; the caller sees to that.

    Raises:
        PipelineError: one was trained on another backbone, a file is damaged, or nothing is left in any layer.
    """
    for artifact, task in chosen:
        _check_artifact(artifact, task, backbone)
    encoder = backbone.load()
    for artifact, task in chosen:
        dropped = tuple(sorted({*drop_layers, *artifact.manifest.recipe.drop_layers}))
        check_layers(dropped, backbone.layers)
        load_adapter(encoder, task.name, modules_of(artifact), dropped)
    backbone.check_pretrained(encoder)
    parallel_adapters(encoder, [task.name for _, task in chosen])
    models = [assemble(encoder, artifact.manifest.recipe, task) for artifact, task in chosen]
    for (artifact, _), model in zip(chosen, models, strict=True):
        artifact.load_head(model.head)
    _make_lean_for_all(encoder, models)
    return JointModel(models).requires_grad_(False).eval()


def build_multitask(
    parts: Mapping[str, Part], workspace: Workspace, seed: int, start: RunRecord | None = None
) -> MultitaskModel:
    """The backbone with a fresh head for each task, and fresh modules where the recipe trains such.

    The same seed and start give the same weights, for one task those of :func:`build_for_training`.

    Args:
        start: the full fine-tuning whose backbone is gone on from.
    """
    torch.manual_seed(seed)
    encoder = workspace.backbone.load(next(iter(parts.values())).recipe.hidden_dropout)
    if start is not None:
        _load_start(encoder, start, workspace.ledger)
    return _with_heads(encoder, {name: (part.task, part.recipe) for name, part in parts.items()}, workspace.backbone)


def build_multitask_from_weights(
    record: RunRecord, tasks: Iterable[Task], backbone: Backbone, ledger: Ledger
) -> MultitaskModel:
    """The trained model of a multitask run that kept its weights, whole, frozen.

    Args:
        tasks: those of its tasks that it is wanted for, as they are now.

    Raises:
        PipelineError: it was trained on another backbone or when a task meant something else, or a file is damaged.
    """
    _check_backbone(record.identity["backbone"]["weights"], record.backbone, backbone, record.run)
    # The other tasks may no longer be described anywhere else; of their columns nothing depends here.
    known = {"text": ("text",), "label": "label"}
    trained = {name: Task.model_validate({**known, **record.described(name)}) for name in record.trained_on}
    for task in tasks:
        _check_meaning(trained[task.name].meaning, task.is_pair, task, record.run)
    parts = {name: (task, record.recipe_of(name)) for name, task in trained.items()}
    model = _with_heads(backbone.load(), parts, backbone)
    load_weights(model, record, ledger)
    return model.requires_grad_(False).eval()


def _with_heads(
    encoder: PreTrainedModel, parts: Mapping[str, tuple[Task, Recipe]], backbone: Backbone
) -> MultitaskModel:
    """One encoder with a head for each task, and the modules, branches and second encoders of their recipes.

    In what concerns the encoder the recipes agree.
    """
    _, shared = next(iter(parts.values()))
    _set_up(encoder, list(parts), shared)
    seconds = _second_encoders(backbone, shared, len(parts))
    encoders = split_encoder(encoder, shared.split_layers, len(parts))
    models = {
        name: assemble(own, recipe, task, second)
        for own, second, (name, (task, recipe)) in zip(encoders, seconds, parts.items(), strict=True)
    }
    for name, model in models.items() if _has_modules(shared) else ():
        model.task = name
    if not shared.split_layers:
        _make_lean_for_all(encoder, models.values())
    return MultitaskModel(models)


def _has_modules(recipe: Recipe) -> bool:
    return recipe.trainable in ("adapter", "full+adapter")


def _set_up(encoder: PreTrainedModel, tasks: Sequence[str], recipe: Recipe) -> None:
    """Put in fresh modules for ``tasks`` where the recipe has such, and let train what it trains."""
    if _has_modules(recipe):
        add_modules(encoder, tasks, recipe)
    elif recipe.trainable == "head":
        encoder.requires_grad_(False)
    if recipe.freeze_embeddings:
        encoder.embeddings.requires_grad_(False)


def _second_encoders(backbone: Backbone, recipe: Recipe, tasks: int) -> list[PreTrainedModel | None]:
    """What stands beside the encoder of each task: nothing, one pretrained encoder for all, or one for each to tune."""
    if recipe.second_encoder == "static":
        static = backbone.load()
        static.requires_grad_(False)
        return [static] * tasks
    tuned = recipe.second_encoder == "tuned"
    return [backbone.load(recipe.hidden_dropout) if tuned else None for _ in range(tasks)]


def _make_lean_for_all(encoder: PreTrainedModel, models: Iterable[TransferModel]) -> None:
    """The last layer may answer for the first token alone only where no task reads the others."""
    poolings = {model.pooling for model in models}
    make_lean(encoder, poolings.pop() if len(poolings) == 1 else "mean")


def build_from_weights(record: RunRecord, task: Task, backbone: Backbone, ledger: Ledger) -> TransferModel:
    """The trained model of a run that keeps its weights beside its record (head only, full fine-tuning)."""
    _check_backbone(record.identity["backbone"]["weights"], record.backbone, backbone, record.run)
    meaning = {key: value for key, value in record.described(task.name).items() if key != "name"}
    _check_meaning(meaning, task.is_pair, task, record.run)
    encoder = backbone.load()
    _set_up(encoder, [task.name], record.recipe)
    (second,) = _second_encoders(backbone, record.recipe, 1)
    model = assemble(encoder, record.recipe, task, second)
    load_weights(model, record, ledger)
    return model.requires_grad_(False).eval()


def modules_of(artifact: Artifact) -> SavedModules:
    """The modules of an artifact where they stand, for those that load them."""
    manifest = artifact.manifest
    return SavedModules(manifest.task, manifest.recipe, artifact.folder, artifact.remedy)


def _check_artifact(artifact: Artifact, task: Task, backbone: Backbone) -> None:
    manifest = artifact.manifest
    _check_backbone(manifest.backbone_weights, manifest.backbone, backbone, manifest.run)
    _check_meaning(manifest.meaning, manifest.pair, task, manifest.run)
    artifact.verify()
    recipe = manifest.recipe
    if recipe.trainable != manifest.kind or None in (recipe.encoding, recipe.pooling, recipe.head):
        raise PipelineError(
            f"{artifact.folder / MANIFEST}: damaged: its recipe is not a trained {manifest.kind}'s: {artifact.remedy}"
        )


def _check_backbone(weights: str, name: str, backbone: Backbone, run: str) -> None:
    if weights != backbone.weights_hash:
        raise PipelineError(
            f"run {run} was trained on backbone '{name}', whose weights are not those of '{backbone.name}': name that"
            " backbone with --backbone"
        )


def _check_meaning(meaning: dict[str, Any], pair: bool, task: Task, run: str) -> None:
    """Refuse a model whose task has since been given other classes, another range or another number of texts."""
    if meaning != task.meaning or pair != task.is_pair:
        changed = [key for key, value in task.meaning.items() if meaning.get(key) != value] or ["text"]
        raise PipelineError(
            f"run {run} was trained when task '{task.name}' had other {', '.join(changed)}: train it again, or give the"
            " task its old definition"
        )


def load_weights(model: nn.Module, record: RunRecord, ledger: Ledger, part: str = "") -> None:
    """Give ``model`` the weights that a run kept.

    Args:
        model: as it was before training, so that what trained requires gradients.
        part: what the names of its parameters begin with in the run's model, if it is but a part of that.

    Raises:
        PipelineError: the file is missing, damaged, or not what the run's recipe trains.
    """
    from pipeline.system.atomic import sha256_file

    file = ledger.weights_file(record.run)
    remedy = f"delete {file.parent}, and the run is made again"
    if not file.is_file() or sha256_file(file) != record.weights_sha256:
        raise PipelineError(f"{file}: missing or damaged: {remedy}")
    own = {f"{part}{name}": tensor for name, tensor in kept_parameters(model, began_pretrained(record)).items()}
    fill(own, read_tensors(file, own, remedy, part))


def _load_start(encoder: PreTrainedModel, start: RunRecord, ledger: Ledger) -> None:
    """Begin where full fine-tuning on the source task ended; its head stays behind.

    Raises:
        PipelineError: modules or a second encoder were trained with it, without which its head cannot be scored again.
    """
    if start.recipe.trainable != "full" or start.recipe.second_encoder != "none":
        raise PipelineError(
            f"run {start.run} trained '{start.recipe.trainable}', second_encoder '{start.recipe.second_encoder}': only"
            " full fine-tuning of one encoder without modules can be gone on from"
        )
    _set_up(encoder, [start.task], start.recipe)
    load_weights(encoder, start, ledger, part="backbone.")
    encoder.requires_grad_(True)


def outputs_of(recipe: Recipe, task: Task) -> int:
    """Width of the head's output; a cosine is one number, whatever the task, and two classes may be one logit."""
    return 1 if recipe.head == "cosine" or recipe.one_logit else task.outputs


def assemble(
    encoder: PreTrainedModel, recipe: Recipe, task: Task, second: PreTrainedModel | None = None
) -> TransferModel:
    """``encoder`` with a fresh head for ``task``; it is made lean for this head's pooling.

    Args:
        second: an encoder whose sentence vectors stand beside the first one's.
    """
    assert recipe.encoding is not None and recipe.pooling is not None and recipe.head is not None
    head = build_head(
        recipe.head,
        width=encoder.config.hidden_size * (1 if second is None else 2),
        outputs=outputs_of(recipe, task),
        vectors=2 if recipe.encoding == "siamese" else 1,
        dropout=recipe.head_dropout,
    )
    for each in (encoder, second):
        if each is not None:
            make_lean(each, recipe.pooling)
    return TransferModel(encoder, head, recipe.encoding, recipe.pooling, second=second)
