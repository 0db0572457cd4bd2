"""Rows that tune: every value is tried, the best on dev is the row's run, and all of it is counted."""

import itertools
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.reporting.runs import StudyRuns
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import Study
from stages.compare.compare import compare, dry_run
from stages.compare.plan import Job, in_order, jobs_of, plan
from tests.runs import again

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16, "bottleneck": 8}
RATES = {"learning_rate": [1e-6, 5e-3, 2e-3]}
SMALL: dict[str, Any] = {
    "name": "small",
    "methods": ["full", "adapter", "fusion"],
    "targets": ["films"],
    "sources": ["meals"],
    "seeds": [1, 2],
    "limit": 48,
    "recipe": QUICK | {"fusion": "anchored"},  # which reads the tuned adapter of its target
    "tune": {"adapter": RATES},
}


def study(**changes: Any) -> Study:
    return parse_study(SMALL | changes, "test")


def rate(job: Job) -> float | None:
    return job.parts[0].recipe.learning_rate


@given(st.lists(st.one_of(st.none(), st.sampled_from([0.1, 0.5, 0.5000001, 0.9])), min_size=1, max_size=8))
def test_the_best_trial_on_dev_is_chosen_and_of_equal_ones_the_first(scores: list[float | None]) -> None:
    of = study(methods=["full"], sources=[], tune={"full": {"epochs": list(range(1, len(scores) + 2))}})
    (tuned, _) = jobs_of(of, plan(of)).values()
    dev = {trial: score for trial, score in zip(tuned.trials, scores, strict=False) if score is not None}
    if not dev:
        return  # all failed: see below
    chosen = tuned.with_best(dev)
    best = max(score for score in scores if score is not None)
    assert chosen.parts[0].recipe.epochs == scores.index(best) + 1
    assert (chosen.seed, chosen.needs, chosen.trials) == (1, (), ())


@pytest.mark.parametrize("form", ["anchored", "standard"])
def test_a_trial_of_a_fusion_has_the_adapters_that_its_form_takes(form: str) -> None:
    """Of gated fusion, the first form, the target's adapter of stage one is no part."""
    of = study(tune={"fusion": {"fusion": ["gated", form]}}, recipe=QUICK)
    alone = study(recipe=QUICK | {"fusion": form}, tune={})
    (tuned, plain) = (
        next(job for cell, job in jobs_of(each, plan(each)).items() if cell.line.row == "fusion")
        for each in (of, alone)
    )
    assert {need.task for need in tuned.trials[1].needs} == {need.task for need in plain.needs} == {"films", "meals"}


@pytest.mark.parametrize(("where", "trial_seeds"), [("first seed", [1, 1]), ("each seed", [1, 2])])
def test_a_row_is_tried_where_the_study_says_and_before_what_is_built_on_it(where: str, trial_seeds: list[int]) -> None:
    of = study(tune_on=where, methods=["adapter", "fusion"])
    jobs = jobs_of(of, plan(of))
    adapters = {cell.seed: job for cell, job in jobs.items() if cell.line.row == "adapter"}
    assert [adapters[seed].trials[0].seed for seed in (1, 2)] == trial_seeds
    assert [adapters[seed].is_choice for seed in (1, 2)] == [True, where == "each seed"]
    assert [list(map(rate, job.trials)) for job in adapters.values()] == [RATES["learning_rate"]] * 2
    fused = {cell.seed: job for cell, job in jobs.items() if cell.line.row == "fusion"}
    for seed, job in fused.items():
        assert job.trials == () and adapters[seed] in job.needs
        assert [len(need.trials) for need in job.needs] == [3, 3]  # of films and of meals
    order = in_order(jobs.values())
    assert len(order) == len(set(order))
    for place, job in enumerate(order):
        assert {*job.needs, *job.trials} <= set(order[:place])


