"""A study beside published tables, from end to end: ensembles of its rows, best epochs, differences of settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.data.prediction import Prediction
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import StudyResult
from pipeline.reporting.build import build_report
from pipeline.reporting.cost import stored
from pipeline.reporting.published.values import published_values
from pipeline.reporting.report import Cell, Report
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import Study
from pipeline.stats.ensembling import combine
from pipeline.stats.metrics import METRICS
from pipeline.system.errors import PipelineError
from stages.compare.compare import compare, dry_run
from stages.compare.ensembles import EnsembleRun
from stages.ensemble import ensemble
from stages.report import maps_of
from tests.stages.compare.conftest import with_figures

TOGETHER = {"trainable": "full", "epochs": 3, "batch_size": 16, "learning_rate": 5e-3}
VALUES: dict[str, Any] = {
    "name": "published",
    "methods": ["full", "multi", "multi-split", "decay", "films-only", "joined", "voted", "best"],
    "targets": ["films", "pairs"],
    "seeds": [1, 2],
    "scoring": "half",
    "recipe": {**TOGETHER, "mixing": "shuffled", "score_loss": "raw"},
    "rows": {
        "full": {"method": "full", "published": ["finetune only", "triple"]},
        "multi": {"method": "multitask", "published": "multi"},
        "multi-split": {
            "method": "multitask",
            "recipe": {"split_layers": 1},
            "published": "CerBERTus k=2",
            "keep_weights": True,
        },
        "decay": {"method": "multitask", "published": "wd 1e-3", "published_columns": ["qqp", "mean"]},
        "films-only": {
            "method": "full",
            "targets": ["films"],
            "recipe": {"weight_decay": 1e-3},
            "published": "wd 1e-3",
            "published_columns": ["sst_only_mean", "sst_only_max"],
        },
        "joined": {
            "method": "ensemble",
            "of": ["full", "multi", "films-only"],
            "published": "best ensemble, 7-9 per task",
        },
        "voted": {"method": "ensemble", "of": ["full", "multi", "multi-split"], "rule": "vote", "most": 3},
        "best": {"method": "ensemble", "of": ["full", "multi", "films-only"], "most": 1},
    },
    "published": {
        "report": "Hayes",
        "table": ["Table 3", "Table 5", "Table 6", "Table 7"],
        "tasks": {
            **dict.fromkeys(["sst", "sst_mean", "sst_max", "best_sst", "sst_only_mean", "sst_only_max"], "films"),
            **dict.fromkeys(["sts_r", "sts_mean", "sts_max", "best_sts"], "pairs"),
        },
    },
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path, data_folder: Path) -> Workspace:
    root = tmp_path_factory.mktemp("published")
    return Workspace(str(backbone_folder), data_folder, root / "store", root / "reports")


@pytest.fixture(scope="module")
def result(place: Workspace) -> StudyResult:
    return compare(parse_study(VALUES, "test"), place)[0]


@pytest.fixture(scope="module")
def report(result: StudyResult, place: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return build_report(result, place.ledger, tmp_path_factory.mktemp("report"))


def rows(report: Report, name: str) -> list[dict[str, Cell]]:
    table = next(table for table in report.tables if table.name == name)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def run_of(result: StudyResult, row: str, target: str, seed: int) -> str:
    found = next(e for e in result.entries if (e.method, e.target, e.seed) == (row, target, seed))
    assert found.run is not None, found.error
    return found.run


def test_an_ensemble_is_made_again_after_a_member_was(result: StudyResult, place: Workspace) -> None:
    members = [place.ledger.find(run_of(result, row, "films", 1)) for row in ("full", "multi", "films-only")]
    assert None not in members
    kept = [member for member in members if member is not None]

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
        assert record is not None
        taken = [source.run for source in record.sources]
        members = {run_of(result, row, target, 1) for row in ("full", "multi")}
        members |= {run_of(result, "films-only", "films", 1)} if target == "films" else set()
        assert set(taken) <= members
        score = record.score(target)
        for split, reached in (("dev", score.dev), ("test", score.test)):
            parts = [ledger.predictions(run, target, split) for run in taken]  # type: ignore[arg-type]
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
        assert score.dev >= max(ledger.find(run).score(target).dev for run in members) - 1e-12  # type: ignore[union-attr]
        assert record.cost.trainable_parameters == sum(ledger.find(run).cost.trainable_parameters for run in taken)  # type: ignore[union-attr]
        assert record.cost.seconds == 0
        assert stored([record], ledger) == stored([ledger.find(run) for run in taken], ledger)  # type: ignore[misc]


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
    assert single is not None
    (member,) = single.sources
    members = [run_of(result, row, "films", 1) for row in ("full", "multi", "films-only")]
    assert single.score("films").dev == max(ledger.find(run).score("films").dev for run in members)  # type: ignore[union-attr]
    assert single.value == ledger.find(member.run).score("films").value  # type: ignore[union-attr]


def test_what_is_joined_is_neither_made_nor_counted_again(result: StudyResult, place: Workspace) -> None:
    made = {name: place.ledger.find(name) for name in place.ledger.names()}
    planned = dry_run(result.study, place)
    assert planned.total.runs == planned.total.done == 10  # full 4, and 2 of each other that trains
    assert compare(result.study, place)[0].entries == result.entries
    assert {name: place.ledger.find(name) for name in place.ledger.names()} == made


def test_an_ensemble_of_ensembles_is_not_made(result: StudyResult, place: Workspace) -> None:
    task = place.task("films")
    record = ensemble(task, "all", place.reports)
    assert run_of(result, "joined", "films", 1) not in record.considered
    with pytest.raises(PipelineError, match="is an ensemble itself"):
        ensemble(task, "named", place.reports, runs=[run_of(result, "joined", "films", 1)])


def test_columns_of_the_best_epoch_are_each_tasks_own(result: StudyResult, report: Report, place: Workspace) -> None:
    table = {
        (name, row["method"].text): row
        for name in ("Table 3", "Table 5", "Table 6", "Table 7")
        for row in rows(report, f"published-{name.lower().replace(' ', '-')}")
    }
    curves = {
        (row, task, seed): place.ledger.curve(run_of(result, row, task, seed))
        for row in ("full", "multi", "films-only")
        for task in ("films", "pairs")
        for seed in (1, 2)
        if (row, task) != ("films-only", "pairs")
    }
    single = [curves["full", "films", seed]["dev"].max() for seed in (1, 2)]
    joint = {task: [curves["multi", task, s][f"dev_{task}"].max() for s in (1, 2)] for task in ("films", "pairs")}
    assert table["Table 5", "finetune only"]["films, best epoch, ours"].sort == pytest.approx(np.mean(single))
    assert table["Table 5", "finetune only"]["films, best epoch and seed, ours"].sort == pytest.approx(max(single))
    assert table["Table 6", "multi"]["pairs, best epoch, ours"].sort == pytest.approx(np.mean(joint["pairs"]))
    means = table["Table 6", "multi"]["mean of best epochs, ours"].sort
    assert means == pytest.approx(np.mean([np.mean(each) for each in joint.values()]))
    whole = [curves["multi", "films", seed]["dev"].max() for seed in (1, 2)]
    assert table["Table 6", "multi"]["best mean, ours"].sort == pytest.approx(np.mean(whole))
    assert table["Table 6", "triple"]["best mean, ours"].text == "-"  # several models have no common epoch
    alone = [curves["films-only", "films", seed]["dev"].max() for seed in (1, 2)]
    assert table["Table 3", "wd 1e-3"]["films, best epoch, ours"].sort == pytest.approx(np.mean(alone))
    assert table["Table 3", "wd 1e-3"]["films, ours"].text == "-"
    millions = table["Table 7", "best ensemble, 7-9 per task"]["parameters, millions, ours"].sort
    assert isinstance(millions, float)
    assert 0 < millions < 1
    assert table["Table 6", "multi"]["films, best epoch, Hayes"].text == "0.516"


def test_every_setting_that_is_not_the_reports_is_listed_and_no_other(report: Report) -> None:
    listed = {
        (row["table"].text, row["method"].text, row["setting"].text): (row["Hayes"].text, row["ours"].text)
        for row in rows(report, "published-differences")
    }
    assert listed["Table 6", "multi", "batch size"] == ("32", "16")
    assert listed["Table 6", "multi", "pooling"] == ("pooler", "mean")
    assert listed["Table 6", "CerBERTus k=2", "split layers"] == ("2", "1")
    assert ("Table 6", "multi", "split layers") not in listed
    assert ("Table 3", "wd 1e-3", "score loss") not in listed  # the report's
    assert {"method"} >= {key for _, name, key in listed if name.startswith("best ensemble")}
    assert {row["Hayes"].text == row["ours"].text for row in rows(report, "published-differences")} == {False}
    trained = {row["method"].sort for row in rows(report, "settings")}
    assert trained == {"full", "multi", "multi-split", "decay", "films-only"}  # what ensembles join has settings


def test_what_the_report_does_not_say_is_listed_with_what_ours_is(report: Report) -> None:
    listed = {(row["setting"].text, row["tasks"].text): row["ours"].text for row in rows(report, "published-unstated")}
    assert listed["max grad norm", "films, pairs"] == "1.0"
    assert ("batch size", "films, pairs") in listed  # said of Table 6 alone
    assert "score loss" not in {setting for setting, _ in listed}


def test_models_that_read_their_tasks_apart_show_each(result: StudyResult, place: Workspace) -> None:
    maps = maps_of("good film", None, result, Ledger(place.reports))
    split = [each for each in maps if each.title.startswith("multi-split")]
    assert [each.title for each in split] == ["multi-split for films", "multi-split for pairs"]
    assert [split[0].part(layer, 2) for layer in (1, 2)] == ["shared", "its own"]
    assert not np.array_equal(split[0].layers[2], split[1].layers[2])
    np.testing.assert_array_equal(split[0].layers[1], split[1].layers[1])


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


def test_a_study_of_ensembles_survives_json() -> None:
    study = parse_study(VALUES, "test")
    assert Study.model_validate_json(study.model_dump_json()) == study
    assert study.row("joined").members == ("full", "multi", "films-only")
    assert published_values(study.published) if study.published else None


def test_a_grid_joins_with_all_its_cells() -> None:
    grid = {"method": "full", "grid": {"epochs": [1, 2, 3]}}
    values = {
        **VALUES,
        "rows": {**VALUES["rows"], "grid": grid, "joined": {"method": "ensemble", "of": ["grid", "multi"]}},
    }
    assert parse_study(values, "test").row("joined").members == ("grid-1", "grid-2", "grid-3", "multi")


def test_an_ensemble_fails_where_a_member_does(place: Workspace) -> None:
    values = {**VALUES, "name": "failing", "methods": ["full", "joined"], "seeds": [3]}
    values["rows"] = {
        "full": {"method": "full", "recipe": {"learning_rate": 1e30, "precision": "fp32"}},
        "joined": {"method": "ensemble", "of": ["full"]},
    }
    del values["published"]
    found, _ = compare(parse_study(values, "test"), replace(place))
    assert [bool(entry.error) for entry in found.entries] == [True] * 4


EPOCHS: dict[str, Any] = {
    "name": "epochs",
    "methods": ["full", "multitask"],
    "targets": ["films"],
    "sources": ["meals", "pairs"],
    "seeds": [1],
    "recipe": {**TOGETHER, "epochs": 2, "score_train": True},
    "published": {
        "report": "Xu",
        "table": "Table 1",
        "tasks": {"sst": "films"},
        "curves": {"Table 9 (mean, LMRD)": {"row": "full", "task": "films"}},
    },
}


def test_published_epochs_and_every_task_of_joint_training_are_shown(place: Workspace, tmp_path: Path) -> None:
    result, _ = compare(parse_study(EPOCHS, "test"), place)
    with with_figures():
        report = build_report(result, place.ledger, tmp_path)
    curve = place.ledger.curve(run_of(result, "full", "films", 1)).set_index("epoch")
    shown = rows(report, "published-epochs")
    assert [row["epoch"].sort for row in shown] == [1, 2, 3, 4, 5]
    for epoch in (1, 2):
        row = shown[epoch - 1]
        ours = {part: row[f"{part}, ours"].sort for part in ("training loss", "train", "dev")}
        expected = {"training loss": "loss", "train": "train_films", "dev": "dev"}
        assert ours == {part: pytest.approx(curve[name][epoch]) for part, name in expected.items()}
    assert (shown[0]["training loss, Xu"].text, shown[1]["dev, Xu"].text) == ("0.791", "0.721")
    assert shown[2]["dev, ours"].text == "-"
    scored = [row["rows"].text for row in rows(report, "epochs")]
    assert scored == ["dev", "train"] * 2
    # meals and pairs are no targets, but the joint model was scored on them.
    assert {"confusion-films", "confusion-meals", "scatter-pairs"} <= {figure.name for figure in report.figures}


@pytest.mark.parametrize(
    ("curves", "told"),
    [
        ({"Table 10 (none)": {"row": "full", "task": "films"}}, "no table of epochs 'Table 10 (none)' of 'Xu'"),
        ({"Table 9 (mean, LMRD)": {"row": "adapter", "task": "films"}}, "the study has no row 'adapter' on films"),
    ],
)
def test_curves_that_are_not_there_are_told_before_training(curves: Any, told: str, place: Workspace) -> None:
    values = {**EPOCHS, "published": {**EPOCHS["published"], "curves": curves}}
    with pytest.raises(PipelineError) as error:
        compare(parse_study(values, "test"), place)
    assert told in str(error.value)
