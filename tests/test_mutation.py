"""Mutation testing: which mutants a file has, and that a mutant counts as noticed only if a test fails."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.mutation import __main__ as mutation
from tests.mutation.runner import ROOT

pytestmark = pytest.mark.long

TARGETS = tomllib.loads((ROOT / "tests/mutation/targets.toml").read_text())


@pytest.mark.parametrize("file", TARGETS)
def test_the_files_and_their_tests_exist(file: str) -> None:
    for path in (file, *TARGETS[file]):
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("file", tomllib.loads((ROOT / "tests/mutation/equivalent.toml").read_text()))
def test_what_is_named_as_equivalent_is_a_mutant_of_today(file: str) -> None:
    assert file in TARGETS
    assert mutation._mutants(file)


PROJECT = {
    "benchmarks/__init__.py": "",
    "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\n",
    "pipeline/__init__.py": "",
    "pipeline/seen.py": "def add(a, b):\n    return a + b\n",
    "pipeline/unseen.py": "def add(a, b):\n    return a + b\n",
    "stages/none.py": "x = 1\n",
    "tests/test_seen.py": "from pipeline.seen import add\n\ndef test_add():\n    assert add(1, 2) == 3\n",
    "tests/test_unseen.py": "from pipeline.unseen import add\n\ndef test_add():\n    assert add(1, 0) == 1\n",
    "tests/test_broken.py": "def test_add():\n    assert False\n",
    "targets.toml": """
"pipeline/seen.py" = ["tests/test_seen.py"]
"pipeline/unseen.py" = ["tests/test_unseen.py"]
"stages/none.py" = ["tests/test_broken.py"]
""",
    "equivalent.toml": """
[["pipeline/unseen.py"]]
reason = "what is added is nothing"
diff = '''
-return a + b
+return (a - b)
'''
""",
}
RUN = """
import pytest, sys
from pathlib import Path
from tests.mutation import __main__ as mutation, runner
mutation.ROOT = runner.ROOT = Path.cwd()
mutation._beside = lambda name: Path(name).read_text()
mutation.import_libraries = lambda: None
mutation.app(sys.argv[1:])
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments], cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_a_mutant_survives_where_no_test_fails(tmp_path: Path) -> None:
    done = run(tmp_path, "pipeline/seen.py", "pipeline/unseen.py")
    assert done.returncode == 1, done.stderr
    # In unseen.py "return a" survives, "return b" does not, and the third is known to be equivalent.
    assert done.stdout.count("survived:") == 1
    assert "survived: pipeline/unseen.py:2\n-return a + b\n+return a\n" in done.stdout
    assert [line.split()[:4] for line in done.stdout.splitlines() if line.endswith(("seen.py", "all"))] == [
        ["3", "3", "3", "0"], ["2", "2", "1", "1"], ["5", "5", "4", "1"],
    ]  # fmt: skip
    assert "80.0% noticed" in done.stdout
    assert {name: (tmp_path / name).read_text() for name in PROJECT} == PROJECT