@pytest.mark.parametrize("source_seed", [1, 5])
@pytest.mark.parametrize("where", ["first seed", "each seed"])
def test_what_other_tasks_give_may_be_trained_once(where: str, source_seed: int) -> None:
    of = study(tune_on=where, methods=["full", "sequential", "adapter", "fusion"], source_seed=source_seed)
    jobs = jobs_of(of, plan(of))
    for job in in_order(jobs.values()):
        for need in job.needs:
            assert need.seed == (job.seed if need.task == job.task else source_seed)
    assert {job.seed for job in jobs.values()} == {1, 2}
    given = {need for cell, job in jobs.items() for need in job.needs if need.task != cell.target}
    assert len(given) == 2  # a model and an adapter of meals, for both seeds


@pytest.fixture(scope="module")
def compared(place):
    return place, *compare(study(), place)


def trained(workspace: Workspace, kind: str, task: str, seed: int) -> dict[float, Any]:
    """The finished runs of a kind by their learning rate."""
    records = [workspace.ledger.find(name) for name in workspace.ledger.names()]
    ours = [one for one in records if one and (one.kind, one.task, one.seed) == (kind, task, seed)]
    return {one.recipe.learning_rate: one for one in ours if one.recipe.learning_rate is not None}


@pytest.mark.slow
def test_the_best_trial_is_the_rows_run_and_other_seeds_reuse_its_recipe(compared) -> None:
    workspace, result, _ = compared
    assert not any(entry.error for entry in result.entries)
    first, second = (entry for entry in result.entries if entry.method == "adapter")
    tried = trained(workspace, "adapter", "films", 1)
    assert sorted(tried) == sorted(RATES["learning_rate"])
    best = max((tried[rate] for rate in RATES["learning_rate"]), key=lambda record: record.dev)
    assert first.run == best.run
    (other,) = trained(workspace, "adapter", "films", 2).values()
    assert (second.run, other.recipe) == (other.run, best.recipe)
    assert first.trials == second.trials == tuple(tried[rate].run for rate in RATES["learning_rate"])


@pytest.mark.slow
@pytest.mark.parametrize("row", ["fusion", "sequential", "warm", "probed"])
def test_every_trial_is_built_on_what_the_row_is_built_on(row: str) -> None:
    rows = {
        "fusion": {"method": "fusion"},
        "sequential": {"method": "sequential"},
        "warm": {"method": "adapter", "of": "adapter"},
        "probed": {"method": "full", "of": "frozen"},
    }
    of = study(methods=["full", row], rows={name: {**own, "tune": RATES} for name, own in rows.items()}, tune={})
    for job in (job for cell, job in jobs_of(of, plan(of)).items() if cell.line.row == row and cell.seed == 1):
        assert job.needs and len(job.trials) == len(RATES["learning_rate"])
        assert all(trial.needs == job.needs for trial in job.trials)


def test_what_is_built_on_a_tuned_row_reads_the_chosen_trial(compared) -> None:
    workspace, result, _ = compared
    adapters = {entry.seed: entry.run for entry in result.entries if entry.method == "adapter"}
    for entry in result.entries:
        if entry.method == "fusion":
            sources = {source.task: source.run for source in workspace.ledger.find(entry.run).sources}
            assert sources["films"] == adapters[entry.seed] and entry.trials == ()
            tried = trained(workspace, "adapter", "meals", 1)
            best = max((tried[rate] for rate in RATES["learning_rate"]), key=lambda record: record.dev)
            assert workspace.ledger.find(sources["meals"]).recipe == best.recipe


@pytest.mark.slow
def test_trials_cost_what_they_took_and_where_they_were_run(compared) -> None:
    workspace, result, folder = compared
    runs = StudyRuns(result, workspace.ledger)
    first, second = runs.cell("adapter", "films")
    tried = sum(record.cost.seconds for record in trained(workspace, "adapter", "films", 1).values())
    assert first.seconds == first.total_seconds == pytest.approx(tried)
    assert second.seconds == second.total_seconds == pytest.approx(second.record.cost.seconds)
    results = pd.read_csv(folder / "results.csv")
    assert results.groupby("method")["trials"].first().to_dict() == {"adapter": 3, "full": 1, "fusion": 4}
    assert results[results["method"] == "adapter"]["seconds"].sum() == pytest.approx(first.seconds + second.seconds)
    fused = runs.cell("fusion", "films")[0]
    sources = tried + sum(record.cost.seconds for record in trained(workspace, "adapter", "meals", 1).values())
    assert fused.seconds == fused.record.cost.seconds
    assert fused.total_seconds == pytest.approx(fused.seconds + sources)


