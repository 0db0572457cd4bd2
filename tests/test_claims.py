"""What the README says that fusion gains is what the archived runs of the reports say."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.records.ledger import Ledger
from pipeline.records.studies import StudyResult
from pipeline.reporting.opponents import duels
from pipeline.reporting.runs import StudyRuns
from pipeline.stats.paired import Comparison
from stages.run_archives import import_runs

ROOT = Path(__file__).parents[1]
KINDS = ("the target alone", "one adapter", "the best row without fusion")


class Claim(NamedTuple):
    """A line of the table under "What to expect"."""

    report: str
    """Its folder below the root."""
    form: str
    left_out: str
    """A target without which the means are; empty: none."""
    numbers: tuple[str, ...]
    """By kind of opponent, such as ``+0.1 (-1.6 to 1.7)``."""


def claims() -> list[Claim]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found, report, form = list[Claim](), "", ""
    for line in re.findall(r"^\| .* to .*\) \|$", text, re.MULTILINE):
        name, _, own, *numbers = (cell.strip() for cell in line.strip("|").split("|"))
        if link := re.search(r"\((reports/reference/.*)/README\.md\)", name):
            report = link[1]
        form = own.split(",")[0] if own != "the same" else form
        without = re.match(r"the same without (\w+)", name)
        found.append(Claim(report, form, without[1] if without else "", tuple(n.replace("*", "") for n in numbers)))
    return found


CLAIMS = claims()


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder with the archived runs of a report."""

    @cache
    def once(report: str) -> Path:
        folder = tmp_path_factory.mktemp("reports")
        import_runs(folder, ROOT / report / "runs.zip")
        return folder

    return once


def cells_of(claim: Claim, folder: Path) -> StudyRuns:
    """The cells of the report's study, with the runs in ``folder``."""
    study = json.loads((ROOT / claim.report / "study.json").read_text(encoding="utf-8"))
    if claim.left_out:
        study["study"]["targets"].remove(claim.left_out)
        study["entries"] = [entry for entry in study["entries"] if entry["target"] != claim.left_out]
    return StudyRuns(StudyResult.model_validate(study), Ledger(folder))


def form_of(runs: StudyRuns, row: str) -> str:
    """Of a row of fusion."""
    return runs.study.recipe_for(row, runs.study.targets[0]).fusion.form or ""


def shown(comparison: Comparison) -> str:
    """A difference of accuracies in points; one below a tenth has another digit, so that its sign can be seen."""
    points, (low, high) = 100 * comparison.difference, (100 * bound for bound in comparison.interval)
    return f"{points:+.{1 if abs(points) >= 0.05 else 2}f} ({low:.1f} to {high:.1f})"


def test_the_table_has_a_line_for_each_report() -> None:
    assert len(CLAIMS) == 10
    assert {claim.form for claim in CLAIMS} == {"gated", "standard"}


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.report}-{claim.form}-{claim.left_out}")
def test_a_line_of_the_readme_is_what_its_archive_says(claim: Claim, imported: Callable[[str], Path]) -> None:
    runs = cells_of(claim, imported(claim.report))
    of_form = [duel for duel in duels(runs) if form_of(runs, duel.line.row) == claim.form]
    line = of_form[0].line  # the first row of a form is the one that the study asks about
    found = {duel.kind: duel.comparison for duel in of_form if duel.line == line}
    assert [shown(found[kind]) for kind in KINDS] == list(claim.numbers)  # type: ignore[arg-type]
