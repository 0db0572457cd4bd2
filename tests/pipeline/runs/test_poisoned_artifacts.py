"""Files whose sha256 is right but whose content is not: each is refused in one line, and none changes the backbone."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pipeline.data.tasks import Task
from pipeline.models.backbone import Backbone
from pipeline.records.ledger import Ledger
from pipeline.records.store import MANIFEST, Artifact, SourceRun, Store
from pipeline.runs import build
from pipeline.runs.build import build_for_training, restore, restore_together
from pipeline.runs.outcome import save_artifact
from pipeline.runs.workspace import Part, RunRequest, Workspace
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.system.atomic import sha256_file, write_json
from pipeline.system.errors import PipelineError
from tests.nano import SIZES
from tests.pipeline.methods.adapted import move
from tests.pipeline.records.artifacts import manifest
from tests.poison import POISONS

SMALL = {**SIZES, "fusion_rank": 4}
SOURCES = ("films", "meals")
HEAD_FILE = "head.safetensors"
_CLASSES: dict[str, Any] = {"kind": "classes", "text": ["text"], "label": "label", "classes": ["a", "b"]}
TASKS = {name: Task.model_validate({"name": name, "metric": "accuracy", **_CLASSES}) for name in SOURCES}


class Kind(NamedTuple):
    """A kind of artifact, by what of its recipe is not usual, and the file that is poisoned."""

    settings: dict[str, Any]
    file: str


KINDS = {
    "houlsby": Kind({}, "adapter.safetensors"),
    "houlsby in one layer": Kind({"drop_layers": [0]}, "adapter.safetensors"),
    "pfeiffer": Kind({"adapter": "pfeiffer"}, "adapter.safetensors"),
    "beside LayerNorms": Kind({"train_layernorm": True}, "adapter.safetensors"),
    "LayerNorms": Kind({"train_layernorm": True}, "layernorms.safetensors"),
    "LayerNorms of one layer": Kind({"train_layernorm": True, "drop_layers": [1]}, "layernorms.safetensors"),
    "pal": Kind({"adapter": "pal"}, "modules.safetensors"),
    "pal in one layer": Kind({"adapter": "pal", "drop_layers": [0]}, "modules.safetensors"),
    "prefix": Kind({"adapter": "prefix"}, "modules.safetensors"),
    "prefix-tuning": Kind({"adapter": "prefix-tuning"}, "adapter.safetensors"),
    "prefix-tuning in one layer": Kind({"adapter": "prefix-tuning", "drop_layers": [1]}, "adapter.safetensors"),
    "standard": Kind({"trainable": "fusion", "fusion": "standard"}, "model_adapter_fusion.safetensors"),
    "standard in one layer": Kind(
        {"trainable": "fusion", "fusion": "standard", "drop_layers": [0]}, "model_adapter_fusion.safetensors"
    ),
    "anchored": Kind({"trainable": "fusion", "fusion": "anchored"}, "anchored_fusion.safetensors"),
    "anchored in one layer": Kind(
        {"trainable": "fusion", "fusion": "anchored", "drop_layers": [0]}, "anchored_fusion.safetensors"
    ),
    "source": Kind({"trainable": "fusion", "fusion": "anchored"}, "adapter.safetensors"),
    "head": Kind({}, HEAD_FILE),
    "mlp head": Kind({"head": "mlp"}, HEAD_FILE),
}
# Names of their tensors are the same for every task.
UNNAMED = {"LayerNorms", "LayerNorms of one layer", "anchored", "anchored in one layer", "head", "mlp head"}


# Artifacts of every kind, with random weights.


def sealed(artifact: Artifact) -> Artifact:
    """The artifact with the sha256 of its files as they are now."""
    files = {name: sha256_file(artifact.folder / name) for name in artifact.manifest.files}
    manifest = artifact.manifest.model_copy(update={"files": files})
    write_json(artifact.folder / MANIFEST, manifest.model_dump(mode="json"))
    return Artifact(folder=artifact.folder, manifest=manifest)


def make(
    store: Store, backbone: Backbone, task: str, number: int, adapters: tuple[Artifact, ...], **settings: Any
) -> tuple[Artifact, Any]:
    """An artifact as a run would leave it, and the model it is of."""
    recipe = resolve(
        Recipe.parse({**SMALL, **settings}, "test"), TASKS[task], "fp32", backbone.max_length, backbone.layers
    )
    is_fusion = recipe.trainable == "fusion"
    kind = "fusion" if is_fusion else "adapter"
    request = RunRequest.single(kind, TASKS[task], recipe, seed=number, adapters=adapters if is_fusion else ())
    parts = {task: Part(TASKS[task], recipe)}
    model: Any = build_for_training(request, parts, backbone, Ledger(store.root)).model.of(task)
    move(model, scale=0.1)
    sources = (each.manifest for each in request.adapters)
    described = manifest(
        f"{number:012x}", task, kind=kind, seed=number, recipe=recipe, pair=False, meaning=TASKS[task].meaning,
        backbone=backbone.name, backbone_weights=backbone.weights_hash,
        sources=tuple(SourceRun(task=each.task, run=each.run, digest=each.digest) for each in sources),
    )  # fmt: skip
    return save_artifact(store, described, model), model.eval()


def place(store: Store, backbone: Backbone) -> Workspace:
    return Workspace(backbone.name, None, store.root, store.root)


Made = tuple[Store, dict[str, tuple[Artifact, Any]]]


@pytest.fixture(scope="module")
def made(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Made:
    store = Store(tmp_path_factory.mktemp("store"))
    sources = tuple(make(store, backbone, task, number, ())[0] for number, task in enumerate(SOURCES))
    kinds = {
        name: make(store, backbone, "films", number, sources, **kind.settings)
        for number, (name, kind) in enumerate(KINDS.items(), start=len(sources))
    }
    return store, kinds


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Callable[[str], tuple[Store, Artifact]]:
    """A store of one's own with the artifact of a kind in it, and its sources."""

    def copy(kind: str) -> tuple[Store, Artifact]:
        store, kinds = made
        manifest, own = kinds[kind][0].manifest, Store(tmp_path / "store")
        for place, run in [("adapters/" + source.task, source.run) for source in manifest.sources]:
            shutil.copytree(store.root / place / run, own.root / place / run)
        folder = own.root / manifest.place
        shutil.copytree(kinds[kind][0].folder, folder)
        return own, Artifact(folder=folder, manifest=manifest)

    return copy


