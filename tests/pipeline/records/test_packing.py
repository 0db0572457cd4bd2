"""An export is imported as it was or not at all; a file that is no export is refused in a line."""

import copy
import io
import json
import os
import re
import stat
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pipeline.records import packing
from pipeline.records.packing import export_artifact, import_artifacts
from pipeline.records.store import HEAD, MANIFEST, SourceRun, Store
from pipeline.system import atomic
from pipeline.system.errors import PipelineError
from tests.pipeline.records.artifacts import FUSED, OTHER, SST, STS, contents, save, save_fusion

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
    export_artifact(store, FUSED, tmp_path / "out.zip")
    return tmp_path / "out.zip"


@pytest.fixture
def alone(store: Store, tmp_path: Path) -> Path:
    """An adapter."""
    save(store, SST)
    export_artifact(store, SST, tmp_path / "out.zip")
    return tmp_path / "out.zip"


def rezip(file: Path, changed: dict[str, bytes | None], added: dict[str, bytes] | None = None) -> Path:
    """The zip file with members in place of its own (None drops one) and others added."""
    target = file.with_name("changed.zip")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = changed.get(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
        for name, content in (added or {}).items():
            member = zipfile.ZipInfo("x")
            member.filename = name
            new.writestr(member, content)
    return target


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
    assert [artifact.manifest.run for artifact in export_artifact(store, run, tmp_path / "out.zip")] == packed
    imported = import_artifacts(other, tmp_path / "out.zip")
    assert ([artifact.manifest.run for artifact in imported.added], imported.already_here) == (packed, ())
    assert [artifact.manifest.run for artifact in other.artifacts()] == packed
    taken = {name: content for name, content in contents(store.root).items() if name.split("/")[2] in packed}
    assert contents(other.root) == taken
    assert len(taken) == 4 * len(packed)


def test_a_damaged_artifact_is_not_exported(store: Store, tmp_path: Path) -> None:
    parts = save_fusion(store)
    (parts[0].folder / HEAD).write_bytes(b"")
    with pytest.raises(PipelineError, match="damaged"):
        export_artifact(store, FUSED, tmp_path / "out.zip")
    assert not (tmp_path / "out.zip").exists()


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
        export_artifact(store, FUSED, tmp_path / "out.zip")
    assert not (tmp_path / "out.zip").exists()


def test_files_older_than_zip_can_say_and_files_that_are_links_are_exported(
    store: Store, other: Store, tmp_path: Path
) -> None:
    head = save(store, SST).folder / HEAD
    head.rename(tmp_path / "head")
    os.utime(tmp_path / "head", (0, 0))
    head.symlink_to(tmp_path / "head")
    export_artifact(store, SST, tmp_path / "out.zip")
    import_artifacts(other, tmp_path / "out.zip")
    assert not (other.root / ADAPTER / HEAD).is_symlink()
    assert other.verify() == 1


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
    dropped: dict[str, bytes | None] = {
        name: None for name in zipfile.ZipFile(exported).namelist() if name.startswith(ADAPTER)
    }
    changed = rezip(exported, dropped)
    before = contents(other.root)
    with pytest.raises(PipelineError, match=f"fusion {FUSED} needs adapter {SST} of task 'sst'"):
        import_artifacts(other, changed)
    assert contents(other.root) == before
    save(other, SST)
    assert len(import_artifacts(other, changed).added) == 2
    assert other.verify() == 3


def test_a_fusion_over_other_contents_of_its_adapter_is_refused(store: Store, other: Store, tmp_path: Path) -> None:
    wrong = SourceRun(task="sst", run=save(store, SST).manifest.run, digest="0" * 64)
    fusion = save(store, FUSED, "sts", kind="fusion", sources=(wrong,))
    artifact = store.find(SST)
    assert artifact is not None
    with zipfile.ZipFile(tmp_path / "out.zip", "w") as archive:
        for part in (artifact, fusion):
            for file in part.folder.iterdir():
                archive.write(file, f"{part.manifest.place}/{file.name}")
    assert_refused(tmp_path / "out.zip", other, f"fusion {FUSED} was trained over other contents of adapter {SST}")


# All or nothing.


@contextmanager
def failing_at(step: int) -> Iterator[Callable[[Path], None]]:
    """A ``new_folder`` that fails instead of letting the folder number ``step`` appear."""
    appeared = 0

    @contextmanager
    def new_folder(path: Path) -> Iterator[Path]:
        nonlocal appeared
        with atomic.new_folder(path) as folder:
            yield folder
            if appeared == step:
                raise OSError("the disk is gone")
            appeared += 1

    yield new_folder  # type: ignore[misc]


@pytest.mark.parametrize("step", range(3))
def test_an_import_that_fails_leaves_nothing(
    step: int, exported: Path, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(other, OTHER)
    before = contents(other.root)
    with failing_at(step) as new_folder, monkeypatch.context() as patched:
        patched.setattr(packing, "new_folder", new_folder)
        with pytest.raises(OSError, match="the disk is gone"):
            import_artifacts(other, exported)
    assert contents(other.root) == before
    import_artifacts(other, exported)
    assert other.verify() == 4


KILLED = """
import os, sys
from pathlib import Path
from pipeline.records.packing import import_artifacts
from pipeline.records.store import Store

renamed, rename = 0, os.rename

def counted(*names, **options):
    global renamed
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


def test_what_appears_during_an_import_is_not_replaced(
    exported: Path, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack = packing.Export.unpack

    def meanwhile(self: packing.Export, *arguments: object) -> None:
        unpack(self, *arguments)  # type: ignore[arg-type]
        if not (other.root / ADAPTER).exists():
            save(other, SST, width=7)

    monkeypatch.setattr(packing.Export, "unpack", meanwhile)
    with pytest.raises(PipelineError, match=f"holds adapter {SST} with other contents"):
        import_artifacts(other, exported)
    assert [artifact.manifest.run for artifact in other.artifacts()] == [SST]


def test_an_export_that_the_disk_has_no_room_for_is_not_begun(
    exported: Path, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.records.packing.shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    assert_refused(exported, other, r"needs [\d,]+ bytes in .*, which has 1,000")


# Files that are no exports.


@pytest.mark.parametrize(
    "member",
    [
        "../x",
        "../../../x",
        "adapters/../../x",
        "adapters/sst/../x",
        f"adapters/sst/{SST}/../{SST}/x",
        "/adapters/sst/x",
        "/etc/x",
        "x",
        "",
        f"{ADAPTER}/deeper/x",
        f"{ADAPTER}/",
        f"{ADAPTER}/x.py",
        f"{ADAPTER}/pytorch_adapter.bin",
        f"{ADAPTER}/{HEAD.upper()}",
        f"adapters/sst/{SST.upper()}/{HEAD}",
        f"adapters\\sst\\{SST}\\x",
        "line\nbreak\x1b[2J",
        "x" * 60_000,
    ],
)
def test_a_zip_that_holds_anything_else_is_refused_whole(member: str, alone: Path, tmp_path: Path) -> None:
    bad = rezip(alone, {}, {member: b"x"})
    before = contents(tmp_path)
    assert_refused(bad, Store(tmp_path / "deep" / "other"), r"changed\.zip: holds")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "changed",
    [
        {FUSION_HEAD: b"damaged"},
        {FUSION_HEAD: None},
        {FUSION_MANIFEST: b"{}"},
        {FUSION_MANIFEST: b"\xff\xfe"},
        {FUSION_MANIFEST: b"[" * 100_000},
        {FUSION_MANIFEST: None},
        {FUSION_MANIFEST: b" " * 2**21},
    ],
    ids=["file damaged", "file missing", "manifest damaged", "not text", "nested", "manifest missing", "large"],
)
def test_nothing_of_a_zip_with_damaged_artifacts_appears(
    changed: dict[str, bytes | None], exported: Path, other: Store
) -> None:
    assert_refused(rezip(exported, changed), other)


def test_a_zip_whose_manifest_describes_no_task_is_refused(alone: Path, other: Store) -> None:
    """It would be the best model of its task, and keep others from being served."""
    name = f"{ADAPTER}/{MANIFEST}"
    with zipfile.ZipFile(alone) as archive:
        values = json.loads(archive.read(name))
    content = json.dumps({**values, "dev": 0.99, "meaning": {}}).encode()
    assert_refused(rezip(alone, {name: content}), other, "meaning: kind: missing; metric: missing")


def entry(content: bytearray, name: str) -> int:
    """Where the directory of a zip file tells of ``name``."""
    return content.rindex(b"PK\x01\x02", 0, content.rindex(name.encode()))


def poked(offset: int, form: str, *values: int) -> Callable[[bytearray], None]:
    """Writes numbers into the directory's entry of the head."""
    return lambda content: struct.pack_into(form, content, entry(content, f"{ADAPTER}/{HEAD}") + offset, *values)


def repacked(**options: int) -> Callable[[bytearray], None]:
    """Compresses all members."""

    def change(content: bytearray) -> None:
        old, new = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
        with zipfile.ZipFile(new, "w", **options) as archive:  # type: ignore[call-overload]
            for name in old.namelist():
                archive.writestr(name, old.read(name))
        content[:] = new.getvalue()

    return change


def doubled(content: bytearray) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(stream := io.BytesIO(content), "a") as new:
        new.writestr(f"{ADAPTER}/{HEAD}", b"x")
    content[:] = stream.getvalue()


def tensor_flipped(content: bytearray) -> None:
    # Members are stored as they are, so a byte of a tensor can be found and changed.
    content[content.index((torch.arange(6.0) + int(SST[0], 16)).numpy().tobytes())] ^= 1


HARMS: dict[str, tuple[Callable[[bytearray], None], str]] = {
    "empty": (lambda content: content.clear(), "cannot be read"),
    "no zip": (lambda content: content.__setitem__(slice(None), b"PK no zip"), "cannot be read"),
    "no members": (lambda content: content.__setitem__(slice(None), b"PK\5\6" + bytes(18)), "holds 0 artifacts"),
    "tensor flipped": (tensor_flipped, "Bad CRC-32"),
    "deflated": (repacked(compression=zipfile.ZIP_DEFLATED), "which is compressed"),
    "LZMA": (repacked(compression=zipfile.ZIP_LZMA), "which is compressed"),
    "unknown compression": (poked(10, "<H", 99), "which is compressed"),
    "of a later version": (poked(6, "<H", 99), "cannot be read"),
    "encrypted": (poked(8, "<H", 1), "which is encrypted"),
    "strongly encrypted": (poked(8, "<H", 0x40), "cannot be read"),
    "patched": (poked(8, "<H", 0x20), "cannot be read"),
    "larger than the file": (poked(20, "<II", 2**31, 2**31), "more bytes"),
    "beyond the file": (poked(42, "<I", 2**31), "cannot be read"),
    "a link": (poked(38, "<I", (stat.S_IFLNK | 0o777) << 16), "a folder or a link"),
    "a device": (poked(38, "<I", (stat.S_IFCHR | 0o666) << 16), "a folder or a link"),
    "two of one name": (doubled, "two files of one name"),
}


@pytest.mark.parametrize(("harm", "reason"), HARMS.values(), ids=HARMS)
def test_a_zip_that_no_export_makes_is_refused(
    harm: Callable[[bytearray], None], reason: str, alone: Path, other: Store
) -> None:
    content = bytearray(alone.read_bytes())
    harm(content)
    alone.write_bytes(content)
    assert_refused(alone, other, reason)


def test_whatever_byte_of_an_export_is_cut_or_changed_it_is_refused_or_imported_as_it_was(
    alone: Path, store: Store, other: Store
) -> None:
    whole = alone.read_bytes()
    for position in range(0, len(whole), 23):
        for content in (whole[:position], whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :]):
            alone.write_bytes(content)
            try:
                import_artifacts(other, alone)
            except PipelineError as error:
                assert str(alone) in str(error)
                assert not contents(other.root)
            else:
                assert contents(other.root).keys() == contents(store.root).keys()
                assert other.verify() == 1
                other.remove(SST)


def test_members_that_overlap_are_refused(alone: Path, other: Store) -> None:
    with zipfile.ZipFile(alone, "a") as archive:
        first = archive.infolist()[0]
        for number in range(100):
            again = copy.copy(first)
            again.filename = f"{ADAPTER}/{number}"
            archive.filelist.append(again)
        archive.writestr("x", b"")  # so that the directory is written anew
    assert_refused(alone, other, "more bytes than it has")


def test_a_directory_of_very_many_members_is_not_read(other: Store, tmp_path: Path) -> None:
    file = tmp_path / "many.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(30_000):
            archive.writestr(str(number), b"")
    assert_refused(file, other, "too many members")


def test_an_export_is_written_and_read_piece_by_piece(store: Store, other: Store, tmp_path: Path) -> None:
    size = 48 * 2**20
    save(store, SST, width=size // 4)
    tracemalloc.start()
    try:
        export_artifact(store, SST, tmp_path / "out.zip")
        import_artifacts(other, tmp_path / "out.zip")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < size / 8


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "missing"])
def test_what_is_no_file_is_refused_at_once(kind: str, other: Store, tmp_path: Path) -> None:
    file = Path("/dev/zero") if kind == "device" else tmp_path / "in.zip"
    if kind == "pipe":
        os.mkfifo(file)
    if kind == "folder":
        file.mkdir()
    assert_refused(file, other, "not a regular file|no such file|there is a folder")
