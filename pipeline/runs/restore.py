"""The trained models of finished runs, from the store or from the weights beside their records."""

from collections.abc import Collection, Sequence

from pipeline.data.tasks import Task
from pipeline.methods.fusion import load_fusion, use_fusion_implementation
from pipeline.methods.houlsby import load_adapter
from pipeline.methods.layernorms import load_layernorms
from pipeline.methods.parallel import parallel_adapters
from pipeline.methods.registry import load_modules
from pipeline.models.backbone import Backbone
from pipeline.models.switching import activate
from pipeline.models.transfer_model import JointModel, MultitaskModel, SplitModel, TransferModel
from pipeline.records.ledger import Ledger, RunRecord
from pipeline.records.store import LAYERNORMS, MANIFEST, Artifact, Store
from pipeline.runs.build import assemble, assemble_all, make_lean_for_all, modules_of
from pipeline.runs.compatibility import check_backbone, check_meaning
from pipeline.runs.weights import load_head, load_weights
from pipeline.settings.layers import check_layers
from pipeline.system.errors import PipelineError


def restore(
    trained: Artifact | RunRecord,
    task: Task,
    backbone: Backbone,
    store: Store,
    ledger: Ledger,
    drop_layers: tuple[int, ...] = (),
) -> TransferModel:
    """The model of an artifact, or of a run that kept its weights; frozen, in evaluation mode.

    Args:
        task: of several tasks' model, the one that is wanted.
        drop_layers: layers of an artifact whose modules are left out.

    Raises:
        PipelineError: it is damaged, was trained on another backbone or when the task meant something else, an adapter
            of a fusion is missing, or no layer keeps its modules.
    """
    if isinstance(trained, Artifact):
        return restore_artifact(trained, task, backbone, store, drop_layers)
    return restore_weights(trained, [task], backbone, ledger).of(task.name)


def restore_artifact(
    artifact: Artifact, task: Task, backbone: Backbone, store: Store, drop_layers: tuple[int, ...] = ()
) -> TransferModel:
    """The model of an artifact; see :func:`restore`."""
    _check_artifact(artifact, task, backbone)
    manifest = artifact.manifest
    dropped = _dropped(artifact, drop_layers, backbone)
    encoder = backbone.load()
    trained: Collection[str] = ()
    if manifest.kind == "adapter":
        load_modules(encoder, modules_of(artifact), dropped)
        if manifest.recipe.bottleneck.train_layernorm:
            trained = load_layernorms(encoder, artifact.folder / LAYERNORMS, modules_of(artifact), dropped)
    else:
        adapters = store.adapters_of(manifest)
        for adapter in adapters:
            adapter.verify()
        sources = {adapter.manifest.task: modules_of(adapter) for adapter in adapters}
        load_fusion(encoder, sources, modules_of(artifact), dropped)
        use_fusion_implementation(encoder, manifest.recipe.fusion.implementation)
    backbone.check_pretrained(encoder, trained)
    model = assemble(encoder, manifest.recipe, task)
    load_head(artifact, model.head)
    return model.requires_grad_(False).eval()


def restore_together(
    trained: Sequence[Artifact | RunRecord],
    tasks: Sequence[Task],
    backbone: Backbone,
    ledger: Ledger,
    drop_layers: tuple[int, ...] = (),
) -> JointModel:
    """One frozen model that answers for several tasks in one forward pass.

    Args:
        trained: one a task: adapters at the same sites that read the same inputs, or throughout the one jointly trained
            run whose tasks these are. The caller sees to that.

    Raises:
        PipelineError: as :func:`restore`.
    """
    first = trained[0]
    if isinstance(first, RunRecord):
        whole = restore_weights(first, tasks, backbone, ledger)
        return SplitModel([whole.of(task.name) for task in tasks], first.recipe.joint.split_layers)
    artifacts = [artifact for artifact in trained if isinstance(artifact, Artifact)]
    for artifact, task in zip(artifacts, tasks, strict=True):
        _check_artifact(artifact, task, backbone)
    encoder = backbone.load()
    for artifact, task in zip(artifacts, tasks, strict=True):
        load_adapter(encoder, task.name, modules_of(artifact), _dropped(artifact, drop_layers, backbone))
    backbone.check_pretrained(encoder)
    parallel_adapters(encoder, [task.name for task in tasks])
    models = [assemble(encoder, each.manifest.recipe, task) for each, task in zip(artifacts, tasks, strict=True)]
    for artifact, model in zip(artifacts, models, strict=True):
        load_head(artifact, model.head)
    make_lean_for_all(encoder, models)
    return JointModel(models).requires_grad_(False).eval()


