"""What a fusion's training added is told from its start and from the best adapter it reads, tested where it can be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.records.store import SourceRun
from pipeline.reporting.report import Cell
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.transfer import fusion_gain_table, fusion_sentences
from pipeline.settings.recipe import Recipe
from tests.pipeline.reporting.synthetic import Synthetic, make

ANCHORED = Recipe(trainable="fusion", fusion="anchored", epochs=4)


def fused(folder: Path, *seeds: Mapping[str, Any], own_quality: float = 0.5) -> Synthetic:
    """A fusion on sst over its own adapter and that of imdb, with fields of its record by seed."""
    numbers = list(range(1, len(seeds) + 1))
    study = make(folder, methods=["full", "adapter", "fusion"], targets=["sst"], sources=["imdb"], seeds=numbers)
    for number, how in zip(numbers, seeds, strict=True):
        own, other = study.add("adapter", "sst", number, own_quality), study.record("adapter", "imdb", number)
        read = tuple(SourceRun(task=one.task, run=one.run, digest="a" * 64) for one in (other, own))
        study.add("fusion", "sst", number, 0.6, sources=read, **{"recipe": ANCHORED, **how})
    return study


def line_of(study: Synthetic) -> tuple[dict[str, Cell], tuple[str, ...], str]:
    """The one line of the table, its notes, and the sentences."""
    runs = StudyRuns(study.result, study.ledger)
    table = fusion_gain_table(runs)
    (row,) = table.rows
    return dict(zip(table.columns, row, strict=True)), table.notes, " ".join(fusion_sentences(runs))


def test_a_fusion_that_trained_is_above_its_start_and_tested_against_its_adapter(tmp_path: Path) -> None:
    study = fused(tmp_path, {"start": 0.45, "anchor": "sst"}, {"start": 0.47, "anchor": "sst"})
    line, notes, sentence = line_of(study)
    runs = StudyRuns(study.result, study.ledger)
    fusion, adapter = (sum(s.value for s in runs.cell(row, "sst")) / 2 for row in ("fusion", "adapter"))
    assert (line["start"].text, line["best adapter"].text, line["epoch kept"].text) == ("sst", "sst", "2, 2")
    assert line["start score"].text == "0.460 ± 0.014"
    assert line["its score"].sort == pytest.approx(adapter)
    assert line["over start, points"].sort == pytest.approx(fusion - 0.46)
    assert line["over best adapter, points"].sort == pytest.approx(fusion - adapter)
    assert line["over best adapter, points"].verdict == "better"
    assert "95 % CI" in line["over best adapter, points"].detail
    assert (line["its steps"].sort, line["steps added"].sort) == (96, 96)
    assert sentence.startswith("What a fusion added to its best adapter, in up to 96 more optimiser steps: fusion +")
    assert ", better). " in sentence
    assert sentence.endswith(f" start of a fusion: fusion {100 * (fusion - 0.46):.1f} points on sst.")
    assert any("for the 1 comparison of this table" in note for note in notes)
    assert not any("not scored before training" in note for note in notes)


def test_a_fusion_that_trained_nothing_is_left_out(tmp_path: Path) -> None:
    study = fused(tmp_path, {"trained": 0}, {"trained": 0})
    assert fusion_gain_table(StudyRuns(study.result, study.ledger)) is None


def test_where_every_start_was_kept_nothing_was_added(tmp_path: Path) -> None:
    line, _, sentence = line_of(fused(tmp_path, *({"best_epoch": 0, "start": 0.6, "anchor": "sst"},) * 3))
    assert line["epoch kept"].text == "start kept"
    assert sentence.endswith("start of a fusion: fusion nothing on sst, the start was kept in every run.")


@pytest.mark.parametrize(
    ("how", "began"),
    [
        ({"anchor": "imdb"}, "imdb"),
        ({"anchor": None}, "mean of all"),
        ({"anchor": "sst", "recipe": Recipe(trainable="fusion", fusion="anchored", anchor=0.0)}, "mean of all"),
        ({"anchor": "sst", "recipe": Recipe(trainable="fusion", fusion="anchored", head_start=False)}, "sst, new head"),
        ({"recipe": Recipe(trainable="fusion", gate_start="even")}, "new own adapter, gates at 1"),
        ({"recipe": Recipe(trainable="fusion", gate_start=0.25)}, "new own adapter, gates at 0.25"),
        (
            {"recipe": Recipe(trainable="fusion"), "gates": {"imdb": 1.0, "sts": 0.5}},
            "new own adapter, gates at imdb 1, sts 0.5",
        ),
        (
            {"recipe": Recipe(trainable="fusion", own_adapter="warm", gate_start="even")},
            "warm-started own adapter, gates at 1",
        ),
        (
            {"recipe": Recipe(trainable="fusion", own_adapter="frozen", gate_start="even", head_start=False)},
            "own adapter, gates at 1, new head",
        ),
        ({"recipe": Recipe(trainable="fusion", own_adapter="none", gate_start=0.5)}, "gates at 0.5"),
    ],
)
def test_what_it_began_as_is_named(how: dict[str, Any], began: str, tmp_path: Path) -> None:
    assert line_of(fused(tmp_path, {"start": 0.4, **how}))[0]["start"].text == began


def test_another_tasks_adapter_that_is_best_is_compared_with_but_not_tested(tmp_path: Path) -> None:
    """Its predictions on the target are not kept, only its score when the anchor was chosen."""
    study = fused(tmp_path, {"start": 0.56, "anchor": "imdb", "anchor_candidates": {"imdb": 0.57, "sst": 0.5}})
    line, notes, sentence = line_of(study)
    assert (line["best adapter"].text, line["its score"].text) == ("imdb", "0.570")
    cell = line["over best adapter, points"]
    assert (cell.verdict, cell.detail) == (None, "not tested")
    assert cell.sort == pytest.approx(StudyRuns(study.result, study.ledger).cell("fusion", "sst")[0].value - 0.57)
    assert "(not tested)" in sentence
    assert any(
        "; for an anchored fusion also those of tasks with the same labels, from one of which" in note for note in notes
    )
    assert not any("Marks" in note for note in notes)
