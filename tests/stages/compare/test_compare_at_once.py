"""Commands that want the same runs at the same time: each run is trained once, and no cell fails for it."""

import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pandas as pd
import pytest

from pipeline.cli.app import main
from pipeline.records.ledger import Ledger
from pipeline.runs.workspace import Workspace
from stages.compare.compare import compare
from tests.forked import Forked
from tests.groups import run_together
from tests.runs import places
from tests.stages.compare.small import study

SMALL = {"targets": ["films", "meals"], "recipe": {"epochs": 1, "batch_size": 16, "bottleneck": 8}}


@contextmanager
def trained_by_another(run: str, ledger: Ledger, *, until: int, finishes: bool = True) -> Iterator[None]:
    """Somebody else holds the finished run ``run`` as if still training it, until ``until`` others are finished.

    Args:
        finishes: whether it has finished the run then, or was killed.
    """
    file, aside = ledger.folder(run) / "run.json", ledger.root / "aside.json"
    locked, ended = threading.Event(), threading.Event()

    def other() -> None:
        with ledger.lock(run):
            file.rename(aside)
            locked.set()
            while len(list(ledger.root.glob("*/run.json"))) < until and not ended.is_set():
                time.sleep(0.01)
            if finishes:
                aside.rename(file)

    thread = threading.Thread(target=other)
    thread.start()
    locked.wait()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("finishes", [True, False], ids=["finishes", "is killed"])
def test_cells_that_another_command_trains_come_last(
    finishes: bool, workspace: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.compare.train.POLL_SECONDS", 0.01)
    first, _ = compare(study(**SMALL), workspace, keep_weights=True)
    run = first.entries[0].run
    capsys.readouterr()
    with trained_by_another(run, workspace.ledger, until=2, finishes=finishes):
        result, folder = compare(study(methods=["full", "sequential"], **SMALL), workspace)
    assert [entry.error for entry in result.entries] == [None] * 4
    error = capsys.readouterr().err
    told = [line for line in error.splitlines() if line.startswith(("[", "waiting for"))]
    assert [line.partition("] ")[2].partition(":")[0] for line in told if line.startswith("[")] == [
        "sequential films from meals seed 0",
        "full films seed 0",
        "sequential meals from films seed 0",
    ]
    assert told[0] == f"waiting for run {run} (full films seed 0): another command is training it"
    assert ("full films seed 0 epoch 1/1" in error) == (not finishes)
    assert (folder / "index.html").is_file()


def test_what_is_finished_can_be_used_where_nothing_can_be_written(workspace: Workspace, tmp_path: Path) -> None:
    recipe, rows = tmp_path / "recipe.toml", tmp_path / "rows.csv"
    recipe.write_text("epochs = 1\nbatch_size = 16\nbottleneck = 8\n")
    rows.write_text("sentence\nthe film is good\n")
    extract = ["extract", "--task=films", f"--recipe={recipe}", *places(workspace)]
    predict = ["predict", "--target=films", f"--input={rows}", f"--output={tmp_path / 'out.csv'}", *places(workspace)]
    assert main(extract) == 0
    before = {
        path: path.stat().st_mtime_ns for root in (workspace.reports, workspace.store_root) for path in root.rglob("*")
    }
    assert (main(extract), main(predict)) == (0, 0)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.fixture
def both(tmp_path: Path) -> Path:
    file = tmp_path / "both.toml"
    file.write_text(
        'methods = ["full", "adapter"]\ntargets = ["films", "meals"]\nseeds = [1]\ncross_task = true\nlimit = 64\n'
        "[recipe]\nbottleneck = 8\nepochs = 2\nbatch_size = 8\n"
    )
    return file


@pytest.mark.long
@pytest.mark.slow
def test_four_commands_share_the_runs_of_a_study_one_is_killed_and_all_report_the_same(
    workspace: Workspace, both: Path
) -> None:
    arguments = ["compare", "--study", str(both), "--json", "--checkpoint-seconds=0", *places(workspace)]
    with ExitStack() as open_commands:
        commands = [open_commands.enter_context(closing(Forked(arguments))) for _ in range(4)]
        victim = commands[0]
        while victim.poll() is None and "epoch 1/" not in victim.printed():
            time.sleep(0.005)
        victim.kill()
        assert victim.wait(10) == -signal.SIGKILL
        assert [command.wait(200) for command in commands[1:]] == [0] * 3
        printed = [command.printed() for command in commands]
        again = open_commands.enter_context(closing(Forked(arguments)))
        assert again.wait(100) == 0
        results = {text.splitlines()[-1] for text in [*printed[1:], again.printed()]}
    assert len(results) == 1
    assert json.loads(results.pop())["failed"] == 0
    ends = Counter(re.findall(r"^(.*) epoch 2/2", "\n".join(printed), re.MULTILINE))
    assert len(ends) == 4
    # Whose process was killed between its last epoch and its record ended twice; no other did.
    assert sum(ends.values()) <= 5
    results_table = pd.read_csv(workspace.reports / "both" / "results.csv")
    assert results_table["run"].nunique() == 4
    for run in results_table["run"]:
        record = workspace.ledger.find(run)
        assert set(record.scores) == {"films", "meals"}
    assert not list(workspace.reports.rglob("*.tmp"))
    modes = {file.stat().st_mode & 0o777 for root in (workspace.reports, workspace.store_root)
             for file in root.rglob("*") if file.is_file()}  # fmt: skip
    umask = os.umask(0)
    os.umask(umask)
    assert modes == {0o666 & ~umask}


@pytest.mark.long
def test_processes_that_train_together_wait_together(workspace: Workspace, both: Path) -> None:
    """One of them asks whether a run is free; the others must not go on without it."""
    compare_both = ["compare", "--study", str(both), *places(workspace)]
    assert main([*compare_both, "--methods=full"]) == 0
    run = str(pd.read_csv(workspace.reports / "both" / "results.csv")["run"][0])
    with trained_by_another(run, workspace.ledger, until=3):
        printed = run_together(compare_both, 2)
    assert printed.count(f"waiting for run {run} (full films seed 1)") == 1
    assert "[3/3 runs] full films seed 1" in printed
    assert printed.count("page: ") == 1
