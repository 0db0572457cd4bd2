"""Build the model of a run: before training, or as a finished run left it, in the store or beside its record."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from pipeline.data.tasks import Task, described
from pipeline.methods.bank import merge_into, parallel_adapters
from pipeline.methods.houlsby import load_adapter
from pipeline.methods.layernorms import load_layernorms
from pipeline.methods.registry import (
    FORMS,
    add_fusion,
    add_modules,
    load_fusion,
    load_modules,
    use_fusion_implementation,
)
from pipeline.methods.saved import SavedModules, begin_as
from pipeline.models.backbone import Backbone
from pipeline.models.layout import activate, split_encoder
from pipeline.models.lean import make_lean
from pipeline.models.transfer_model import JointModel, MultitaskModel, TransferModel, build_head
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.store import LAYERNORMS, MANIFEST, Artifact, Manifest
from pipeline.runs.outcome import load_head, load_mean_head, load_weights
from pipeline.runs.workspace import Part, Parts, RunRequest, Workspace, first_of
from pipeline.settings.kinds import KINDS
from pipeline.settings.parts import check_layers
from pipeline.settings.recipe import OF_PREDICTION, Recipe
from pipeline.settings.resolve import resolve
from pipeline.system.errors import PipelineError, few
from pipeline.training.fit import Penalty

_HEAD_KEYS = OF_PREDICTION.union(("encoding", "pooling"))


@dataclass(frozen=True)
class Built:
    """A model, and what its method adds to the loss or exempts from weight decay."""

    model: MultitaskModel
    penalties: Sequence[Penalty] = ()
    without_decay: Collection[str] = ()


def build_for_training(
    request: RunRequest, parts: Parts, backbone: Backbone, ledger: Ledger, initial: Artifact | None = None
) -> Built:
    """Build a model in which only the parameters of ``recipe.trainable`` and the heads require gradients.

    Deterministic in the request, parts, seed and initial adapter.

    Args:
        initial: the adapter to start from (:mod:`pipeline.runs.initial`); an anchored fusion, and a run that continues
            an adapter of the task itself, also take its head.
    """
    first = first_of(parts)
    recipe = first.recipe
    torch.manual_seed(request.seed)
    encoder = backbone.load(recipe.hidden_dropout)
    # LP-FT (Kumar et al. 2022) takes a probe's head; sequential fine-tuning (Phang et al. 2019) takes all but the head;
    # joint training also the heads of its tasks.
    probe = request.probe
    start = request.start if probe is None else None
    if start is not None:
        if why := why_not_continued(start.recipe, (part.recipe for part in parts.values())):
            raise PipelineError(f"run {start.run} {why}")
        _set_up(encoder, [start.task], start.recipe)
        load_weights(encoder, start, ledger, part="backbone.")
        encoder.requires_grad_(True)
    if recipe.trainable == "fusion":
        built = _build_fusion(encoder, request.adapters, first, backbone, initial)
        if initial is not None and recipe.form.own_adapter == "warm":
            _draw_heads_anew(built.model, parts, request.seed)
        return built
    model = assemble_all(encoder, parts, backbone)
    continued = [initial] if initial is not None and initial.manifest.task == first.task.name else []
    if (initial is not None and not continued) or start is not None:
        _draw_heads_anew(model, parts, request.seed)
    if probe is not None:
        load_weights(model.of(first.task.name).head, probe, ledger, part="head.")
    for record in ledger.lineage(request.start) if KINDS[request.kind].is_joint else ():
        if record.task in parts and same_head(record.recipe, parts[record.task].recipe):
            load_weights(model.of(record.task).head, record, ledger, part="head.")
    if request.kind == "merge":
        _merge(request, first, model, encoder)
    if initial is not None:
        initial.verify()
        begin_as(encoder, first.task.name, modules_of(initial))
        if continued:
            load_mean_head(continued, model.of(first.task.name).head)
    return Built(model)


def _draw_heads_anew(model: MultitaskModel, tasks: Iterable[str], seed: int) -> None:
    """Redraw the fresh heads of a warm-started model from ``seed`` and task.

    Drawn from the seed alone, a head could equal the initial head of the source run. The source's encoder was trained
    to fit that head, so the new one would begin biased: sts after quora with "no duplicate", the wrong way round.
    """
    for name in tasks:
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(digest[:8], "big"))
            for module in model.of(name).head.modules():
                if isinstance(module, nn.Linear):
                    module.reset_parameters()


def _merge(request: RunRequest, part: Part[Task], model: MultitaskModel, encoder: PreTrainedModel) -> None:
    """Merge the request's adapters into the fresh one, and load the head of the target's adapters."""
    task, recipe, _ = part
    for artifact in request.adapters:
        artifact.verify()
        # All adapters must have started from this fresh one.
        assert artifact.manifest.seed == request.seed
    own = [artifact for artifact in request.adapters if artifact.manifest.task == task.name]
    for artifact in own:
        check_meaning(artifact.manifest, task)
    merge_into(encoder, task.name, [modules_of(artifact) for artifact in request.adapters], recipe.merge)
    load_mean_head(own, model.of(task.name).head)
    if recipe.is_averaged:
        model.requires_grad_(False)


def _build_fusion(
    encoder: PreTrainedModel,
    adapters: Sequence[Artifact],
    part: Part[Task],
    backbone: Backbone,
    initial: Artifact | None,
) -> Built:
    task, recipe, _ = part
    for artifact in adapters:
        artifact.verify()
    names = recipe.form.names_of([artifact.manifest for artifact in adapters])
    sources = dict(zip(names, map(modules_of, adapters), strict=True))
    anchored = recipe.form.anchored
    add_fusion(encoder, sources, recipe, task.name, initial.manifest.task if initial is not None and anchored else None)
    if initial is not None and not anchored:
        begin_as(encoder, task.name, modules_of(initial))
    backbone.check_unchanged(encoder)
    use_fusion_implementation(encoder, recipe.fusion.implementation)
    model = assemble(encoder, recipe, task)
    own = [artifact for artifact in adapters if artifact.manifest.task == task.name]
    for artifact in own:
        check_meaning(artifact.manifest, task)
    starts = own if not anchored else [] if initial is None else [initial]
    have_its_head = bool(starts) and all(same_head(start.manifest.recipe, recipe) for start in starts)
    if recipe.is_averaged or (recipe.fusion.head_start and recipe.form.fuses_own and have_its_head):
        load_mean_head(starts, model.head)
    if recipe.is_averaged:
        model.requires_grad_(False)
    form, built = FORMS[recipe.fusion.form], MultitaskModel({task.name: model})
    penalty = form.penalty(encoder, recipe)
    undecayed = tuple(f".backbone.{name}" for name in form.without_decay(encoder))
    return Built(
        built,
        penalties=[] if penalty is None else [penalty],
        without_decay={name for name, _ in built.named_parameters() if name.endswith(undecayed)},
    )


def assemble_all(encoder: PreTrainedModel, parts: Parts, backbone: Backbone) -> MultitaskModel:
    """One encoder with a fresh head for each task, and the modules, branches and second encoders of their recipes."""
    shared = first_of(parts).recipe
    _set_up(encoder, list(parts), shared)
    # The second encoder of each task: none, one frozen encoder for all, or a tuned one for each task.
    seconds: list[PreTrainedModel] | list[None] = [None] * len(parts)
    if shared.pretrained.second_encoder == "static":
        seconds = [backbone.load().requires_grad_(False)] * len(parts)
    elif shared.pretrained.second_encoder == "tuned":
        seconds = [backbone.load(shared.hidden_dropout) for _ in parts]
        for each in seconds:
            _freeze(each, shared)
    encoders = split_encoder(encoder, shared.joint.split_layers, len(parts))
    models = {
        name: assemble(own, part.recipe, part.task, second)
        for own, second, (name, part) in zip(encoders, seconds, parts.items(), strict=True)
    }
    if len(parts) > 1:
        for name, model in models.items() if shared.has_modules else ():
            model.task = name
        if not shared.joint.split_layers:
            make_lean_for_all(encoder, models.values())
        if shared.pretrained.second_encoder == "static" and seconds[0] is not None:
            make_lean_for_all(seconds[0], models.values())
    return MultitaskModel(models)


def assemble(
    encoder: PreTrainedModel, recipe: Recipe, task: Task, second: PreTrainedModel | None = None
) -> TransferModel:
    """``encoder`` with a fresh head for ``task``, made lean for the head's pooling.

    Args:
        second: an encoder whose sentence vectors are joined to the first one's.
    """
    assert recipe.encoding is not None and recipe.pooling is not None and recipe.head is not None
    head = build_head(
        recipe.head,
        width=encoder.config.hidden_size * (1 if second is None else 2),
        outputs=outputs_of(recipe, task),
        vectors=2 if recipe.encoding == "siamese" else 1,
        dropout=recipe.head_dropout,
        vector_dropout=recipe.vector_dropout,
        tuned_threshold=tunes_threshold(recipe, task),
    )
    for each in (encoder, second):
        if each is not None:
            make_lean(each, recipe.pooling)
    return TransferModel(encoder, head, recipe.encoding, recipe.pooling, second=second)


def make_lean_for_all(encoder: PreTrainedModel, models: Iterable[TransferModel]) -> None:
    """Let the last layer compute only the first token if no task reads the others."""
    poolings = {model.pooling for model in models}
    make_lean(encoder, poolings.pop() if len(poolings) == 1 else "mean")


def outputs_of(recipe: Recipe, task: Task) -> int:
    """Width of the head's output: 1 for a cosine or two classes with one logit, else the task's number of outputs."""
    return 1 if recipe.head == "cosine" or recipe.one_logit else task.outputs


def tunes_threshold(recipe: Recipe, task: Task) -> bool:
    """Whether dev tunes a threshold of the head, on a cosine or on the outputs of a task of labels."""
    return recipe.cosine_threshold == "tuned" or task.kind == "labels"


def same_head(one: Recipe, other: Recipe) -> bool:
    """Whether a head trained under one recipe fits a model of the other; a second encoder makes it wider."""
    one_encoder = one.pretrained.second_encoder == other.pretrained.second_encoder
    return one_encoder and all(getattr(one, key) == getattr(other, key) for key in _HEAD_KEYS)


def why_not_continued(source: Recipe, recipes: Iterable[Recipe]) -> str | None:
    """Why a model of ``recipes`` cannot continue from the encoder of a fine-tuning by ``source``; None if it can.

    All recipes are resolved. Modules and a second encoder trained with the source are left behind, and its head cannot
    be scored again without them.
    """
    if source.trainable != "full" or source.pretrained.second_encoder != "none":
        return (
            f"has trainable = '{source.trainable}', second_encoder = '{source.pretrained.second_encoder}': only full"
            " fine-tuning of one encoder without modules can be tuned further"
        )
    if (source.pooling == "pooler") != any(recipe.pooling == "pooler" for recipe in recipes):
        return (
            f"has pooling '{source.pooling}', and only one of the two trains the pooler: give both rows pooling ="
            " 'pooler', or neither"
        )
    return None


def check_meaning(made: Manifest | RunRecord, task: Task) -> None:
    """Raise a :class:`PipelineError` if ``task`` has other classes, another range or number of texts than ``made``."""
    if isinstance(made, Manifest):
        meaning, pair = made.meaning, made.pair
    else:
        earlier = task_of(made, task.name)
        meaning, pair = earlier.meaning, earlier.is_pair
    if meaning != task.meaning or pair != task.is_pair:
        changed = [key for key, value in task.meaning.items() if meaning.get(key) != value] or ["text"]
        which = ""
        if "classes" in changed:
            then, now = meaning["classes"] or (), task.classes
            parts = {
                "now also": [name for name in now if name not in then],
                "now without": [name for name in then if name not in now],
            }
            told = [f"{how} {', '.join(few([*map(repr, names)], 5))}" for how, names in parts.items() if names]
            which = f" ({'; '.join(told) or 'now in another order'})"
        command = {"adapter": "extract --task", "fusion": "fuse --target"}.get(made.kind)
        by = f" (python -m pipeline {command} {task.name})" if command else ""
        raise PipelineError(
            f"run {made.run} was trained when task '{task.name}' had other {', '.join(changed)}{which}: train it again"
            f"{by}, or give the task its old definition"
        )


def restore(
    trained: Artifact | RunRecord, task: Task, workspace: Workspace, drop_layers: tuple[int, ...] = ()
) -> TransferModel:
    """The model of an artifact, or of a run that kept its weights; frozen, in evaluation mode.

    Args:
        task: the task to answer for, if the model has several.
        drop_layers: layers in which an artifact's modules are left out.

    Raises:
        PipelineError: it is damaged, was trained on another backbone or when the task had another meaning, lacks an
            adapter of its fusion, or no layer keeps its modules.
    """
    if isinstance(trained, RunRecord):
        return restore_weights(trained, [task], workspace).of(task.name)
    manifest, backbone = trained.manifest, workspace.backbone_for(trained.manifest.recipe)
    dropped = _checked(trained, task, backbone, drop_layers)
    encoder = backbone.load()
    own: Collection[str] = ()
    if manifest.kind == "adapter":
        load_modules(encoder, modules_of(trained), dropped)
        if manifest.recipe.bottleneck.train_layernorm:
            own = load_layernorms(encoder, trained.folder / LAYERNORMS, modules_of(trained), dropped)
    else:
        adapters = workspace.store.adapters_of(manifest)
        for adapter in adapters:
            adapter.verify()
        sources = zip(manifest.recipe.form.names_of(manifest.sources), map(modules_of, adapters), strict=True)
        load_fusion(encoder, dict(sources), modules_of(trained), dropped)
        use_fusion_implementation(encoder, manifest.recipe.fusion.implementation)
    backbone.check_and_share(encoder, own)
    model = assemble(encoder, manifest.recipe, task)
    load_head(trained, model.head)
    return model.requires_grad_(False).eval()


def restore_together(
    trained: Sequence[Artifact | RunRecord],
    tasks: Sequence[Task],
    workspace: Workspace,
    drop_layers: tuple[int, ...] = (),
) -> JointModel:
    """One frozen model that answers for several tasks in one forward pass; raises as :func:`restore`.

    Args:
        trained: one per task: adapters at the same sites that read the same inputs, or for all tasks the one jointly
            trained run. The caller must ensure this.
    """
    first = trained[0]
    if isinstance(first, RunRecord):
        whole = restore_weights(first, tasks, workspace)
        return JointModel([whole.of(task.name) for task in tasks], first.recipe.joint.split_layers)
    pairs = [(each, task) for each, task in zip(trained, tasks, strict=True) if isinstance(each, Artifact)]
    backbone = workspace.backbone_for(*(artifact.manifest.recipe for artifact, _ in pairs))
    dropped = [_checked(artifact, task, backbone, drop_layers) for artifact, task in pairs]
    encoder = backbone.load()
    for (artifact, task), layers in zip(pairs, dropped, strict=True):
        load_adapter(encoder, task.name, modules_of(artifact), layers)
    backbone.check_and_share(encoder)
    parallel_adapters(encoder, [task.name for task in tasks])
    models = [assemble(encoder, artifact.manifest.recipe, task) for artifact, task in pairs]
    for (artifact, _), model in zip(pairs, models, strict=True):
        load_head(artifact, model.head)
    make_lean_for_all(encoder, models)
    return JointModel(models).requires_grad_(False).eval()


def restore_weights(record: RunRecord, tasks: Sequence[Task], workspace: Workspace) -> MultitaskModel:
    """The whole model of a run that kept its weights beside its record; see :func:`restore`.

    Args:
        tasks: the wanted tasks, as they are defined now.
    """
    backbone = workspace.backbone_for(*map(record.recipe_of, record.trained_on))
    _check_backbone(record, backbone)
    wanted = {task.name: task for task in tasks}
    parts = {}
    for name in record.trained_on:
        # An unwanted task may no longer be described anywhere else; the model does not depend on its columns.
        task = wanted.get(name) or task_of(record, name)
        check_meaning(record, task)
        parts[name] = Part(task, record.recipe_of(name))
    model = assemble_all(backbone.load(), parts, backbone)
    load_weights(model, record, workspace.ledger)
    return model.requires_grad_(False).eval()


def restore_run(record: RunRecord, task: Task, workspace: Workspace) -> TransferModel:
    """The model of a finished run, frozen, in evaluation mode; if it has several tasks, the one for ``task``.

    Raises:
        PipelineError: the model was not kept, or as :func:`restore`.
    """
    kept: Artifact | RunRecord | None = record
    if record.artifact_digest is not None:
        kept = workspace.store.find_unchanged(record.run, record.artifact_digest)
    elif record.weights_sha256 is None or not workspace.ledger.weights_file(record.run).is_file():
        kept = None
    if kept is None:
        raise PipelineError(f"run {record.run} ({record.kind} {record.task}) kept no model that is still there")
    model = restore(kept, task, workspace)
    if model.task is not None:  # the caller may run the backbone alone, so activate only this task's modules
        activate(model.backbone, model.task)
    return model


def task_of(trained: Artifact | RunRecord, name: str) -> Task:
    """Task ``name`` of a model as its manifest or record describes it, without the task's file or data."""
    if isinstance(trained, Artifact):
        manifest = trained.manifest
        return Task.parse(described(manifest.task, manifest.meaning, manifest.pair), f"run {manifest.run}")
    meaning, pair = trained.described(name)["meaning"], bool(trained.score(name).pair)
    return Task.parse(described(name, meaning, pair), f"run {trained.run}, task '{name}'")


