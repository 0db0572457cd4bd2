"""The mean of adapters: one of equal adapters is that adapter, and nothing of it trains."""

from pathlib import Path
from typing import Any

import torch

from pipeline.data.tasks import find_task
from pipeline.methods.registry import add_fusion
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from tests.pipeline.methods.adapted import hidden, save_sources, trainable

STS = find_task("sts")
MEAN = Recipe.parse({"trainable": "fusion", "fusion": "mean", "bottleneck": 8}, "mean")


def test_a_mean_is_a_gated_fusion_whose_gates_are_one_over_n_and_do_not_train(
    backbone: Backbone, tmp_path: Path
) -> None:
    sources = save_sources(backbone, ["films", "meals"], tmp_path)
    gates = {"own_adapter": "none", "gate": "scalar", "gate_start": 0.5}
    mean, gated = backbone.load(), backbone.load()
    add_fusion(mean, sources, MEAN, "films")
    add_fusion(gated, sources, Recipe.parse({"trainable": "fusion", "bottleneck": 8, **gates}, "gated"), "films")
    assert torch.equal(hidden(mean), hidden(gated))
    assert trainable(mean) == 0 < trainable(gated)


def test_settings_of_what_does_not_train_have_no_effect() -> None:
    """With a cosine head nothing trains, so the mean is scored unchanged."""

    def resolved(head: Any, **settings: Any) -> Recipe:
        return resolve(
            Recipe.parse({"trainable": "fusion", "fusion": "mean", "head": head, **settings}, ""), STS, "fp32"
        )

    assert resolved("linear", hidden_dropout=0.3, head_learning_rate=0.5) == resolved("linear", learning_rate=0.5)
    assert resolved("linear", learning_rate=0.5) != resolved("linear") and not resolved("linear").score_start
    plain = resolved("cosine")
    assert plain.score_start and plain.identity["fusion"] == "mean"
    assert (
        resolved("cosine", epochs=9, learning_rate=0.5, best_sources=3) == resolved("cosine", best_sources=3) != plain
    )
