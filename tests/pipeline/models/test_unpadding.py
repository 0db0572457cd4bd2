"""A batch without its padding is that batch: the same vectors and gradients, whatever trains, or it is not tried."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.methods.registry import METHODS, add_fusion, add_modules
from pipeline.methods.registry import use_fusion_implementation as use
from pipeline.methods.saved import SavedModules
from pipeline.models import lean, transfer_model
from pipeline.models.backbone import Backbone
from pipeline.models.layout import split_encoder
from pipeline.models.lean import Packed, can_unpad, make_lean
from pipeline.models.transfer_model import TransferModel, build_head
from pipeline.settings.recipe import Recipe
from tests.nano import FAMILIES, SIZES
from tests.pipeline.methods.adapted import randomise, with_gradients

LIKE_BERT = ("bert", "roberta", "electra")
MIXING = {"prefix", "prefix-tuning", "unipelt", "pal"}
"""What lets tokens meet elsewhere than in attention."""
LENGTHS = (3, 9, 5, 9, 2, 24)


def inputs_of(lengths: Sequence[int]) -> dict[str, Tensor]:
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, 20, mask.shape, generator=torch.Generator().manual_seed(2))
    # What stands in the padding must not matter.
    return {"input_ids": ids, "attention_mask": mask}


def model_of(encoder: Any, pooling: Any = "cls", second: Any = None) -> TransferModel:
    for each in (encoder, second):
        if each is not None:
            make_lean(each, pooling)
            for module in each.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
    return TransferModel(encoder, build_head("linear", 32, 2, 1, 0.0), "cross", pooling, second=second).train()


def vectors_and_gradients(model: TransferModel, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    return with_gradients(model, lambda: model.encode(**inputs))


@pytest.fixture
def assert_same_packed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Vectors and gradients of a packed batch are those of a padded one; both are really computed."""

    def packed_equals_padded(model: TransferModel, lengths: Sequence[int] = LENGTHS) -> None:
        inputs, made = inputs_of(lengths), []
        assert model.unpads(torch.device("cpu"))
        of = Packed.of
        with monkeypatch.context() as patch:
            patch.setattr(Packed, "of", lambda mask: made.append(of(mask)) or made[-1])
            found = vectors_and_gradients(model, inputs)
            assert len(made) == 1 + len(model.second)
            patch.setattr(transfer_model, "can_unpad", lambda encoder: False)
            expected = vectors_and_gradients(model.train(), inputs)
            assert len(made) == 1 + len(model.second)
        # The same sums in another order.
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-3, atol=1e-4)

    return packed_equals_padded


def with_adapter(backbone: Backbone, kind: Any) -> Any:
    encoder = backbone.load()
    add_modules(encoder, ["films"], Recipe(trainable="full+adapter", adapter=kind, **SIZES))
    randomise(encoder, "films", seed=3)
    return encoder


@pytest.mark.covering(1)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("family", LIKE_BERT)
def test_full_fine_tuning(family: str, pooling: Any, families: dict[str, Backbone], assert_same_packed: Any) -> None:
    assert_same_packed(model_of(families[family].load(), pooling))


@pytest.mark.parametrize("lengths", [(9,), (7, 7, 7), (1, 1), (1, 30), (2, 34, 20, 25, 18)])
def test_lengths(
    lengths: Sequence[int], backbone: Backbone, assert_same_packed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lean, "_MOST_PADDED_SCORES", 100)
    assert_same_packed(model_of(backbone.load()), lengths)


@pytest.mark.covering(1)
@pytest.mark.parametrize("family", LIKE_BERT)
@pytest.mark.parametrize("kind", sorted(set(METHODS) - MIXING))
def test_adapters(kind: str, family: str, families: dict[str, Backbone], assert_same_packed: Any) -> None:
    assert_same_packed(model_of(with_adapter(families[family], kind)))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("lengths", [LENGTHS, (31, 1), (1, 1)])
def test_sequences_have_few_lengths_and_nothing_reads_what_makes_them_longer(
    lengths: Sequence[int], pooling: Any, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs, take, found = model_of(backbone.load(), pooling), inputs_of(lengths), Packed.take, set[int]()

    def other_words(packed: Packed, batch: Tensor) -> Tensor:
        taken = take(packed, batch)
        found.add(taken.shape[1])
        taken[:, sum(lengths) :] += 1
        return taken

    expected = vectors_and_gradients(model, inputs)
    monkeypatch.setattr(Packed, "take", other_words)
    vectors, gradients = vectors_and_gradients(model, inputs)
    assert found == {-(-sum(lengths) // lean._TOKENS) * lean._TOKENS}
    assert torch.equal(vectors, expected[0])
    torch.testing.assert_close(gradients, expected[1], rtol=0, atol=0)


@pytest.mark.parametrize("kind", sorted(MIXING))
def test_what_mixes_tokens_elsewhere_keeps_its_padding(kind: str, backbone: Backbone) -> None:
    model = model_of(with_adapter(backbone, kind))
    assert not model.unpads(torch.device("cpu"))
    vectors_and_gradients(model, inputs_of(LENGTHS))


@pytest.mark.parametrize("implementation", ["fast", "stock"])
@pytest.mark.parametrize("form", ["standard", "gated"])
def test_fusion(
    form: Any, implementation: Any, backbone: Backbone, saved: Callable[..., SavedModules], assert_same_packed: Any
) -> None:
    encoder = backbone.load()
    sources = {name: saved(name, seed) for seed, name in enumerate(("films", "pairs"))}
    target = "films" if form == "standard" else "tickets"
    add_fusion(encoder, sources, Recipe(trainable="fusion", fusion=form, bottleneck=8), target)
    use(encoder, implementation)
    randomise(encoder, "adapter_fusion_layer", seed=5)
    assert_same_packed(model_of(encoder))


def test_encoders_that_share_layers_a_second_one_and_a_copy(backbone: Backbone, assert_same_packed: Any) -> None:
    encoders = split_encoder(backbone.load(), 1, 2)
    for model in [model_of(encoder) for encoder in encoders]:
        assert_same_packed(model)
    assert_same_packed(model_of(backbone.load(), second=backbone.load().requires_grad_(False)))
    assert_same_packed(copy.deepcopy(model_of(backbone.load())))


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(LIKE_BERT)))
def test_other_families_and_what_is_not_lean_keep_their_padding(
    family: str, families: dict[str, Backbone], backbone: Backbone
) -> None:
    assert not can_unpad(backbone.load())
    encoder = families[family].load()
    make_lean(encoder, "cls")
    assert not can_unpad(encoder)


def test_nothing_is_unpadded_that_does_not_train_here(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Packed, "of", lambda mask: pytest.fail("a batch was packed"))
    model, inputs = model_of(backbone.load()), inputs_of(LENGTHS)
    assert not model.unpads(torch.device("cuda"))
    with torch.no_grad():
        model.encode(**inputs)
    model.eval().encode(**inputs)
    model.backbone.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train().encode(**inputs)


def test_few_attention_scores_are_of_padding() -> None:
    """Groups of like length attend together; none holds more padding than another pass would cost."""
    lengths = torch.randint(2, 200, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    packed = Packed.of(inputs_of(lengths)["attention_mask"])
    assert 2 < len(packed.groups) < 64
    for group in packed.groups:
        own = sorted(lengths)[group.inputs]
        assert group.length == max(own)
        assert sum(group.length**2 - length**2 for length in own) <= lean._MOST_PADDED_SCORES
    assert [token for group in packed.groups for token in range(group.tokens.start, group.tokens.stop)] == [
        *range(sum(lengths))
    ]
