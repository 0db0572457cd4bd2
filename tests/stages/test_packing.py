"""An export is imported as it was or not at all; a file that is no export is refused in a line."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.records.store import HEAD, MANIFEST, Store
from pipeline.system.errors import PipelineError
from stages.archives import export_artifact, import_artifacts
from tests.pipeline.records.artifacts import FUSED, SST, STS, contents, save, save_fusion
from tests.tars import changed, members_of

ADAPTER = f"adapters/sst/{SST}"
FUSION_HEAD, FUSION_MANIFEST = f"fusions/sts/{FUSED}/{HEAD}", f"fusions/sts/{FUSED}/{MANIFEST}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(tmp_path / "other")


@pytest.fixture
def exported(store: Store, tmp_path: Path) -> Path:
    """A fusion with its two adapters."""
    save_fusion(store)
    export_artifact(store, FUSED, tmp_path / "out.tar.xz")
    return tmp_path / "out.tar.xz"


@pytest.fixture
def alone(store: Store, tmp_path: Path) -> Path:
    """An adapter."""
    save(store, SST)
    export_artifact(store, SST, tmp_path / "out.tar.xz")
    return tmp_path / "out.tar.xz"


def assert_refused(file: Path, store: Store, reason: str = "") -> None:
    """In one line with the file's name, and with nothing written."""
    before = contents(store.root)
    with pytest.raises(PipelineError) as caught:
        import_artifacts(store, file)
    message = str(caught.value)
    assert str(file) in message
    assert re.search(reason, message)
    assert message.isprintable()
    assert contents(store.root) == before


# Exporting.


@pytest.mark.parametrize(("run", "packed"), [(SST, [SST]), (FUSED, [SST, STS, FUSED])])
def test_what_is_exported_is_imported_bit_for_bit_with_the_adapters_of_a_fusion(
    run: str, packed: list[str], store: Store, other: Store, tmp_path: Path
) -> None:
    save_fusion(store)
    assert [artifact.manifest.run for artifact in export_artifact(store, run, tmp_path / "out.tar.xz")] == packed
    imported = import_artifacts(other, tmp_path / "out.tar.xz")
    assert ([artifact.manifest.run for artifact in imported.added], imported.already_here) == (packed, ())
    assert [artifact.manifest.run for artifact in other.artifacts()] == packed
    taken = {name: content for name, content in contents(store.root).items() if name.split("/")[2] in packed}
    assert contents(other.root) == taken
    assert len(taken) == 4 * len(packed)


def test_a_damaged_artifact_is_not_exported(store: Store, tmp_path: Path) -> None:
    parts = save_fusion(store)
    (parts[0].folder / HEAD).write_bytes(b"")
    with pytest.raises(PipelineError, match="damaged"):
        export_artifact(store, FUSED, tmp_path / "out.tar.xz")
    assert not (tmp_path / "out.tar.xz").exists()


@pytest.mark.parametrize("lost", ["its folder", "its contents"])
def test_a_fusion_without_its_adapter_is_not_exported(lost: str, store: Store, tmp_path: Path) -> None:
    parts = save_fusion(store)
    for file in parts[0].folder.iterdir():
        file.unlink()
    if lost == "its contents":
        parts[0].folder.rename(tmp_path / "old")
        store.root.rename(tmp_path / "fused")
        save(store, SST, width=7)
        (store.root / "adapters" / "sst" / SST).rename(tmp_path / "fused" / "adapters" / "sst" / SST)
        store = Store(tmp_path / "fused")
    with pytest.raises(PipelineError, match=f"fusion {FUSED} needs adapter {SST} of task 'sst'"):
        export_artifact(store, FUSED, tmp_path / "out.tar.xz")
    assert not (tmp_path / "out.tar.xz").exists()


# Importing what is there, in part or otherwise.


def test_what_is_here_with_the_same_contents_stays(exported: Path, store: Store) -> None:
    store.remove(FUSED)
    before = {file: (store.root / file).stat().st_ino for file in contents(store.root)}
    imported = import_artifacts(store, exported)
    assert [artifact.manifest.run for artifact in imported.already_here] == [SST, STS]
    assert [artifact.manifest.run for artifact in imported.added] == [FUSED]
    assert {file: (store.root / file).stat().st_ino for file in before} == before
    assert import_artifacts(store, exported).added == ()


