"""Processes that train one run together: they get the numbers of one process, one writes, and all end together."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pipeline.cli.app import main
from tests.faults.moments import Recording
from tests.forked import Forked
from tests.groups import group, run_together, statuses

Numbers = dict[tuple[object, ...], tuple[float, np.ndarray]]
CLOSE = 1e-4

# With 25 or 41 rows in batches of 8, the last batch has one row: fewer than there are processes.
STUDY = """
name = "together"
methods = ["full", "multitask", "adapter", "standard", "gated"]
targets = ["films"]
sources = ["pairs"]
seeds = [1]
limit = 41
target_limit = 25
[recipe]
bottleneck = 8
epochs = 2
batch_size = 8
head_dropout = 0.0
learning_rate = 5e-3
[rows.standard]
method = "fusion"
recipe = { fusion = "standard" }
[rows.gated]
method = "fusion"
recipe = { fusion = "gated" }
"""
FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
BY_LAYER = {"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_TRANSFORMER_CLS_TO_WRAP": "BertLayer"}
RECOMPUTED = {"FSDP_ACTIVATION_CHECKPOINTING": "true"}


@dataclass(frozen=True)
class Place:
    """A folder with a store and reports; ``root`` holds the study."""

    root: Path
    backbone: Path
    data: Path
    name: str = "one"

    @property
    def folder(self) -> Path:
        return self.root / self.name

    def options(self) -> list[str]:
        folders = {"backbone": self.backbone, "data": self.data}
        folders |= {part: self.folder / part for part in ("store", "reports")}
        return [f"--{option}={folder}" for option, folder in folders.items()]

    def compare(self, *options: str) -> list[str]:
        return ["compare", f"--study={self.root / 'together.toml'}", *options, *self.options()]

    def extract(self) -> list[str]:
        """A run that writes a checkpoint after every step."""
        recipe = f"--recipe={self.root / 'recipe.toml'}"
        return ["extract", "--task=films", "--limit=25", recipe, "--checkpoint-seconds=0.001", *self.options()]

    def numbers(self) -> Numbers:
        """Score and predictions of each run, keyed by what it trained: its name depends on its sources' contents."""
        numbers: Numbers = {}
        for file in self.folder.glob("reports/runs/*/run.json"):
            record = json.loads(file.read_text())
            table = pd.read_parquet(file.parent / "predictions.parquet")
            for task, score in sorted(record["scores"].items()):
                own = table[table["task"] == task] if "task" in table else table
                form = score["recipe"]["fusion"]["form"] if record["kind"] == "fusion" else None
                predictions = own.select_dtypes("number").to_numpy(float)
                numbers[(record["kind"], form, task, *record["scores"])] = score["dev"], predictions
        return numbers


@dataclass(frozen=True)
class Prepared:
    """Makes a process record what it writes in ``root``, and skip the report, which takes longer than training."""

    root: str
    file: str
    reports: bool

    def __call__(self) -> None:
        Recording(self.root, self.file)()
        if not self.reports:
            without_report()


def without_report() -> None:
    import stages.compare.compare

    stages.compare.compare.write_report = no_report


def no_report(_result: object, _ledger: object, folder: Path) -> None:
    (folder / "tables.md").touch()


@dataclass(frozen=True)
class Sharded:
    """For each sharded tensor that is gathered, writes to a file its size in this process and its full size."""

    file: str

    def __call__(self) -> None:
        from torch.distributed.tensor import DTensor

        without_report()
        original: Callable[[DTensor], torch.Tensor] = DTensor.full_tensor

        def noted(tensor: DTensor, **settings: Any) -> torch.Tensor:
            if tensor.ndim:  # not the gradient's norm
                with Path(self.file).open("a") as file:
                    file.write(f"{tensor.to_local().numel()} {tensor.numel()}\n")
            return original(tensor, **settings)

        DTensor.full_tensor = noted


