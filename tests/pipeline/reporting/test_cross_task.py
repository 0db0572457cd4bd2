"""The table of models on tasks that they were not trained on: what it shows, and against what it is tested."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.records.run_record import Reading, RunRecord, TaskScore
from pipeline.reporting.published import published_tables
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.transfer import cross_task_table
from tests.pipeline.reporting.synthetic import Synthetic, _table, labels_of, make, metric_of, predictions_of, score_of


def across(
    study: Synthetic, record: RunRecord, target: str, quality: float, reading: Reading | None = "same"
) -> RunRecord:
    """Score ``record`` on ``target`` too, with predictions so good."""
    values = predictions_of(target, quality, (record.run, target))
    score = TaskScore(metric=metric_of(target), dev=score_of(target, values), rows=len(values), reading=reading)
    return study.ledger.add_scores(record, {target: (score, _table(values, labels_of(target), apart=False))})


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    """Full fine-tuning on two tasks and two seeds; what was learned on imdb is nearly as good on sst, not the reverse.

    A joint model has other tasks too, but it was trained on them.
    """
    made = make(tmp_path, methods=["full", "multitask"], targets=["sst", "imdb", "sts"], seeds=[1, 2], cross_task=True)
    for seed in (1, 2):
        for target in ("sst", "imdb"):
            record = made.add("full", target, seed, 0.7)
            across(made, record, "imdb" if target == "sst" else "sst", 0.2 if target == "sst" else 0.9)
        joint = made.record("multitask", "imdb", seed, others={"sst": (predictions_of("sst", 0.5, seed), None)})
        for target in ("sst", "imdb"):
            made.serve(joint, "multitask", target)
    return made


def lines(study: Synthetic) -> dict[str, dict[str, Any]]:
    table = cross_task_table(StudyRuns(study.result, study.ledger))
    return {row[1].text: dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_each_line_is_a_task_trained_on_and_each_column_one_scored_on(study: Synthetic) -> None:
    found = lines(study)
    assert set(found) == {"sst", "imdb"}
    own = StudyRuns(study.result, study.ledger).cell("full", "sst")
    assert found["sst"]["sst (accuracy)"].sort == pytest.approx(sum(s.value for s in own) / 2)
    assert found["sst"]["sst (accuracy)"].verdict is None
    assert found["sst"]["sts (-)"].text == "-"
    assert {str(row["method"].text) for row in found.values()} == {"full fine-tuning"}


def test_a_model_is_tested_against_the_one_that_learned_the_column(study: Synthetic) -> None:
    found = lines(study)
    assert found["sst"]["imdb (accuracy)"].verdict == "worse"
    assert found["imdb"]["sst (accuracy)"].verdict == "better"
    for line, column in (("sst", "imdb"), ("imdb", "sst")):
        cell = found[line][f"{column} (accuracy)"]
        scores = [s.record.score(column).dev for s in StudyRuns(study.result, study.ledger).cell("full", line)]
        assert cell.sort == pytest.approx(sum(scores) / 2)
        assert f"against full fine-tuning on {column}" in cell.detail
        assert cell.detail.startswith("read as it is")


@pytest.mark.parametrize(
    ("report", "table", "name", "columns", "shown"),
    [
        ("LiuShen", "Table 4", "pretrain / Base / none", ("sst", "sts_r"), ("sst", "sts", "mean")),
        (
            "Hayes", "Table 6", "multi", ("best_sst", "best_sts"),
            ("sst, best epoch", "sts, best epoch", "mean of best epochs"),
        ),
    ],
)  # fmt: skip
def test_beside_published_numbers_a_model_has_its_score_on_each_task(
    report: str, table: str, name: str, columns: tuple[str, str], shown: tuple[str, ...], tmp_path: Path
) -> None:
    published = {"report": report, "table": table, "tasks": dict(zip(columns, ("sst", "sts"), strict=True))}
    rows = {"full": {"published": {"sst": name}}}
    made = make(tmp_path, methods=["full"], targets=["sst", "sts"], rows=rows, published=published, cross_task=True)
    record = across(made, made.add("full", "sst", 1, 0.7), "sts", 3.0)
    scores = [record.scores[task].dev for task in ("sst", "sts")]
    beside, *_ = published_tables(StudyRuns(made.result, made.ledger))
    (row,) = (row for row in beside.rows if row[0].text == name)
    ours = [row[beside.columns.index(f"{column}, ours")].sort for column in shown]
    assert ours == pytest.approx([*scores, sum(scores) / 2])
