"""Forgetting is measured with a test, or is zero with a proof; what has neither is not shown."""

import pytest

from pipeline.records.ledger import SourceRun
from pipeline.reporting.forgetting import changes, forgetting_table
from pipeline.reporting.runs import StudyRuns
from tests.pipeline.reporting.synthetic import BACKBONE, Synthetic, make


def test_sequential_tuning_is_measured_before_and_after(runs: StudyRuns) -> None:
    found = [change for change in changes(runs) if change.row == "sequential"]
    assert {(c.source, c.target) for c in found} == {
        (source, target) for source in ("sst", "sts", "imdb") for target in ("sst", "sts") if source != target
    }
    for change in found:
        full = [s.record for s in runs.scored if s.entry.method == "full" and s.entry.target == change.source]
        if full:
            assert set(change.before) <= {record.dev for record in full}
        assert change.difference == pytest.approx(sum(change.after) / 2 - sum(change.before) / 2)
        assert change.comparison is not None
        assert change.comparison.difference == pytest.approx(change.difference)
        assert change.comparison.verdict == "worse"
        assert change.proof == ""


def test_adapters_and_fusion_change_nothing_and_the_hashes_say_so(runs: StudyRuns) -> None:
    found = [change for change in changes(runs) if change.row in ("adapter", "fusion")]
    assert {change.row for change in found} == {"adapter", "fusion"}
    assert {change.difference for change in found} == {0}
    for change in found:
        assert f"backbone {BACKBONE[:12]}" in change.proof
        assert ("adapter " in change.proof) == (change.row == "fusion")
        assert change.comparison is None
    # A source that is no target has an adapter only where a fusion reads it.
    assert {c.row for c in found if c.source == "imdb"} == {"fusion"}


@pytest.mark.parametrize("unchanged", [{}, {"backbone": "c" * 64, "sst": "1" * 64}, {"backbone": BACKBONE}])
def test_without_the_proof_nothing_is_claimed(unchanged: dict[str, str], own: Synthetic) -> None:
    """Not measured, a backbone that is another after training, no hash of the adapter."""
    study = make(own.reports.parent, methods=["adapter", "fusion"], targets=["sst", "sts"], reference="adapter")
    study.reports = own.reports
    adapter = study.add("adapter", "sst", 1)
    sources = (SourceRun(task="sst", run=adapter.run, digest="a" * 64),)
    study.add("fusion", "sts", 1, 1.0, sources=sources, unchanged=unchanged)
    runs = StudyRuns(study.result, study.ledger)
    assert changes(runs) == []
    assert forgetting_table(runs) is None


def test_the_table_shows_the_loss_and_the_proof(runs: StudyRuns) -> None:
    table = forgetting_table(runs)
    assert table is not None
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    measured, proven = ([row for row in rows if row["method"].sort == name] for name in ("sequential", "fusion"))
    assert all(str(row["change, points"].text).startswith("-") for row in measured)
    assert {row["change, points"].verdict for row in measured} == {"worse"}
    assert {row["change, points"].text for row in proven} == {"0.0"}
    assert {row["unchanged (sha256)"].text for row in measured} == {"-"}


def test_a_start_that_left_the_ledger_is_shown_untested(own: Synthetic) -> None:
    sequential = next(s for s in StudyRuns(own.result, own.ledger).scored if s.entry.method == "sequential:imdb")
    for seed in (1, 2):
        record = own.ledger.find(
            next(e.run for e in own.entries if (e.method, e.target, e.seed) == ("sequential:imdb", "sst", seed)) or ""
        )
        assert record is not None
        (own.ledger.folder(record.sources[0].run) / "run.json").unlink()
    found = changes(StudyRuns(own.result, own.ledger))
    change = next(c for c in found if (c.source, c.target) == ("imdb", sequential.entry.target))
    assert change.comparison is None
    assert change.difference < 0
