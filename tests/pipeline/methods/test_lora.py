"""LoRA computes its paper's equation at any rank that fits; what it shares with (IA)^3 is in test_lora_and_ia3.py."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import BertConfig, BertModel, PreTrainedModel

from pipeline.data.tasks import find_task
from pipeline.methods.registry import METHODS, add_modules, load_modules
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.system.errors import PipelineError
from tests.pipeline.methods.adapted import randomise, trainable

RANK = 4
RECIPE = Recipe(adapter="lora", lora_rank=RANK)


def with_lora(backbone: Backbone) -> PreTrainedModel:
    encoder = backbone.load()
    add_modules(encoder, ["films"], RECIPE)
    return encoder


def test_it_computes_its_equation_on_query_and_value_alone(backbone: Backbone) -> None:
    encoder = with_lora(backbone)
    randomise(encoder, ".loras.films.")
    attention = encoder.encoder.layer[0].attention.self
    x = torch.randn(2, 5, backbone.hidden_size)
    for projection in (attention.query, attention.value):
        lora = projection.loras["films"]
        term = 8 / RANK * x @ lora.lora_A.T @ lora.lora_B.T
        expected = F.linear(x, projection.weight, projection.bias) + term
        torch.testing.assert_close(projection(x), expected, rtol=1e-5, atol=1e-5)
        assert term.abs().max() > 0.1
    assert torch.equal(attention.key(x), F.linear(x, attention.key.weight, attention.key.bias))


@pytest.mark.parametrize("rank", [1, 8, 64])
def test_it_has_two_matrices_per_projection(rank: int) -> None:
    with torch.device("meta"):
        bert = BertModel(BertConfig(), add_pooling_layer=False)
        add_modules(bert, ["films"], Recipe(adapter="lora", lora_rank=rank))
    assert trainable(bert) == 12 * 2 * (2 * rank * 768)


def test_a_file_of_another_rank_is_refused(backbone: Backbone, tmp_path: Path) -> None:
    METHODS["lora"].save(with_lora(backbone), "films", tmp_path / "films")
    other = SavedModules("films", Recipe(adapter="lora", lora_rank=RANK + 1), tmp_path / "films")
    with pytest.raises(PipelineError, match="does not fit its recipe [(]r is 4, not 5[)]"):
        load_modules(backbone.load(), other)


def test_a_rank_wider_than_the_backbone_is_refused(encoder: PreTrainedModel) -> None:
    with pytest.raises(PipelineError, match="lora_rank 33 is more than the backbone's width [(]32[)]"):
        add_modules(encoder, ["films"], Recipe(adapter="lora", lora_rank=33))


def test_its_rank_identifies_a_run_of_its_own_kind_alone() -> None:
    sts = find_task("sts")
    assert resolve(RECIPE, sts, "fp32").identity["lora_rank"] == RANK
    assert Recipe().lora.rank == 8  # a default is no part of a run's name: another one needs another SCHEMA
    assert "lora_rank" not in resolve(Recipe(lora_rank=RANK), sts, "fp32").identity
