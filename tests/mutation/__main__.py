"""``python -m tests.mutation [files] [--count 150] [--seed 0] [--jobs 2]``."""

import random
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from cyclopts import App

from tests.mutation.mutations import Mutant, mutants_of
from tests.mutation.runner import ROOT, Outcome, Trial, copy_of_the_tree, import_libraries, outcomes

app = App(name="python -m tests.mutation", help=__doc__, version_flags=(), help_format="plaintext")


@app.default
def run(*files: str, count: int = 150, seed: int = 0, jobs: int = 2, share: float = 0.9) -> None:
    """Put single faults into files and run the tests meant for them; fails where too many go unnoticed.

    Parameters
    ----------
    files
        Some of those in targets.toml; all without any.
    count
        Mutants that are tried, spread over the files as all their mutants are.
    seed
        Of the sample.
    jobs
        Mutants that are tried at the same time.
    share
        How many of the mutants the tests must notice.
    """
    targets: dict[str, list[str]] = tomllib.loads(_beside("targets.toml"))
    if unknown := sorted({*files} - {*targets}):
        raise SystemExit(f"no tests are named for {', '.join(unknown)}: choose from {', '.join(targets)}")
    chosen = {file: tuple(tests) for file, tests in targets.items() if not files or file in files}
    everything = {file: _mutants(file) for file in chosen}
    sample = _sample(everything, count, seed)
    import_libraries()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        trees = [copy_of_the_tree(Path(tempfile.mkdtemp(dir=scratch))) for _ in range(jobs)]
        as_they_are = [Trial(file, (ROOT / file).read_text(encoding="utf-8"), tests) for file, tests in chosen.items()]
        seconds: dict[str, float] = {}
        for number, outcome in outcomes(as_they_are, trees):
            if not outcome.passed:
                raise SystemExit(f"{' '.join(as_they_are[number].tests)} fail without any fault: fix them first")
            seconds[as_they_are[number].file] = outcome.seconds
        trials = [Trial(m.file, m.source, chosen[m.file], limit=20 + 5 * seconds[m.file]) for m in sample]
        results: dict[Mutant, Outcome] = {}
        for number, outcome in outcomes(trials, trees):
            results[sample[number]] = outcome
            if outcome.passed:
                print(f"\nsurvived: {sample[number]}", flush=True)
            print("." if not outcome.passed else "", end="", flush=True)
    killed = _report(everything, results, time.monotonic() - started)
    if killed < share:
        raise SystemExit(f"the tests must notice {share:.0%}")


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _mutants(file: str) -> list[Mutant]:
    """Those of ``file`` but for the ones that equivalent.toml names, which must exist."""
    mutants = mutants_of(file, (ROOT / file).read_text(encoding="utf-8"))
    equivalent = [each["diff"].strip() for each in tomllib.loads(_beside("equivalent.toml")).get(file, [])]
    if stale := [diff for diff in equivalent if diff not in {mutant.diff for mutant in mutants}]:
        raise SystemExit(f"equivalent.toml names what is no mutant of {file} any more:\n{stale[0]}")
    return [mutant for mutant in mutants if mutant.diff not in equivalent]


def _sample(everything: dict[str, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    total = sum(map(len, everything.values()))
    sample: list[Mutant] = []
    for file, mutants in everything.items():
        size = min(len(mutants), max(1, round(count * len(mutants) / total)))
        sample += random.Random(f"{seed} {file}").sample(mutants, size)
    return sample


def _report(everything: dict[str, list[Mutant]], results: dict[Mutant, Outcome], seconds: float) -> float:
    """Print a line a file; returns the share that was killed."""
    print(f"\n\n{'mutants':>8}{'tried':>8}{'killed':>8}{'survived':>10}{'seconds':>9}")
    rows = {file: [results[mutant] for mutant in mutants if mutant in results] for file, mutants in everything.items()}
    for file, outcomes_ in [*rows.items(), ("all", list(results.values()))]:
        size = len(everything.get(file, [])) or sum(map(len, everything.values()))
        killed = sum(not outcome.passed for outcome in outcomes_)
        spent = sum(outcome.seconds for outcome in outcomes_)
        print(f"{size:8}{len(outcomes_):8}{killed:8}{len(outcomes_) - killed:10}{spent:9.0f}  {file}")
    print(f"{killed / len(results):.1%} noticed in {seconds:.0f} s")
    return killed / len(results)


if __name__ == "__main__":
    sys.exit(app(result_action="return_value"))
