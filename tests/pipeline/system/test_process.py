"""How long the threads of a training process spin while they wait for each other."""

import os
import subprocess
import sys

import pytest

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
