"""doctor: what is fine, what is to be fixed, and the exit status."""

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

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


def replace_by_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize(
    ("harm", "state", "topic", "text"),
    [
        (lambda root: (root / f"store/adapters/sst/{SST}/{HEAD}").unlink(), "problem", "store", f"remove {SST}"),
        (lambda root: (root / f"reports/runs/{RUN}/run.json").write_text("{"), "problem", "ledger", "delete it"),
        (lambda root: (root / f"reports/runs/{RUN}").rename(root / "reports/runs/copy"), "problem", "ledger", "of run"),
        (lambda root: make(root / "reports/runs/killed/checkpoint/state"), "note", "ledger", "1 unfinished runs"),
        (lambda root: make(left_behind(root / "reports/few", "page") / "page"), "note", "leftovers", "next command"),
        (lambda root: replace_by_file(root / "reports"), "problem", "disk of --reports", "not a folder"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_to_fix(
    harm: Harm, state: str, topic: str, text: str, diagnosis: Diagnosis, place: Path
) -> None:
    harm(place)
    status, findings = diagnosis()
    assert status == (1 if state == "problem" else 0)
    assert any(each == state and text in found for each, found in lines_of(topic, findings)), findings


@pytest.mark.parametrize(
    ("folder", "topic", "text"),
    [
        ("reports/runs", "ledger", "Permission denied make it readable"),
        (f"reports/runs/{RUN}", "ledger", f"{RUN}/run.json: permission denied: make it readable"),
    ],
)
def test_what_may_not_be_read_is_a_finding(
    folder: str, topic: str, text: str, diagnosis: Diagnosis, place: Path
) -> None:
    with unreadable(place / folder):
        status, findings = diagnosis()
    assert status == 1
    assert any(state == "problem" and text in found for state, found in lines_of(topic, findings)), findings


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


def test_an_ensemble_that_cannot_be_read_is_a_problem(diagnosis: Diagnosis, place: Path) -> None:
    save_ensemble(place / "reports", "both", RUN)
    (place / "reports" / "ensembles" / "both" / "ensemble.json").write_text("{")
    found = [text for state, text in lines_of("ledger", diagnosis()[1]) if state == "problem"]
    assert len(found) == 1 and "ensembles/both/ensemble.json: " in found[0]


def test_many_damaged_artifacts_are_not_all_listed(diagnosis: Diagnosis, place: Path) -> None:
    for number in range(9):
        make(place / f"store/adapters/sst/{number:012x}/manifest.json")
    status, findings = diagnosis()
    problems = lines_of("store", findings)
    assert (status, len(problems), problems[-1][1]) == (1, 6, "4 more ")


@pytest.mark.parametrize(("free", "state"), [(2**20, "problem"), (2**31, "note"), (2**40, "ok")])
def test_a_disk_that_fills_up_is_seen_before_it_is_full(
    free: int, state: str, diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    _, findings = diagnosis()
    assert [lines_of(f"disk of {option}", findings)[0][0] for option in ("--store", "--reports")] == [state, state]


@pytest.fixture
def server() -> Iterator[tuple[HTTPServer, list[int]]]:
    """Answers with the status in the list."""
    answers = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(answers[0])
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield served, answers
        served.shutdown()
        thread.join()


def test_the_hub_answers_fails_or_is_not_there(
    server: tuple[HTTPServer, list[int]], diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hub() -> tuple[str, str]:
        status, findings = diagnosis()
        assert status == 0  # all that is local works without it
        (found,) = lines_of("Hub", findings)
        return found

    assert hub()[1].startswith("HF_HUB_OFFLINE is set")
    monkeypatch.setattr(doctor, "HF_HUB_OFFLINE", False)
    served, answers = server
    monkeypatch.setattr(doctor, "ENDPOINT", f"http://127.0.0.1:{served.server_port}")
    for status, state in ((200, "ok"), (503, "note")):
        answers[0] = status
        assert hub()[0] == state
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(doctor, "ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        state, text = hub()
    assert state == "note"
    assert "cannot be reached" in text
    monkeypatch.setattr(doctor, "ENDPOINT", "nonsense")
    assert hub()[0] == "note"


@pytest.mark.parametrize("topic", ["cores", "memory", "device"])
def test_the_machine_itself_is_described(topic: str, diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    monkeypatch.setattr(doctor, "free_host_bytes", lambda: 2**20)
    monkeypatch.setattr(doctor.torch.cuda, "is_available", lambda: False)
    expected = {
        "cores": ("note", "load 1000.0"),
        "memory": ("note", "0.0 GiB free"),
        "device": ("ok" if not Path("/proc/driver/nvidia/version").exists() else "note", "--precision auto is fp32"),
    }
    (state, text), (wanted, part) = lines_of(topic, diagnosis()[1])[0], expected[topic]
    assert state == wanted
    assert part in text
