"""The main table holds every line with its holes; its marks seldom see what is not there, and do see what is."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from pipeline.records.studies import Line
from pipeline.reporting.figures.drawings import forest
from pipeline.reporting.opponents import leading_duels
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.rows import main_table, main_verdict, main_verdicts
from pipeline.reporting.runs import StudyRuns
from pipeline.stats.metrics import overall
from pipeline.stats.paired import Shared, mean_difference, paired_difference
from pipeline.system.errors import PipelineError
from tests.pipeline.reporting.synthetic import ROWS, Synthetic, labels_of, make, predictions_of, whole_study


def table_of(study: Synthetic) -> Table:
    return main_table(StudyRuns(study.result, study.ledger))


def cells_of(table: Table) -> dict[str, dict[str, Cell]]:
    return {str(row[0].sort): dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_means_and_deviations_are_over_the_seeds_that_finished(whole: Synthetic, runs: StudyRuns) -> None:
    cells = cells_of(table_of(whole))
    for line in runs.lines:
        for target, column in (("sst", "sst (accuracy)"), ("sts", "sts (pearson)")):
            values = [scored.value for scored in runs.cell(line, target)]
            cell = cells[str(line)][column]
            assert cell.best == (line == Line("fusion"))
            if not values:
                assert (cell.text, cell.sort, cell.runs) == ("-", None, ())
                continue
            assert cell.sort == pytest.approx(np.mean(values))
            spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else " (1 of 2 runs)"
            assert cell.text == f"{np.mean(values):.3f}{spread}"
            assert len(cell.runs) == len(values)


def test_seeds_that_were_added_after_a_look_make_every_test_stricter(tmp_path: Path) -> None:
    once, twice = (whole_study(tmp_path / str(looks), looks=looks) for looks in (1, 2))
    first, second = (StudyRuns(study.result, study.ledger) for study in (once, twice))
    assert main_verdicts(first).keys() == main_verdicts(second).keys()
    pairs = [(main_verdicts(first)[key], main_verdicts(second)[key]) for key in main_verdicts(first)]
    pairs += zip(leading_duels(first).values(), leading_duels(second).values(), strict=True)
    for before, after in pairs:
        assert after.difference == before.difference
        assert after.p_value == pytest.approx(min(1, 2 * before.p_value))
        assert np.ptp(after.interval) > np.ptp(before.interval)
    assert [any("2 looks" in note for note in table_of(study).notes) for study in (once, twice)] == [False, True]


def test_a_line_without_any_run_is_shown_as_a_hole(tmp_path: Path) -> None:
    study = make(tmp_path)
    study.add("full", "sst", 1)
    study.fail("adapter", "sst", 1, "the disk is full")
    cell = cells_of(table_of(study))["adapter"]["sst (accuracy)"]
    assert (cell.text, cell.verdict) == ("-", None)
    assert "the disk is full" in cell.detail


def test_a_target_that_a_row_was_not_planned_for_is_no_hole(tmp_path: Path) -> None:
    seeds = [1, 2, 3]
    rows = {"part": {"method": "adapter", "targets": ["mr"]}}
    study = make(tmp_path, methods=["full", "sequential", "part"], targets=["sst", "mr"], seeds=seeds, rows=rows)
    for seed in seeds:
        study.add("full", "sst", seed)
        study.add("full", "mr", seed)
        study.add("sequential:sst", "mr", seed)
    study.add("part", "mr", 1)
    study.add("part", "mr", 2)
    study.fail("part", "mr", 3)
    cells = cells_of(table_of(study))
    for label, planned in (("part", "2 of 3 runs"), ("sequential:sst", "3 of 3 runs")):
        assert (cells[label]["sst (accuracy)"].text, cells[label]["sst (accuracy)"].detail) == ("-", "")
        assert planned in cells[label]["mr (accuracy)"].detail


def test_a_run_that_serves_several_cells_is_scored_on_each(whole: Synthetic, runs: StudyRuns) -> None:
    cells = cells_of(table_of(whole))["multitask"]
    record = runs.cell("multitask", "sst")[0].record
    assert record.task == "imdb+sst+sts"
    assert cells["sst (accuracy)"].runs == cells["sts (pearson)"].runs
    assert cells["sst (accuracy)"].sort != cells["sts (pearson)"].sort


def test_means_over_targets_are_of_lines_that_have_every_target(whole: Synthetic, runs: StudyRuns) -> None:
    for label, cells in cells_of(table_of(whole)).items():
        means = {t: [s.value for s in runs.cell(Line.parse(label), t)] for t in ("sst", "sts")}
        if all(means.values()):
            expected = overall({t: float(np.mean(v)) for t, v in means.items()}, runs.metrics)
            assert (cells["mean"].sort, cells["mean, (r+1)/2"].sort) == pytest.approx(expected)
        else:
            assert (cells["mean"].text, cells["mean, (r+1)/2"].text) == ("-", "-")


# Verdicts.


def test_verdicts_are_paired_tests_on_common_seeds_corrected_over_the_table(runs: StudyRuns) -> None:
    verdicts = main_verdicts(runs)
    assert not [line for (line, _), _ in verdicts if line == Line("full")]
    singles = {}
    for target in ("sst", "sts"):
        reference = {s.entry.seed: s for s in runs.cell("full", target)}
        for line in runs.lines:
            group = runs.cell(line, target)
            if line == Line("full") or not group:
                continue
            ours, theirs = (
                [runs.predictions(s.record.run, target)["prediction"].to_numpy() for s in side]
                for side in (group, [reference[s.entry.seed] for s in group])
            )
            singles[(line, None), target] = paired_difference(
                runs.metrics[target], ours, theirs, labels_of(target)
            ).comparison(len(verdicts))
    assert {key for key in verdicts if key[1] is not None} == set(singles)
    for key, single in singles.items():  # one of a family that the means over targets count among
        assert verdicts[key] == single


def check_mean(runs: StudyRuns, row: str, shared: Shared) -> None:
    """The verdict on the mean over the targets is that for what the runs of a seed share, and for nothing else."""
    verdicts = main_verdicts(runs)
    pairs = [(runs.cell(row, target), runs.cell("full", target), target) for target in runs.study.targets]
    parts = [part for pair in pairs if (part := runs.difference(*pair)) is not None]
    means = {of: mean_difference(parts, of) for of in get_args(Shared)}
    tests = {of: mean.comparison(len(verdicts)) for of, mean in means.items() if mean is not None}
    own = tests.pop(shared)
    assert verdicts[(Line(row), None), None] == own and own not in tests.values()


def test_fusions_on_the_adapters_of_their_seed_share_sources(runs: StudyRuns) -> None:
    check_mean(runs, "fusion", "sources")


def test_sources_that_are_the_same_for_all_seeds_move_nothing_together(tmp_path: Path) -> None:
    study = whole_study(tmp_path, source_seed=7)
    check_mean(StudyRuns(study.result, study.ledger), "fusion", "nothing")


def test_a_joint_run_moves_all_targets_together(tmp_path: Path) -> None:
    study = make(tmp_path, methods=["full", "multitask"], targets=["sst", "mr"], seeds=[1, 2, 3])
    for seed, quality in ((1, 0.4), (2, 0.6), (3, 0.8)):  # a bad and a good seed, on both
        other = predictions_of("mr", quality, ("multitask", seed))
        joint = study.record("multitask", "sst", seed, quality, others={"mr": (other, None)})
        for target in ("sst", "mr"):
            study.serve(joint, "multitask", target)
            study.add("full", target, seed, 0.5)
    check_mean(StudyRuns(study.result, study.ledger), "multitask", "runs")


def test_runs_scored_on_other_rows_are_not_compared(tmp_path: Path) -> None:
    study = make(tmp_path)
    study.add("full", "sst", 1, predictions=labels_of("sst"))
    study.add("adapter", "sst", 1, predictions=labels_of("sst", ROWS - 1))
    with pytest.raises(PipelineError, match="different rows"):
        table_of(study)


def test_a_run_that_left_the_ledger_is_an_error_and_not_a_hole(own: Synthetic) -> None:
    run = next(entry.run for entry in own.entries if entry.run)
    (own.ledger.folder(run) / "run.json").unlink()
    with pytest.raises(PipelineError, match=f"run {run} of study made is no longer in .*compare again"):
        StudyRuns(own.result, own.ledger)


@pytest.mark.parametrize(
    ("targets", "left_out", "which"),
    [
        (["sst", "mr"], {}, ""),
        (["sst", "mr"], {"part": ["sst"]}, "those with all targets"),
        (["sst", "mr"], {"sequential:imdb": ["sst", "mr"], "sequential:cola": ["sst", "mr"]}, "without sequential"),
        (["sst", "mr"], {"part": ["sst"], "sequential:imdb": ["sst", "mr"], "sequential:cola": ["sst"]},
         "those with all targets, without sequential"),
        (["sst"], {"part": []}, "those that can be tested"),
    ],
)  # fmt: skip
def test_the_verdict_and_the_forest_say_which_methods_they_count(
    targets: list[str], left_out: dict[str, list[str]], which: str, tmp_path: Path
) -> None:
    named = ["a", "b", "c", "d"]
    others = dict.fromkeys(Line.parse(label).row for label in left_out)
    study = make(
        tmp_path,
        methods=["full", *named, *others],
        targets=targets,
        sources=["imdb", "cola"],
        rows={name: {"method": "adapter"} for name in [*named, "part"]},
    )
    for label in ["full", *named]:
        for target in targets:
            study.add(label, target, 1)
    for label, own in left_out.items():
        for target in targets:
            if target in own:
                study.add(label, target, 1)
            else:
                study.fail(label, target, 1)
    runs = StudyRuns(study.result, study.ledger)
    (verdict,) = main_verdict(runs)
    total = 4 + len(left_out)
    assert verdict.startswith(f"4 of the {total} other methods ({which}" if which else "The 4 other methods compared")
    (drawing,) = forest(runs)
    (title,) = set(drawing.numbers["group"])
    assert title.startswith("methods compared with full fine-tuning" + (f" ({which}" if which else ""))
