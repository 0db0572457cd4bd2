"""The box of a page advises from numbers: the cheapest of the methods that do about as well as the best."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.records.store import SourceRun
from pipeline.records.studies import Line
from pipeline.reporting.notes import advice, advice_sentences, cautions
from pipeline.reporting.runs import StudyRuns
from pipeline.settings.recipe import Recipe
from pipeline.stats.paired import paired_difference
from tests.pipeline.reporting.synthetic import labels_of, make

TRAINED = {"frozen": 1_000, "adapter": 10_000, "fusion": 5_000}
"""Parameters; the fusion also reads the adapter."""
SHORT = Recipe(epochs=4, min_steps=0)
Wrong = tuple[float, float]


def answers(wrong: Wrong, rows: int) -> np.ndarray:
    """Classes of sst that are wrong from a place on, both in percent of the rows."""
    start, length = (round(share * rows / 100) for share in wrong)
    place = np.arange(rows)
    return (labels_of("sst", rows) + ((place >= start) & (place < start + length))) % 5


def study_of(folder: Path, wrong: Mapping[str, Wrong], rows: int, kept: int = 2, **keys: Any) -> StudyRuns:
    study = make(folder, methods=[*wrong], sources=["imdb"], **({"seeds": [1, 2], "scoring": "half"} | keys))
    for seed in study.study.seeds:
        read: tuple[SourceRun, ...] = ()
        for name, share in wrong.items():
            sources = read if name == "fusion" else ()
            how = {"trained": TRAINED[name], "sources": sources, "best_epoch": kept, "recipe": SHORT}
            run = study.add(name, "sst", seed, predictions=answers(share, rows), **how).run
            read = (SourceRun(task="sst", run=run, digest="a" * 64),) if name == "adapter" else read
    return StudyRuns(study.result, study.ledger)


@pytest.mark.parametrize(
    ("rows", "wrong", "use", "worse", "lower"),
    [
        (1000, {"frozen": (0, 60), "adapter": (0, 30), "fusion": (0, 20)}, "fusion", ["frozen", "adapter"], []),
        (1000, {"frozen": (0, 60), "adapter": (10, 20.5), "fusion": (0, 20)}, "adapter", ["frozen"], []),
        (1000, {"frozen": (0, 60), "adapter": (0, 19), "fusion": (0, 20)}, "adapter", ["frozen"], []),
        # Not shown to be worse, but lower by more than one standard error.
        (200, {"adapter": (0, 26), "fusion": (20, 20)}, "fusion", [], ["adapter"]),
        # Few rows show nothing.
        (20, {"adapter": (0, 20), "fusion": (20, 15)}, "adapter", [], []),
        (4, {"adapter": (0, 50), "fusion": (50, 25)}, "adapter", [], []),
    ],
)
def test_the_cheapest_that_does_about_as_well_is_advised(
    rows: int, wrong: dict[str, Wrong], use: str, worse: list[str], lower: list[str], tmp_path: Path
) -> None:
    runs = study_of(tmp_path, wrong, rows)
    found = advice(runs)
    assert found is not None and found.use == Line(use)
    assert found.best == Line(min(wrong, key=lambda name: wrong[name][1]))
    assert [line.row for line in found.cheaper(significant=True)] == worse
    assert [line.row for line in found.cheaper(significant=False)] == lower
    best, labels = answers(wrong[found.best.row], rows), labels_of("sst", rows)
    for line, test in found.compared.items():
        own = answers(wrong[line.row], rows)
        pairs = len(wrong) * (len(wrong) - 1) // 2
        assert test == paired_difference("accuracy", [own] * 2, [best] * 2, labels, [1, 2]).comparison(pairs)
    assert found.costs[Line("fusion")] == (15_000, 20.6)
    first, *others = advice_sentences(runs)
    assert first == f"Use: {runs.title(found.use)}." and f"With {rows:,} scored rows" in others[-1]
    undecided = [test.detectable for test in found.compared.values() if not test.significant]
    assert ("no difference" in others[-1]) == (max(undecided, default=0) >= 1) == (rows == 4)
    assert all(any(runs.title(Line(name)) in text for text in others) for name in (*worse, *lower))


def test_what_may_change_the_advice_is_said(tmp_path: Path) -> None:
    wrong = {"frozen": (0, 60), "adapter": (0, 30)}
    runs = study_of(tmp_path / "one", wrong, 100, kept=4, seeds=[1], scoring="dev")
    assert ["One seed" in text or "head only; adapter" in text or "selected" in text for text in cautions(runs)] == [
        True
    ] * 3
    assert [*cautions(study_of(tmp_path / "two", wrong, 100))] == []


def test_one_method_or_none_is_no_choice(tmp_path: Path) -> None:
    assert advice(study_of(tmp_path, {"adapter": (0, 30)}, 100)) is None
    study = make(tmp_path / "none")
    assert [*advice_sentences(StudyRuns(study.result, study.ledger))] == []
