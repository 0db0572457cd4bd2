"""Forgetting is measured with a test, or is zero with a proof; what has neither is not shown."""

from pathlib import Path

import pytest

from pipeline.records.store import SourceRun
from pipeline.reporting.forgetting import changes, forgetting_sentences, forgetting_table, proofs
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


def test_adapters_and_fusion_change_nothing_and_the_hashes_say_so(runs: StudyRuns) -> None:
    found = {proof.row: proof for proof in proofs(runs)}
    assert list(found) == ["adapter", "fusion"]
    assert (found["adapter"].text, found["fusion"].text) == (
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


def test_the_table_shows_the_loss_and_the_proof(runs: StudyRuns) -> None:
    table = forgetting_table(runs)
    assert table is not None
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    measured = [row for row in rows if row["method"].sort == "sequential"]
    assert len(measured) == 4
    assert all(str(row["change, points"].text).startswith("-") for row in measured)
    assert {row["change, points"].verdict for row in measured} == {"worse"}
    assert {row["unchanged (sha256)"].text for row in measured} == {"-"}
    # One line a row of the study, however many pairs.
    (fusion,) = [row for row in rows if row["method"].sort == "fusion"]
    shown = [fusion[name].text for name in ("learned first", "then", "pairs", "before", "change, points")]
    assert shown == ["3 tasks", "2 tasks", "4", "-", "0.0"]
    assert set(fusion["change, points"].runs) >= {s.record.run for s in runs.all("fusion")}


def test_the_sentence_names_few_rows(tmp_path: Path) -> None:
    names = [f"a{number}" for number in range(5)]
    study = make(tmp_path, methods=names, targets=["sst", "sts"], rows={name: {"method": "adapter"} for name in names})
    for name in names:
        for target in ("sst", "sts"):
            study.add(name, target, 1, 1.0, unchanged={"backbone": BACKBONE})
    (sentence,) = forgetting_sentences(StudyRuns(study.result, study.ledger))
    assert sentence.startswith("A0 and 4 other rows forget nothing: ")


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