def with_file(store: Store, artifact: Artifact, file: str) -> Artifact:
    """The artifact that holds ``file``: of a fusion, it may be one of its sources."""
    if (artifact.folder / file).exists():
        return artifact
    return store.find(artifact.manifest.sources[0].run)


def resealed(store: Store, artifact: Artifact, changed: Artifact) -> Artifact:
    """``artifact`` after ``changed``, which is itself or a source of it, was sealed."""
    changed = sealed(changed)
    if changed.manifest.run == artifact.manifest.run:
        return changed
    sources = tuple(
        source.model_copy(update={"digest": changed.manifest.digest}) if source.run == changed.manifest.run else source
        for source in artifact.manifest.sources
    )
    return sealed(Artifact(folder=artifact.folder, manifest=artifact.manifest.model_copy(update={"sources": sources})))


IDS = torch.randint(5, 20, (3, 9), generator=torch.Generator().manual_seed(0))


def outputs(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=torch.ones_like(IDS))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_run_leaves_is_loaded_as_it_was(kind: str, made: Made, backbone: Backbone) -> None:
    store, kinds = made
    artifact, model = kinds[kind]
    loaded = restore(artifact, TASKS["films"], place(store, backbone))
    torch.testing.assert_close(outputs(loaded), outputs(model), rtol=0, atol=1e-5)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def check_refused(file: Path, artifact: Artifact, store: Store, backbone: Backbone, drop_layers: Any = ()) -> str:
    """Verified, the artifact is refused for ``file``; returns what is said."""
    artifact.verify()
    with pytest.raises(PipelineError) as refused:
        restore(artifact, TASKS["films"], place(store, backbone), drop_layers)
    message = str(refused.value)
    assert message.startswith(f"{file}: ")
    assert message.isprintable()
    assert f"store remove {file.parent.name}) and train it again" in message
    return message


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("kind", "poison"), [(k, p) for k in KINDS for p in POISONS if not (p == "another task's" and k in UNNAMED)]
)
def test_a_poisoned_file_is_refused_in_one_line(
    kind: str, poison: str, copied: Callable[[str], tuple[Store, Artifact]], backbone: Backbone
) -> None:
    store, artifact = copied(kind)
    holder = with_file(store, artifact, KINDS[kind].file)
    file = holder.folder / KINDS[kind].file
    POISONS[poison](file)
    check_refused(file, resealed(store, artifact, holder), store, backbone)


@pytest.mark.parametrize(
    "kind", ["houlsby", "beside LayerNorms", "LayerNorms", "pal", "prefix", "standard", "anchored"]
)
def test_what_is_left_out_in_prediction_is_checked_too(
    kind: str, copied: Callable[[str], tuple[Store, Artifact]], backbone: Backbone
) -> None:
    """The file has more than is loaded, and is poisoned there."""
    store, artifact = copied(kind)
    file = artifact.folder / KINDS[kind].file
    restore(artifact, TASKS["films"], place(store, backbone), (0,))
    POISONS["transposed"](file)  # its first tensor stands in the lowest layer
    check_refused(file, sealed(artifact), store, backbone, (0,))


# AdapterHub's configurations.


def setting(*, without: str = "", **values: object) -> Callable[[str], str]:
    def change(text: str) -> str:
        config = json.loads(text)
        config["config"] = {name: own for name, own in (config["config"] | values).items() if name != without}
        return json.dumps(config)

    return change


