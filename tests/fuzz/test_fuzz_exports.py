"""Archives that are nearly exports: imported whole, with what they hold, or refused with nothing changed."""

import json
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from pipeline.records.store import MANIFEST, Manifest, Store
from pipeline.system.errors import PipelineError
from stages.archives import export_artifact, import_artifacts
from tests.fuzz.fuzz_archives import faulty
from tests.fuzz.fuzz_cases import fuzzed
from tests.fuzz.fuzz_documents import as_bytes, near_valid, texts
from tests.fuzz.fuzz_stores import make_store
from tests.pipeline.records.artifacts import FUSED, contents
from tests.tars import Member, members_of, pack


def exported() -> list[Member]:
    with tempfile.TemporaryDirectory() as scratch:
        export_artifact(make_store(Path(scratch) / "store"), FUSED, Path(scratch) / "export.tar.xz")
        return members_of(Path(scratch) / "export.tar.xz")


MEMBERS = exported()
MANIFESTS = [json.loads(member.content) for member in MEMBERS if member.name.endswith(MANIFEST)]

odd_names = st.sampled_from([
    "../../x", "/x", "a", "", "a/b/c/", "adapters/sst/" + "a" * 12, "adapters/sst/" + "a" * 12 + "/../x", "C:\\x",
    "adapters/sst/" + "a" * 12 + "/" + "n" * 5000, "adapters/../" + "a" * 12 + "/x", "a\0/b/c/d",
    "adapters/sst/" + "a" * 12 + "/./" + MANIFEST, "adapters//sst/" + "a" * 12 + "/" + MANIFEST,
    "fusions/sst/" + "a" * 12 + "/" + MANIFEST, "adapters/sst/" + "d" * 12 + "/" + MANIFEST,
])  # fmt: skip


@st.composite
def _manifest(draw: st.DrawFn, members: list[Member], name: str) -> bytes:
    """A manifest of that name that was changed, and that may list the files as they are."""
    document, folder = draw(near_valid(Manifest, MANIFESTS)), name.rpartition("/")[0]
    if draw(st.booleans()):
        files = [each for each in members if each.name.startswith(f"{folder}/") and not each.name.endswith(MANIFEST)]
        document["files"] = {each.name.rpartition("/")[2]: sha256(each.content).hexdigest() for each in files}
    if draw(st.booleans()):
        files = document.get("files") if isinstance(document.get("files"), dict) else {}
        document["files"] = {**files, draw(texts): "0" * 64} if draw(st.booleans()) else {}
    return as_bytes(document, "json")


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("stocked") / "store").root


def check_import(folder: Path, stocked: Path | None) -> None:
    """All of it or nothing, into an empty store or beside the artifacts that it may hold already."""
    root = folder / "store"
    if stocked is not None:
        shutil.copytree(stocked, root)
    before = contents(folder)
    store = Store(root)
    try:
        imported = import_artifacts(store, folder / "export.tar.xz")
    except PipelineError:
        assert contents(folder) == before
        return
    for artifact in (*imported.added, *imported.already_here):
        artifact.verify()
        assert store.find(artifact.manifest.run) == artifact


@fuzzed(faulty(MEMBERS, odd_names, MANIFEST, _manifest), st.booleans())
def test_an_archive_of_any_members_is_imported_whole_or_refused(
    room: Any, stocked: Path, members: list[Member], beside: bool
) -> None:
    with room() as folder:
        try:
            pack(folder / "export.tar.xz", members)
        except (ValueError, OSError):  # what cannot even be written
            return
        check_import(folder, stocked if beside else None)
