"""Forgetting is measured with a test, or is zero with a proof; what has neither is not shown."""

import pytest

from pipeline.records.store import SourceRun
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.transfer import changes, forgetting_table, proofs
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
        assert change.comparison.difference == pytest.approx(change.difference)
        assert change.comparison.verdict == "worse"


def test_adapters_and_fusion_change_nothing_and_the_hashes_say_so(runs: StudyRuns) -> None:
    found = {proof.row: proof for proof in proofs(runs)}
    assert list(found) == ["adapter", "fusion"]
    assert (found["adapter"].proof, found["fusion"].proof) == (
        f"backbone {BACKBONE[:12]}", f"backbone {BACKBONE[:12]}, 3 adapters",
    )  # fmt: skip
    # A source that is no target has an adapter only where a fusion reads it.
    assert found["adapter"].pairs == {("sst", "sts"), ("sts", "sst")}
    assert found["fusion"].pairs == found["adapter"].pairs | {("imdb", "sst"), ("imdb", "sts")}


@pytest.mark.parametrize("unchanged", [{}, {"backbone": "c" * 64, "sst": "1" * 64}, {"backbone": BACKBONE}])
def test_without_the_proof_nothing_is_claimed(unchanged: dict[str, str], own: Synthetic) -> None:
    """Not measured, a backbone that is another after training, no hash of the adapter."""
    study = make(own.reports.parent, methods=["adapter", "fusion"], targets=["sst", "sts"], reference="adapter")
    study.reports = own.reports
    adapter = study.add("adapter", "sst", 1)
    sources = (SourceRun(task="sst", run=adapter.run, digest="a" * 64),)
    study.add("fusion", "sts", 1, 1.0, sources=sources, unchanged=unchanged)
    runs = StudyRuns(study.result, study.ledger)
    assert changes(runs) == proofs(runs) == []
    assert forgetting_table(runs) is None
