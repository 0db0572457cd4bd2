"""A short form of ``python -m tests.faults``, which ``make test-slow`` runs whole."""

from collections.abc import Sequence

import pytest

from tests.faults.__main__ import disturb, kill
from tests.faults.disturbances import DISTURBANCES
from tests.faults.harness import Harness, Outcome
from tests.faults.scenarios import SCENARIOS
from tests.faults.server import kill_server

QUICK = ["extract", "compare", "tasks new"]
DISTURBED = ["disk full", "clock set back", "no locks", "half-written gone"]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    return Harness(tmp_path_factory.mktemp("faults"))


@pytest.mark.slow
def test_a_killed_command_given_again_ends_as_one_that_was_never_killed(harness: Harness) -> None:
    check([*kill(harness, len(QUICK), 1, QUICK)], len(QUICK))


@pytest.mark.slow
def test_a_disturbed_command_says_so_and_ends_well_when_given_again(harness: Harness) -> None:
    check([*disturb(harness, len(DISTURBED), 1, ["extract"], DISTURBED)], len(DISTURBED))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_faults(harness: Harness) -> None:
    check([*kill(harness, 300, 2, [*SCENARIOS])], 300)
    check([*kill_server(harness.trained / "store", 30, 2)], 30)
    pairs = len(DISTURBANCES) * len(SCENARIOS)
    check([*disturb(harness, pairs, 2, [*SCENARIOS])], pairs)


def check(outcomes: Sequence[Outcome], count: int) -> None:
    assert [outcome for outcome in outcomes if outcome.problems] == []
    assert sum(outcome.met for outcome in outcomes) == count
