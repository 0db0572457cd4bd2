"""The gains of fusion claimed in README and docs/evidence.md are those of the archived runs of the reports."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import StudyResult
from pipeline.reporting.opponents import duels, leading_duels
from pipeline.reporting.rows import main_comparisons
from pipeline.reporting.runs import StudyRuns
from pipeline.stats.paired import Comparison
from stages.archives import import_runs
from stages.pool import pool, with_opponents, with_targets, with_variants

ROOT = Path(__file__).parents[1]
KINDS = ("the target alone", "sequential fine-tuning", "one adapter", "the best method without fusion")
POOLED = {
    "reports/reference/nine-targets": tuple(
        f"reports/reference/fusion-{name}" for name in ("repeat", "parts", "targets")
    )
}
"""Pooled reports, and the reports that each is made of."""
OPPONENTS = "reports/reference/pairs"
"""The report whose rows are opponents in pooled ones, on the targets that they share."""


class Claim(NamedTuple):
    """A line of the table of gains."""

    report: str
    """Its folder below the root."""
    form: str
    left_out: str
    """The target that the means leave out; empty: none."""
    variant: str
    """A row of fusion that replaces the first one if the validation rows prefer it; empty: none."""
    numbers: tuple[str, ...]
    """By kind of opponent, such as ``+0.1 (-1.6 to 1.7)``; ``-`` if the report lacks that opponent."""


def claims(page: str) -> list[Claim]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found, report, form = list[Claim](), "", ""
    for line in re.findall(r"^\| .* to .*\) \|$", text, re.MULTILINE):
        name, _, own, *numbers = (cell.strip() for cell in line.strip("|").split("|"))
        if link := re.search(r"\((?:\.\./)?(reports/reference/.*)/README\.md\)", name):
            report = link[1]
        form = own.split(",")[0] if not own.startswith("the same") else form
        without = re.match(r"the same without (\w+)", name)
        variant = "even" if "even gates" in own else ""
        numbers = [number.replace("*", "") for number in numbers]
        found.append(Claim(report, form, without[1] if without else "", variant, tuple(numbers)))
    return found


CLAIMS = claims("docs/evidence.md")


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder with the archived runs of some reports: one per single report, and a common one for those of a pool."""
    together, pool = tmp_path_factory.mktemp("pool"), {OPPONENTS}.union(*POOLED.values())

    @cache
    def once(report: str) -> Path:
        folder = together if report in pool else tmp_path_factory.mktemp("reports")
        import_runs(folder, ROOT / report / "runs.tar.xz")
        return folder

    def imported(*reports: str) -> Path:
        return [once(report) for report in reports][-1]

    return imported


def cells_of(report: str, left_out: str, folder: Path) -> StudyRuns:
    """The cells of a report's study without those of one target, with the runs in ``folder``."""
    result = StudyResult.model_validate_json((ROOT / report / "study.json").read_text(encoding="utf-8"))
    some = with_targets(result, [target for target in result.study.targets if target != left_out])
    return StudyRuns(some, Ledger(folder))


def form_of(runs: StudyRuns, row: str) -> str:
    """The form of a row of fusion."""
    return runs.study.recipe_for(row, runs.study.targets[0]).fusion.form or ""


def shown(comparison: Comparison) -> str:
    """A difference of accuracies in points; below a tenth it has another digit, so that its sign shows."""
    values = (100 * value for value in (comparison.difference, *comparison.interval))
    points, low, high = (f"{value:+.{1 if abs(value) >= 0.05 else 2}f}" for value in values)
    return f"{points} ({low.removeprefix('+')} to {high.removeprefix('+')})"


def test_the_table_has_a_line_for_each_report() -> None:
    assert len(CLAIMS) == 16
    assert {claim.form for claim in CLAIMS} == {"gated", "standard"}


def test_the_lines_of_the_readme_are_lines_of_the_table() -> None:
    lines = claims("README.md")
    assert len(lines) == 3 and {*lines} < {*CLAIMS}


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim",
    [pytest.param(c, marks=[pytest.mark.long] * (c.variant != "" or c.left_out != "")) for c in CLAIMS],
    ids=lambda claim: f"{claim.report}-{claim.form}-{claim.left_out}{claim.variant}",
)
def test_a_line_of_the_table_is_what_its_archive_says(claim: Claim, imported: Callable[..., Path]) -> None:
    found = pooled(claim, imported) if claim.report in POOLED else reported(claim, imported(claim.report))
    assert tuple(shown(found[kind]) if kind in found else "-" for kind in KINDS) == claim.numbers


def reported(claim: Claim, folder: Path) -> dict[str, Comparison]:
    """A report's comparisons of the first fusion of a form, by kind of opponent."""
    runs = cells_of(claim.report, claim.left_out, folder)
    of_form = [duel for duel in duels(runs) if form_of(runs, duel.line.row) == claim.form]
    line = of_form[0].line  # the first row of a form is the one that the study asks about
    return {duel.kind: duel.comparison for duel in of_form if duel.line == line and duel.comparison is not None}