NESTED = "[" * 100_000
CONFIGS: Mapping[str, Callable[[str], str]] = {
    "another kind": setting(architecture="lora", r=8),
    "a path": lambda text: json.dumps({**json.loads(text), "config": "../other/adapter_config.json"}),
    "another name": lambda text: json.dumps({**json.loads(text), "name": "games"}),
    "no name": lambda text: json.dumps({"config": json.loads(text)["config"]}),
    "no settings": lambda text: json.dumps({"name": json.loads(text)["name"]}),
    "a list": lambda _: "[1]",
    "nothing": lambda _: "",
    "no JSON": lambda _: "{'a': 1}",
    "nested": lambda _: NESTED,
    "nested setting": lambda text: text.replace("false", "[" * 500 + "]" * 500, 1),
    "a long number": lambda text: text.replace("false", "9" * 5000, 1),
    "a setting of ours": setting(**{"evil\nname": 1}),
}
ADAPTER_CONFIGS = {
    "another bottleneck": setting(reduction_factor=2),
    "another activation": setting(non_linearity="relu"),
    "fewer sites": setting(mh_adapter=False),
    "gates": setting(use_gating=True),
    "fewer layers": setting(leave_out=[0]),
    "strange layers": setting(leave_out={"0": 1}),
    "no activation": setting(without="non_linearity"),
}
FUSION_CONFIGS = {
    "no values": setting(value=False),
    "a temperature": setting(temperature=True),
    "no key": setting(without="key"),
}
PREFIX_CONFIGS = {"another length": setting(prefix_length=2), "not flat": setting(flat=False)}


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        *(("houlsby", "adapter_config.json", change) for change in {**CONFIGS, **ADAPTER_CONFIGS}.items()),
        *(("prefix-tuning", "adapter_config.json", change) for change in PREFIX_CONFIGS.items()),
        *(("standard", "adapter_fusion_config.json", change) for change in FUSION_CONFIGS.items()),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_configuration_that_is_not_the_recipes_is_refused(
    kind: str, name: str, change: Any, copied: Callable[[str], tuple[Store, Artifact]], backbone: Backbone
) -> None:
    store, artifact = copied(kind)
    file = artifact.folder / name
    file.write_text(change[1](file.read_text()))
    check_refused(file, sealed(artifact), store, backbone)


@pytest.mark.parametrize(
    ("settings", "file"),
    [
        ({"bottleneck": 4}, "adapter_config.json"),
        ({"adapter": "pfeiffer"}, "adapter_config.json"),
        ({"drop_layers": (1,)}, "adapter_config.json"),
        ({"adapter": "prefix-tuning"}, "adapter_config.json"),
        ({"adapter": "pal"}, "modules.safetensors"),
        ({"train_layernorm": True}, "layernorms.safetensors"),
        ({"head": "mlp"}, HEAD_FILE),
        ({"trainable": "fusion"}, MANIFEST),
        ({"head": None}, MANIFEST),
        ({"max_length": None}, MANIFEST),
        ({"max_length": 8192}, MANIFEST),
    ],
    ids=str,
)
def test_a_manifest_with_another_recipe_is_refused(
    settings: Any, file: str, copied: Callable[[str], tuple[Store, Artifact]], backbone: Backbone
) -> None:
    store, artifact = copied("houlsby")
    recipe = artifact.manifest.recipe.changed({**SMALL, **settings})
    other = Artifact(folder=artifact.folder, manifest=artifact.manifest.model_copy(update={"recipe": recipe}))
    check_refused(other.folder / file, other, store, backbone)


def test_a_file_that_the_manifest_does_not_know_is_not_loaded(
    copied: Callable[[str], tuple[Store, Artifact]], backbone: Backbone
) -> None:
    """Its sha256 would stand nowhere."""
    store, artifact = copied("houlsby")
    files = {name: digest for name, digest in artifact.manifest.files.items() if name != "adapter.safetensors"}
    artifact = sealed(Artifact(folder=artifact.folder, manifest=artifact.manifest.model_copy(update={"files": files})))
    with pytest.raises(PipelineError, match="adapter.safetensors: its manifest does not list it"):
        restore(artifact, TASKS["films"], place(store, backbone))


# The backbone.


@pytest.mark.parametrize("kind", ["houlsby", "LayerNorms", "pal", "standard", "anchored"])
def test_no_loader_may_touch_the_backbone(
    kind: str, made: Made, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, kinds = made

    def touching(load: Callable[..., None]) -> Callable[..., None]:
        def touch(encoder: Any, *given: Any) -> None:
            load(encoder, *given)
            encoder.embeddings.word_embeddings.weight.data.view(torch.int32)[-1, -1] ^= 1

        return touch

    for name in ("load_modules", "load_fusion", "load_adapter"):
        monkeypatch.setattr(build, name, touching(getattr(build, name)))
    artifact = kinds[kind][0]
    with pytest.raises(RuntimeError, match="word_embeddings.weight"):
        restore(artifact, TASKS["films"], place(store, backbone))
    if kind == "houlsby":
        with pytest.raises(RuntimeError, match="changed"):
            restore_together([artifact], [TASKS["films"]], place(store, backbone))
