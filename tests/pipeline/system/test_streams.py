"""Output may meet a closed pipe, a full disk or a poor encoding; none of these is a traceback or ends a run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SET_UP = "import sys\nfrom pipeline.system import streams\nstreams.set_up()\n"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="closes descriptors")


@pytest.fixture
def nobody() -> Iterator[int]:
    """A pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def full() -> Iterator[int]:
    """A file on a full disk."""
    if not Path("/dev/full").exists():
        pytest.skip("the system has no /dev/full")
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


def command(*arguments: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE) -> tuple[int, str, str]:
    return run([sys.executable, "-m", "pipeline", *arguments], stdout=stdout, stderr=stderr)


def program(code: str, *, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE) -> tuple[int, str, str]:
    return run([sys.executable, "-c", SET_UP + code], stdout=stdout, stderr=stderr)


def run(arguments: list[str], **streams: int) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(arguments, cwd=ROOT, env=environment, encoding="latin-1", timeout=200, **streams)
    return done.returncode, done.stdout or "", done.stderr or ""


@pytest.mark.parametrize("verb", [["tasks", "list"], ["studies", "show", "default"], ["extract", "--help"]])
def test_a_reader_that_has_gone_ends_the_command_quietly(verb: list[str], nobody: int) -> None:
    assert command(*verb, stdout=nobody) == (141, "", "")


def test_a_full_disk_behind_standard_output_is_one_line(full: int) -> None:
    expected = "error: cannot print the result: the disk is full. Finished work is kept\n"
    assert command("tasks", "list", stdout=full) == (2, "", expected)


def test_an_error_is_printed_once_when_standard_output_fails_too(nobody: int) -> None:
    status, _, error = command("tasks", "show", "nope", stdout=nobody)
    assert status == 2
    assert error.count("\n") == 1
    assert "unknown task 'nope'" in error


def test_standard_error_that_nobody_reads_stops_nothing(nobody: int) -> None:
    code = "for _ in range(10**4):\n  print('progress', file=sys.stderr)\nprint('result')"
    assert program(code, stderr=nobody) == (0, "result\n", "")


def test_closed_descriptors_are_given_to_no_other_file(tmp_path: Path) -> None:
    code = "file = open(sys.argv[1], 'w')\nprint('x')\nprint('y', file=sys.stderr)\nassert file.fileno() > 2"
    line = [sys.executable, "-c", SET_UP + code, str(tmp_path / "file")]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *line], cwd=ROOT, timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.long
@pytest.mark.slow
def test_a_run_whose_result_nobody_reads_is_kept(
    nobody: int, backbone_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    places = {"backbone": backbone_folder, "data": data_folder, "store": tmp_path, "reports": tmp_path}
    options = {**places, "task": "films", "bottleneck": 8, "epochs": 2}
    arguments = ["extract", *(f"--{name}={value}" for name, value in options.items())]
    assert command(*arguments, stdout=nobody, stderr=nobody)[0] == 141
    assert len(list(tmp_path.glob("runs/*/run.json"))) == 1
    assert len(list(tmp_path.glob("adapters/films/*/manifest.json"))) == 1
