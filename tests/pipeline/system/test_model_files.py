"""Files are parsed once until they change; an index is a cache, and never more than that."""

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.store import write_artifacts
from pipeline.records.ledger import Ledger
from pipeline.records.store import MANIFEST, Manifest, Store
from pipeline.system import model_files
from pipeline.system.errors import PipelineError
from pipeline.system.model_files import ModelFiles
from tests.pipeline.records.artifacts import SST, save

COUNT = 300


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("written") / "store"
    write_artifacts(root, COUNT)
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "store"))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read, in order."""
    files: list[Path] = []

    def note(model: type, file: Path, remedy: str) -> object:
        files.append(file)
        return read_model(model, file, remedy)

    read_model = model_files.read_model
    monkeypatch.setattr(model_files, "read_model", note)
    return files


def runs(root: Path) -> list[str]:
    """As another process lists them."""
    return [artifact.manifest.run for artifact in Store(root).artifacts()]


def manifest_of(root: Path, place: int = 7) -> Path:
    return sorted(root.glob(f"*/*/*/{MANIFEST}"))[place]


def test_a_listing_reads_each_manifest_once_and_the_next_reads_none(root: Path, opened: list[Path]) -> None:
    store = Store(root)
    artifacts = store.artifacts()
    assert len(opened) == len(artifacts) == COUNT
    opened.clear()
    assert store.artifacts() == Store(root).artifacts() == artifacts
    assert opened == []


def test_a_look_up_reads_one_manifest_and_no_index(root: Path, opened: list[Path]) -> None:
    (listed, *_) = Store(root).artifacts()
    opened.clear()
    (root / ".index").unlink()
    store = Store(root)
    for _ in range(3):
        assert store.find(listed.manifest.run) == listed
        assert store.find("0" * 12) is None
    assert opened == [listed.folder / MANIFEST]
    assert not (root / ".index").exists()


def test_what_is_chosen_from_the_index_is_read_from_its_manifest(root: Path, opened: list[Path]) -> None:
    runs(root)
    opened.clear()
    store = Store(root)
    chosen = store.artifacts()[9]
    assert store.current(chosen) == chosen
    assert opened == [chosen.folder / MANIFEST]


def test_a_choice_from_a_forged_index_is_refused(root: Path) -> None:
    runs(root)
    index = root / ".index"
    entries = json.loads(index.read_text().partition("\n")[2])
    forged = next(iter(entries))
    entries[forged][1]["dev"] = 1.0
    text = json.dumps(entries)
    index.write_text(f"{model_files.sha256_text(text)}\n{text}")
    store = Store(root)
    best = max(store.artifacts(), key=lambda artifact: artifact.manifest.dev)
    assert best.folder / MANIFEST == root / forged
    with pytest.raises(PipelineError, match=r"changed since it was listed.*delete .*\.index"):
        store.current(best)


def edited(file: Path) -> None:
    """In place, in as many bytes."""
    before = file.stat()
    file.write_text(file.read_text().replace('"limit": null', '"limit": 1234'))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(file: Path) -> None:
    new = file.with_name("new")
    new.write_text(file.read_text().replace('"limit": null', '"limit": 1234'))
    shutil.copystat(file, new)
    new.replace(file)


def damaged(file: Path) -> None:
    file.write_text("{}")


def removed(file: Path) -> None:
    shutil.rmtree(file.parent)


@pytest.mark.parametrize("change", [edited, replaced, damaged, removed])
@pytest.mark.parametrize("process", ["this", "another"])
def test_a_change_is_seen_and_read_alone(
    change: Callable[[Path], None], process: str, root: Path, opened: list[Path]
) -> None:
    store = Store(root)
    before = {artifact.folder: artifact for artifact in store.artifacts()}
    file = manifest_of(root)
    change(file)
    opened.clear()
    after = {a.folder: a for a in (store if process == "this" else Store(root)).artifacts()}
    assert opened == ([] if change is removed else [file])
    if change in (edited, replaced):
        assert after.pop(file.parent).manifest.limit == 1234
    before.pop(file.parent)
    assert after == before


def garbage(index: Path) -> None:
    index.write_bytes(os.urandom(500))


def cut(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-1])


def flipped(index: Path) -> None:
    index.write_text(index.read_text().replace('"seed":1,', '"seed":2,', 1))


def of_another_version(index: Path) -> None:
    text = index.read_text().partition("\n")[2].replace('"kind":', '"sort":', 1)
    index.write_text(f"{model_files.sha256_text(text)}\n{text}")


def a_folder(index: Path) -> None:
    index.unlink()
    index.mkdir()


def a_pipe(index: Path) -> None:
    index.unlink()
    os.mkfifo(index)


@pytest.mark.parametrize("harm", [Path.unlink, garbage, cut, flipped, of_another_version, a_folder, a_pipe])
def test_an_index_that_is_not_as_it_was_written_is_not_used(
    harm: Callable[[Path], None], root: Path, opened: list[Path]
) -> None:
    listed = Store(root).artifacts()
    harm(root / ".index")
    opened.clear()
    assert Store(root).artifacts() == listed
    assert len(opened) == COUNT
    opened.clear()
    assert Store(root).artifacts() == listed
    assert len(opened) == (COUNT if harm in (a_folder, a_pipe) else 0)  # what is no file is not replaced


def test_a_store_that_cannot_be_written_is_listed_all_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Path, text: str) -> None:
        raise PipelineError(f"cannot write {file}")

    monkeypatch.setattr(model_files, "write_text", refused)
    assert len(runs(root)) == COUNT


def test_several_at_once_write_one_whole_index(root: Path, opened: list[Path]) -> None:
    with ThreadPoolExecutor(4) as pool:
        for listed in pool.map(lambda _: runs(root), range(8)):
            assert len(listed) == COUNT
    opened.clear()
    assert len(runs(root)) == COUNT
    assert opened == []
    assert [file.name for file in root.iterdir() if file.name.startswith(".")] == [".index"]


def test_an_index_is_written_again_when_many_manifests_are_new_or_gone(root: Path, opened: list[Path]) -> None:
    runs(root)
    index = root / ".index"
    small = index.stat().st_size
    for artifact in Store(root).artifacts()[:10]:
        shutil.rmtree(artifact.folder)
    assert len(runs(root)) == COUNT - 10
    assert index.stat().st_size == small
    shutil.rmtree(root / "fusions")
    assert len(runs(root)) < COUNT - 50
    assert index.stat().st_size < 0.9 * small
    opened.clear()
    runs(root)
    assert opened == []


def test_an_index_goes_where_its_store_goes(root: Path, tmp_path: Path, opened: list[Path]) -> None:
    runs(root)
    root.rename(tmp_path / "moved")
    opened.clear()
    assert len(runs(tmp_path / "moved")) == COUNT
    assert opened == []


def test_what_a_manifest_leaves_out_the_index_leaves_out(root: Path) -> None:
    """A setting that came later has the default that it has now, not that of when the index was written."""
    file = manifest_of(root)
    values = json.loads(file.read_text())
    del values["recipe"]["smart"], values["pruned_from"]
    file.write_text(json.dumps(values))
    runs(root)
    (entry,) = (e for name, e in json.loads((root / ".index").read_text().partition("\n")[2]).items()
                if root / name == file)  # fmt: skip
    assert entry[1] == values
    assert Manifest.model_validate(entry[1]) in [artifact.manifest for artifact in Store(root).artifacts()]


def test_a_small_store_has_no_index(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save(store, SST)
    assert runs(tmp_path) == [SST]
    assert [file.name for file in tmp_path.iterdir()] == ["adapters"]


def test_a_run_is_read_once_until_it_changes(tmp_path: Path, opened: list[Path]) -> None:
    from tests.pipeline.records.test_ledger import CURVE, OWN, PREDICTIONS, RUN, record

    ledger = Ledger(tmp_path)
    assert (ledger.names(), ledger.find(RUN)) == ([], None)
    ledger.finish(record(), CURVE, PREDICTIONS)
    found = [ledger.find(RUN) for _ in range(3)]
    assert found[0] is found[2] is not None
    assert opened == [ledger.folder(RUN) / "run.json"]
    ledger.finish(record(scores={"sst": OWN.model_copy(update={"dev": 0.25})}), CURVE, PREDICTIONS)
    changed = ledger.find(RUN)
    assert changed is not None
    assert changed.dev == 0.25
    (ledger.root / "unfinished").mkdir()
    shutil.copytree(ledger.folder(RUN), ledger.root / "a copy")
    assert ledger.names() == [RUN, "a copy", "unfinished"]
    assert [ledger.find(name) for name in ledger.names()] == [changed, None, None]


@pytest.mark.parametrize("look", ["_stamp", "read_model"])
def test_a_file_that_is_deleted_before_any_look_at_it_is_not_there(
    look: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, real = manifest_of(root), getattr(model_files, look)

    def late(*arguments: object) -> object:
        file.unlink()
        return real(*arguments)

    monkeypatch.setattr(model_files, look, late)
    assert ModelFiles(Manifest, "delete it").read(file) is None


def test_a_link_to_nothing_is_damage(root: Path) -> None:
    file = manifest_of(root)
    file.unlink()
    file.symlink_to(root / "nothing")
    with pytest.raises(PipelineError, match="no such file"):
        ModelFiles(Manifest, "delete it").read(file)
