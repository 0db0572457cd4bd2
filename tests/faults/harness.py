"""Kill a command, give it again, and see whether anything differs from one that was never killed."""

import hashlib
import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from pipeline.system.atomic import leftovers
from tests.faults.disturbances import DISTURBANCES
from tests.faults.moments import KINDS, Kill, Recording, mark_of
from tests.faults.scenarios import SCENARIOS, train, write_inputs
from tests.forked import Forked, run
from tests.runs import final_numbers

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_COMPARED = (".safetensors", ".csv", ".parquet", ".toml", ".onnx", ".txt", ".py")
_SCORES = ["method", "target", "seed", "split", "metric", "value", "run"]  # of results.csv; others differ each time
_LEFT = "is left over"


@dataclass(frozen=True)
class Fault:
    """When a command is killed: at a share of its time, or at one of its moments; and the signal."""

    signal: signal.Signals
    share: float | None = None
    moment: int | None = None
    kind: str = "random"


@dataclass(frozen=True)
class Outcome:
    """``met`` says whether the command met the fault, or had ended before."""

    scenario: str
    fault: Fault | str
    met: bool
    problems: Sequence[str] = ()


@dataclass(frozen=True)
class _Reference:
    seconds: float
    moments: Sequence[str]
    contents: dict[str, object]


class Harness:
    """Commands that work in copies of one folder; what they should end with is found when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._names = folder, write_inputs(folder / "inputs")
        self._references: dict[str, _Reference] = {}

    @cached_property
    def trained(self) -> Path:
        """What a user has trained before, made when a command first needs it."""
        folder = self._folder / "trained"
        self._names |= train(folder, self._names)
        return folder

    def draw(self, scenario: str, random: random.Random) -> Fault:
        """A fault: half of them at any time, half at a moment of a kind that is drawn first."""
        number = random.choice(SIGNALS)
        if random.random() < 0.5:
            return Fault(number, share=random.random())
        moments = self._reference(scenario).moments
        kind = random.choice([each for each in KINDS if each in moments])
        return Fault(number, moment=random.choice([n for n, each in enumerate(moments) if each == kind]), kind=kind)

    def try_out(self, scenario: str, fault: Fault) -> Outcome:
        """Kill the command, then give it again, until it ends; the outcome lists what is wrong by then."""
        reference, root = self._reference(scenario), self._start(scenario)
        arguments = SCENARIOS[scenario].arguments(root, self._names)
        prepare = None if fault.moment is None else Kill(str(root), fault.moment, fault.signal)
        command = Forked(arguments, prepare=prepare)
        try:
            if fault.share is not None:
                _sleep(command, fault.share * reference.seconds)
                command.send_signal(fault.signal)
            status, printed = command.wait(120), command.printed()
        finally:
            command.close()
        expected = (-fault.signal, 128 + fault.signal)
        problems = _wrong_end(status, printed, (0, *expected)) + self._differences(scenario, root, arguments)
        # A kill while it cleared up, after it had finished: given again it writes nothing, and du names what is left.
        if fault.kind in ("remove", "random"):
            problems = [problem for problem in problems if ".tmp" not in problem or not problem.endswith(_LEFT)]
        return Outcome(scenario, fault, status in expected, problems)

    def disturb(self, scenario: str, name: str, random: random.Random) -> Outcome:
        """Let the machine do what ``name`` says at one of the command's moments, then give the command again."""
        reference, root = self._reference(scenario), self._start(scenario)
        arguments = SCENARIOS[scenario].arguments(root, self._names)
        number = random.randrange(len(reference.moments))
        command = Forked(arguments, prepare=DISTURBANCES[name](str(root), number, os.environ["PIPELINE_CACHE"]))
        try:
            status, printed = command.wait(120), command.printed()
        finally:
            command.close()
        met = mark_of(str(root)).exists()
        mark_of(str(root)).unlink(missing_ok=True)
        problems = _wrong_end(status, printed, (0, 2)) + self._differences(scenario, root, arguments)
        return Outcome(scenario, f"{name} from moment {number}, {reference.moments[number]}", met, problems)

    def _differences(self, scenario: str, root: Path, arguments: Sequence[str]) -> list[str]:
        status, printed = run(arguments)
        ended = SCENARIOS[scenario].ended
        if status and not (status == 2 and ended is not None and ended in printed):
            return [f"status {status} when given again: {printed}"]
        found, expected = _contents(root), self._reference(scenario).contents
        differing = [name for name in found.keys() & expected.keys() if found[name] != expected[name]]
        problems = [f"{name} differs" for name in sorted(differing)]
        problems += [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
        problems += [f"{name} {_LEFT}" for name in sorted(found.keys() - expected.keys())]
        problems += [f"{path.relative_to(root)} {_LEFT}" for path in leftovers(root)]
        if (root / "store").is_dir():
            status, printed = run(["store", "verify", f"--store={root / 'store'}"])
            problems += [f"store verify: {printed}"] * (status != 0)
        return problems

    def _reference(self, scenario: str) -> _Reference:
        if scenario not in self._references:
            root, recorded = self._start(scenario), self._folder / "moments.txt"
            arguments = SCENARIOS[scenario].arguments(root, self._names)
            command, started = Forked(arguments, prepare=Recording(str(root), str(recorded))), time.monotonic()
            try:
                status = command.wait(120)
                seconds = time.monotonic() - started
                assert status == 0, command.printed()
            finally:
                command.close()
            self._references[scenario] = _Reference(seconds, recorded.read_text().split(), _contents(root))
            recorded.unlink()
            shutil.rmtree(root)
        return self._references[scenario]

    def _start(self, scenario: str) -> Path:
        """The folder before the command: the same path each time, for some files name it."""
        root = self._folder / "work"
        shutil.rmtree(root, ignore_errors=True)
        trained = self.trained if SCENARIOS[scenario].needs_training else None
        if trained and SCENARIOS[scenario].trained:
            shutil.copytree(trained, root)
        else:
            root.mkdir()
        (root / "out").mkdir()
        return root


def _wrong_end(status: int, printed: str, expected: Sequence[int]) -> list[str]:
    problems = [] if status in expected else [f"ended with status {status}: {printed}"]
    return problems + [f"printed a traceback: {printed}"] * ("Traceback" in printed)


def _sleep(command: Forked, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while command.poll() is None and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.01))


def _contents(root: Path) -> dict[str, object]:
    """Every file by its path below ``root``, with what of its content must not depend on when it was written."""
    contents: dict[str, object] = {f"run {run}": numbers for run, numbers in final_numbers(root).items()}
    for file in root.rglob("*"):
        if file.is_file() and not file.name.endswith(".lock"):
            contents[str(file.relative_to(root))] = _content(file)
    return contents


def _content(file: Path) -> object:
    if file.name == "results.csv":
        return pd.read_csv(file)[_SCORES].to_csv()
    # A curve is among a run's numbers; a study's tables hold seconds.
    if file.suffix not in _COMPARED or file.name == "curve.csv" or file.parent.name == "tables":
        return None
    return hashlib.sha256(file.read_bytes()).hexdigest()
