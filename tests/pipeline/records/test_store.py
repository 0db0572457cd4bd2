"""Artifacts are kept, checked and removed whole; what is damaged or does not belong is refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.records.store import HEAD, LAYERNORMS, MANIFEST, Store
from pipeline.system.errors import PipelineError
from stages.archives import export_artifact
from tests.pipeline.records.artifacts import FUSED, MEANING, OTHER, SST, STS, contents, manifest, save, save_fusion
from tests.processes import left_behind


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


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


def test_an_artifact_whose_writing_fails_does_not_appear(store: Store) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save(manifest(SST), fail)
    assert store.artifacts() == []
    assert not contents(store.root)


def test_saving_again_replaces_the_artifact_whole(store: Store) -> None:
    save(store, SST, layernorms=True)
    artifact = save(store, SST, dev=0.75)
    assert not (artifact.folder / LAYERNORMS).exists()
    assert [found.manifest.dev for found in store.artifacts()] == [0.75]


def test_the_digest_tells_contents_apart(store: Store) -> None:
    first, second = save(store, SST), save(store, OTHER)
    assert first.manifest.digest != second.manifest.digest
    assert first.manifest.digest == save(store, SST, dev=0.1).manifest.digest


# Damage.


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ["adapter_config.json", "adapter.safetensors", HEAD, LAYERNORMS])
@pytest.mark.parametrize("damage", ["truncated", "changed", "longer", "missing"])
def test_damage_to_any_file_is_seen_and_told_how_to_fix(name: str, damage: str, store: Store) -> None:
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
    assert message.startswith(f"{file}: {'no such file' if damage == 'missing' else 'damaged'}")
    assert f"store remove {SST}" in message
    assert "extract --task sst" in message


def test_a_manifest_that_lists_no_files_vouches_for_nothing(store: Store) -> None:
    artifact = save(store, SST)
    values = json.loads((artifact.folder / MANIFEST).read_text())
    del values["files"]
    (artifact.folder / MANIFEST).write_text(json.dumps(values))
    (artifact.folder / "adapter.safetensors").write_bytes(b"")

    def read() -> None:
        found = store.find(SST)
        found.verify()

    with pytest.raises(PipelineError, match=str(artifact.folder)):
        read()


def replace(folder: Path, make: Callable[[Path], object]) -> None:
    (folder / MANIFEST).unlink()
    make(folder / MANIFEST)


def harm(artifact_folder: Path, **values: Any) -> None:
    """Write values into a manifest, as nobody but an attacker or another version would."""
    file = artifact_folder / MANIFEST
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


HARMS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda folder: (folder / MANIFEST).write_bytes(b""), "cannot be read"),
    "no artifact": (lambda folder: (folder / MANIFEST).write_bytes(b"{}"), "kind: missing"),
    "not text": (lambda folder: (folder / MANIFEST).write_bytes(b"\xff\xfe"), "not UTF-8 text"),
    "cut": (lambda folder: (folder / MANIFEST).write_bytes(b'{"kind": "adapter"'), "cannot be read"),
    "nested": (lambda folder: (folder / MANIFEST).write_bytes(b"[" * 100_000), "cannot be read"),
    "a folder": (lambda folder: replace(folder, Path.mkdir), "there is a folder where a file is needed"),
    "a pipe": (lambda folder: replace(folder, os.mkfifo), "not a regular file"),
    **{
        f"means {meaning}": (lambda folder, meaning=meaning: harm(folder, meaning=meaning), f"meaning: {reason}")
        for meaning, reason in (
            ({}, "kind: missing; metric: missing"),
            ({**MEANING, "classes": ["a", "a"]}, "classes: names repeat"),
            ({**MEANING, "classes": "ab"}, "classes: Input should be a valid tuple"),
            ({**MEANING, "head": "mlp"}, "a task's has kind, classes, range, metric, and no other keys"),
            ({**MEANING, "text": ["a"]}, "a task's has kind, classes, range, metric, and no other keys"),
            ({**MEANING, "strange": 1}, "strange: unknown key"),
        )
    },
    "no number": (lambda folder: harm(folder, dev=float("nan")), "dev: "),
    **{
        f"temperature {value!r}": (lambda folder, value=value: harm(folder, temperature=value), "temperature: ")
        for value in (float("nan"), float("inf"), 0, -1.5, "1.5", True, None, 1e9)
    },
    "of another run": (lambda folder: harm(folder, run=OTHER), f"says that its place is adapters/sst/{OTHER}"),
    "of another task": (lambda folder: harm(folder, task="sts"), f"says that its place is adapters/sts/{SST}"),
    "of another kind": (lambda folder: harm(folder, kind="fusion"), f"says that its place is fusions/sst/{SST}"),
    **{
        f"names {name!r}": (lambda folder, name=name: harm(folder, files={name: "0" * 64}), "files")
        for name in ("../secret", "/etc/passwd", "..", ".hidden", "a/b", "a\\b", "a\nb", "", "x" * 65, "é")
    },
    "no sha256": (lambda folder: harm(folder, files={"a": "0" * 63}), "files.a"),
}


@pytest.mark.parametrize(("harmed", "reason"), HARMS.values(), ids=HARMS)
def test_a_damaged_manifest_is_named_and_the_other_artifacts_are_still_there(
    harmed: Callable[[Path], Any], reason: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(store, SST).folder
    save(store, STS, "sts")
    harmed(folder)
    for _ in range(2):
        assert [artifact.manifest.run for artifact in store.artifacts()] == [STS]
    warning, nothing = capsys.readouterr().err.split("\n")  # once
    assert not nothing
    assert warning.startswith(f"warning: left out: {folder / MANIFEST}: ")
    assert reason in warning
    for use in (
        lambda: store.find(SST),
        store.verify,
        lambda: export_artifact(store, SST, folder.parent / "out.tar.xz"),
    ):
        with pytest.raises(PipelineError) as caught:
            use()
        assert reason in str(caught.value)
    assert not (folder.parent / "out.tar.xz").exists()
    store.find(STS).verify()
    store.remove(SST)
    assert store.verify() == 1


def test_verify_names_every_problem_at_once(store: Store) -> None:
    save_fusion(store)
    for number, run in enumerate((OTHER, "f" * 12, "0" * 12)):
        save(store, run, seed=number)
    tasks = store.root / "adapters" / "sst"
    (tasks / OTHER / HEAD).unlink()
    (tasks / ("f" * 12) / MANIFEST).write_text("{}")
    (tasks / ("0" * 12)).rename(tasks / ("1" * 12))
    shutil.rmtree(tasks / SST)
    with pytest.raises(PipelineError) as caught:
        store.verify()
    first, *lines = str(caught.value).splitlines()
    assert first == f"{store.root}: 4 problems"
    for line, said in zip(
        lines,
        (
            f"{tasks / ('1' * 12) / MANIFEST}: says that its place is adapters/sst/{'0' * 12}",
            f"{tasks / ('f' * 12) / MANIFEST}: cannot be read",
            f"{tasks / OTHER / HEAD}: no such file",
            f"fusion {FUSED} needs adapter {SST} of task 'sst'",
        ),
        strict=True,
    ):
        assert line.startswith(f"  {said}")


# Removing.


@pytest.mark.parametrize("run", ["*", "[a-f]*", "../sst/" + SST, ".", "", f"{SST}/", "A" * 12, "a" * 5000])
def test_what_is_removed_or_exported_is_named_by_its_run_alone(run: str, store: Store, tmp_path: Path) -> None:
    save(store, SST)
    for use in (lambda: store.remove(run), lambda: export_artifact(store, run, tmp_path / "out.tar.xz")):
        with pytest.raises(PipelineError, match="no artifact"):
            use()
    assert store.verify() == 1


def test_half_a_removal_leaves_no_artifact(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(store, SST).folder

    def interrupted(path: Path, **_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("pipeline.system.atomic.shutil.rmtree", interrupted)
        store.remove(SST)
    assert (store.artifacts(), store.find(SST)) == ([], None)
    (left,) = folder.parent.iterdir()
    assert left != folder
    left.rename(left_behind(folder.parent, SST))  # the command ends
    save(store, SST)
    assert list(folder.parent.iterdir()) == [folder]


def test_an_adapter_that_a_fusion_uses_is_not_removed_before_it(store: Store) -> None:
    save_fusion(store)
    assert store.users_of(STS) == [FUSED]
    with pytest.raises(PipelineError, match=f"adapter {STS} is part of fusion {FUSED}: remove what needs it first"):
        store.remove(STS)
    assert store.find(STS) is not None
    store.remove(FUSED)
    store.remove(STS)
    assert [artifact.manifest.run for artifact in store.artifacts()] == [SST]


def test_by_force_an_adapter_is_removed_whatever_needs_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    save_fusion(store)
    store.remove(SST, force=True)
    assert store.find(SST) is None
    assert capsys.readouterr().err.startswith(f"warning: adapter {SST} is part of fusion")


def test_an_adapter_that_a_fusion_uses_is_not_replaced_by_another(store: Store) -> None:
    parts = save_fusion(store)
    before = contents(store.root)
    with pytest.raises(PipelineError, match=f"adapter {SST} .* differs .* is part of fusion {FUSED}: "):
        save(store, SST, width=7)
    assert contents(store.root) == before
    # The same contents may be written again, even over a damaged manifest, and others once the fusion is gone.
    (parts[0].folder / MANIFEST).write_text("{}")
    assert save(store, SST).manifest.digest == parts[0].manifest.digest
    store.remove(FUSED)
    save(store, SST, width=7)
    assert [artifact.manifest.run for artifact in store.artifacts()] == [SST, STS]
