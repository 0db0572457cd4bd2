"""compare --jobs: several processes give what one gives, whichever of them is killed, interrupted or fails."""

import re
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pipeline.reporting import build
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import ExecutorName, Resources
from pipeline.system.errors import MachineError, PipelineError
from stages.compare.compare import compare
from stages.compare.executors.pool import Outcome
from stages.compare.executors.processes import executor_of, processes
from stages.compare.jobs import RemoteJob
from tests import forked
from tests.forked import Forked
from tests.runs import final_numbers
from tests.stages.compare import small
from tests.stages.compare.commands import arguments, wait_for_a_checkpoint
from tests.stages.compare.executors.test_processes import workers

Command = Callable[..., tuple[int, str, str]]
STUDY = """
methods = ["full", "adapter", "fusion", "broken", "joined"]
targets = ["films", "meals"]
seeds = [1]
limit = 64
reference = "full"
scoring = "half"
[recipe]
bottleneck = 8
epochs = 2
batch_size = 8
[tune.full]
learning_rate = [1e-4, 1e-3]
[rows.broken]
method = "full"
recipe = { learning_rate = 1e30, max_grad_norm = 1e30 }
tune = {}
[rows.joined]
method = "ensemble"
of = ["full", "adapter"]
"""
BYTES = 64 * 1024  # more than a record takes, less than a model does
FAILED = 2  # cells, one a target


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "several.toml"
    file.write_text(STUDY)
    return file


def without_figures() -> None:
    build.FIGURES = ()


@pytest.mark.long
def test_two_processes_one_of_them_killed_give_what_one_gives(
    workspace: Workspace, study: Path, tmp_path: Path
) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    # In a process too: bits depend on the number of threads.
    status, _ = forked.run(arguments(study, workspace, one), 300, prepare=without_figures)
    assert status == 2
    command = arguments(study, workspace, several, "--jobs=2", "--checkpoint-seconds=0")
    with closing(Forked(command, prepare=without_figures)) as main:
        wait_for_a_checkpoint(main, several)
        victim, _ = workers(main.pid)
        victim.kill()
        status, printed = main.wait(300), main.printed()
    assert status == 2, printed
    assert "a worker was lost (SIGKILL)" in printed
    assert final_numbers(several) == final_numbers(one)
    assert "[10/10 runs]" in printed
    assert printed.count("failed: ") == FAILED
    assert f"{FAILED} of 10 cells have no run" in printed
    assert printed.count("page: ") == 1
    for weights in one.glob("reports/runs/*/weights.safetensors"):
        assert (several / weights.relative_to(one)).read_bytes() == weights.read_bytes()
    assert {path.name for path in several.rglob(".*")} <= {".lock", ".overview.lock"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupt_reaches_all_processes_and_the_study_resumes(
    number: signal.Signals, workspace: Workspace, study: Path, run: Command, tmp_path: Path
) -> None:
    command = arguments(study, workspace, tmp_path, "--methods=adapter", "--jobs=2")
    with closing(Forked([*command, "--checkpoint-seconds=0"])) as main:
        wait_for_a_checkpoint(main, tmp_path)
        started = workers(main.pid)
        main.send_signal(number)
        assert main.wait(100) == 128 + number
        printed = main.printed()
    assert printed.splitlines()[-1].startswith("interrupted: finished work is kept")
    assert "Traceback" not in printed
    assert not any(worker.is_running() for worker in started)
    status, _, error = run(*command)
    assert status == 0, error


def test_what_is_finished_starts_no_process(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = small.study(methods=["frozen"])
    result, _ = compare(heads, workspace)

    def none() -> None:
        pytest.fail("opened")

    assert compare(heads, workspace, executor=none)[0] == result
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PipelineError, match="leave accelerate launch out"):
        compare(heads, workspace, executor=lambda: processes(2))


@pytest.mark.long
@pytest.mark.slow
def test_what_the_machine_refuses_ends_a_study_in_one_process_and_in_several(
    workspace: Workspace, run: Command, tmp_path: Path
) -> None:
    study = tmp_path / "refused.toml"
    study.write_text(f'targets = ["films", "meals"]\nmethods = ["frozen", "full"]\n{STUDY[STUDY.index("seeds") :]}')
    small_files = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (BYTES, BYTES))
    ends = []
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        command = arguments(study, workspace, folder, f"--jobs={jobs}", "--keep-weights", "--methods=frozen,full")
        status, printed = forked.run(command, 300, prepare=small_files)
        assert "failed: " not in printed
        finished = len(list(folder.glob("reports/runs/*/run.json")))
        ends.append((status, finished, re.sub(r"(?<=cannot write )\S+(?=:)", "FILE", printed.splitlines()[-1])))
    assert ends[0] == ends[1]
    assert ends[0][:2] == (2, 2)
    assert "the file size limit is reached" in ends[0][2]


