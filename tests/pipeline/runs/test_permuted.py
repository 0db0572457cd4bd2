"""Adapters of permuted labels, the control of what a source's labels are worth."""

from collections.abc import Callable

import pytest

from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.extract import extract
from stages.fuse import fuse

Quick = Callable[..., Recipe]


def test_a_run_on_permuted_labels_is_another_run_on_the_same_rows_and_scored_on_real_labels(
    workspace: Workspace, quick: Quick
) -> None:
    recipes = [quick("adapter", permute_labels=permuted) for permuted in (False, True)]
    runs = [extract("films", recipe, workspace, seed=1).record for recipe in recipes]
    assert runs[0].run != runs[1].run
    data = [record.identity["tasks"]["films"]["data"] for record in runs]
    assert data[0]["train"] != data[1]["train"]
    assert data[0]["dev"] == data[1]["dev"]
    assert runs[0].own.train_rows == runs[1].own.train_rows
    labels = [workspace.ledger.predictions(record.run, "films")["label"] for record in runs]
    assert labels[0].equals(labels[1])


@pytest.mark.parametrize("form", ["gated", "standard"])
def test_a_fusion_that_permutes_labels_trains_its_sources_on_real_ones(
    form: str, workspace: Workspace, quick: Quick
) -> None:
    recipe = quick("fusion", fusion=form, permute_labels=True)
    fused = fuse("films", recipe, workspace, seed=1, sources="meals").record
    records, _ = workspace.ledger.records()
    permuted = {each.task: records[each.run].own.recipe.permute_labels for each in fused.sources}
    assert permuted == {"meals": False} | ({"films": True} if form == "standard" else {})
