"""doctor: what is fine, what is to be fixed, and the exit status."""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from pipeline.cli.app import main
from pipeline.records.ledger import Ledger
from pipeline.records.store import HEAD, Store
from stages import doctor
from tests.permissions import unreadable
from tests.pipeline.records.artifacts import SST, save_ensemble, save_fusion
from tests.pipeline.records.test_ledger import CURVE, PREDICTIONS, RUN, record
from tests.processes import left_behind

Diagnosis = Callable[[], tuple[int, list[tuple[str, str, str]]]]
Harm = Callable[[Path], object]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A healthy store and ledger."""
    save_fusion(Store(tmp_path / "store"))
    Ledger(tmp_path / "reports").finish(record(), CURVE, PREDICTIONS)
    return tmp_path


@pytest.fixture
def diagnosis(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Diagnosis:
    """The exit status, and each finding as state, topic, text with remedy."""
    monkeypatch.setattr(doctor, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(doctor, "resolve_precision", lambda _: "fp32")

    def run() -> tuple[int, list[tuple[str, str, str]]]:
        capsys.readouterr()
        status = main(["doctor", f"--store={place / 'store'}", f"--reports={place / 'reports'}", "--json"])
        *lines, last = capsys.readouterr().out.splitlines()
        found = json.loads(last)
        findings = [(each["state"], each["topic"], f"{each['text']} {each['remedy']}") for each in found["findings"]]
        assert [line.split()[0] for line in lines] == [state for state, _, _ in findings]
        assert found["problems"] == sum(state == "problem" for state, _, _ in findings)
        return status, findings

    return run


def lines_of(topic: str, findings: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    return [(state, text) for state, where, text in findings if where == topic]


def test_what_is_healthy_has_no_problem_and_nothing_is_written(diagnosis: Diagnosis, place: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in place.rglob("*")}
    status, findings = diagnosis()
    assert status == 0
    assert {topic for _, topic, _ in findings} >= {"versions", "cores", "memory", "device", "Hub"}
    assert "3 artifacts are complete" in lines_of("store", findings)[0][1]
    assert "1 finished runs, 0 in training" in lines_of("ledger", findings)[0][1]
    assert {file: file.stat().st_mtime_ns for file in place.rglob("*")} == before


def test_places_that_do_not_exist_yet_are_fine(diagnosis: Diagnosis, place: Path) -> None:
    for name in ("store", "reports"):
        shutil.rmtree(place / name)
    status, findings = diagnosis()
    assert (status, list(place.iterdir())) == (0, [])
    assert lines_of("store", findings) == [("ok", f"{place / 'store'}: none yet ")]


def make(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("copy"))


def replace_by_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize(
    ("harm", "state", "topic", "text"),
    [
        (lambda root: (root / f"store/adapters/sst/{SST}/{HEAD}").unlink(), "problem", "store", f"remove {SST}"),
        (lambda root: (root / f"reports/runs/{RUN}/run.json").write_text("{"), "problem", "ledger", "delete it"),
        (lambda root: rename(root / f"reports/runs/{RUN}"), "problem", "ledger", "of run"),
        (lambda root: make(root / "reports/runs/killed/checkpoint/state"), "note", "ledger", "1 unfinished runs"),
        (lambda root: make(left_behind(root / "reports/few", "page") / "page"), "note", "leftovers", "next command"),
        (lambda root: replace_by_file(root / "reports"), "problem", "disk of --reports", "not a folder"),
        (lambda root: unreadable(root / "reports/runs"), "problem", "ledger", "Permission denied make it readable"),
        (lambda root: unreadable(root / f"reports/runs/{RUN}"), "problem", "ledger", "run.json: permission denied"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_to_fix(
    harm: Harm, state: str, topic: str, text: str, diagnosis: Diagnosis, place: Path
) -> None:
    harmed = harm(place)
    with harmed if isinstance(harmed, AbstractContextManager) else nullcontext():
        status, findings = diagnosis()
    assert status == (1 if state == "problem" else 0)
    assert any(each == state and text in found for each, found in lines_of(topic, findings)), findings


def test_the_backbone_and_the_data_that_a_settings_file_names_are_looked_at(
    diagnosis: Diagnosis, place: Path, backbone_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(**values: object) -> list[tuple[str, str]]:
        (place / "pipeline.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
        status, findings = diagnosis()
        found = [*lines_of("backbone", findings), *lines_of("data", findings)]
        assert status == any(state == "problem" for state, _ in found)
        return found

    monkeypatch.chdir(place)
    (place / "mine" / "reviews").mkdir(parents=True)
    (place / "mine" / "reviews" / "task.toml").touch()
    assert found(backbone=str(backbone_folder), data=["mine", "none"]) == [
        ("ok", f"{backbone_folder}: bert "),
        ("ok", "mine, task files: 1 "),
        ("problem", "none: no such folder (--data, or data in pipeline.toml) "),
    ]
    assert found(backbone="/nope")[0][0] == "problem"
    assert found(backbone="mine")[0] == (
        "problem", "backbone 'mine': the folder has no config.json: give the folder of an encoder "
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cached", "offline", "state", "text"),
    [
        ("config.json", True, "ok", "in the Hub's cache"),
        (None, True, "problem", "unset HF_HUB_OFFLINE to download it"),
        (None, False, "ok", "downloaded from the Hub when it is needed"),
    ],
)
def test_a_backbone_on_the_hub_must_be_in_the_cache_without_the_hub(
    cached: str | None, offline: bool, state: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(doctor, "try_to_load_from_cache", lambda _name, _file: cached)
    monkeypatch.setattr(doctor, "_hub", lambda: doctor.Finding("ok", "Hub", ""))
    findings = doctor.examine(tmp_path / "reports", tmp_path / "store", "someone/encoder")
    (found,) = [finding for finding in findings if finding.topic == "backbone"]
    assert found.state == state and text in f"{found.text}: {found.remedy}"


def test_a_run_that_lost_what_it_kept_is_trained_again(diagnosis: Diagnosis, place: Path) -> None:
    lost = record("e" * 12, weights_sha256="aa", artifact="elsewhere/adapters/sst/eeeeeeeeeeee")
    Ledger(place / "reports").finish(lost, CURVE, PREDICTIONS)
    status, findings = diagnosis()
    notes = [text for state, text in lines_of("ledger", findings) if state == "note"]
    assert (status, len(notes)) == (0, 1)
    assert "1 finished runs lost their model, first eeeeeeeeeeee" in notes[0]


def test_an_ensemble_whose_member_is_gone_is_a_problem(diagnosis: Diagnosis, place: Path) -> None:
    save_ensemble(place / "reports", "both", RUN)
    assert lines_of("ensembles", diagnosis()[1]) == []
    save_ensemble(place / "reports", "both", RUN, SST)
    assert lines_of("ensembles", diagnosis()[1]) == []  # no record, but an artifact
    save_ensemble(place / "reports", "both", RUN, "e" * 12)
    ((state, text),) = lines_of("ensembles", diagnosis()[1])
    assert state == "problem" and text.startswith("ensemble both cannot predict")