@pytest.mark.slow
def test_what_was_tuned_is_not_tuned_again(compared, no_training, capsys) -> None:
    workspace, result, _ = compared
    assert compare(study(), again(workspace))[0] == result
    error = capsys.readouterr().err
    # Full twice, an adapter of each task thrice and once more, fusion twice; choosing trains nothing.
    assert "study small: 12 of 12 runs done" in error
    assert "note: Methods had different numbers of trials" in error
    # The second seed's run is not known before the trials are finished.
    planned = dry_run(study(tune={"adapter": RATES, "full": {"epochs": [2, 3]}}), again(workspace))
    assert planned.summary() | {"seconds": 0} == {"study": "small", "runs": 13, "done": 11, "to_do": 2, "seconds": 0}


def test_an_interrupted_study_goes_on_where_it_was(
    workspace: Workspace, backbone_folder, data_folder, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = study(methods=["adapter"], reference="adapter", sources=[], recipe=QUICK | {"epochs": 1})
    train, count = TrainingRun.train, itertools.count(1)

    def interrupted(run: TrainingRun) -> Any:
        if next(count) in (2, 5):
            raise KeyboardInterrupt
        return train(run)

    monkeypatch.setattr(TrainingRun, "train", interrupted)
    for _ in range(2):  # in the trials, and between them and the second seed
        with pytest.raises(KeyboardInterrupt):
            compare(of, again(workspace))
    resumed, _ = compare(of, again(workspace))
    whole = Workspace(str(backbone_folder), data_folder, tmp_path / "other/store", tmp_path / "other/reports")
    straight, _ = compare(of, whole)
    assert [(entry.run, entry.trials) for entry in resumed.entries] == [
        (entry.run, entry.trials) for entry in straight.entries
    ]
    assert next(count) == 2 + 4 + 4 + 1  # two that were interrupted, and four runs each time


BROKEN = {"learning_rate": [1e30, 5e-3], "max_grad_norm": [1e30]}


def test_a_trial_that_fails_is_left_out_and_a_row_of_none_but_failed_ones_fails(workspace: Workspace) -> None:
    rows = {"some": {"method": "full", "tune": BROKEN}, "none": {"like": "some"}}
    rows["none"] |= {"tune": BROKEN | {"learning_rate": [1e30, 9e29]}}
    result, folder = compare(study(methods=["some", "none"], reference="some", sources=[], rows=rows), workspace)
    some, none = ([entry for entry in result.entries if entry.method == name] for name in rows)
    assert [len(entry.trials) for entry in some] == [1, 1] and not any(entry.error for entry in some)
    assert all(entry.run is None and "no longer a finite number" in str(entry.error) for entry in none)
    assert "4 cells" in (folder / "tables.md").read_text()


def test_weights_that_are_wanted_are_kept_of_the_trials_so_that_none_is_trained_twice(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, trained = TrainingRun.train, list[str]()

    def counted(run: TrainingRun) -> Any:
        trained.append(run.name)
        return train(run)

    monkeypatch.setattr(TrainingRun, "train", counted)
    rows = {"sequential": {"keep_weights": True, "tune": {"epochs": [1, 2]}}}
    quick = {"batch_size": 16}
    of = study(
        methods=["full", "sequential"], rows={"full": {"recipe": {"epochs": 1}}, **rows}, seeds=[1], recipe=quick
    )
    result, _ = compare(of, workspace)
    assert len(trained) == len(set(trained)) == 4  # films and meals alone, and films from meals twice
    (kept,) = (entry for entry in result.entries if entry.line.source)
    assert len(kept.trials) == 2 and workspace.ledger.weights_file(str(kept.run)).is_file()
