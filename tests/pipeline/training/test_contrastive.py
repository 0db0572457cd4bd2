"""The supervised contrastive term: its equation, what it pulls together, and where it has no effect."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.data.tasks import find_task
from pipeline.models.transfer_model import Head, joined
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.training.objectives import Regularised
from pipeline.training.terms.contrastive import Contrastive, contrastive
from tests.runs import joint_run, single_run


def by_loops(features: torch.Tensor, labels: list[int], temperature: float) -> float:
    z = [vector / vector.norm() for vector in features.double()]
    rows = []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        total = sum(torch.exp(z[i] @ z[a] / temperature) for a in others)
        logs = [torch.log(torch.exp(z[i] @ z[p] / temperature) / total) for p in others if labels[p] == labels[i]]
        if logs:
            rows.append(-sum(logs) / len(logs))
    return float(sum(rows) / len(rows))


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 0], [0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], ids=str)
def test_it_is_its_equation(labels: list[int]) -> None:
    features = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = contrastive(features, torch.tensor(labels), 0.3)
    assert found.item() == pytest.approx(by_loops(features.detach(), labels, 0.3), rel=1e-5)
    found.backward()
    assert features.grad is not None and features.grad.isfinite().all()
    assert contrastive(3 * features, torch.tensor(labels), 0.3).item() == pytest.approx(found.item(), rel=1e-5)


def test_without_two_rows_of_a_class_it_is_zero_and_has_no_bad_gradient() -> None:
    features = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = contrastive(features, torch.tensor([0, 1, 2]), 0.1)
    value.backward()
    assert value.item() == 0 and features.grad is not None and features.grad.isfinite().all()
    assert contrastive(features[:1], torch.tensor([0]), 0.1).item() == 0


@pytest.mark.parametrize(
    ("task", "settings", "has_effect"),
    [
        ("sst", {}, True),
        ("sst", {"trainable": "fusion"}, True),
        ("quora", {"encoding": "siamese", "head": "difference"}, True),
        ("quora", {"head": "cosine"}, False),
        ("sts", {"head": "linear"}, False),
        ("sst", {"trainable": "head"}, False),
    ],
    ids=str,
)
def test_it_has_an_effect_on_classes_whose_vectors_train(task: str, settings: dict[str, Any], has_effect: bool) -> None:
    given = Recipe.parse({"contrastive": 0.5, "contrastive_temperature": 0.1, **settings}, "test")
    kept = resolve(given, find_task(task), "fp32").contrastive
    assert (kept.weight, kept.temperature) == ((0.5, 0.1) if has_effect else (0.0, 0.3))


def test_a_run_with_it_reads_the_features_that_its_loss_is_made_of(
    workspace: Workspace, quick: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[torch.Tensor] = []

    def reading(features: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
        read.append(features)
        return contrastive(features, labels, temperature)

    monkeypatch.setattr("pipeline.training.terms.contrastive.contrastive", reading)
    losses = []
    for weight in (0.0, 1.0):
        recipe = quick("adapter", epochs=1, contrastive=weight)
        record = single_run(workspace, "adapter", "films", recipe, seed=1, limit=40).get()
        losses.append(workspace.ledger.curve(record.run)["loss"].iloc[0])
    assert losses[1] > losses[0]
    assert sum(map(len, read)) == 40 and all(each.requires_grad for each in read)


def test_a_head_without_features_never_meets_those_of_another_task(
    backbone_folder: Path, same: Path, tmp_path: Path, quick: Callable[..., Recipe]
) -> None:
    workspace = Workspace(str(backbone_folder), same, tmp_path / "store", tmp_path / "reports")
    recipe = quick("full", epochs=1, contrastive=0.5, smart=1.0)
    recipes = {"films": recipe, "same": recipe.changed({"head": "cosine"})}
    record = joint_run(workspace, [*recipes], recipes, limits=dict.fromkeys(recipes, 40), seed=1).get()
    assert workspace.ledger.curve(record.run)["loss"].notna().all()


def test_in_evaluation_nothing_is_kept() -> None:
    head = Head(joined, 4, 2, 0.0, 0.0)
    never: Any = pytest.fail
    term = Contrastive(Regularised(Recipe(contrastive=1.0), head, never, never, never))
    head.eval()(torch.zeros(2, 4))
    assert term._features is None
    head.train()(torch.zeros(2, 4))
    assert term._features is not None
