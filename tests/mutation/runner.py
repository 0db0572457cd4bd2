"""Runs the tests of a file on its mutants, each in a process forked from one that has imported the large libraries.

Importing torch, transformers and adapters takes longer than most test files run. The forked process imports the
project's own modules afresh, from a copy of the working tree in which one file is replaced by its mutant; commands
that a test starts run the same copy.
"""

import importlib
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COPIED = ("benchmarks", "pipeline", "stages", "tests", "pyproject.toml")
_LIBRARIES = (
    "accelerate", "adapters", "datasets", "evaluate", "pandas", "pyarrow.parquet", "pytest", "scipy.stats",
    "sklearn.metrics", "torch", "transformers.models.bert.modeling_bert",
    "transformers.models.distilbert.modeling_distilbert", "transformers.models.roberta.modeling_roberta",
)  # fmt: skip
_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Trial:
    """Test files to run with one file of the tree replaced."""

    file: str
    source: str
    tests: tuple[str, ...]
    limit: float = 600.0
    """Seconds; a mutant that takes longer has been noticed."""


@dataclass(frozen=True)
class Outcome:
    passed: bool
    seconds: float


def import_libraries() -> None:
    """As ``tests/conftest.py`` sets them up, which the forked processes then find imported."""
    os.environ.update({"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})
    os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
    for name in _LIBRARIES:
        importlib.import_module(name)


def copy_of_the_tree(folder: Path) -> Path:
    for name in _COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder


def outcomes(trials: Sequence[Trial], trees: Iterable[Path]) -> Iterator[tuple[int, Outcome]]:
    """The number of each trial with its outcome, in the order in which they end; one at a time in each of ``trees``."""
    waiting, free = list(enumerate(trials))[::-1], list(trees)
    running: dict[int, tuple[int, Trial, BaseProcess, Path, float]] = {}
    originals: dict[Path, bytes] = {}
    try:
        while waiting or running:
            while waiting and free:
                (number, trial), tree = waiting.pop(), free.pop()
                process = _fork.Process(target=_test, args=(trial, tree))
                originals[tree] = (tree / trial.file).read_bytes()
                process.start()
                running[process.sentinel] = number, trial, process, tree, time.monotonic()
            ended = wait(list(running), timeout=1.0)
            for sentinel, (number, trial, process, tree, started) in list(running.items()):
                seconds = time.monotonic() - started
                if sentinel in ended or seconds > trial.limit:
                    _end(process)
                    (tree / trial.file).write_bytes(originals[tree])
                    free.append(tree)
                    del running[sentinel]
                    yield number, Outcome(process.exitcode == 0, seconds)
    finally:
        for _, _, process, _, _ in running.values():
            _end(process)


def _end(process: BaseProcess) -> None:
    """With whatever its tests have started and left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()


def _test(trial: Trial, tree: Path) -> None:
    import pytest

    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    (tree / trial.file).write_text(trial.source, encoding="utf-8")
    os.chdir(tree)
    sys.path[:] = [str(tree), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("benchmarks", "pipeline", "stages", "tests")
    ]:
        del sys.modules[name]
    os.environ["PYTHONPATH"] = str(tree)
    # A mutant may be as old and as large as its file to the second and byte, by which compiled files are known.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={tree / 'scratch'}", *trial.tests]))
