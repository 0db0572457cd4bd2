"""Mutation testing: which mutants a file has, and that a mutant counts as noticed only if a test fails."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.mutation import __main__ as mutation
from tests.mutation.mutations import mutants_of
from tests.mutation.runner import ROOT

pytestmark = pytest.mark.long

CODE = '''
"""A docstring with 1 < 2."""

from torch import nn


def function(a: int = 1, *rest: "list[1]") -> None:
    """Another."""
    assert a < 2
{body}
'''


def changed(body: str) -> set[str]:
    """The replacements of a line by all its mutants."""
    source = CODE.format(body=f"    {body}")
    mutants = mutants_of("file.py", source)
    for mutant in mutants:
        ast.parse(mutant.source)
    removed = f"-{body}\n+"
    return {mutant.diff.removeprefix(removed) for mutant in mutants if mutant.diff.startswith(removed)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a < b", {"return (a <= b)"}),
        ("return a + b", {"return a", "return b", "return (a - b)"}),
        ("return a and b", {"return a", "return b", "return (a or b)"}),
        ("return not a", {"return a"}),
        ("return -a", {"return a"}),
        ("return 3", {"return 4"}),
        ("return x[-1]", {"return x[-2]"}),
        ("return True", {"return False"}),
        ("return 0.5", {"return 1.0"}),
        ("return 'text'", set()),
        ("return f'{a + 1}'", set()),
        ("return [a, b]", {"return [a]", "return [b]"}),
        ("return {a: b, c: d}", {"return {a: b}", "return {c: d}"}),
        ("return x[a:b]", {"return x[:b]", "return x[a:]"}),
        ("return x.detach()", {"return x"}),
        ("return nn.relu(x)", {"return x"}),
        ("return nn.add(a, b)", {"return nn.add(b, a)"}),
        ("return f(a, b=c)", {"return f(a)"}),
        ("return zip(a, b, strict=True)", {"return zip(b, a, strict=True)"}),
        ("return x.to(y.device)", set()),
        ("return x.to(y)", {"return x"}),
        ("return [x for x in y if z]", {"return [x for x in list(y)[:1] if z]", "return [x for x in y if True]"}),
        ("x.y = z", {"pass"}),
        ("x += y", {"pass", "x -= y"}),
        ("x.clear()", {"pass", "x"}),
        ("raise ValueError(a + 1)", {"pass"}),
        ("return a if b else c", {"return a if (not b) else c"}),
        ("assert a < b", set()),
        ("x: int | None = None", set()),
    ],
)
def test_a_line_has_these_mutants(body: str, expected: set[str]) -> None:
    assert changed(body) == expected


def test_statements_with_a_body_have_these_mutants() -> None:
    source = "if a:\n    with b(c) as d:\n        for e in f:\n            continue\n"
    assert {mutant.diff.partition("\n+")[2] for mutant in mutants_of("file.py", source)} == {
        "if (not a):", "with __import__('contextlib').nullcontext() as d:", "with c as d:",
        "for e in list(f)[:1]:", "pass",
    }  # fmt: skip


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stages/none.py"], "tests/test_broken.py fail without any fault: fix them first"),
        (["pipeline/other.py"], "no tests are named for pipeline/other.py: choose from pipeline/seen.py, "),
    ],
)
def test_what_cannot_be_tried_is_said(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 1
    assert message in done.stderr