@pytest.mark.parametrize("run", [SST, FUSED])
def test_what_is_here_with_other_contents_is_not_replaced(run: str, exported: Path, other: Store) -> None:
    place = save(other, run, "sst" if run == SST else "sts", width=7).folder
    assert_refused(exported, other, f"holds adapter {run}.*|holds fusion {run}.*")
    other.remove(run)
    assert not place.exists()
    import_artifacts(other, exported)
    assert other.verify() == 3


def test_what_is_here_and_damaged_is_not_taken_for_the_same(exported: Path, store: Store) -> None:
    (store.root / ADAPTER / HEAD).write_bytes(b"")
    with pytest.raises(PipelineError, match=f"damaged.*store remove {SST}"):
        import_artifacts(store, exported)


def test_a_fusion_over_adapters_that_are_nowhere_is_refused(exported: Path, other: Store) -> None:
    partial = changed(exported, {member.name: None for member in members_of(exported, ADAPTER)})
    before = contents(other.root)
    with pytest.raises(PipelineError, match=f"fusion {FUSED} needs adapter {SST} of task 'sst'"):
        import_artifacts(other, partial)
    assert contents(other.root) == before
    save(other, SST)
    assert len(import_artifacts(other, partial).added) == 2
    assert other.verify() == 3


KILLED = """
import os, sys
from pathlib import Path
from stages.archives import import_artifacts
from pipeline.records.store import Store

renamed, rename = 0, os.rename

def counted(*names, **options):
    global renamed
    if os.path.isdir(names[0]):
        if renamed == int(sys.argv[3]):
            os._exit(9)
        renamed += 1
    rename(*names, **options)

os.rename = counted
import_artifacts(Store(Path(sys.argv[1])), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("step", range(3))
def test_an_import_that_is_killed_leaves_no_fusion_without_its_adapters(
    step: int, exported: Path, other: Store
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, other.root, exported, str(step)], check=False)
    assert done.returncode == 9
    assert other.verify() == step
    assert FUSED not in [artifact.manifest.run for artifact in other.artifacts()]
    import_artifacts(other, exported)
    assert other.verify() == 3


# Files that are no exports.


@pytest.mark.parametrize(
    ("member", "added"),
    [("../../../x", 0), (f"{ADAPTER}/pytorch_adapter.bin", 1), (f"{ADAPTER}/x.json", 0), ("line\nbreak\x1b[2J", 1)],
)
def test_nothing_that_a_manifest_does_not_name_is_unpacked(
    member: str, added: int, alone: Path, tmp_path: Path
) -> None:
    bad, before = changed(alone, {member: b"x"}), contents(tmp_path)
    other = Store(tmp_path / "deep" / "other")
    if added:
        assert len(import_artifacts(other, bad).added) == 1
        shutil.rmtree(tmp_path / "deep")
    else:
        assert_refused(bad, other)
    assert contents(tmp_path).keys() - {bad.name} == before.keys() - {bad.name}


@pytest.mark.parametrize(
    "changes",
    [
        {FUSION_HEAD: b"damaged"},
        {FUSION_HEAD: None},
        {FUSION_MANIFEST: b"{}"},
        {FUSION_MANIFEST: b"\xff\xfe"},
        {FUSION_MANIFEST: b"[" * 100_000},
    ],
    ids=["file damaged", "file missing", "manifest damaged", "not text", "nested"],
)
def test_nothing_of_an_archive_with_damaged_artifacts_appears(
    changes: dict[str, bytes | None], exported: Path, other: Store
) -> None:
    assert_refused(changed(exported, changes), other)


def test_an_archive_whose_manifest_describes_no_task_is_refused(alone: Path, other: Store) -> None:
    """It would be the best model of its task, and keep others from being served."""
    name = f"{ADAPTER}/{MANIFEST}"
    (member,) = members_of(alone, name)
    values = json.loads(member.content)
    content = json.dumps({**values, "dev": 0.99, "meaning": {}}).encode()
    assert_refused(changed(alone, {name: content}), other, "meaning: kind: missing; metric: missing")
