"""An average of several runs is held against the mean score of these runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from pipeline.records.run_record import RunRecord
from pipeline.records.store import SourceRun
from pipeline.records.studies import Line
from pipeline.reporting.averaging import averaging_sentences, averaging_table, gains
from pipeline.reporting.runs import StudyRuns
from tests.pipeline.reporting.synthetic import labels_of, make, predictions_of

ROWS = {
    "soup": {"method": "merge", "of": "adapter", "experts": 3, "title": "soup"},
    "mean": {"method": "ensemble", "of": ["adapter"], "experts": 3, "rule": "uniform"},
    "best": {"method": "ensemble", "of": ["adapter"], "experts": 3, "most": 1},
    "trained": {"method": "fusion", "experts": 3, "recipe": {"fusion": {"form": "experts"}, "train_experts": True}},
}


def averaged(
    folder: Path, answers: Callable[[str, int, Sequence[np.ndarray]], np.ndarray], seeds: int = 3
) -> StudyRuns:
    """Rows of three runs of an adapter each; ``answers`` makes the soup's from theirs, by target and seed."""
    names, numbers = ["sst", "mr"], [*range(1, seeds + 1)]
    study = make(folder, methods=["adapter", *ROWS], targets=names, rows=ROWS, seeds=numbers, scoring="half")
    for target in names:
        for seed in numbers:
            own = [predictions_of(target, 0.5, ("adapter", seed, number)) for number in range(3)]
            members = [study.add("adapter", target, seed, predictions=own[0])]
            members += [study.record(f"adapter:again {n}", target, seed, predictions=own[n]) for n in (1, 2)]
            for name in ROWS:
                study.add(name, target, seed, predictions=answers(target, seed, own), sources=_sources(members))
    return StudyRuns(study.result, study.ledger)


def _sources(members: Sequence[RunRecord]) -> tuple[SourceRun, ...]:
    return tuple(SourceRun(task=one.task, run=one.run, digest="a" * 64) for one in members)


def better(target: str, seed: int, own: Sequence[np.ndarray]) -> np.ndarray:
    """The first run's answers, and in addition every tenth row right."""
    return np.where(np.arange(len(own[0])) % 10 == 0, labels_of(target), own[0])


def test_the_gain_is_the_score_less_the_mean_score_of_all_its_runs(tmp_path: Path) -> None:
    runs = averaged(tmp_path, better)
    values = {"score": list[float](), "score of a run": list[float]()}
    for target in ("sst", "mr"):
        for scored in runs.cell("soup", target):
            own = [predictions_of(target, 0.5, ("adapter", scored.entry.seed, number)) for number in range(3)]
            values["score of a run"] += [float(np.mean(each == labels_of(target))) for each in own]
            values["score"].append(float(np.mean(better(target, scored.entry.seed, own) == labels_of(target))))
    table = averaging_table(runs)
    assert table is not None and [row[0].text for row in table.rows] == [
        "soup",
        "mean",
    ]  # what selects or trains is no average
    line = dict(zip(table.columns, table.rows[0], strict=True))
    expected = {name: np.mean(own) for name, own in values.items()}
    assert {name: line[name].sort for name in expected} == pytest.approx(expected)
    assert line["difference, points"].sort == pytest.approx(expected["score"] - expected["score of a run"])
    assert np.mean([line[target].sort for target in ("sst", "mr")]) == pytest.approx(line["difference, points"].sort)
    assert line["difference, points"].verdict == "better"
    (sentence,) = averaging_sentences(runs)
    assert "soup (+" in sentence and "mean of sst and mr" in sentence


def test_a_copy_of_one_run_gains_nothing(tmp_path: Path) -> None:
    """Which run is copied differs by seed, so that a lucky one is not taken for a gain."""
    runs = averaged(tmp_path, lambda target, seed, own: own[seed % 3])
    assert {gain.comparison.verdict for gain in gains(runs).values()} == {"not significant"}


def test_an_average_without_a_target_is_left_out(tmp_path: Path) -> None:
    runs = averaged(tmp_path, better)
    entries = [each for each in runs.result.entries if (each.method, each.target) != ("soup", "mr")]
    fewer = StudyRuns(runs.result.model_copy(update={"entries": tuple(entries)}), runs.ledger)
    assert [*gains(fewer)] == [Line("mean")]
