"""A lock has one holder, until its process ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.system import atomic
from pipeline.system.atomic import is_held, locked
from pipeline.system.errors import PipelineError
from tests.processes import in_a_process, line_of

BUSY = PipelineError("busy")


def test_a_held_lock_is_never_taken_from_its_holder_however_long_it_is_silent(tmp_path: Path) -> None:
    """Nor because of what stands in its file: the file of another machine's lock once made a second holder."""
    file = tmp_path / ".lock"
    file.write_text("another machine")
    with locked(file):
        os.utime(file, (0, 0))
        assert is_held(file)
        with pytest.raises(PipelineError, match="busy"), locked(file, BUSY):
            pytest.fail("two holders")
    assert not is_held(file)


ASKED_AGAIN_AND_AGAIN = """
from pipeline.system.atomic import is_held
print("begun", flush=True)
while True:
    is_held(ROOT)
"""


def test_who_only_asks_whether_a_lock_is_held_keeps_nobody_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_ASKING_SECONDS", 5.0)  # the other process may be halted while it asks
    file = tmp_path / ".lock"
    file.touch()
    with in_a_process(ASKED_AGAIN_AND_AGAIN, file) as process:
        assert line_of(process) == "begun"
        for _ in range(3000):
            with locked(file, BUSY):
                pass


PROGRAM = """
import os
from pipeline.system import process

process.set_up()
print(os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(
    ("variables", "spin"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "passive"}, None)],
    ids=["default", "count", "policy"],
)
def test_threads_spin_for_a_moment_unless_the_user_says_otherwise(variables: dict[str, str], spin: str | None) -> None:
    others = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=others | variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(spin)
