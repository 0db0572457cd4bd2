"""What the figures show is what their CSV files hold, and a name is a name whatever stands in it."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from pipeline.reporting.build import build_report
from pipeline.reporting.duels import leading_duels
from pipeline.reporting.figures.attention import fusion_attention
from pipeline.reporting.figures.drawing import INK, drawing_style, look_of, short_number
from pipeline.reporting.figures.forest import forest
from pipeline.reporting.main_table import main_comparisons
from pipeline.reporting.report import Report
from pipeline.reporting.runs import StudyRuns
from tests.pipeline.reporting.synthetic import CLASSES, ROWS, Synthetic, make


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
    assert dict(zip(duels["row"], duels["verdict"], strict=True)) == {
        kind: one.verdict for kind, one in leading_duels(runs).items()
    }
    compared = {runs.title(line): one for line, one in main_comparisons(runs).items()}
    assert rows["row"].tolist() == list(compared) and "fusion" in compared
    assert rows["difference"].is_monotonic_decreasing
    assert rows["low"].tolist() == pytest.approx([one.interval[0] for one in compared.values()])


def test_the_forest_cuts_no_text_off(tmp_path: Path) -> None:
    rows = {name: {"method": "adapter"} for name in ("whole", "part")}
    rows |= {"full": {"title": "full fine-tuning of all layers"}}
    study = make(tmp_path, methods=["full", "whole", "part"], targets=["sst", "mr", "cr", "rte"], rows=rows)
    for target in study.study.targets:
        study.add("full", target, 1)
        study.add("whole", target, 1)
    study.add("part", "sst", 1)
    with drawing_style():
        (drawing,) = forest(StudyRuns(study.result, study.ledger))
        drawing.canvas.draw_without_rendering()
        (axis,) = drawing.canvas.axes
        title, label = axis.get_title(loc="left"), axis.xaxis.label
        shown = [text for text in axis.get_children() if isinstance(text, Text) and text.get_text() == title]
        right = [text.get_window_extent().x1 for text in (*shown, label)]
    assert " ".join(title.split()) == "Rows that have all targets, compared with full fine-tuning of all layers"
    assert label.get_text() == "difference in points on the mean of 4 targets (one seed)"
    assert len(right) == 2 and max(right) <= drawing.canvas.bbox.x1


def test_the_forgetting_map_shows_what_was_measured(report: Report, folder: Path) -> None:
    table = numbers(report, folder, "forgetting")
    assert set(table["method"]) == {"sequential"}
    assert (table["change"] < -0.1).all()


def test_the_low_resource_curve_ends_in_the_main_table(report: Report, folder: Path, runs: StudyRuns) -> None:
    table = numbers(report, folder, "low-resource")
    last = table[(table["method"] == "fusion") & (table["target"] == "sst")].iloc[-1]
    assert last["train_rows"] == 1000
    assert last["score"] == pytest.approx(np.mean([scored.value for scored in runs.cell("fusion", "sst")]))


def test_attention_of_all_fusions_is_one_figure_and_the_mean_over_seeds(report: Report, folder: Path) -> None:
    table = numbers(report, folder, "fusion-attention")
    assert len(table) == 2 * 2 * 2 * 3  # targets, sites, layers, adapters
    assert table.groupby(["target", "site", "layer"])["weight"].sum().to_numpy() == pytest.approx(1)


def test_an_adapter_that_one_seed_took_counts_as_nothing_in_the_others(tmp_path: Path) -> None:
    study = make(tmp_path, methods=["full", "fusion"], sources=["imdb"], seeds=[1, 2])
    for seed, shares in ((1, {"imdb": 0.8, "sst": 0.2}), (2, {"sst": 1.0})):
        rows = [{"site": "ffn", "layer": 0, "adapter": name, "weight": share} for name, share in shares.items()]
        study.add("full", "sst", seed)
        study.add("fusion", "sst", seed, attention=pd.DataFrame(rows))
    with drawing_style():
        (drawing,) = fusion_attention(StudyRuns(study.result, study.ledger))
    table = drawing.numbers
    assert dict(zip(table["adapter"], table["weight"], strict=True)) == pytest.approx({"imdb": 0.4, "sst": 0.6})


def test_pictures_are_small_and_their_ink_follows_the_page(report: Report, folder: Path) -> None:
    for figure in report.figures:
        svg = (folder / "figures" / f"{figure.name}.svg").read_text(encoding="utf-8")
        ElementTree.fromstring(svg)
        assert "prefers-color-scheme:dark" in svg and "currentColor" in svg
        assert INK not in svg.replace(f"svg{{color:{INK}}}", "")
        assert not re.search(r"<[^<>]*\d\.\d{3}", svg), "coordinates to a hundredth of a point"
        ids = set(re.findall(r' id="([^"]+)"', svg))
        assert set(re.findall(r'(?:url\(#|xlink:href="#)([^")]+)', svg)) <= ids


@pytest.mark.parametrize("hostile", [r"$\frac{", "<b>&", "_x_^{2}$", "a\tb", "情感"])
def test_a_title_is_drawn_as_it_is_written(hostile: str, tmp_path: Path) -> None:
    study = make(tmp_path, rows={"adapter": {"title": hostile}})
    study.add("full", "sst", 1)
    study.add("adapter", "sst", 1, 0.9)
    assert {figure.name for figure in build_report(study.result, study.ledger, tmp_path).figures} == {
        "forest", "pareto", "learning-curves", "confusion-sst",
    }  # fmt: skip
    drawn = ElementTree.parse(tmp_path / "figures/forest.svg").getroot().itertext()
    assert " ".join(hostile.split()) in {" ".join(text.split()) for text in drawn}


def test_rows_keep_their_looks_and_no_two_are_alike(whole: Synthetic) -> None:
    names = [f"row{number}" for number in range(40)]
    looks = [look_of(name, names) for name in names]
    assert len({tuple(look.items()) for look in looks}) == len(names)
    assert len({look["color"] for look in looks[:8]}) == 8


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1"), (300, "300"), (10_000, "10k"), (1_500_000, "1.5M"), (2e9, "2G"), (0, "0")]
)
def test_ticks_are_short(value: float, text: str) -> None:
    assert short_number(value) == text
