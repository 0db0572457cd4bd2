"""Rows of kind probe: regression on frozen sentence vectors, through study, ledger and prediction like any other."""

from typing import Any

import numpy as np
import pytest
import torch

from pipeline.data.tasks import find_task
from pipeline.models.transfer_model import compared, joined
from pipeline.reporting.runs import StudyRuns
from pipeline.runs.build import restore_run
from pipeline.runs.scoring import features_of, probe_score
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.stats.probe import solve
from pipeline.system.errors import PipelineError
from pipeline.training.devices import make_accelerator
from pipeline.training.objectives import output_scale
from stages.compare.compare import compare


@pytest.mark.parametrize("target", ["films", "meals", "pairs"])
def test_a_probe_is_the_solution_on_frozen_vectors_and_predicts(workspace: Workspace, target: str) -> None:
    values = {"name": "probed", "methods": ["probe"], "targets": [target], "seeds": [0], "reference": "probe"}
    study = parse_study({**values, "recipe": {"precision": "fp32"}}, "test")
    result, _ = compare(study, workspace)
    record = workspace.ledger.find(result.entries[0].run)
    assert record is not None and (record.kind, record.sources) == ("probe", ())
    runs = StudyRuns(result, workspace.ledger)
    assert [runs.epochs(scored) for scored in runs.scored] == [0]
    task, recipe = workspace.task(target), record.recipe
    model = restore_run(record, task, workspace)
    workspace.backbone.check_unchanged(model.backbone)
    data = workspace.splits.of(task, None, 0)
    accelerator = make_accelerator("fp32", None, workspace.reports)
    read = compared if task.is_pair else joined
    train, dev = (
        features_of(model.backbone, recipe, rows, workspace.backbone, accelerator, read)
        for rows in (data.train, data.dev)
    )
    classes = task.outputs if task.kind == "classes" else None
    labels = data.train["label"].to_numpy()
    if classes is None:
        zero, unit = output_scale(task, recipe)
        labels = (labels - zero) / unit
    weight, bias = solve(train, labels, classes)
    torch.testing.assert_close(model.head.out.weight, torch.from_numpy(weight).float())
    outputs = dev @ weight.T + bias
    wanted = data.dev["label"].to_numpy()
    score = np.corrcoef(outputs[:, 0], wanted)[0, 1] if classes is None else (outputs.argmax(axis=1) == wanted).mean()
    assert record.dev == pytest.approx(score, abs=1e-4)
    beside = probe_score(task, data, recipe, workspace.backbone, accelerator)
    assert beside.dev == pytest.approx(record.dev, abs=1e-9)
    again, _ = compare(study, workspace)
    assert again.entries[0].run == record.run


def solved(task: str, **values: Any) -> Recipe:
    return resolve(Recipe.parse({"trainable": "probe", **values}, "test"), find_task(task), "fp32")


def test_only_what_its_vectors_and_labels_are_tells_probes_apart() -> None:
    usual = solved("quora")
    assert (usual.encoding, usual.head, solved("sst").head) == ("siamese", "comparison", "linear")
    assert usual == solved("quora", epochs=9, learning_rate=0.5, head_dropout=0.3)
    others = {"class_weights": "balanced", "pooling": "mean", "max_length": 32, "encoding": "cross"}
    found = [usual, *(solved("quora", **{key: value}) for key, value in others.items())]
    assert len({each.model_dump_json() for each in found}) >= 4


@pytest.mark.parametrize(("task", "head"), [("sst", "mlp"), ("quora", "difference-mlp"), ("sts", "cosine")])
def test_a_head_that_is_not_linear_cannot_be_solved(task: str, head: str) -> None:
    with pytest.raises(PipelineError, match="linear"):
        solved(task, head=head)
