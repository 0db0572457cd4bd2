"""Artifacts are kept, checked, packed and removed whole; what is damaged or does not belong is refused."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from pipeline.atomic import write_text
from pipeline.errors import PipelineError
from pipeline.ledger import SourceRun
from pipeline.recipe import Recipe
from pipeline.store import HEAD, LAYERNORMS, MANIFEST, Artifact, Manifest, Store, fitting_adapters, why_not_fused
from processes import WITH_WIDE_GAPS, in_a_process

SST, STS, FUSED, OTHER = "a" * 12, "b" * 12, "c" * 12, "d" * 12


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def manifest(run: str, task: str = "sst", **changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "kind": "adapter",
        "task": task,
        "run": run,
        "seed": 1,
        "limit": None,
        "recipe": Recipe(encoding="cross"),
        "train_rows": "fingerprint",
        "pair": task != "sst",
        "meaning": {"kind": "classes", "classes": ["bad", "good"], "range": None, "metric": "accuracy"},
        "metric": "accuracy",
        "dev": 0.5,
        "backbone": "nano",
        "backbone_weights": "hash of nano",
    }
    return Manifest(**values | changes)


def save(store: Store, run: str, task: str = "sst", layernorms: bool = False, **changes: Any) -> Artifact:
    def write(folder: Path) -> None:
        (folder / "adapter_config.json").write_text("{}")
        save_file({"down": torch.arange(6.0) + int(run[0], 16)}, folder / "adapter.safetensors")

    norms = {"norm": torch.ones(3)} if layernorms else {}
    return store.save(manifest(run, task, **changes), write, {"weight": torch.ones(2, 3), "bias": torch.ones(2)}, norms)


def save_fusion(store: Store) -> list[Artifact]:
    """Two adapters and a fusion of both."""
    parts = [save(store, SST), save(store, STS, "sts")]
    sources = tuple(SourceRun(task=a.manifest.task, run=a.manifest.run, digest=a.manifest.digest) for a in parts)
    return [*parts, save(store, FUSED, "sts", kind="fusion", sources=sources)]


def contents(root: Path) -> dict[str, bytes]:
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def rezip(file: Path, changed: dict[str, bytes | None], added: dict[str, bytes] | None = None) -> Path:
    """The zip file with members in place of its own (None drops one) and others added."""
    target = file.with_name("changed.zip")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = changed.get(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
        for name, content in (added or {}).items():
            new.writestr(name, content)
    return target


# Saving and finding.


def test_an_artifact_stands_complete_in_its_folder_and_is_found(store: Store) -> None:
    artifact = save(store, SST, layernorms=True)
    assert artifact.folder == store.root / "adapters" / "sst" / SST
    files = {file.name for file in artifact.folder.iterdir()}
    assert files == {"adapter_config.json", "adapter.safetensors", HEAD, LAYERNORMS, MANIFEST}
    assert set(artifact.manifest.files) == files - {MANIFEST}
    assert store.find(SST) == artifact
    assert store.find(OTHER) is None
    artifact.verify()


def test_what_was_saved_is_what_is_loaded(store: Store) -> None:
    head = nn.Linear(3, 2)
    artifact = save(store, SST, layernorms=True)
    artifact.load_head(head)
    assert head.weight.eq(1).all()
    assert load_file(artifact.folder / LAYERNORMS)["norm"].tolist() == [1, 1, 1]


def test_a_head_without_weights_has_no_file(store: Store) -> None:
    artifact = store.save(manifest(SST), lambda folder: write_text(folder / "adapter_config.json", "{}"), {}, {})
    assert list(artifact.manifest.files) == ["adapter_config.json"]
    module = nn.Identity()
    artifact.load_head(module)
    assert not module.state_dict()


def test_artifacts_are_listed_by_kind_task_and_run_and_a_store_that_is_not_there_is_empty(store: Store) -> None:
    assert store.artifacts() == []
    save_fusion(store)
    save(store, OTHER)
    assert [artifact.manifest.run for artifact in store.artifacts()] == [SST, OTHER, STS, FUSED]


def test_an_artifact_whose_writing_fails_does_not_appear(store: Store) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save(manifest(SST), fail, {}, {})
    assert store.artifacts() == []
    assert not contents(store.root)


def test_folders_still_being_written_or_without_a_manifest_do_not_count(store: Store) -> None:
    folder = save(store, SST).folder
    folder.rename(folder.with_name(f".{SST}.12345678.tmp"))
    (folder.parent / OTHER).mkdir()
    assert store.artifacts() == []


def test_saving_again_replaces_the_artifact_whole(store: Store) -> None:
    save(store, SST, layernorms=True)
    artifact = save(store, SST, dev=0.75)
    assert not (artifact.folder / LAYERNORMS).exists()
    assert [found.manifest.dev for found in store.artifacts()] == [0.75]


@pytest.mark.skipif(sys.platform != "linux", reason="two names are exchanged on Linux alone")
def test_an_artifact_is_listed_while_it_is_replaced(store: Store, tmp_path: Path) -> None:
    artifact = save(store, SST)
    shutil.copytree(artifact.folder, tmp_path / "copy")
    code = (
        WITH_WIDE_GAPS
        + """
