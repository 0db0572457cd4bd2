"""What is built on another row stands beside it with the steps of both, and nothing says that other tasks helped."""

from pathlib import Path

import pandas as pd
import pytest

from pipeline.records.store import SourceRun
from pipeline.reporting.build import TEMPLATES, build_report
from pipeline.reporting.report import Cell
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.transfer import built_on_table
from pipeline.settings.recipe import Recipe
from tests.pipeline.reporting.synthetic import Synthetic, in_turn, make, predictions_of


def lines_of(study: Synthetic) -> dict[tuple[object, str], dict[str, Cell]]:
    table = built_on_table(StudyRuns(study.result, study.ledger))
    lines = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {(line["method"].sort, line["target"].text): line for line in lines}


def test_every_line_has_the_difference_from_its_base_row(whole: Synthetic) -> None:
    lines = lines_of(whole)
    assert ("sequential:imdb", "sst") in lines
    assert ("multitask", "sst") in lines
    fusion = lines["fusion", "sst"]
    assert fusion["difference, points"].verdict == "better"
    assert "against adapter" in fusion["difference, points"].detail
    assert fusion["difference, points"].sort == pytest.approx(fusion["score"].sort - fusion["base score"].sort)
    assert {line["base method"].sort for (row, _), line in lines.items() if row == "multitask"} == {"full"}


def test_the_steps_of_both_sides_are_those_on_the_target(tmp_path: Path) -> None:
    """1,000 rows in batches of 32 are 32 steps an epoch, and every curve has 3 epochs."""
    study = make(
        tmp_path, methods=["full", "sequential", "multitask", "adapter", "fusion"], targets=["sst"], sources=["imdb"]
    )
    tuned = {task: study.record("full", task, 1) for task in ("sst", "imdb")}
    study.serve(tuned["sst"], "full", "sst")
    came_from = (SourceRun(task="imdb", run=tuned["imdb"].run, digest="f" * 64),)
    study.add("sequential:imdb", "sst", 1, sources=came_from)
    joint = Recipe(trainable="full", epochs=4, mixing="round-robin")
    both = {"sst": (predictions_of("sst", 0.6, 9), None)}
    study.serve(study.record("multitask", "imdb", 1, others=both, recipe=joint), "multitask", "sst")
    own = study.add("adapter", "sst", 1, recipe=Recipe(epochs=3, batch_size=16))
    other = study.record("adapter", "imdb", 1)
    read = tuple(SourceRun(task=one.task, run=one.run, digest="a" * 64) for one in (other, own))
    study.add("fusion", "sst", 1, sources=read)
    steps = {str(row): (line["base steps"].sort, line["steps"].sort) for (row, _), line in lines_of(study).items()}
    assert steps == {"sequential:imdb": (96, 96), "multitask": (96, 192), "fusion": (189, 189 + 96)}
    (study.ledger.folder(tuned["imdb"].run) / "run.json").unlink()
    assert lines_of(study)["sequential:imdb", "sst"]["steps"].sort == 96
    (study.ledger.folder(other.run) / "run.json").unlink()
    assert lines_of(study)["fusion", "sst"]["steps"].sort == 285


def test_of_tasks_in_turn_the_later_ones_count_too(tmp_path: Path) -> None:
    lines = lines_of(in_turn(tmp_path))
    assert {target: line["other tasks"].text for (_, target), line in lines.items()} == {"sst": "sts", "sts": "sst"}


def test_joint_training_of_another_backbone_has_no_base(tmp_path: Path) -> None:
    rows = {"joint": {"method": "multitask", "backbone": "other"}}
    study = make(tmp_path, methods=["full", "joint"], targets=["sst"], sources=["imdb"], rows=rows)
    study.add("full", "sst", 1)
    study.add("joint", "sst", 1)
    assert built_on_table(StudyRuns(study.result, study.ledger)) is None


def test_an_adapters_steps_that_are_not_known_are_not_counted_as_none(own: Synthetic) -> None:
    entry = next(e for e in own.entries if (e.method, e.target, e.rows) == ("adapter", "sst", None))
    own.entries.remove(entry)
    (own.ledger.folder(entry.run or "") / "run.json").unlink()
    assert lines_of(own)["fusion", "sst"]["steps"].text == "-"


def test_a_fusion_over_coin_flips_is_not_said_to_gain_from_them(tmp_path: Path) -> None:
    """It trains on after its adapter, over a source that knows nothing, and so ends far above it."""
    study = make(tmp_path, methods=["full", "adapter", "fusion"], targets=["sst"], sources=["imdb"])
    study.add("full", "sst", 1, 0.6)
    own, coins = study.add("adapter", "sst", 1, 0.4), study.record("adapter", "imdb", 1, 0.2)
    read = tuple(SourceRun(task=one.task, run=one.run, digest="a" * 64) for one in (coins, own))
    columns = ["layer", "site", "adapter", "weight"]
    weights = pd.DataFrame([(0, "ffn", task, 0.5) for task in ("imdb", "sst")], columns=columns)
    study.add("fusion", "sst", 1, 0.6, sources=read, start=own.dev, anchor="sst", attention=weights)
    report = build_report(study.result, study.ledger, tmp_path / "out")
    told = [
        *report.verdict,
        *report.summary,
        *report.notes,
        *(text for table in report.tables for text in (table.title, *table.columns, *table.notes)),
        *(text for figure in report.figures for text in (figure.title, figure.caption)),
    ]
    assert not [text for text in told if "gain from" in text.lower() or "with help" in text.lower()]
    (warning,) = (text for text in told if "trained for different numbers of steps" in text and "1 of 1" in text)
    assert warning in TEMPLATES.get_template("tables.md").render(report=report)
    (best,) = (text for text in report.summary if text.startswith("What a fusion added to its best adapter"))
    assert "in up to 96 more optimiser steps: fusion +" in best and "points (95 % CI" in best
    (start,) = (text for text in report.summary if text.startswith("What training added to the start of a fusion"))
    assert start.endswith(" points on sst.")
