"""Cells of a study and the jobs behind them: who trains on what, and what is shared. Nothing is trained."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import pytest

from pipeline.records.studies import Entry
from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import Study
from stages.compare.plan import Job, in_order, job_of, jobs_of, plan
from stages.studies import find_study, study_names

SMALL: dict[str, Any] = {
    "name": "small",
    "methods": ["full", "sequential", "multitask", "adapter", "fusion"],
    "targets": ["sst", "sts"],
    "sources": ["imdb"],
    "seeds": [1, 2],
    "limit": 500,
    "recipe": {"fusion": "anchored"},  # which reads the target's own adapter too
}


def study(**changes: Any) -> Study:
    return parse_study(SMALL | changes, "test")


def cell(method: str, target: str, rows: int | None = None) -> Entry:
    return Entry(method=method, target=target, seed=1, rows=rows)


def turn(last: Job) -> list[Job]:
    """The jobs of a chain, of which each needs the one before it."""
    return [*(turn(*last.needs) if last.needs else ()), last]


def limits(job: Job) -> dict[str, int | None]:
    return {part.task: part.limit for part in job.parts}


def test_sequential_tuning_goes_over_every_ordered_pair_with_a_target_at_the_end() -> None:
    of = study(methods=["full", "sequential"], targets=["sst", "quora", "sts"], seeds=[1])
    pairs = {(cell.line.source, cell.target) for cell in plan(of) if cell.line.source}
    every = ("imdb", "sst", "quora", "sts")
    assert pairs == {(a, b) for a in every for b in every if a != b and b != "imdb"}


def test_a_row_keeps_to_its_targets_and_sources() -> None:
    rows = {"full": {"targets": ["sts"]}, "fusion": {"sources": ["sst"], "targets": ["sts"]}}
    of = study(rows={**rows, "sequential": {"sources": ["imdb"]}})
    cells = [cell for cell in plan(of) if cell.seed == 1]
    assert [cell.target for cell in cells if cell.line.row == "full"] == ["sts"]
    assert {(cell.line.source, cell.target) for cell in cells if cell.line.source} == {("imdb", "sst"), ("imdb", "sts")}
    fused = job_of(of, cell("fusion", "sts"))
    assert [need.task for need in fused.needs] == ["sst", "sts"]


def test_a_target_takes_nothing_from_tasks_that_stand_apart() -> None:
    of = study(apart={"sts": ["imdb"]}, rows={"warm": {"method": "adapter", "of": "adapter"}})
    assert [need.task for need in job_of(of, cell("fusion", "sts")).needs] == ["sst", "sts"]
    assert [need.task for need in job_of(of, cell("fusion", "sst")).needs] == ["imdb", "sst", "sts"]
    assert [need.task for need in job_of(of, cell("warm", "sts")).needs] == ["sst"]
    assert {cell.line.source for cell in plan(of) if cell.line.source and cell.target == "sts"} == {"sst"}


def test_what_a_source_is_built_on_is_neither_the_target_nor_apart_from_it() -> None:
    rows = {"warm": {"method": "adapter", "of": "adapter"}, "fusion": {"of": "warm", "recipe": {"fusion": "gated"}}}
    of = study(targets=["sst", "sts"], sources=["imdb", "mr"], apart={"sts": ["mr"]}, rows=rows)
    needs = {need.task: [each.task for each in need.needs] for need in job_of(of, cell("fusion", "sts")).needs}
    assert needs == {"imdb": ["sst"], "sst": ["imdb"]}
    needs = {need.task: [each.task for each in need.needs] for need in job_of(of, cell("fusion", "sst")).needs}
    assert needs == {"imdb": ["mr", "sts"], "mr": ["imdb", "sts"], "sts": ["imdb"]}


def test_the_target_has_each_seed_wherever_it_stands_in_a_turn() -> None:
    rows = {"in-turn": {"method": "sequential", "order": ["imdb", "sts", "sst"]}}
    targets = ["imdb", "sts", "sst"]
    of = study(methods=["full", "in-turn"], targets=targets, sources=[], rows=rows, seeds=[1, 2], source_seed=7)
    jobs = {(cell.target, cell.seed): job for cell, job in jobs_of(of, plan(of)).items() if cell.method == "in-turn"}
    assert {at: tuple(job.seed for job in turn(last)) for at, last in jobs.items()} == {
        **{("sst", seed): (7, 7, seed) for seed in (1, 2)},
        **{("sts", seed): (7, seed, seed) for seed in (1, 2)},
        **{("imdb", seed): (seed, 7, seed) for seed in (1, 2)},
    }


def test_a_model_goes_through_the_named_tasks_in_their_order_before_each_target() -> None:
    rows = {"through": {"method": "sequential", "through": ["quora", "imdb", "sst"]}}
    of = study(
        methods=["full", "through"], sources=["imdb", "quora"], rows=rows, apart={"sts": ["imdb"]}, source_seed=7
    )
    turns = {
        (cell.target, cell.seed): turn(last) for cell, last in jobs_of(of, plan(of)).items() if cell.method == "through"
    }
    assert {jobs[0].kind for jobs in turns.values()} == {"full"}
    assert {at: [(job.task, job.seed) for job in jobs] for at, jobs in turns.items()} == {
        **{("sst", seed): [("quora", 7), ("imdb", 7), ("sst", seed)] for seed in (1, 2)},
        **{("sts", seed): [("quora", 7), ("sst", 7), ("sts", seed)] for seed in (1, 2)},
    }


def test_an_adapter_goes_through_the_named_tasks_by_the_recipe_of_the_row_that_it_is_built_on() -> None:
    rows = {
        "source": {"method": "adapter", "recipe": {"bottleneck": 16}, "tune": {}},
        "through": {"method": "adapter", "of": "source", "through": ["quora", "imdb", "sst"]},
        "warm": {"method": "adapter", "of": "source", "sources": ["quora"]},
    }
    tune = {"adapter": {"learning_rate": [1e-3, 2e-3]}}
    of = study(
        methods=["source", "through", "warm"], sources=["imdb", "quora"], rows=rows, tune=tune,
        apart={"sts": ["imdb"]}, source_seed=7,
    )  # fmt: skip
    jobs = {(at.method, at.target): job for at, job in jobs_of(of, plan(of)).items() if at.seed == 1}
    warm = {target: job for (method, target), job in jobs.items() if method == "warm"}
    turns = {target: turn(job) for (method, target), job in jobs.items() if method == "through"}
    assert {
        target: [(job.kind, job.task, job.seed, len(job.trials), job.in_turn) for job in chain]
        for target, chain in turns.items()
    } == {
        "sst": [("adapter", "quora", 7, 0, False), ("adapter", "imdb", 7, 0, True), ("adapter", "sst", 1, 2, True)],
        "sts": [("adapter", "quora", 7, 0, False), ("adapter", "sst", 7, 0, True), ("adapter", "sts", 1, 2, True)],
    }
    assert [job.in_turn for job in warm.values()] == [False, False]
    assert all(job.needs == (turns[target][0],) for target, job in warm.items())  # trained once for both
    last = next(iter(warm.values()))
    assert replace(last, in_turn=True) != last


@pytest.mark.parametrize(("method", "own"), [("fusion", {"sts": ["sst", "quora", "sts"]}), ("adapter", {})])
def test_a_source_goes_through_no_task_that_its_target_would_not_take_from(
    method: str, own: dict[str, list[str]]
) -> None:
    rows = {
        "through": {"method": "adapter", "through": ["imdb", "sst", "quora"]},
        "taking": {"method": method, "of": "through"},
    }
    of = study(methods=["adapter", "taking"], sources=["imdb", "quora"], rows=rows, apart={"sts": ["imdb"]})
    needs = job_of(of, cell("taking", "sts")).needs
    by_task = {need.task: [job.task for job in in_order([need])] for need in needs}
    assert by_task == {"quora": ["sst", "quora"], "sst": ["quora", "sst"]} | own


def test_one_joint_model_serves_all_targets_unless_the_target_is_limited() -> None:
    for changes, expected in (({}, 1), ({"target_limit": 50}, 2)):
        of = study(**changes, seeds=[1])
        assert len({job_of(of, cell("multitask", target)) for target in of.targets}) == expected


def test_the_curve_limits_the_target_and_leaves_the_sources_as_they_are() -> None:
    of = study(curve={"rows": [100, 30], "recipe": {"min_steps": 70}}, recipe={"epochs": 2, "fusion": "anchored"})
    cells = [cell for cell in plan(of) if cell.rows is not None and cell.seed == 1]
    assert {cell.rows for cell in cells} == {30, 100}
    assert len(cells) == 2 * (4 * 2 + 2 * 2)
    main, point = (job_of(of, cell("fusion", "sst", rows=rows)) for rows in (None, 30))
    own = {need.task: need for need in point.needs}
    assert limits(own["sst"]) == {"sst": 30}
    assert own["sst"].parts[0].recipe.min_steps == 70
    for source in ("imdb", "sts"):
        assert own[source] in main.needs
    sequential = job_of(of, cell("sequential:sts", "sst", rows=30))
    assert sequential.needs == (job_of(of, cell("full", "sts")),)
    joint = job_of(of, cell("multitask", "sst", rows=30))
    assert limits(joint) == {"imdb": 500, "sst": 30, "sts": 500}
    assert {part.recipe.min_steps for part in joint.parts} == {70}


def test_a_point_of_the_curve_with_all_rows_is_the_main_tables_cell() -> None:
    of = study(limit=None, curve={"rows": [100, 300, 1000]})
    cells = plan(of, {"sst": 300, "sts": 5000, "imdb": 20000})
    assert {cell.rows for cell in cells if cell.target == "sst"} == {None, 100}
    assert {cell.rows for cell in cells if cell.target == "sts"} == {None, 100, 300, 1000}
    assert {cell.rows for cell in plan(study(curve={}))} == {None, 100, 300}
    assert {cell.rows for cell in plan(study(curve={}, target_limit=100))} == {None}


EVERY_ROW: dict[str, Any] = {
    "methods": ["full", "sequential", "multitask", "adapter", "fusion", "begun", "in-turn", "later"],
    "rows": {
        "begun": {"method": "adapter", "of": "adapter"},
        "in-turn": {"method": "sequential", "order": ["imdb", "sts", "sst"]},
        "later": {"method": "multitask", "after": ["imdb"], "sources": ["sts"]},
        "fusion": {"own": ["adapter", "begun"]},
    },
    "curve": {"rows": [30, 100]},
    "target_limit": 200,
}


def test_the_jobs_of_all_cells_are_those_of_each() -> None:
    of = study(**EVERY_ROW, seeds=[3, 1, 2])
    cells = plan(of)
    assert jobs_of(of, cells) == {cell: job_of(of, cell) for cell in cells}


TASKS = ["sst", "sts", "imdb", "quora", "mr", "rte", "mrpc", "cola"]


def tuned_chain(tasks: int, trials: int) -> Study:
    """A model that goes through tasks in turn, each tuned in so many trials, alone and in an ensemble."""
    tune = {"learning_rate": [1e-5 * trial for trial in range(1, trials + 1)]}
    return study(
        methods=["full", "in-turn", "joined"],
        sources=TASKS[2:tasks],
        seeds=[1],
        rows={
            "full": {"tune": tune},
            "in-turn": {"method": "sequential", "order": TASKS[:tasks], "tune": tune},
            "joined": {"method": "ensemble", "of": ["in-turn", "full"]},
        },
        scoring="half",
    )


@pytest.mark.parametrize(
    "of",
    [*map(find_study, study_names()), study(**EVERY_ROW), tuned_chain(4, 3)],
    ids=lambda of: of.name,
)
def test_jobs_have_the_order_of_a_walk_through_all_that_each_needs(of: Study) -> None:
    def walked(jobs: Iterable[Job]) -> list[Job]:
        return list(dict.fromkeys(each for job in jobs for each in (*walked((*job.needs, *job.trials)), job)))

    roots = jobs_of(of, plan(of)).values()
    assert [*map(id, in_order(roots))] == [*map(id, walked(roots))]


def test_tuned_jobs_that_build_on_each_other_are_planned_in_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job and all its trials need the same jobs: walking through them for each would take 13**7 steps."""
    calls = 0

    def counted(name: str) -> None:
        original = getattr(Job, name)

        def count(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            assert calls < 20_000
            return original(*arguments)

        monkeypatch.setattr(Job, name, count)

    counted("__hash__")
    counted("__eq__")
    of = tuned_chain(tasks=8, trials=12)
    jobs = jobs_of(of, plan(of))
    # Eight tasks in turn, the other target by row full, and two ensembles.
    assert len(in_order(jobs.values())) == (8 + 1) * (12 + 1) + 2
    last, other = (job_of(of, cell("in-turn", target)) for target in of.targets)
    assert last == other
    assert last is not other


CHANGES: dict[str, Any] = {
    "kind": "adapter",
    "parts": (),
    "seed": 2,
    "needs": (),
    "backbone": "other",
    "trials": (),
    "rule": "vote",
    "most": 3,
    "in_turn": True,
    "tested": False,
    "reshuffle": 1,
}


def test_a_job_is_compared_and_hashed_by_all_that_makes_it_another_run() -> None:
    job = replace(job_of(study(), cell("fusion", "sst")), trials=(job_of(study(), cell("full", "sst")),))
    assert {field.name for field in fields(Job) if field.compare} == CHANGES.keys()
    for name, value in CHANGES.items():
        other = replace(job, **{name: value})
        assert job != other
        assert hash(job) != hash(other)
    alike = replace(job, row="another", needs=tuple(map(replace, job.needs)))
    assert job == alike
    assert hash(job) == hash(alike)
    assert job != replace(job, needs=(*job.needs[:-1], replace(job.needs[-1], seed=2)))
    assert job != "another thing"


@pytest.mark.long
def test_a_job_is_the_same_job_in_another_process() -> None:
    """Processes that train together share what the ledger has, and each hashes texts in its own way."""
    job = job_of(study(), cell("fusion", "sst"))
    hash(job)
    code = (
        "import dataclasses, pickle, sys; known, job = pickle.load(sys.stdin.buffer);"
        " print(known[dataclasses.replace(job)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(({job: "known"}, job)),
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"known\n"
