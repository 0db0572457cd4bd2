"""A store whose folders were damaged or meddled with: every verb works or refuses, and nothing outside is touched."""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from pipeline.records.store import MANIFEST, Manifest, Store
from pipeline.system.errors import PipelineError
from stages.archives import export_artifact
from tests.fuzz.fuzz_cases import fuzzed
from tests.fuzz.fuzz_documents import texts
from tests.fuzz.fuzz_stores import ADAPTERS, Fault, documents_in, faults, json_files, make_store
from tests.pipeline.records.artifacts import FUSED

with tempfile.TemporaryDirectory() as scratch:
    MANIFESTS = documents_in(make_store(Path(scratch)).root, MANIFEST)

manifests = json_files(Manifest, MANIFESTS)
runs = st.sampled_from([*ADAPTERS.values(), FUSED]) | texts


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("stocked") / "store").root


def use(store: Store, run: str, folder: Path) -> None:
    """Everything that a store is asked for, the last what deletes."""
    for artifact in store.artifacts():
        with suppress(PipelineError):
            artifact.verify()
    with suppress(PipelineError):
        store.verify()
    for named in (run, FUSED):
        with suppress(PipelineError):
            store.find(named)
        with suppress(PipelineError):
            store.users_of(named)
        with suppress(PipelineError):
            export_artifact(store, named, folder / "export.tar.xz")
    for named in (run, FUSED, *ADAPTERS.values()):
        with suppress(PipelineError):
            store.remove(named)


@fuzzed(st.lists(faults, min_size=1, max_size=3), runs)
def test_a_damaged_store_is_used_or_refused(room: Any, stocked: Path, befallen: list[Fault], run: str) -> None:
    with room() as folder:
        root = Path(shutil.copytree(stocked, folder / "store"))
        (folder / "beside").mkdir()
        (folder / "beside" / "kept").write_text("kept")
        for fault in befallen:
            fault.befall(root)
        use(Store(root), run, folder)
        assert (folder / "beside" / "kept").read_text() == "kept"


@fuzzed(manifests, st.integers(0, 2), runs)
def test_a_store_with_any_manifest_is_used_or_refused(
    room: Any, stocked: Path, content: bytes, which: int, run: str
) -> None:
    with room() as folder:
        root = Path(shutil.copytree(stocked, folder / "store"))
        sorted(root.rglob(MANIFEST))[which].write_bytes(content)
        use(Store(root), run, folder)