class Answering:
    """A pool that carries out nothing: it keeps what it was given and ends it with these errors."""

    def __init__(self, *errors: PipelineError, memory_gb: float | None = None) -> None:
        self.at_once, self.places, self.memory_gb = 2, "", memory_gb
        self.caches: list[float] = []
        self._errors, self._running = [*errors], list[int]()

    def start(self, number: int, title: str, work: RemoteJob) -> None:
        self.caches.append(work.workspace.cache_gb)
        self._running.append(number)

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        return [(self._running.pop(0), Outcome(error=self._errors.pop(0)))]


@pytest.mark.parametrize(("cache", "memory", "expected"), [(3.0, 4.0, 2.0), (1.0, 4.0, 1.0), (3.0, None, 3.0)])
def test_caches_of_a_cell_take_half_of_its_memory_at_most(
    cache: float, memory: float | None, expected: float, workspace: Workspace
) -> None:
    pool = Answering(PipelineError("not here"), PipelineError("nor here"), memory_gb=memory)
    two = small.study(methods=["frozen"], targets=["films", "meals"])
    result, _ = compare(two, replace(workspace, cache_gb=cache), executor=lambda: nullcontext(pool))
    assert [entry.error for entry in result.entries] == ["not here", "nor here"]
    assert pool.caches == [expected, expected]


def test_after_a_refusal_of_the_machine_cells_that_run_end_and_no_other_starts(workspace: Workspace) -> None:
    pool = Answering(PipelineError("its mistake"), MachineError("full"), MachineError("full too"))
    four = small.study(methods=["frozen"], targets=["films", "meals"], seeds=[1, 2])
    with pytest.raises(MachineError, match="full$"):
        compare(four, workspace, executor=lambda: nullcontext(pool))
    assert len(pool.caches) == 3


@pytest.mark.parametrize(
    ("name", "jobs", "address", "resources", "message"),
    [
        ("local", 0, None, {}, "--jobs 0: give at least 1"),
        ("local", 2, "auto", {}, "--address auto: only --executor ray"),
        ("slurm", None, None, {"gpus": 0.5}, "Slurm gives whole GPUs"),
    ],
)
def test_what_an_executor_cannot_do(
    name: ExecutorName, jobs: int, address: str | None, resources: dict[str, float], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=message):
        executor_of(name, jobs, address, Resources(**resources), tmp_path)


@pytest.mark.parametrize(("name", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_one_message(name: ExecutorName, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"stages.compare.executors.on_{name}", raising=False)
    with pytest.raises(PipelineError, match=rf"{module} is not installed: pip install '.*\[{name}\]'"):
        executor_of(name, None, None, Resources(), Path())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cpus": 0}, "resources.cpus"),
        ({"gpus": 1.5}, "a share of one GPU"),
        ({"memory_gb": 0}, "resources.memory_gb"),
        ({"retries": -1}, "resources.retries"),
        ({"gpu": 1}, "resources.gpu: unknown key"),
    ],
)
def test_resources_are_checked_with_the_study(values: dict[str, float], message: str) -> None:
    study = {"name": "small", "methods": ["full"], "targets": ["films"], "seeds": [0], "resources": values}
    with pytest.raises(PipelineError, match=message):
        parse_study(study, "test")
