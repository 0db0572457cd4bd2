"""Ensembles of the rows of a study: which runs they join, what they answer, and what cannot be joined."""

from typing import Any

import numpy as np
import pytest

from pipeline.data.labels import Prediction
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import StudyResult
from pipeline.reporting.rows import stored
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.stats.ensembling import combine
from pipeline.stats.metrics import METRICS
from pipeline.system.errors import PipelineError
from stages.compare.compare import compare, dry_run
from stages.ensemble import EnsembleRun

TOGETHER = {"trainable": "full", "epochs": 3, "batch_size": 16, "learning_rate": 5e-3}
VALUES: dict[str, Any] = {
    "name": "joined-rows",
    "methods": ["full", "multi", "multi-split", "films-only", "joined", "voted", "best"],
    "targets": ["films", "pairs"],
    "seeds": [1, 2],
    "scoring": "half",
    "recipe": {**TOGETHER, "mixing": "shuffled", "score_loss": "raw"},
    "rows": {
        "full": {"method": "full"},
        "multi": {"method": "multitask"},
        "multi-split": {"method": "multitask", "recipe": {"split_layers": 1}, "keep_weights": True},
        "films-only": {"method": "full", "targets": ["films"], "recipe": {"weight_decay": 1e-3}},
        "joined": {"method": "ensemble", "of": ["full", "multi", "films-only"]},
        "voted": {"method": "ensemble", "of": ["full", "multi", "multi-split"], "rule": "vote", "most": 3},
        "best": {"method": "ensemble", "of": ["full", "multi", "films-only"], "most": 1},
    },
}


@pytest.fixture(scope="module")
def result(place: Workspace) -> StudyResult:
    return compare(parse_study(VALUES, "test"), place)[0]


def run_of(result: StudyResult, row: str, target: str, seed: int) -> str:
    found = next(e for e in result.entries if (e.method, e.target, e.seed) == (row, target, seed))
    assert found.run is not None, found.error
    return found.run


def test_an_ensemble_is_made_again_after_a_member_was(result: StudyResult, place: Workspace) -> None:
    kept = [place.ledger.find(run_of(result, row, "films", 1)) for row in ("full", "multi", "films-only")]

    def run(members: list[RunRecord]) -> EnsembleRun:
        return EnsembleRun(place.task("films"), members, "mean", None, 1, place)

    found = run(kept).finished()
    assert found is not None and found.run == run_of(result, "joined", "films", 1)
    later = kept[1].model_copy(update={"finished_at": "9999-01-01T00:00:00+00:00"})
    assert run([kept[0], later, kept[2]]).name == found.run
    assert run([kept[0], later, kept[2]]).finished() is None


def test_an_ensemble_is_chosen_on_the_rows_that_choose_and_scored_on_the_others(
    result: StudyResult, place: Workspace
) -> None:
    ledger = place.ledger
    for target in ("films", "pairs"):
        record = ledger.find(run_of(result, "joined", target, 1))
        taken = [source.run for source in record.sources]
        members = {run_of(result, row, target, 1) for row in ("full", "multi")}
        members |= {run_of(result, "films-only", "films", 1)} if target == "films" else set()
        assert set(taken) <= members
        score = record.score(target)
        for split, reached in (("dev", score.dev), ("test", score.test)):
            parts = [ledger.predictions(run, target, split) for run in taken]
            each = [
                Prediction(
                    table["prediction"].to_numpy(),
                    table.filter(regex="^probability_").to_numpy() if target == "films" else None,
                )
                for table in parts
            ]
            together = combine(each, [1 / len(each)] * len(each), "mean")
            labels = parts[0]["label"].to_numpy()
            assert METRICS[score.metric].score(together.values, labels) == pytest.approx(reached)
        # Never worse on the validation rows than the best of its members.
        assert score.dev >= max(ledger.find(run).score(target).dev for run in members) - 1e-12
        assert record.cost.trainable_parameters == sum(ledger.find(run).cost.trainable_parameters for run in taken)
        assert record.cost.seconds == 0
        assert stored([record], ledger) == stored([ledger.find(run) for run in taken], ledger)


def test_a_vote_is_of_classes_or_a_median_and_one_member_is_the_best(result: StudyResult, place: Workspace) -> None:
    ledger = place.ledger
    runs = [run_of(result, row, "pairs", 2) for row in ("full", "multi", "multi-split")]
    median = np.median([ledger.predictions(run, "pairs")["prediction"] for run in runs], axis=0)
    np.testing.assert_allclose(ledger.predictions(run_of(result, "voted", "pairs", 2))["prediction"], median)
    runs = [run_of(result, row, "films", 2) for row in ("full", "multi", "multi-split")]
    votes = np.sum([ledger.predictions(run, "films")["prediction"] for run in runs], axis=0)
    said = ledger.predictions(run_of(result, "voted", "films", 2))["prediction"]
    np.testing.assert_array_equal(said, (votes >= 2).astype(int))
    single = ledger.find(run_of(result, "best", "films", 1))
    (member,) = single.sources
    members = [run_of(result, row, "films", 1) for row in ("full", "multi", "films-only")]
    assert single.score("films").dev == max(ledger.find(run).score("films").dev for run in members)
    assert single.value == ledger.find(member.run).score("films").value


def test_what_is_joined_is_neither_made_nor_counted_again(result: StudyResult, place: Workspace) -> None:
    made = {name: place.ledger.find(name) for name in place.ledger.names()}
    planned = dry_run(result.study, place)
    assert planned.total.runs == planned.total.done == 10  # full 4, and 2 of each other that trains
    assert compare(result.study, place)[0].entries == result.entries
    assert {name: place.ledger.find(name) for name in place.ledger.names()} == made


@pytest.mark.parametrize(
    ("row", "scoring", "told"),
    [
        ({"of": ["nobody"]}, "half", "rows.joined.of: there is no row 'nobody'"),
        ({"of": []}, "half", "rows.joined.of: name the rows whose runs it joins"),
        ({"of": ["voted"]}, "half", "rows.joined.of: 'voted' is an ensemble itself"),
        ({"of": ["sequential"]}, "half", "rows.joined.of: 'sequential' has a run for each source"),
        ({"of": ["full"], "recipe": {"epochs": 2}}, "half", "rows.joined.recipe: an ensemble trains nothing"),
        ({"of": ["full"]}, "dev", "rows.joined: members are chosen on other rows than those that are scored"),
        ({"of": ["films-only"], "targets": ["pairs"]}, "half", "rows.joined.of: 'films-only' has none of its targets"),
        (
            {"of": ["films-only"]},
            "half",
            "rows.joined.targets: no member has pairs: leave it out here, or add a member",
        ),
    ],
)
def test_what_cannot_be_joined_is_told_before_training(row: Any, scoring: str, told: str) -> None:
    values = {**VALUES, "scoring": scoring, "rows": {**VALUES["rows"], "joined": {"method": "ensemble", **row}}}
    with pytest.raises(PipelineError) as error:
        parse_study(values, "test")
    assert told in str(error.value)
