"""``python -m tests.faults --kills 300``: a table of what was killed, and every difference that it made."""

import argparse
import itertools
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.faults.disturbances import DISTURBANCES
from tests.faults.harness import Harness, Outcome
from tests.faults.scenarios import SCENARIOS
from tests.faults.server import kill_server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--servers", type=int, default=30, help="kills of the server")
    parser.add_argument("--disturbances", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PIPELINE_CACHE"] = str(Path(folder, "tokens"))
        harness = Harness(Path(folder))
        killed = list(kill(harness, options.kills, options.seed, options.commands))
        killed += kill_server(harness.trained / "store", options.servers, options.seed)
        disturbed = list(disturb(harness, options.disturbances, options.seed, options.commands))
    print(table(killed, command=lambda each: each.scenario, signal=lambda each: each.fault.signal.name))
    print(table(killed, moment=lambda each: each.fault.kind))
    print(
        table(disturbed, command=lambda each: each.scenario, disturbance=lambda each: each.fault.partition(" from")[0])
    )
    return any(outcome.problems for outcome in killed + disturbed)


def kill(harness: Harness, kills: int, seed: int, commands: Sequence[str]) -> Iterator[Outcome]:
    """So many kills, of the commands in turn; those that had ended before come in addition."""
    met = 0
    for number, command in enumerate(itertools.cycle(commands)):
        if met == kills:
            return
        draw = random.Random(f"{seed} {number}")
        outcome = harness.try_out(command, harness.draw(command, draw))
        met += outcome.met
        yield _shown(outcome)


def disturb(
    harness: Harness, count: int, seed: int, commands: Sequence[str], names: Sequence[str] = tuple(DISTURBANCES)
) -> Iterator[Outcome]:
    """So many disturbances, each with the commands in turn; those not met come in addition."""
    met = 0
    for number, (name, command) in enumerate(itertools.cycle(itertools.product(names, commands))):
        if met == count:
            return
        outcome = harness.disturb(command, name, random.Random(f"{seed} {number}"))
        met += outcome.met
        yield _shown(outcome)


def _shown(outcome: Outcome) -> Outcome:
    for problem in outcome.problems:
        print(f"{outcome.scenario}, {outcome.fault}: {problem}", file=sys.stderr, flush=True)
    return outcome


def table(outcomes: Sequence[Outcome], **groups: Callable[[Any], str]) -> str:
    """How many commands met their fault, by each of ``groups``, and for how many of them it made a difference."""
    met = [outcome for outcome in outcomes if outcome.met]
    lines = []
    for title, group in groups.items():
        counts, wrong = Counter(map(group, met)), Counter(group(each) for each in outcomes if each.problems)
        lines += [f"{title:20} times  with a difference"]
        lines += [f"{name:20} {count:5}  {wrong[name]}" for name, count in sorted(counts.items())]
        lines += [f"{'all':20} {len(met):5}  {wrong.total()}", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