import shutil
while True:
    with atomic.new_folder(ROOT) as new:
        shutil.copytree(ARGUMENTS[0], new, dirs_exist_ok=True)
"""
    )
    first, lists, missed = artifact.folder.stat().st_ino, 0, 0
    with in_a_process(code, artifact.folder, tmp_path / "copy"):
        while artifact.folder.stat().st_ino == first:
            time.sleep(0.01)
        while lists < 2000:
            missed += store.artifacts() != [artifact]
            lists += 1
    assert missed == 0


def test_the_next_artifact_of_a_task_clears_what_killed_processes_left(store: Store) -> None:
    parent = store.folder("adapter", "sst", OTHER).parent
    code = "from pipeline.atomic import new_folder\nwith new_folder(ROOT): os.kill(os.getpid(), signal.SIGKILL)"
    with in_a_process(code, parent / OTHER) as process:
        assert process.wait() == -signal.SIGKILL
    assert len(list(parent.iterdir())) == 1
    artifact = save(store, SST)
    assert list(parent.iterdir()) == [artifact.folder]


def test_all_files_of_an_artifact_may_be_read_by_whom_its_manifest_may(store: Store) -> None:
    """safetensors writes files that their owner alone may read."""
    files = list(save(store, SST).folder.iterdir())
    assert len(files) == 4
    assert len({file.stat().st_mode for file in files}) == 1


def test_the_digest_tells_contents_apart(store: Store) -> None:
    first, second = save(store, SST), save(store, OTHER)
    assert first.manifest.digest != second.manifest.digest
    assert first.manifest.digest == save(store, SST, dev=0.1).manifest.digest


# Damage.


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter.safetensors", HEAD, LAYERNORMS])
@pytest.mark.parametrize("damage", ["truncated", "changed", "longer", "missing"])
def test_damage_to_any_file_is_seen_and_told_how_to_mend(name: str, damage: str, store: Store) -> None:
    artifact = save(store, SST, layernorms=True)
    file = artifact.folder / name
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(
            {"truncated": whole[:-1], "changed": whole[:-1] + bytes([whole[-1] ^ 1]), "longer": whole + b"\0"}[damage]
        )
    with pytest.raises(PipelineError) as caught:
        artifact.verify()
    message = str(caught.value)
    assert message.startswith(f"{file}: {'missing' if damage == 'missing' else 'damaged'}")
    assert f"store remove {SST}" in message
    assert "extract --task sst" in message


def test_a_damaged_fusion_is_made_again_with_fuse(store: Store) -> None:
    fusion = save_fusion(store)[-1]
    (fusion.folder / HEAD).unlink()
    with pytest.raises(PipelineError, match="fuse --target sts"):
        fusion.verify()


def test_a_manifest_that_lists_no_files_vouches_for_nothing(store: Store) -> None:
    artifact = save(store, SST)
    values = json.loads((artifact.folder / MANIFEST).read_text())
    del values["files"]
    (artifact.folder / MANIFEST).write_text(json.dumps(values))
    (artifact.folder / "adapter.safetensors").write_bytes(b"")

    def read() -> None:
        found = store.find(SST)
        assert found is not None
        found.verify()

    with pytest.raises(PipelineError, match=str(artifact.folder)):
        read()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"kind": "adapter"'])
def test_a_damaged_manifest_is_named(content: bytes, store: Store) -> None:
    artifact = save(store, SST)
    (artifact.folder / MANIFEST).write_bytes(content)
    with pytest.raises(PipelineError, match=r"manifest\.json: damaged .*delete its folder") as caught:
        store.artifacts()
    assert str(artifact.folder) in str(caught.value)


# Removing.


def test_a_removed_artifact_is_gone_and_the_others_stay(store: Store) -> None:
    save(store, SST)
    save(store, OTHER)
    assert store.remove(SST).manifest.run == SST
    assert [artifact.manifest.run for artifact in store.artifacts()] == [OTHER]
    with pytest.raises(PipelineError, match=f"no artifact {SST} in "):
        store.remove(SST)


def test_an_adapter_that_a_fusion_uses_is_not_removed_before_it(store: Store) -> None:
    save_fusion(store)
    assert [user.manifest.run for user in store.users_of(STS)] == [FUSED]
    with pytest.raises(PipelineError, match=f"adapter {STS} is part of fusion {FUSED}: remove that first"):
        store.remove(STS)
    assert store.find(STS) is not None
    store.remove(FUSED)
    store.remove(STS)
    assert [artifact.manifest.run for artifact in store.artifacts()] == [SST]


@pytest.mark.parametrize("by", ["saving", "importing"])
def test_an_adapter_that_a_fusion_uses_is_not_replaced_by_another(by: str, store: Store, tmp_path: Path) -> None:
    parts = save_fusion(store)
    before = contents(store.root)

    def other(target: Store) -> None:
        def write(folder: Path) -> None:
            (folder / "adapter_config.json").write_text("{}")
            save_file({"down": torch.zeros(6)}, folder / "adapter.safetensors")

        target.save(manifest(SST), write, {}, {})

    elsewhere = Store(tmp_path / "elsewhere")
    other(elsewhere)
    elsewhere.export(SST, tmp_path / "out.zip")
    with pytest.raises(PipelineError, match=f"adapter {SST} .* differs .* fusion {FUSED} is built on it"):
        if by == "saving":
            other(store)
        else:
            store.import_from(tmp_path / "out.zip")
    assert contents(store.root) == before
    # The same contents may be written again, and others once the fusion is gone.
    assert save(store, SST).manifest.digest == parts[0].manifest.digest
    store.remove(FUSED)
    other(store)
    assert [artifact.manifest.run for artifact in store.artifacts()] == [SST, STS]


# Packing.


@pytest.mark.parametrize(("run", "packed"), [(SST, [SST]), (FUSED, [SST, STS, FUSED])])
def test_what_is_exported_is_imported_bit_for_bit_with_the_adapters_of_a_fusion(
    run: str, packed: list[str], store: Store, tmp_path: Path
) -> None:
    save_fusion(store)
    assert [artifact.manifest.run for artifact in store.export(run, tmp_path / "out.zip")] == packed
    other = Store(tmp_path / "other")
    assert {artifact.manifest.run for artifact in other.import_from(tmp_path / "out.zip")} == set(packed)
    assert [artifact.manifest.run for artifact in other.artifacts()] == packed
    taken = {name: content for name, content in contents(store.root).items() if name.split("/")[2] in packed}
    assert contents(other.root) == taken
    assert len(taken) == 4 * len(packed)


def test_importing_twice_changes_nothing(store: Store, tmp_path: Path) -> None:
    save_fusion(store)
    store.export(FUSED, tmp_path / "out.zip")
    before = contents(store.root)
    store.import_from(tmp_path / "out.zip")
    assert contents(store.root) == before


def test_a_damaged_artifact_is_not_exported(store: Store, tmp_path: Path) -> None:
    parts = save_fusion(store)
    (parts[0].folder / HEAD).write_bytes(b"")
    with pytest.raises(PipelineError, match="damaged"):
        store.export(FUSED, tmp_path / "out.zip")
    assert not (tmp_path / "out.zip").exists()


def test_a_fusion_whose_adapter_is_gone_is_not_exported(store: Store, tmp_path: Path) -> None:
    parts = save_fusion(store)
    for file in parts[0].folder.iterdir():
        file.unlink()
    with pytest.raises(PipelineError, match=f"no artifact {SST}"):
        store.export(FUSED, tmp_path / "out.zip")
    assert not (tmp_path / "out.zip").exists()


@pytest.mark.parametrize(
    "member",
    [
        "../x",
        "../../../x",
        "adapters/../../x",
        "adapters/sst/../x",
        "/adapters/sst/x",
        "/etc/x",
        "x",
        f"adapters/sst/{SST}/deeper/x",
        f"adapters/sst/{SST}/",
    ],
)
def test_a_zip_that_reaches_elsewhere_is_refused_whole(member: str, store: Store, tmp_path: Path) -> None:
    save(store, SST)
    store.export(SST, tmp_path / "out.zip")
    bad = rezip(tmp_path / "out.zip", {}, {member: b"x"})
    other = Store(tmp_path / "deep" / "other")
    before = contents(tmp_path)
    with pytest.raises(PipelineError, match=r"changed\.zip: holds"):
        other.import_from(bad)
    assert contents(tmp_path) == before
    assert other.artifacts() == []


@pytest.mark.parametrize("name", ["x.py", "pytorch_adapter.bin"])
def test_a_zip_with_a_file_that_its_manifest_does_not_know_is_refused(name: str, store: Store, tmp_path: Path) -> None:
    save(store, SST)
    store.export(SST, tmp_path / "out.zip")
    bad = rezip(tmp_path / "out.zip", {}, {f"adapters/sst/{SST}/{name}": b"x"})
    other = Store(tmp_path / "other")
    with pytest.raises(PipelineError, match="holds other files than its manifest names"):
        other.import_from(bad)
    assert not contents(other.root)


FUSION_HEAD, FUSION_MANIFEST = f"fusions/sts/{FUSED}/{HEAD}", f"fusions/sts/{FUSED}/{MANIFEST}"


@pytest.mark.parametrize(
    "changed",
    [
        {FUSION_HEAD: b"damaged"},
        {FUSION_HEAD: None},
        {FUSION_MANIFEST: b"{}"},
        {FUSION_MANIFEST: b"\xff\xfe"},
        {FUSION_MANIFEST: None},
    ],
    ids=["file damaged", "file missing", "manifest damaged", "manifest not text", "manifest missing"],
)
def test_what_is_damaged_in_a_zip_does_not_appear(
    changed: dict[str, bytes | None], store: Store, tmp_path: Path
) -> None:
    save_fusion(store)
    store.export(FUSED, tmp_path / "out.zip")
    bad = rezip(tmp_path / "out.zip", changed)
    other = Store(tmp_path / "other")
    with pytest.raises(PipelineError, match=r"changed\.zip|damaged|missing"):
        other.import_from(bad)
    assert other.find(FUSED) is None
    # Adapters may have appeared before the fusion was looked at, and then they are whole.
    for artifact in other.artifacts():
        artifact.verify()
    assert not [name for name in contents(other.root) if name.startswith("fusions/")]


def test_a_zip_with_a_damaged_member_is_refused(store: Store, tmp_path: Path) -> None:
    save(store, SST)
    store.export(SST, tmp_path / "out.zip")
    content = bytearray((tmp_path / "out.zip").read_bytes())
    # Members are stored as they are, so a byte of a tensor can be found and changed.
    tensor = (torch.arange(6.0) + int(SST[0], 16)).numpy().tobytes()
    content[content.index(tensor)] ^= 1
    (tmp_path / "out.zip").write_bytes(content)
    other = Store(tmp_path / "other")
    with pytest.raises(PipelineError, match="not a readable export"):
        other.import_from(tmp_path / "out.zip")
    assert not contents(other.root)


@pytest.mark.parametrize(
    ("content", "said"), [(None, "no such file"), (b"", "not a readable export"), (b"PK no zip", "not a readable")]
)
def test_what_is_no_zip_is_named(content: bytes | None, said: str, store: Store, tmp_path: Path) -> None:
    file = tmp_path / "in.zip"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PipelineError, match=said) as caught:
        store.import_from(file)
    assert str(file) in str(caught.value)


# What can be fused.

FITS = {"backbone_weights": "hash of nano", "encoding": "siamese", "sites": "houlsby"}
SIAMESE = Recipe(encoding="siamese")


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"task": "sts", "recipe": SIAMESE}, True),
        ({"task": "sts", "recipe": SIAMESE, "backbone": "the same under another name"}, True),
        ({"task": "sts", "recipe": SIAMESE, "backbone_weights": "others under the same name"}, False),
        ({"task": "sts", "recipe": Recipe(encoding="cross")}, False),
        ({"task": "sst", "recipe": Recipe(encoding="cross")}, True),
        ({"task": "sts", "recipe": SIAMESE.model_copy(update={"adapter": "pfeiffer"})}, False),
        ({"task": "sts", "recipe": SIAMESE.model_copy(update={"train_layernorm": True})}, False),
        ({"task": "sts", "recipe": SIAMESE, "kind": "fusion"}, False),
        ({"task": "sts", "recipe": SIAMESE.model_copy(update={"bottleneck": 8})}, True),
    ],
)
def test_an_adapter_fits_by_backbone_weights_encoding_sites_and_layernorms(
    changes: dict[str, Any], fits: bool, store: Store
) -> None:
    artifact = save(store, SST, **changes)
    found = fitting_adapters(store.artifacts(), **FITS)
    assert found == ({changes["task"]: [artifact]} if fits else {})


def test_every_reason_not_to_fuse_an_adapter_is_told() -> None:
    reasons = [
        why_not_fused(manifest(SST, "sts", recipe=recipe, backbone_weights=weights), **FITS)
        for recipe, weights in (
            (SIAMESE, "hash of nano"),
            (SIAMESE, "another hash"),
            (Recipe(encoding="cross"), "hash of nano"),
            (Recipe(encoding="siamese", adapter="pfeiffer"), "hash of nano"),
            (Recipe(encoding="siamese", train_layernorm=True), "hash of nano"),
        )
    ]
    assert reasons[0] is None
    for reason, said in zip(reasons[1:], ["backbone", "--encoding", "--adapter", "LayerNorms"], strict=True):
        assert reason is not None
        assert said in reason


def test_all_fitting_adapters_of_a_task_are_given(store: Store) -> None:
    save_fusion(store)
    save(store, OTHER, seed=2)
    found = fitting_adapters(store.artifacts(), "hash of nano", "cross", "houlsby")
    assert {task: [a.manifest.run for a in artifacts] for task, artifacts in found.items()} == {
        "sst": [SST, OTHER],
        "sts": [STS],
    }