@pytest.fixture(scope="module")
def place(backbone_folder: Path, data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("together")
    (root / "together.toml").write_text(STUDY)
    (root / "recipe.toml").write_text(
        "bottleneck = 8\nhead_dropout = 0.0\nlearning_rate = 5e-3\nbatch_size = 8\nepochs = 8\n"
    )
    return Place(root, backbone_folder, data_folder)


@pytest.fixture(scope="module")
def study(place: Place) -> Iterator[Numbers]:
    """The numbers of one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.compare.compare.write_report", no_report)
        assert main(place.compare()) == 0
    yield place.numbers()


@pytest.fixture(scope="module")
def adapter(place: Place) -> Numbers:
    one = Place(place.root, place.backbone, place.data, "adapter")
    assert main(one.extract()) == 0
    return one.numbers()


@pytest.fixture
def elsewhere(place: Place, tmp_path: Path) -> Place:
    return Place(place.root, place.backbone, place.data, str(tmp_path))


def assert_close(found: Numbers, expected: Numbers) -> None:
    assert found.keys() == expected.keys()
    for run, (score, predictions) in expected.items():
        assert found[run][0] == pytest.approx(score, abs=CLOSE), run
        assert found[run][1] == pytest.approx(predictions, abs=CLOSE), run


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_a_study_in_several_processes_is_that_of_one(size: int, study: Numbers, elsewhere: Place) -> None:
    """Only the main process writes."""
    assert len(study) == 7
    files = [elsewhere.folder / f"moments{rank}" for rank in range(size)]
    prepared = [Prepared(str(elsewhere.folder) + "/", str(file), reports=size == 2) for file in files]
    with group(elsewhere.compare(), size, prepare=lambda rank: prepared[rank]) as members:
        assert statuses(members, 120) == [0] * size, members[0].printed()
        assert all("%" not in member.printed() and "epoch" not in member.printed() for member in members[1:])
    assert_close(elsewhere.numbers(), study)
    first, *others = (file.read_text() for file in files)
    assert first.count("rename") > 20
    assert others == [""] * (size - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "number", "victims", "later"),
    [
        (2, signal.SIGKILL, [1], 2),
        (2, signal.SIGINT, [1], 2),
        pytest.param(2, signal.SIGKILL, [0], 1, marks=pytest.mark.long),
        pytest.param(1, signal.SIGTERM, [0], 4, marks=pytest.mark.long),
        pytest.param(4, signal.SIGTERM, [0, 1, 2, 3], 2, marks=pytest.mark.long),
    ],
)
def test_they_end_together_and_resume_as_any_number(
    size: int, number: signal.Signals, victims: list[int], later: int, adapter: Numbers, elsewhere: Place
) -> None:
    """Killing one process ends the others; a signal to one ends all after the same step."""
    with group(elsewhere.extract(), size) as members:
        wait_until(members, lambda: "epoch 2/8" in members[0].printed() and checkpoint_of(elsewhere) is not None)
        for victim in victims:
            members[victim].send_signal(number)
        ends = statuses(members, 20)
        printed = [member.printed() for member in members]
    for rank, (status, output) in enumerate(zip(ends, printed, strict=True)):
        assert "Traceback" not in output
        if number == signal.SIGKILL:
            assert status == (-number if rank in victims else 2)
            assert ("another process of this run has ended" in output) == (rank not in victims)
        else:
            assert status in ((128 + number, -number) if rank in victims else (128 + signal.SIGTERM,))
            assert output.count("interrupted: finished work is kept") == (rank == 0)
    assert checkpoint_of(elsewhere) is not None
    assert "epoch 1/8" not in run_together(elsewhere.extract(), later)
    assert_close(elsewhere.numbers(), adapter)
    assert checkpoint_of(elsewhere) is None


@pytest.mark.long
@pytest.mark.slow
def test_fully_sharded_training_is_that_of_one_process(study: Numbers, elsewhere: Place) -> None:
    """When stopped, it resumes sharded or not: its checkpoint is like any other."""
    command = elsewhere.compare("--methods=full", "--checkpoint-seconds=0.001")
    files = [elsewhere.folder / f"shares{rank}" for rank in range(2)]
    with group(command, 2, FSDP | BY_LAYER | RECOMPUTED, lambda rank: Sharded(str(files[rank]))) as members:
        wait_until(members, lambda: checkpoint_of(elsewhere) is not None)
        members[0].send_signal(signal.SIGTERM)
        assert statuses(members, 20)[1] == 128 + signal.SIGTERM, members[0].printed()
        assert all("Traceback" not in member.printed() for member in members)
    shares = [np.loadtxt(file).sum(axis=0) for file in files]
    assert sum(here for here, _ in shares) == pytest.approx(np.mean([whole for _, whole in shares]))
    assert max(here / whole for here, whole in shares) < 0.6
    with group(command, 2, FSDP, lambda _: without_report) as members:
        assert statuses(members, 60) == [0, 0], members[0].printed()
    assert_close(elsewhere.numbers(), {run: found for run, found in study.items() if run[0] == "full"})


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("adapter", {}, "trainable = 'adapter'"),
        ("multitask", {}, "trains 2 tasks together"),
        ("full", {"FSDP_VERSION": "1"}, "--fsdp_version 2"),
        ("full", {"FSDP_OFFLOAD_PARAMS": "true"}, "without --fsdp_offload_params"),
    ],
)
def test_what_cannot_be_sharded_is_refused(
    method: str, settings: dict[str, str], expected: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in (FSDP | settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("stages.compare.compare.write_report", no_report)
    elsewhere = Place(place.root, place.backbone, place.data, str(tmp_path))
    assert main(elsewhere.compare(f"--methods={method}")) == 2
    error = capsys.readouterr().err
    assert "FSDP is for full fine-tuning of one task" in error
    assert expected in error
    assert "Traceback" not in error


def checkpoint_of(place: Place) -> Path | None:
    return next(place.folder.glob("reports/runs/*/checkpoint/state.safetensors"), None)


def wait_until(members: list[Forked], is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        assert all(member.poll() is None for member in members), members[0].printed()
        time.sleep(0.01)