def pooled(claim: Claim, imported: Callable[..., Path]) -> dict[str, Comparison]:
    """The comparisons of several reports, pooled."""
    reports = POOLED[claim.report]
    folder = imported(*reports, OPPONENTS)
    others = cells_of(OPPONENTS, "", folder).result
    results = [with_opponents(cells_of(report, claim.left_out, folder).result, others) for report in reports]
    if claim.variant:
        results = [with_variants(result, [claim.variant]) for result in results]
    found = pool([StudyRuns(result, Ledger(folder)) for result in results])
    return {each.kind: each.comparison for each in found if each.comparison is not None}


def scored_rows(folder: Path, target: str) -> set[str]:
    """The ids of a task's test rows on which the runs in a folder were scored."""
    tables = [pd.read_parquet(file) for file in predictions_on(folder, target)]
    return {row for table in tables if "split" in table for row in table.loc[table["split"] == "test", "id"]}


def predictions_on(folder: Path, target: str) -> list[Path]:
    """The files with predictions for a task by the runs in a folder."""
    records = [RunRecord.model_validate_json(file.read_text()) for file in (folder / "runs").glob("*/run.json")]
    names = {record.run: "" if record.trained_on[0] == target else f"-{target}" for record in records}
    files = (folder / "runs" / run / f"predictions{name}.parquet" for run, name in names.items())
    return [file for file in files if file.is_file()]


@pytest.mark.long
@pytest.mark.slow
def test_fusion_parts_on_rows_that_no_study_had_scored(imported: Callable[..., Path], tmp_path: Path) -> None:
    own = "reports/reference/fusion-parts"
    every = {str(file.parent.relative_to(ROOT)) for file in (ROOT / "reports/reference").rglob("runs.tar.xz")}
    # Without later reports, which share its sources or runs.
    every -= {f"reports/reference/{later}" for later in ("fusion-targets", "fusion-repeat", "pairs")}
    import_runs(tmp_path, ROOT / own / "runs.tar.xz")
    study = json.loads((ROOT / own / "study.json").read_text(encoding="utf-8"))
    left = dict[str, int]()
    for target in study["study"]["targets"]:
        scored = set[str]().union(*(scored_rows(imported(report), target) for report in every - {own}))
        left[target] = len(scored_rows(tmp_path, target) - scored)
        for file in predictions_on(tmp_path, target):
            table = pd.read_parquet(file)
            if "split" in table:
                table[(table["split"] != "test") | ~table["id"].isin(scored)].to_parquet(file)
    study["study"]["reference"] = "even"
    runs = StudyRuns(StudyResult.model_validate(study), Ledger(tmp_path))
    against = {kind: shown(comparison) for kind, comparison in leading_duels(runs).items()}
    than_even = {line.row: comparison for line, comparison in main_comparisons(runs).items()}
    against["even"] = shown(than_even["fusion"])
    for row in ("even-permuted", "own-trained"):
        low, high = than_even[row].interval
        turned = replace(than_even[row], difference=-than_even[row].difference, interval=(-high, -low))
        against[row] = shown(turned)
    section = (ROOT / own / "README.md").read_text(encoding="utf-8").split("### Rows that no study had scored")[1]
    told = re.findall(r"^\| .* against .* \| \**([-+0-9.]+)\** \| (.*) \|$", section.split("\n## ")[0], re.MULTILINE)
    kinds = ("the target alone", "sequential fine-tuning", "one adapter", "even", "even-permuted", "own-trained")
    assert [f"{points} ({interval})" for points, interval in told] == [against[kind] for kind in kinds]
    assert ", ".join(f"{target} {count}" for target, count in left.items()) in section.replace("\n", " ")


def test_the_table_of_peers_has_the_measured_means() -> None:
    folder = ROOT / "reports/reference/peers"
    (measured,) = json.loads((folder / "peers.json").read_text(encoding="utf-8"))["tables"]
    means = pd.DataFrame(
        {"peer": row["peer"], "score": row["accuracy"]["median"], "seconds": row["processor s"]["median"]}
        for row in measured
    ).groupby("peer", sort=False)
    means = means.mean()
    for page, cells in ((ROOT / "README.md", 3), (folder / "README.md", 7)):
        rows = re.findall(r"^\| (.*) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
        rows = [row.split(" | ") for row in rows if re.match("TF-IDF|frozen|SetFit|`extract", row)]
        assert [len(row) for row in rows] == [cells] * len(means)
        for (_, *_, score, seconds), (peer, known) in zip(rows, means.iterrows(), strict=True):
            assert float(score) == pytest.approx(known["score"], abs=6e-4), peer
            assert float(seconds) == pytest.approx(known["seconds"], abs=0.5), peer
