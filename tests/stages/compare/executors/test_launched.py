"""A cell that several processes train together: the command that starts them, and that it works."""

import math
import os
import pickle
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from stages.compare.executors import pool
from stages.compare.executors.pool import carried_out_here, launch_command
from tests.stages.compare.executors.cells import place_in_group, refuse, until_interrupted


def test_a_process_for_each_gpu() -> None:
    command = launch_command(4, Path("work"), Path("outcome"))
    assert command[:4] == [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    assert "--num_processes=4" in command
    assert command[-4:] == ["--module", "stages.compare.executors.pool", "work", "outcome"]


def test_one_process_needs_no_launcher() -> None:
    assert carried_out_here(pickle.dumps(partial(math.sqrt, 4)), threads=1, processes=1).value == 2


@pytest.mark.long
@pytest.mark.slow
def test_the_main_process_of_a_group_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command for GPUs, which starts as many processes where there are none."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    outcome = carried_out_here(pickle.dumps(place_in_group), threads=4, processes=2)
    assert outcome.value == ("2", "0", "2")
    assert str(carried_out_here(pickle.dumps(refuse), threads=2, processes=2).error) == "fix this"


@pytest.mark.long
@pytest.mark.slow
def test_a_cell_that_is_asked_to_end_ends_all_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed instead of asked, the launcher would leave them running, with the run's lock and without a checkpoint."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")

    def interrupt() -> None:
        while len(list(tmp_path.glob("*.started"))) < 2:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        carried_out_here(pickle.dumps(partial(until_interrupted, tmp_path)), threads=2, processes=2)
    assert sorted(file.name for file in tmp_path.glob("*.interrupted")) == ["0.interrupted", "1.interrupted"]


def test_a_launcher_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "launch_command", lambda *_: [sys.executable, "-c", "raise SystemExit(3)"])
    outcome = carried_out_here(pickle.dumps(refuse), threads=2, processes=2)
    assert "accelerate launch ended with status 3" in str(outcome.error)
