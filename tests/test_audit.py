"""Advisories about dependencies are assessed, the assessments hold, and an unassessed advisory is an error."""

import ast
from pathlib import Path

import pytest

from tests.audit.__main__ import Advisory, assessed, report

ROOT = Path(__file__).parent.parent
ONE = Advisory(
    id="CVE-1",
    aliases=("GHSA-1",),
    package="torch",
    affected=">=2.8,<2.10",
    what="it burns",
    matters="no",
    why="no fire",
)


@pytest.mark.long
@pytest.mark.parametrize("advisory", assessed(), ids=lambda each: each.id)
def test_each_is_explained_to_readers_and_what_is_prevented_is_tested(advisory: Advisory) -> None:
    assert advisory.id in (ROOT / "SECURITY.md").read_text()
    assert (advisory.matters == "prevented") == (advisory.test is not None)
    assert advisory.test is None or (ROOT / advisory.test).is_file()
    assert not advisory.concerns("1000")


@pytest.mark.long
@pytest.mark.parametrize(("version", "concerned"), [("2.9.1", True), ("2.9.1+cpu", True), ("2.10.0", False)])
def test_those_of_installed_versions_are_printed(
    version: str, concerned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report([ONE], {"torch": version}, []) == 0
    said = f"torch {version}: CVE-1: it burns\n  does not matter: no fire\n"
    assert capsys.readouterr().out == (said if concerned else "")


@pytest.mark.long
def test_one_that_is_not_assessed_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    found = [("torch", "2.9.1", {"PYSEC-9", "GHSA-1"}), ("numpy", "1.0", {"CVE-2"})]
    assert report([ONE], {}, found) == 1
    assert capsys.readouterr().out.startswith("numpy 1.0: CVE-2: not assessed")


@pytest.mark.long
def test_where_the_service_is_out_of_reach_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([ONE], {}, None) == 0
    assert "cannot be reached" in capsys.readouterr().out


def test_nothing_is_unpickled_but_what_a_study_sends_to_its_own_processes() -> None:
    """Neither by torch.load nor by pickle itself."""
    own = {*(ROOT / "stages" / "compare" / "executors").glob("*.py"), ROOT / "stages" / "compare" / "train.py"}
    for file in {*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "stages").rglob("*.py")} - own:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("torch", "load"), ("pickle", "load"), ("pickle", "loads")}
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert not names & {"pickle", "dill", "joblib", "cloudpickle"}, file
