"""Runs are found by line, row, target and point, and what several parts of a report need is computed once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.records.studies import Entry, Line
from pipeline.reporting.build import TABLES
from pipeline.reporting.notes import notes
from pipeline.reporting.report import Table
from pipeline.reporting.rows import epoch_scores, low_resource
from pipeline.reporting.runs import AttentionMap, StudyRuns, difference_of_tables, shared_by
from pipeline.settings.recipe import Recipe
from tests.pipeline.reporting.synthetic import in_turn, make, predictions_of


@pytest.mark.parametrize(
    ("text", "line"), [("full", Line("full")), ("sequential:sst", Line("sequential", "sst")), ("a-1", Line("a-1"))]
)
def test_a_line_is_read_from_the_text_that_files_hold(text: str, line: Line) -> None:
    assert Line.parse(text) == line == Entry(method=text, target="sst", seed=1).line
    assert str(line) == text


def test_a_row_has_the_runs_of_all_its_lines(runs: StudyRuns) -> None:
    own: dict[Line, Any] = {line: runs.cell(line, "sst") for line in runs.lines if line.row == "sequential"}
    assert set(own) == {Line("sequential", "imdb"), Line("sequential", "sts"), Line("sequential", "sst")}
    both = runs.cell("sequential", "sst")
    assert sorted(s.record.run for s in both) == sorted(s.record.run for group in own.values() for s in group)
    assert [s.entry.seed for s in both] == sorted(s.entry.seed for s in both)
    assert not {s.record.run for s in both} & {s.record.run for s in runs.cell("sequential", "sst", 100)}
    assert runs.cell("sequential", "imdb") == runs.cell(Line("nothing"), "sst") == []


@pytest.mark.parametrize(
    ("mixing", "epochs"), [("simultaneous", 25), ("round-robin", 13), ("proportional", 13), ("annealed", 13)]
)
def test_the_epochs_of_joint_training_are_those_of_its_mixing(mixing: str, epochs: int, tmp_path: Path) -> None:
    """1,000 rows of a task are 16 steps of 64, and 400 steps the least: two tasks have 16 or 32 an epoch."""
    recipe = Recipe(trainable="full", epochs=10, min_steps=400, batch_size=64, joint={"mixing": mixing})
    study = make(tmp_path, methods=["full", "multitask"], targets=["sst", "sts"])
    record = study.record("multitask", "sst", 1, others={"sts": (predictions_of("sts", 1.0, 3), None)}, recipe=recipe)
    study.serve(record, "multitask", "sst")
    runs = StudyRuns(study.result, study.ledger)
    (scored,) = runs.cell("multitask", "sst")
    assert runs.epochs(scored) == max(10, -(-400 // (16 if mixing == "simultaneous" else 32))) == epochs


def test_each_table_has_a_name_of_its_own(runs: StudyRuns) -> None:
    made = [make(runs) or () for make in TABLES]
    names = [table.name for each in made for table in ([each] if isinstance(each, Table) else each)]
    assert len(names) == len(set(names))


TABLE = pd.DataFrame({"id": ["a", "b", "c"], "label": [0, 1, 1], "prediction": [0, 1, 0]})


def test_the_places_of_a_prefix_stand_before_the_tokens() -> None:
    found = AttentionMap("run", "prefix", "a b", ("a", "b"), {1: np.full((2, 4), 0.25), 2: np.full((2, 2), 0.5)})
    assert found.keys(1) == ["prefix 1", "prefix 2", "a", "b"]
    assert found.keys(2) == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "is_paired"),
    [
        ({}, True),
        ({"prediction": [1, 0, 1]}, True),
        ({"id": ["a", "c", "b"]}, False),
        ({"label": [0, 1, 0]}, False),
    ],
    ids=str,
)
def test_only_predictions_for_the_same_examples_are_paired(changes: dict[str, Any], is_paired: bool) -> None:
    other = TABLE.assign(**changes)
    for ours, theirs in ((TABLE, other), (other, TABLE)):
        assert (difference_of_tables("accuracy", [ours], [theirs], [1]) is not None) == is_paired
    assert difference_of_tables("accuracy", [TABLE[:0]], [other[:0]], [1]) is None


def cells_of(*targets: dict[int, tuple[str, ...]]) -> list[list[Any]]:
    """Cells by target: at each seed a run, and those that it is built on."""
    return [
        [
            SimpleNamespace(
                entry=SimpleNamespace(seed=seed),
                record=SimpleNamespace(run=run, continued=[SimpleNamespace(run=source) for source in sources]),
            )
            for seed, (run, *sources) in cell.items()
        ]
        for cell in targets
    ]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ([{1: ("a",), 2: ("b",)}, {1: ("c",), 2: ("d",)}], "nothing"),
        ([{1: ("a",), 2: ("b",)}, {1: ("a",), 2: ("b",)}], "runs"),  # joint training
        ([{1: ("a", "x"), 2: ("b", "y")}, {1: ("c", "x"), 2: ("d", "y")}], "sources"),  # those of the same seed
        ([{1: ("a", "x"), 2: ("b", "y")}, {1: ("x",), 2: ("y",)}], "sources"),  # runs that are sources of others
        ([{1: ("a", "x"), 2: ("b", "x")}, {1: ("c", "x"), 2: ("d", "x")}], "nothing"),  # sources that all seeds share
        ([{1: ("a", "x"), 2: ("b", "x", "y")}, {1: ("c", "x"), 2: ("d", "x", "z")}], "nothing"),
    ],
    ids=str,
)
def test_a_seed_moves_targets_together_that_share_what_it_decides(
    targets: list[dict[int, tuple[str, ...]]], expected: str
) -> None:
    assert shared_by(cells_of(*targets), lambda run: None) == expected


def test_what_members_of_an_ensemble_are_built_on_is_shared_too() -> None:
    cells = cells_of({1: ("e1", "a1"), 2: ("e2", "a2")}, {1: ("f1", "b1"), 2: ("f2", "b2")})
    built = cells_of({1: ("a1", "x"), 2: ("a2", "y"), 3: ("b1", "x"), 4: ("b2", "y")})[0]
    records = {scored.record.run: scored.record for scored in built}
    assert shared_by(cells, lambda run: None) == "nothing"
    assert shared_by(cells, records.get) == "sources"


def test_a_task_before_the_last_one_is_described_by_the_run_that_trained_on_it(tmp_path: Path) -> None:
    study = in_turn(tmp_path)
    runs = StudyRuns(study.result, study.ledger)
    (on_sst,), (on_sts,) = runs.cell("cycle", "sst"), runs.cell("cycle", "sts")
    first, last = runs.trainer(on_sst), runs.trainer(on_sts)
    assert last == on_sts.record
    assert (first.task, on_sst.record) == ("sst", last)
    assert (runs.train_rows(on_sst), runs.train_rows(on_sts)) == (700, 1000)
    assert (runs.epochs(on_sst), runs.epochs(on_sts)) == (8, 4)
    assert runs.recipe_of(on_sst).learning_rate == 3e-5 != runs.recipe_of(on_sts).learning_rate
    assert runs.dev_curve(on_sst) is None
    assert runs.dev_curve(on_sts) is not None
    scores = epoch_scores(runs)
    assert set(scores.loc[scores["method"] == Line("cycle"), "target"]) == {"sts"}
    told = list(notes(runs))
    assert not [note for note in told if note.startswith("Optimiser steps")]
    assert "Texts of scored rows that are also in train: sst 17." in told
    assert [note for note in told if note.startswith("in turn on sst: 60 training rows of imdb added, 3 left out")]


def test_a_low_resource_curve_counts_the_rows_of_the_task_that_was_learned_first(tmp_path: Path) -> None:
    study = in_turn(tmp_path, curve={"rows": [100], "methods": ["full", "cycle"]})
    for row in ("full", "cycle"):
        study.add(row, "sst", 1, rows=100)
    curve = low_resource(StudyRuns(study.result, study.ledger))
    assert [curve.train_rows(point, ["sst"]) for point in curve.points] == [100, 700]