def restore_weights(record: RunRecord, tasks: Sequence[Task], backbone: Backbone, ledger: Ledger) -> MultitaskModel:
    """The whole model of a run that kept its weights beside its record; frozen, in evaluation mode.

    Args:
        tasks: those of its tasks that it is wanted for, as they are now.

    Raises:
        PipelineError: as :func:`restore`.
    """
    check_backbone(record.identity["backbone"]["weights"], record.backbone, backbone, record.run)
    wanted = {task.name: task for task in tasks}
    parts = {}
    for name in record.trained_on:
        # A task that is not wanted may no longer be described anywhere else; the model does not depend on its columns.
        then = Task.model_validate(
            {"name": name, "text": ("text",), "label": "label", **record.described(name)["meaning"]}
        )
        task = wanted.get(name, then)
        check_meaning(then.meaning, task.is_pair, task, record.run)
        parts[name] = task, record.recipe_of(name)
    model = assemble_all(backbone.load(), parts, backbone)
    load_weights(model, record, ledger)
    return model.requires_grad_(False).eval()


def is_kept(record: RunRecord, store: Store, ledger: Ledger) -> bool:
    """Whether the model that ``record`` describes is still there."""
    if record.artifact_digest is not None:
        return store.find_unchanged(record.run, record.artifact_digest) is not None
    return record.weights_sha256 is not None and ledger.weights_file(record.run).is_file()


def restore_run(record: RunRecord, task: Task, backbone: Backbone, store: Store, ledger: Ledger) -> TransferModel:
    """The model of a finished run, frozen, in evaluation mode; of several tasks', that of ``task``.

    Raises:
        PipelineError: it was not kept, or as :func:`restore`.
    """
    if not is_kept(record, store, ledger):
        raise PipelineError(f"run {record.run} ({record.kind} {record.task}) kept no model that is still there")
    artifact = store.find(record.run) if record.artifact_digest is not None else None
    model = restore(artifact or record, task, backbone, store, ledger)
    if model.task is not None:  # the caller may run the backbone alone: only this task's modules are to be active
        activate(model.backbone, model.task)
    return model


def task_of(record: RunRecord, name: str, store: Store) -> Task:
    """Task ``name`` of those a run was trained on, as its record describes it: without the task's own file or data."""
    artifact = store.find(record.run) if record.artifact_digest is not None else None
    pair = artifact.manifest.pair if artifact is not None else record.recipe_of(name).encoding == "siamese"
    text = ("text_a", "text_b") if pair else ("text_a",)
    return Task.model_validate({**record.described(name)["meaning"], "name": name, "text": text, "label": "label"})


def _check_artifact(artifact: Artifact, task: Task, backbone: Backbone) -> None:
    manifest = artifact.manifest
    check_backbone(manifest.backbone_weights, manifest.backbone, backbone, manifest.run)
    check_meaning(manifest.meaning, manifest.pair, task, manifest.run)
    artifact.verify()
    recipe = manifest.recipe
    if recipe.trainable != manifest.kind or None in (recipe.encoding, recipe.pooling, recipe.head):
        raise PipelineError(
            f"{artifact.folder / MANIFEST}: damaged: its recipe is not a trained {manifest.kind}'s: {artifact.remedy}"
        )


def _dropped(artifact: Artifact, drop_layers: tuple[int, ...], backbone: Backbone) -> tuple[int, ...]:
    """The layers without modules: the artifact's own and ``drop_layers``."""
    layers = tuple(sorted({*drop_layers, *artifact.manifest.recipe.adapter.drop_layers}))
    check_layers(layers, backbone.layers)
    return layers
