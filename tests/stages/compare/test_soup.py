"""Soups: the mean of several runs of one row, as a row of a study and by ``extract --soup``."""

from typing import Any

import numpy as np
import pytest
import torch

from pipeline.records.run_record import RunRecord
from pipeline.runs.build import restore_run
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError
from stages.compare.compare import compare
from stages.extract import extract

pytestmark = pytest.mark.usefixtures("trained_once")

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 16, "bottleneck": 4, "precision": "fp32"}
SOUP: dict[str, Any] = {"method": "merge", "of": "warm", "experts": 3}


def study(**rows: Any) -> Study:
    base = {"source": {"method": "adapter"}, "warm": {"method": "adapter", "of": "source", "sources": ["meals"]}}
    values = {
        "name": "soups",
        "methods": ["warm", *rows],
        "targets": ["films"],
        "sources": ["meals"],
        "seeds": [0],
        "scoring": "half",
    }
    return parse_study({**values, "reference": "warm", "recipe": QUICK, "rows": {**base, **rows}}, "test")


def runs_of(workspace: Workspace, record: RunRecord) -> list[RunRecord]:
    return [workspace.ledger.find(source.run) for source in record.sources]


@pytest.fixture
def joined(workspace: Workspace) -> dict[str, RunRecord]:
    answers = {"method": "ensemble", "of": ["warm"], "experts": 3, "rule": "uniform"}
    result, _ = compare(study(soup=SOUP, answers=answers), workspace)
    return {entry.method: workspace.ledger.find(entry.run) for entry in result.entries}


def test_a_soup_is_the_mean_of_runs_that_start_alike_and_differ(
    workspace: Workspace, joined: dict[str, RunRecord]
) -> None:
    soup, experts, task = joined["soup"], runs_of(workspace, joined["soup"]), workspace.task("films")
    assert [expert.recipe.reshuffle for expert in experts] == [0, 1, 2]
    assert experts[0].run == joined["warm"].run
    assert {expert.seed for expert in experts} == {0} and len({expert.started_from for expert in experts}) == 1
    assert len({expert.own.train_rows for expert in experts}) == 1
    whole = dict(restore_run(soup, task, workspace).named_parameters())
    parts = [dict(restore_run(expert, task, workspace).named_parameters()) for expert in experts]
    trained = [name for name in whole if ".adapters." in name or name.startswith("head.")]
    for name in trained:
        torch.testing.assert_close(whole[name], torch.stack([part[name] for part in parts]).mean(0))
    assert any(not torch.equal(parts[0][name], parts[1][name]) for name in trained)
    assert soup.cost.trainable_parameters == 0


def test_the_mean_of_answers_leaves_no_expert_out(workspace: Workspace, joined: dict[str, RunRecord]) -> None:
    answers = joined["answers"]
    assert {source.run for source in answers.sources} == {source.run for source in joined["soup"].sources}
    tables = [workspace.ledger.predictions(run, "films") for run in (answers.run, *(s.run for s in answers.sources))]
    values = [table.set_index("id").filter(like="probability_").sort_index() for table in tables]
    mean = sum(values[1:], start=0 * values[1]) / 3
    shared = values[0].index
    np.testing.assert_allclose(values[0].to_numpy(), mean.loc[shared].to_numpy(), atol=1e-6)


def test_extract_makes_the_soup_that_the_study_would(workspace: Workspace) -> None:
    recipe = Recipe.parse(QUICK, "test")
    made = extract("films", recipe, workspace, seed=0, soup=2)
    again = extract("films", recipe, workspace, seed=0, soup=2)
    assert (made.is_new, again.is_new, again.record.run) == (True, False, made.record.run)
    assert made.record.artifact is not None and len(made.record.sources) == 2
    longer = extract("films", recipe, workspace, seed=0, soup=3)
    assert {s.run for s in made.record.sources} < {s.run for s in longer.record.sources}


def test_a_soup_of_controls_is_a_control(workspace: Workspace) -> None:
    recipe = Recipe.parse({**QUICK, "permute_labels": True}, "test")
    assert extract("films", recipe, workspace, seed=0, soup=2).record.recipe.permute_labels


@pytest.mark.parametrize("recipe", [{"adapter": "lora"}, {"train_layernorm": True}])
def test_what_cannot_be_merged_is_refused_before_it_is_trained(
    workspace: Workspace, no_training: None, recipe: dict[str, Any]
) -> None:
    with pytest.raises(PipelineError, match="--soup"):
        extract("films", Recipe.parse({"epochs": 1, **recipe}, "test"), workspace, seed=0, soup=2)


@pytest.mark.parametrize(
    "row",
    [
        {"method": "adapter", "of": "source", "experts": 2},
        {**SOUP, "recipe": {"merge": "ties"}},
        {**SOUP, "experts": 1},
    ],
    ids=["an adapter", "ties", "one"],
)
def test_rows_that_cannot_be_soups_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match="experts"):
        study(soup=row)


def test_a_reshuffled_run_has_the_rows_and_start_of_its_seed() -> None:
    assert Recipe().shuffle_seed(7) == 7
    again = [Recipe(reshuffle=number).shuffle_seed(7) for number in (1, 2, 3)]
    assert len({7, *again}) == 4 and all(0 <= seed < 2**32 for seed in again)
