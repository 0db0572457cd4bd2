"""A fusion is held against the best row of each kind, which the scored rows do not choose."""

from pathlib import Path

import pytest

from pipeline.reporting.opponents import OPPONENTS, duels, opponents_sentences, opponents_table
from pipeline.reporting.runs import StudyRuns
from pipeline.stats.paired import mean_difference
from tests.pipeline.reporting.synthetic import Synthetic, make, predictions_of

WARM = {"warm": {"method": "adapter", "of": "adapter"}}


def runs_of(study: Synthetic) -> StudyRuns:
    return StudyRuns(study.result, study.ledger)


def small(folder: Path, **keys: object) -> Synthetic:
    methods = ["full", "sequential", "adapter", "warm", "fusion"]
    study = make(folder, methods=methods, targets=["sst", "mr"], rows=WARM, **keys)
    for target, source in (("sst", "mr"), ("mr", "sst")):
        for row, quality in (("full", 0.5), (f"sequential:{source}", 0.6), ("adapter", 0.55), ("fusion", 0.8)):
            study.add(row, target, 1, quality)
        study.add("warm", target, 1, 0.7 if target == "sst" else 0.4)
    return study


def test_the_best_row_of_each_kind_is_each_targets_own(tmp_path: Path) -> None:
    runs = runs_of(small(tmp_path))
    best = {duel.kind: {target: str(line) for target, line in duel.best.items()} for duel in duels(runs)}
    assert best == dict(
        zip(
            OPPONENTS,
            (
                {"sst": "adapter", "mr": "adapter"},
                {"sst": "sequential:mr", "mr": "sequential:sst"},
                {"sst": "warm", "mr": "adapter"},
                {"sst": "warm", "mr": "sequential:sst"},
            ),
            strict=True,
        )
    )


def test_the_mean_is_that_of_the_targets_and_is_tested_in_one_family(tmp_path: Path) -> None:
    runs = runs_of(small(tmp_path))
    table = opponents_table(runs)
    assert table is not None
    for duel, row in zip(duels(runs), table.rows, strict=True):
        cells = dict(zip(table.columns, row, strict=True))
        each = [runs.cell(duel.line, t)[0].value - runs.cell(duel.best[t], t)[0].value for t in ("sst", "mr")]
        assert cells["mean"].sort == pytest.approx(sum(each) / 2)
        assert [cells[t].sort for t in ("sst", "mr")] == pytest.approx(each)
        assert cells["sst"].verdict is None and runs.title(duel.best["sst"]) in cells["sst"].detail
        assert duel.comparison == mean_difference([*duel.parts.values()]).comparison(len(table.rows))
        assert cells["mean"].verdict == duel.comparison.verdict == "better"


def test_rows_that_are_scored_do_not_choose_the_opponent(tmp_path: Path) -> None:
    """Of two rows the one is better on the rows that choose, the other on those that are scored."""
    study = make(tmp_path, methods=["full", "adapter", "fusion"], targets=["sst", "mr"], scoring="half", seeds=[1])
    for target in ("sst", "mr"):
        study.add("full", target, 1, predictions=predictions_of(target, 0.7, 1), own={"dev": 0.2})
        study.add("adapter", target, 1, predictions=predictions_of(target, 0.5, 2), own={"dev": 0.9})
        study.add("fusion", target, 1, 0.6)
    assert {str(line) for duel in duels(runs_of(study)) for line in duel.best.values()} == {"adapter"}


def test_what_the_summary_says_agrees_with_the_test(tmp_path: Path) -> None:
    study = small(tmp_path)
    (sentence,) = opponents_sentences(runs_of(study))
    (last,) = [duel for duel in duels(runs_of(study)) if duel.kind == "any row without fusion"]
    assert last.comparison is not None
    assert sentence.endswith(f"{last.comparison.verdict}.")
    assert "warm" in sentence and f"{100 * last.comparison.difference:+.1f} points" in sentence


def test_a_fusion_that_lacks_a_target_or_has_no_opponent_is_left_out(tmp_path: Path) -> None:
    study = make(tmp_path, methods=["full", "fusion"], targets=["sst", "mr"])
    study.add("full", "sst", 1)
    study.add("full", "mr", 1)
    study.add("fusion", "sst", 1)
    assert duels(runs_of(study)) == [] and opponents_table(runs_of(study)) is None
    assert list(opponents_sentences(runs_of(study))) == []
