"""The tables hold every finished run and nothing else: means, deviations, marks from paired tests, and holes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.errors import PipelineError
from pipeline.ledger import Ledger
from pipeline.paired import compare_paired, holm
from pipeline.recipe import Recipe
from pipeline.reporting.entries import (
    RESULT_COLUMNS,
    Entry,
    MethodRow,
    Score,
    StudyResult,
    Summary,
    results_table,
    score_text,
    summarise,
)
from pipeline.reporting.tables import header, latex, markdown, method_text, table_cells, write_tables

TEX_SPECIAL = r"a&b %c $d #e _f {g} ~h ^i \j"


def split_markdown(line: str) -> list[str]:
    """The cells of a table row: only pipes without a backslash before them part cells."""
    assert line.startswith("| ")
    assert line.endswith(" |")
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def table_of(text: str) -> tuple[list[str], list[list[str]]]:
    head, rule, *rows = [split_markdown(line) for line in text.splitlines() if line.startswith("|")]
    assert rule == ["---", *["---:"] * (len(head) - 1)]
    return head, rows


def row(method: str, scores: dict[str, Score], plain: float | None = 0.5) -> MethodRow:
    return MethodRow(method, scores, plain, plain, 1000.0, 1.0, 2.0, 3.0, "4")


def cells_by_method(summary: Summary) -> dict[str, list[str]]:
    _, rows = table_of(markdown(summary))
    return {cells[0]: cells[1:] for cells in rows}


# Results.


def test_the_results_have_exactly_the_promised_columns_and_one_row_a_finished_run(
    result: StudyResult, ledger: Ledger, results: pd.DataFrame, summary: Summary, tmp_path: Path
) -> None:
    assert RESULT_COLUMNS == [
        "method",
        "target",
        "seed",
        "split",
        "metric",
        "value",
        "trainable_parameters",
        "seconds",
        "examples_per_second",
        "peak_memory_mb",
        "run",
    ]
    write_tables(results, summary, tmp_path)
    written = pd.read_csv(tmp_path / "results.csv")
    assert list(written) == RESULT_COLUMNS
    finished = [entry for entry in result.entries if entry.run is not None]
    assert written["run"].tolist() == [entry.run for entry in finished]
    assert written["method"].tolist() == [entry.method for entry in finished]
    for line in written.to_dict("records"):
        record = ledger.find(line["run"])
        assert record is not None
        assert (line["target"], line["seed"], line["split"]) == (record.task, record.seed, "dev")
        assert line["value"] == pytest.approx(record.dev, abs=1e-12)
        assert line["trainable_parameters"] == record.cost.trainable_parameters


def test_a_run_that_left_the_ledger_is_an_error_and_not_a_hole(result: StudyResult, own_ledger: Ledger) -> None:
    run = next(entry.run for entry in result.entries if entry.run)
    (own_ledger.folder(run) / "run.json").unlink()
    for make in (results_table, summarise):
        with pytest.raises(PipelineError, match=f"run {run} of study hostile is no longer in .*compare again"):
            make(result, own_ledger)


# Summary.


def test_means_and_deviations_are_over_the_seeds_that_finished(results: pd.DataFrame, summary: Summary) -> None:
    assert [line.method for line in summary.rows] == ["full", "adapter", "sequential:sts", "frozen", "sequential:sst"]
    seen = 0
    for line in summary.rows:
        for target, score in line.scores.items():
            values = results[(results["method"] == line.method) & (results["target"] == target)]["value"]
            assert score.mean == pytest.approx(values.mean())
            assert score.seeds == len(values)
            assert score.deviation == pytest.approx(values.std(ddof=1) if len(values) > 1 else 0)
            seen += len(values)
    assert seen == len(results)


def test_the_overall_scores_are_of_methods_that_have_every_target(summary: Summary) -> None:
    for line in summary.rows:
        if line.method in ("full", "adapter"):
            sst, sts = line.scores["sst"].mean, line.scores["sts"].mean
            assert line.overall_plain == pytest.approx((sst + sts) / 2)
            assert line.overall_normalised == pytest.approx((sst + (sts + 1) / 2) / 2)
        else:
            assert (line.overall_plain, line.overall_normalised) == (None, None)


def test_verdicts_are_paired_tests_on_common_seeds_corrected_over_the_table(
    result: StudyResult, ledger: Ledger, summary: Summary
) -> None:
    runs = {(e.method, e.target, e.seed): e.run for e in result.entries if e.run is not None}
    expected = {}
    for method, target in dict.fromkeys((method, target) for method, target, _ in runs if method != "full"):
        seeds = [seed for seed in (1, 2) if (method, target, seed) in runs]
        ours, theirs = (
            [ledger.predictions(runs[name, target, seed])["prediction"].to_numpy() for seed in seeds]
            for name in (method, "full")
        )
        labels = ledger.predictions(runs["full", target, 1])["label"].to_numpy()
        expected[method, target] = compare_paired("accuracy" if target == "sst" else "pearson", ours, theirs, labels)
    corrected = dict(zip(expected, holm([c.p_value for c in expected.values()]), strict=True))
    found = {(line.method, target): score for line in summary.rows for target, score in line.scores.items()}
    assert {key for key, score in found.items() if score.verdict is not None} == set(expected)
    for key, comparison in expected.items():
        assert found[key].p_value == pytest.approx(corrected[key])
        assert found[key].difference == pytest.approx(comparison.difference)
        sure = corrected[key] < 0.05
        said = ("better" if comparison.difference > 0 else "worse") if sure else "no difference seen"
        assert found[key].verdict == said
    assert found["full", "sst"].p_value is None


@pytest.mark.parametrize(("gain", "verdict"), [(2, "no difference seen"), (-2, "no difference seen"), (40, "better")])
def test_a_difference_within_the_noise_is_not_called_one(
    gain: int, verdict: str, result: StudyResult, own_ledger: Ledger
) -> None:
    """60 rows change sides in each direction, and ``gain`` more of 400 are right: a small gain proves nothing."""
    run = next(entry.run for entry in result.entries if (entry.method, entry.target) == ("adapter", "sst"))
    assert run is not None
    file = own_ledger.folder(run) / "predictions.parquet"
    table = pd.read_parquet(file)
    right = np.arange(len(table)) < 240  # as full fine-tuning: the first 60 %
    right[:60], right[-60 - gain :] = False, True
    table["prediction"] = np.where(right, table["label"], (table["label"] + 1) % 5)
    table.to_parquet(file)
    row = next(row for row in summarise(result, own_ledger).rows if row.method == "adapter")
    assert row.scores["sst"].difference == pytest.approx(gain / 400)
    assert row.scores["sst"].verdict == verdict


def test_without_the_reference_nothing_is_called_better_or_worse(result: StudyResult, ledger: Ledger) -> None:
    entries = tuple(entry for entry in result.entries if entry.method != "full")
    summary = summarise(result.model_copy(update={"entries": entries}), ledger)
    assert {score.verdict for line in summary.rows for score in line.scores.values()} == {None}


def without_tests(result: StudyResult) -> StudyResult:
    """The study without methods to be tested against the reference: it is summed up at once."""
    return result.model_copy(update={"entries": tuple(e for e in result.entries if e.method == "full" or e.error)})


def test_the_notes_say_what_a_reader_must_know(
    finish: Callable[..., Entry], result: StudyResult, own_ledger: Ledger
) -> None:
    finish(own_ledger, "full", "sst", 1, rows={"train": 900, "dev": 400, "dev_in_train": 17})
    notes = summarise(without_tests(result), own_ledger).notes
    assert "nano" in notes[0]
    assert "Training rows: sst 900/1000, sts 1000; dev rows: sst 400, sts 400." in notes
    assert "Dev rows whose text also stands in train: sst 17." in notes
    missing = [note for note in notes if note.startswith("Missing: ")]
    assert len(missing) == 3
    assert any(note.startswith("Missing: adapter sst seed 2: no memory") for note in missing)
    assert not any("Epoch budgets" in note for note in notes)


def test_different_epoch_budgets_are_told(
    finish: Callable[..., Entry], result: StudyResult, own_ledger: Ledger
) -> None:
    recipe = Recipe(trainable="full", epochs=9)
    entries = (finish(own_ledger, "full", "sst", 1, recipe=recipe), finish(own_ledger, "adapter", "sst", 2))
    summary = summarise(result.model_copy(update={"entries": entries}), own_ledger)
    assert any(note.startswith("Epoch budgets differ: full 9, adapter 4;") for note in summary.notes)
    assert [line.epochs for line in summary.rows] == ["9", "4"]


# Tables.


def test_the_tables_show_scores_marks_and_holes(summary: Summary) -> None:
    cells = cells_by_method(summary)
    assert list(cells) == ["full", "adapter", "sequential, from sts", "frozen", "sequential, from sst"]
    sst, sts = 0, 1
    assert cells["full"][sst] == "0.600 ± 0.000"
    assert re.fullmatch(r"0\.\d{3} ± 0\.\d{3}", cells["full"][sts])
    # One seed: no deviation.
    assert cells["adapter"][sst] == "0.800 ↑"
    assert cells["adapter"][sts].endswith("↑")
    assert cells["sequential, from sts"][sst].endswith("↓")
    assert cells["sequential, from sts"][sts] == "-"
    assert cells["frozen"][sst] == "0.600 ± 0.000 →"
    assert cells["frozen"][sts:4] == ["-", "-", "-"]


def test_every_row_shows_parameters_time_memory_and_epochs(summary: Summary) -> None:
    assert header(summary)[1:] == [
        "sst (accuracy)",
        "sts (pearson)",
        "overall",
        "overall, (r+1)/2",
        "trainable parameters",
        "seconds",
        "with sources",
        "peak memory, MB",
        "epochs",
    ]
    for cells in cells_by_method(summary).values():
        assert cells[4:] == ["1,234,567", "12", "21", "514", "4"]


def test_markdown_and_latex_hold_the_same_cells(summary: Summary) -> None:
    _, rows = table_of(markdown(summary))
    lines = [line.removesuffix(r" \\") for line in latex(summary).splitlines() if line.endswith(r" \\")]
    signs = {r"$\pm$": "±", r"$\uparrow$": "↑", r"$\downarrow$": "↓", r"$\rightarrow$": "→"}
    for cells, line in zip(rows, lines[1:], strict=True):
        for sign, plain in signs.items():
            line = line.replace(sign, plain)
        assert line.split(" & ") == cells


def test_markdown_notes_follow_the_table_as_a_list(summary: Summary) -> None:
    lines = markdown(summary).splitlines()
    notes = lines[lines.index("") + 1 :]
    assert len(notes) == 1 + len(summary.notes)
    assert all(note.startswith("- ") for note in notes)
    assert "against full" in notes[0]


@pytest.mark.parametrize("hostile", ["a|b", "||", r"a\|b", TEX_SPECIAL, "@x@", "<b>", "`code`"])
def test_a_hostile_name_stays_one_cell_of_a_markdown_table(hostile: str) -> None:
    score = Score(0.5, 0.1, 2, 0.1, 0.01, "better")
    summary = Summary((hostile,), {hostile: "accuracy"}, "full", [row(hostile, {hostile: score})], [])
    head, rows = table_of(markdown(summary))
    assert len(head) == len(header(summary)) == len(rows[0])
    assert rows[0][1] == "0.500 ± 0.100 ↑"
    if "\\" not in hostile:
        assert head[1] == f"{hostile} (accuracy)"
        assert rows[0][0] == hostile


def printed(text: str) -> str:
    """What LaTeX prints of ``text``, which must hold no special character that is not escaped."""
    words = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^"}
    escaped = re.compile(r"\\(?:([&%$#_{}])|(text\w+)\{\})")
    assert not set(escaped.sub("", text)) & set(r"&%$#_{}~^" + "\\"), text
    return escaped.sub(lambda found: found[1] or words[found[2]], text)


@pytest.mark.parametrize("hostile", ["a&b", "50% of $5", "a_b", "#1 {x}", "~^", "\\", r"\\ \end{tabular}", TEX_SPECIAL])
def test_a_hostile_name_stays_text_in_latex(hostile: str) -> None:
    score = Score(0.5, 0.1, 2, 0.1, 0.01, "worse")
    summary = Summary((hostile,), {hostile: "pearson"}, "full", [row(hostile, {hostile: score}, None)], [])
    lines = latex(summary).splitlines()
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    head, cells = (re.split(r" (?<!\\)& ", line.removesuffix(r" \\")) for line in lines if re.search(r"(?<!\\)&", line))
    assert [printed(cell) for cell in head] == header(summary)
    assert printed(cells[0]) == hostile
    assert cells[1:4] == [r"0.500 $\pm$ 0.100 $\downarrow$", "-", "-"]


def test_a_study_with_no_finished_run_has_tables_of_holes(result: StudyResult, ledger: Ledger, tmp_path: Path) -> None:
    entries = tuple(e.model_copy(update={"run": None, "error": "no memory"}) for e in result.entries)
    empty = result.model_copy(update={"entries": entries})
    summary = summarise(empty, ledger)
    write_tables(results_table(empty, ledger), summary, tmp_path)
    assert (tmp_path / "results.csv").read_text().strip() == ",".join(RESULT_COLUMNS)
    head, rows = table_of((tmp_path / "tables.md").read_text())
    assert head[1:3] == ["sst (-)", "sts (-)"]
    assert rows == []
    assert (tmp_path / "tables.md").read_text().count("Missing: ") == len(entries)


@pytest.mark.parametrize(
    ("score", "text"),
    [
        (None, "-"),
        (Score(0.12345, 0.0, 1), "0.123"),
        (Score(0.9996, 0.0004, 3), "1.000 ± 0.000"),
        (Score(-0.25, 0.5, 2), "-0.250 ± 0.500"),
    ],
)
def test_a_score_has_its_deviation_where_there_are_several_seeds(score: Score | None, text: str) -> None:
    assert score_text(score, "±") == text


def test_a_method_is_named_as_a_reader_says_it() -> None:
    assert [method_text(name) for name in ("full", "sequential:sst")] == ["full", "sequential, from sst"]


def test_large_numbers_are_readable() -> None:
    line = MethodRow("full", {}, 0.5, 0.25, 109_482_240.0, 3599.6, 7200.4, 15999.5, "4, 5")
    cells = table_cells(line, ("sst",), "±", {None: ""})
    assert cells == ["full", "-", "0.500", "0.250", "109,482,240", "3600", "7200", f"{15999.5:.0f}", "4, 5"]


def test_the_same_study_gives_the_same_tables(result: StudyResult, ledger: Ledger, summary: Summary) -> None:
    assert summarise(result, ledger) == summary
