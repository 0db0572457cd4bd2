"""What the figures show is what their CSV files hold, and a name is a name whatever stands in it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.reporting.opponents import leading_duels
from pipeline.reporting.report import Report
from pipeline.reporting.rows import main_comparisons
from pipeline.reporting.runs import StudyRuns
from tests.pipeline.reporting.synthetic import CLASSES, ROWS


def numbers(report: Report, folder: Path, name: str) -> pd.DataFrame:
    assert name in [figure.name for figure in report.figures]
    return pd.read_csv(folder / "figures" / f"{name}.csv")


def test_no_other_row_beats_those_on_the_front(report: Report, folder: Path) -> None:
    table = numbers(report, folder, "pareto")
    assert list(dict.fromkeys(table["target"])) == ["mean", "sst", "sts"]
    for _, own in table.groupby("target"):
        for point in own.itertuples():
            dearer = own[own["trainable_parameters"] <= point.trainable_parameters]
            assert point.front == (point.score >= dearer["score"].max())
    assert set(table[table["front"]]["method"]) == {"frozen", "adapter", "fusion"}


def test_the_confusion_matrix_counts_every_example_of_every_seed(report: Report, folder: Path, runs: StudyRuns) -> None:
    table = numbers(report, folder, "confusion-sst")
    assert list(dict.fromkeys(table["method"])) == ["full", "fusion"]
    for label, own in table.groupby("method"):
        assert own["examples"].sum() == 2 * ROWS
        right = own[own["label"] == own["prediction"]]["examples"].sum() / (2 * ROWS)
        assert right == pytest.approx(np.mean([scored.value for scored in runs.cell(label, "sst")]))
        assert set(own["label"]) == set(CLASSES)
        assert own.groupby("label")["share_of_label"].sum().to_numpy() == pytest.approx(1)
        # Which of the two is the label is not to be mixed up.
        predicted = pd.concat(runs.predictions(scored.record.run, "sst") for scored in runs.cell(label, "sst"))
        wrong = int(((predicted["label"] == 0) & (predicted["prediction"] == 4)).sum())
        back = int(((predicted["label"] == 4) & (predicted["prediction"] == 0)).sum())
        cells = own.set_index(["label", "prediction"])["examples"]
        assert (cells["awful", "great"], cells["great", "awful"]) == (wrong, back) and wrong != back


def test_the_scatter_marks_the_example_with_the_largest_error(report: Report, folder: Path) -> None:
    table = numbers(report, folder, "scatter-sts")
    caption = next(figure.caption for figure in report.figures if figure.name == "scatter-sts")
    for _, own in table.groupby("method"):
        (worst,) = own[own["worst"]].itertuples()
        assert abs(worst.prediction - worst.label) == (own["prediction"] - own["label"]).abs().max()
        assert f"example {worst.id}, " in caption


def test_the_forest_holds_the_tests_of_the_tables(report: Report, folder: Path, runs: StudyRuns) -> None:
    table = numbers(report, folder, "forest")
    duels, rows = (own for _, own in table.groupby("group", sort=False))
    assert dict(zip(duels["method"], duels["verdict"], strict=True)) == {
        kind: one.verdict for kind, one in leading_duels(runs).items()
    }
    compared = {runs.title(line): one for line, one in main_comparisons(runs).items()}
    assert rows["method"].tolist() == list(compared) and "fusion" in compared
    assert rows["difference"].is_monotonic_decreasing
    assert rows["low"].tolist() == pytest.approx([one.interval[0] for one in compared.values()])
