"""``python -m tests.faults --kills 300``: a table of what was killed, and every difference that it made."""

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.faults.harness import Harness, Outcome
from tests.faults.scenarios import SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbs", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PIPELINE_CACHE"] = str(Path(folder, "tokens"))
        outcomes = kill(Path(folder), options.kills, options.seed, options.verbs)
    print(table(outcomes))
    return any(outcome.problems for outcome in outcomes)


def kill(folder: Path, kills: int, seed: int, verbs: list[str]) -> list[Outcome]:
    """So many kills, the verbs in turn; commands that ended before they could be killed do not count."""
    harness, outcomes, killed, number = Harness(folder), list[Outcome](), 0, 0
    while killed < kills:
        verb = verbs[number % len(verbs)]
        fault = harness.draw(verb, random.Random(f"{seed} {number}"))
        outcome = harness.try_out(verb, fault)
        outcomes.append(outcome)
        killed += outcome.killed
        number += 1
        for problem in outcome.problems:
            print(f"{verb}, {fault}: {problem}", file=sys.stderr, flush=True)
    return outcomes


def table(outcomes: list[Outcome]) -> str:
    """Kills by command and signal and by moment, and how many of them made a difference."""
    killed = [outcome for outcome in outcomes if outcome.killed]
    lines = []
    for title, group in (
        ("command", lambda outcome: outcome.scenario),
        ("signal", lambda outcome: outcome.fault.signal.name),
        ("moment", lambda outcome: outcome.fault.kind),
    ):
        counts = Counter(map(group, killed))
        wrong = Counter(group(outcome) for outcome in outcomes if outcome.problems)
        lines += [f"{title:20} kills  with a difference"]
        lines += [f"{name:20} {count:5}  {wrong[name]}" for name, count in sorted(counts.items())] + [""]
    return "\n".join([*lines, f"{len(killed)} kills, {len(outcomes) - len(killed)} commands had ended before"])


if __name__ == "__main__":
    sys.exit(main())
