"""Fifteen kills over every command that writes; ``make test-slow`` takes three hundred."""

from pathlib import Path

import pytest

from tests.faults.__main__ import kill
from tests.faults.scenarios import SCENARIOS


@pytest.mark.slow
def test_a_killed_command_given_again_ends_as_one_that_was_never_killed(tmp_path: Path) -> None:
    check(tmp_path, kills=15)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_three_hundred_kills(tmp_path: Path) -> None:
    check(tmp_path, kills=300)


def check(folder: Path, kills: int) -> None:
    outcomes = kill(folder, kills, seed=1, verbs=list(SCENARIOS))
    assert [outcome for outcome in outcomes if outcome.problems] == []
    killed = [outcome.scenario for outcome in outcomes if outcome.killed]
    assert len(killed) == kills
    assert len(set(killed)) >= 0.6 * len(SCENARIOS)
