"""``python -m tests.mutants [files] [--count 150] [--seed 0]``: put single faults into files and run their tests."""

import os
import random
import shutil
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.testing import run_tests
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import TestOutcome, WorkItem
from cyclopts import App

ROOT = Path(__file__).parents[1]
ANNOTATIONS = "core/ReplaceBinaryOperator_BitOr"
"""The operators that mutate ``X | None``, which no test can notice."""

app = App(name="python -m tests.mutants", help=__doc__, version_flags=(), help_format="plaintext")


@app.default
def run(*files: str, count: int = 150, seed: int = 0) -> None:
    """Sample mutants and print those that survive their tests, with the share that was killed.

    Parameters
    ----------
    files
        Files named in mutants.toml; without any, all of these.
    count
        Number of mutants, sampled from those of all files.
    seed
        Seed of the sample.
    """
    targets: dict[str, list[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    if unknown := sorted({*files} - {*targets}):
        raise SystemExit(f"no tests are named for {', '.join(unknown)}: choose from {', '.join(targets)}")
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="mutants-") as tree:
        for name in ("benchmarks", "pipeline", "stages", "tests"):
            shutil.copytree(ROOT / name, Path(tree, name))
        shutil.copy(ROOT / "pyproject.toml", tree)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = tree
        mutants = _mutants(list(files) or list(targets))
        sample = random.Random(seed).sample(mutants, min(count, len(mutants)))
        limits: dict[str, float] = {}
        survived = 0
        for number, item in enumerate(sample, 1):
            file = item.mutations[0].module_path.as_posix()
            command = f"{sys.executable} -m pytest -q -x -p no:cacheprovider {' '.join(targets[file])}"
            if file not in limits:
                limits[file] = _limit(command)
            result = mutate_and_test(item.mutations, command, limits[file])
            survived += result.test_outcome is TestOutcome.SURVIVED
            if result.test_outcome is not TestOutcome.KILLED:
                print(f"{result.test_outcome}: {result.diff or result.output}", flush=True)
            print(f"{number} of {len(sample)} mutants tried, {survived} survived", file=sys.stderr, flush=True)
    print(f"{1 - survived / len(sample):.1%} of {len(sample)} mutants killed (there are {len(mutants)})")


def _mutants(files: list[str]) -> list[WorkItem]:
    database = WorkDB("mutants.sqlite", WorkDB.Mode.create)
    init(map(Path, files), database, {})
    items = [item for item in database.work_items if not item.mutations[0].operator_name.startswith(ANNOTATIONS)]
    return sorted(items, key=lambda item: str(item.mutations))


def _limit(command: str) -> float:
    """The seconds after which a mutant counts as noticed, from a run of the tests without any."""
    started = time.monotonic()
    if run_tests(command, timeout=600)[0] is not TestOutcome.SURVIVED:
        raise SystemExit(f"without any fault this fails: {command}")
    return 20 + 5 * (time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(app(result_action="return_value"))