def _checked(artifact: Artifact, task: Task, backbone: Backbone, drop_layers: tuple[int, ...]) -> tuple[int, ...]:
    """The layers without modules (the artifact's own and ``drop_layers``), once the artifact is checked."""
    manifest, recipe = artifact.manifest, artifact.manifest.recipe
    _check_backbone(manifest, backbone)
    check_meaning(manifest, task)
    artifact.verify()
    problem = ""  # why no training can produce this manifest, which may come from anyone
    if recipe.trainable != manifest.kind or None in (recipe.encoding, recipe.pooling, recipe.head, recipe.max_length):
        problem = f"is not a trained {manifest.kind}'s"
    else:
        try:
            resolve(recipe, task, "fp32", backbone.max_length, backbone.layers)
        except PipelineError as error:
            problem = f"cannot be trained: {error}"
    if problem:
        raise PipelineError(f"{artifact.folder / MANIFEST}: damaged: its recipe {problem}: {artifact.remedy}")
    layers = tuple(sorted({*drop_layers, *recipe.adapter.drop_layers}))
    check_layers(layers, backbone.layers)
    return layers


def _check_backbone(made: Manifest | RunRecord, backbone: Backbone) -> None:
    if made.backbone_weights != backbone.weights_hash:
        raise PipelineError(
            f"run {made.run} was trained on backbone '{made.backbone}', whose weights are not those of"
            f" '{backbone.name}': name that backbone with --backbone"
        )


def modules_of(artifact: Artifact) -> SavedModules:
    """The modules in an artifact's folder."""
    manifest = artifact.manifest
    return SavedModules(manifest.task, manifest.recipe, artifact.folder, artifact.remedy)


def _set_up(encoder: PreTrainedModel, tasks: Sequence[str], recipe: Recipe) -> None:
    """Add fresh modules for ``tasks`` where the recipe has any, and freeze what it does not train."""
    if recipe.has_modules:
        add_modules(encoder, tasks, recipe)
    elif recipe.freezes_encoder:
        encoder.requires_grad_(False)
    _freeze(encoder, recipe)


def _freeze(encoder: PreTrainedModel, recipe: Recipe) -> None:
    if recipe.pretrained.freeze_embeddings:
        encoder.embeddings.requires_grad_(False)
