"""Artifacts whose hashes are right and whose content is not: loaded, or refused; the backbone stays as it was."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from pipeline.models.backbone import hash_tensors
from pipeline.records.store import MANIFEST, Artifact, Store
from pipeline.runs.build import restore
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import sha256_file
from pipeline.system.errors import PipelineError
from stages.extract import extract
from stages.fuse import fuse
from tests.fuzz.fuzz_cases import fuzzed
from tests.fuzz.fuzz_documents import as_bytes, damaged, damaged_bytes, texts

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path, data_folder: Path, quick: Callable[..., Recipe]
) -> Workspace:
    """Adapters of three kinds, one with LayerNorms, and a fusion of two."""
    root = tmp_path_factory.mktemp("trained")
    places = Workspace(str(backbone_folder), data_folder, root / "store", root / "reports")
    for task in ("films", "meals"):
        extract(task, quick("adapter", epochs=1), places, seed=0, limit=16)
    extract("films", quick("adapter", epochs=1, train_layernorm=True), places, seed=0, limit=16)
    extract("films", quick("adapter", epochs=1, adapter="prefix", prefix_length=2), places, seed=0, limit=16)
    fuse("films", quick("fusion", epochs=1), places, seed=0, limit=16)
    return places


@st.composite
def changed(draw: st.DrawFn, tensors: Tensors, others: Tensors) -> Tensors:
    """Tensors of which some are missing, of another shape, type or name, or not finite; or with others beside them."""
    for _ in range(draw(st.integers(1, 2))):
        if not tensors:
            break
        name = draw(st.sampled_from(sorted(tensors)))
        tensor = tensors[name]
        fault = draw(st.sampled_from(["drop", "rename", "add", "shape", "type", "value", "clear"]))
        if fault == "drop":
            tensors = {key: value for key, value in tensors.items() if key != name}
        elif fault == "rename":
            renamed = draw(st.sampled_from(sorted(others)) | texts)
            tensors = {renamed if key == name else key: value for key, value in tensors.items()}
        elif fault == "add":
            other = draw(st.sampled_from(sorted(others)))
            tensors = {**tensors, other: torch.zeros_like(others[other])}
        elif fault == "shape":
            shape = draw(st.sampled_from([(0,), (1,), (*tensor.shape, 1), tensor.shape[::-1], (3, 5, 7), ()]))
            tensors = {**tensors, name: torch.zeros(shape)}
        elif fault == "type":
            kind = draw(st.sampled_from([torch.float64, torch.float16, torch.int8, torch.bool]))
            tensors = {**tensors, name: tensor.to(kind)}
        elif fault == "value":
            tensors = {
                **tensors,
                name: torch.full_like(tensor, draw(st.sampled_from([float("nan"), float("inf"), 1e38]))),
            }
        else:
            tensors = {}
    return tensors


def spoil(data: st.DataObject, file: Path, others: Tensors) -> None:
    """Change one file of an artifact."""
    if file.suffix == ".json":
        document = json.loads(file.read_text(encoding="utf-8"))
        file.write_bytes(as_bytes(data.draw(damaged(st.just(document))), "json"))
    elif data.draw(st.booleans()):
        file.write_bytes(data.draw(damaged_bytes(st.just(file.read_bytes()))))
    else:
        # Names that are no UTF-8 cannot be written.
        tensors = data.draw(changed(load_file(file), others).filter(lambda new: all(map(_is_name, new))))
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, file)


def _is_name(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


@fuzzed(st.data())
def test_an_artifact_of_any_content_is_loaded_or_refused(room: Any, trained: Workspace, data: st.DataObject) -> None:
    with room() as folder:
        store = Store(Path(shutil.copytree(trained.store_root, folder / "store")))
        artifact = data.draw(st.sampled_from(sorted(store.artifacts(), key=lambda each: each.manifest.digest)))
        file = artifact.folder / data.draw(st.sampled_from(sorted(artifact.manifest.files)))
        backbone = trained.backbone
        own = backbone.load().state_dict()
        spoil(data, file, own | {f"bert.{name}": tensor for name, tensor in own.items()})
        files = {name: sha256_file(artifact.folder / name) for name in artifact.manifest.files}
        manifest = artifact.manifest.model_copy(update={"files": files})
        (artifact.folder / MANIFEST).write_text(manifest.model_dump_json())
        task = trained.task(manifest.task)
        with suppress(PipelineError):
            place = dataclasses.replace(trained, store_root=store.root)
            model = restore(Artifact(folder=artifact.folder, manifest=manifest), task, place)
            if not manifest.recipe.bottleneck.train_layernorm:
                state = model.backbone.state_dict()
                own = {name: state[_found(name, state)] for name in backbone.tensor_names}
                assert hash_tensors(own) == backbone.weights_hash


def _found(name: str, state: Tensors) -> str:
    """Where a tensor of the backbone stands in a model that has modules in it."""
    if name in state:
        return name
    parent, _, last = name.rpartition(".")
    return next(key for key in state if key.startswith(parent) and key.endswith(f".{last}") and "adapter" not in key)
