"""Finished studies, made without training."""

import shutil
from pathlib import Path

import pytest

from pipeline.reporting.build import build_report
from pipeline.reporting.report import Report
from pipeline.reporting.runs import StudyRuns
from tests.pipeline.reporting.synthetic import Synthetic, whole_study


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Synthetic:
    """A study with every kind of row; not to be changed."""
    return whole_study(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def own(whole: Synthetic, tmp_path: Path) -> Synthetic:
    """A copy of ``whole``, to be changed."""
    shutil.copytree(whole.reports, tmp_path / "own")
    return Synthetic(tmp_path / "own", whole.study, list(whole.entries))


@pytest.fixture(scope="session")
def runs(whole: Synthetic) -> StudyRuns:
    return StudyRuns(whole.result, whole.ledger)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``report`` has drawn its figures."""
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="session")
def report(whole: Synthetic, folder: Path) -> Report:
    return build_report(whole.result, whole.ledger, folder)
