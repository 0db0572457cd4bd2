"""The verbs of ``store`` as a person gives them: what they print, and their exit status."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.records.store import HEAD, MANIFEST, Store
from tests.pipeline.records.artifacts import FUSED, OTHER, SST, STS, save, save_ensemble, save_fusion

Run = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def verb(store: Store, run: Callable[..., tuple[int, str, str]]) -> Run:
    """Exit status, and the lines of stdout and stderr."""

    def lines(*arguments: object) -> tuple[int, list[str], list[str]]:
        status, out, errors = run("store", *arguments, "--store", store.root)
        return status, out.splitlines(), errors.splitlines()

    return lines


@pytest.mark.parametrize("make", [lambda root: None, Path.touch])
def test_a_store_that_is_none_is_an_error(make: Callable[[Path], None], verb: Run, store: Store) -> None:
    make(store.root)
    for arguments in (["list"], ["verify"], ["remove", SST], ["export", SST, store.root.with_name("out.tar.xz")]):
        status, out, errors = verb(*arguments)
        assert (status, out) == (2, [])
        (error,) = errors
        assert error.startswith(f"error: {store.root}: no such folder")
    assert not store.root.with_name("out.tar.xz").exists()


def test_a_list_leaves_out_what_is_damaged_and_verify_is_an_error(verb: Run, store: Store) -> None:
    folder = save_fusion(store)[-1].folder
    assert verb("verify") == (0, ["3 artifacts are complete and unchanged"], [])
    (folder / MANIFEST).write_text("{}")
    (folder.parents[2] / "adapters" / "sst" / SST / HEAD).unlink()
    status, out, errors = verb("list", "--json")
    assert status == 0
    assert [line.split()[0] for line in out[:-1]] == [SST, STS]
    assert [(each["run"], each["dev"]) for each in json.loads(out[-1])["artifacts"]] == [(SST, 0.5), (STS, 0.5)]
    assert errors[0].startswith(f"warning: left out: {folder / MANIFEST}: cannot be read")
    status, out, errors = verb("verify")
    assert (status, out, len(errors)) == (2, [], 3)
    assert errors[0] == f"error: {store.root}: 2 problems"
    assert verb("remove", FUSED) == (0, [f"removed {folder}"], [])


@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n", "\u2028"])
def test_what_a_manifest_says_can_neither_steer_a_terminal_nor_forge_a_line(
    line_break: str, verb: Run, store: Store
) -> None:
    save(store, SST, backbone=f"\x1b]0;title\x07\x9b31m{line_break}{STS}  adapter  sts")
    status, (line,), errors = verb("list")
    assert (status, errors) == (0, [])
    assert line.startswith(SST) and line.isprintable()


def test_a_member_of_an_ensemble_is_removed_only_by_force(verb: Run, store: Store, tmp_path: Path) -> None:
    save(store, SST)
    reports = tmp_path / "reports"
    for name in ("one", "other"):
        save_ensemble(reports, name, SST if name == "one" else OTHER)
    member = f"run {SST} is a member of the ensemble in {reports / 'ensembles' / 'one'}"
    status, out, (error,) = verb("remove", SST, "--reports", reports)
    assert (status, out) == (2, []) and error.startswith(f"error: {member}")
    assert error.endswith(": remove what needs it first, or give --force")
    status, out, errors = verb("remove", SST, "--reports", reports, "--force")
    assert (status, errors) == (0, [f"warning: {member}"])
    assert store.find(SST) is None
