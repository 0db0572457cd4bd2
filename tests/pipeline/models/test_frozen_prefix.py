"""What frozen layers give is the same computed or kept, and no more is kept than there is room for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from pipeline.data.batches import collate, inputs_of
from pipeline.data.tokens import TokenisedSplit
from pipeline.models.backbone import open_backbone
from pipeline.models.layout import frozen_depth
from pipeline.models.lean import make_lean
from pipeline.models.transfer_model import PrefixCache, TransferModel, build_head
from tests.nano import FAMILIES, save_backbone
from tests.pipeline.methods.adapted import add_adapter

Make = Callable[..., TransferModel]


def make_split(rows: int = 30, siamese: bool = False, types: bool = True) -> TokenisedSplit:
    """Rows of 3 to 12 tokens; a siamese one repeats some sentences."""
    generator = np.random.default_rng(0)

    def sentences() -> list[np.ndarray]:
        return [generator.integers(5, 20, generator.integers(3, 13), dtype=np.int32) for _ in range(rows)]

    a = sentences()
    return TokenisedSplit(
        a=a,
        types_a=[np.arange(len(ids), dtype=np.int32) // 3 % 2 for ids in a] if types and not siamese else None,
        b=[*a[: rows // 2], *sentences()[: rows - rows // 2]] if siamese else None,
        labels=np.zeros(rows, dtype=np.int64),
    )


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def model(drop_layers: tuple[int, ...] | None, family: str = "bert", encoding: Any = "cross") -> TransferModel:
        """An adapter above ``drop_layers``, or for None nothing but the head."""
        torch.manual_seed(0)
        encoder = open_backbone(str(save_backbone(tmp_path / family, family))).load()
        encoder.requires_grad_(False)
        if drop_layers is not None:
            add_adapter(encoder, "films", "houlsby", 8, drop_layers)
        vectors = 2 if encoding == "siamese" else 1
        return TransferModel(encoder, build_head("linear", 32, 2, vectors, 0.0), encoding, "mean").train()

    return model


def cache(model: TransferModel, split: TokenisedSplit, max_bytes: float = 1e9) -> PrefixCache:
    AcceleratorState._reset_state()  # an earlier test may have chosen bf16
    return PrefixCache(
        model, split, max_bytes=max_bytes, batch_size=8, pad_token_id=0, accelerator=Accelerator(cpu=True)
    )


def run(model: TransferModel, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs, and the gradients of a loss."""
    model.zero_grad()
    outputs = model(**inputs_of(batch))
    outputs.square().mean().backward()
    return outputs.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_the_prefix_ends_below_what_trains(make: Make) -> None:
    assert [frozen_depth(make(layers).backbone) for layers in (None, (), (0,), (1,))] == [2, 0, 1, 0]
    assert frozen_depth(make(None).backbone.requires_grad_(True)) == 0
    embeddings_train = make((0,)).backbone
    embeddings_train.embeddings.requires_grad_(True)
    assert frozen_depth(embeddings_train) == 0


@pytest.mark.covering(1)
@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("drop_layers", [None, (0,)])
@pytest.mark.parametrize(("family", "encoding"), [("bert", "siamese"), *((family, "cross") for family in FAMILIES)])
def test_outputs_and_gradients_are_those_without_a_cache(family, encoding, drop_layers, share, make: Make) -> None:
    model = make(drop_layers, family, encoding)
    split = make_split(siamese=encoding == "siamese", types=family in ("bert", "electra"))
    known = cache(model, split, share * cache(model, split).bytes)
    for rows in np.array_split(np.arange(len(split)), 4):
        batch = collate(split, rows, 0)
        extended = known.extend(batch)
        assert ("known" in extended) == (share > 0)
        outputs, gradients = run(model, extended)
        expected, expected_gradients = run(model, batch)
        torch.testing.assert_close(outputs, expected, atol=1e-6, rtol=1e-5)
        assert gradients.keys() == expected_gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected_gradients[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("drop_layers", [None, (0,)])
def test_the_bound_binds_and_keeps_the_shortest(drop_layers, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model, split = make(drop_layers), make_split()
    bound = cache(model, split).bytes // 2
    known = cache(model, split, bound)
    assert 0.8 * bound < known.bytes <= bound
    batch = known.extend(collate(split, np.arange(len(split)), 0))
    assert known._vectors is not None and known._vectors.untyped_storage().nbytes() == known.bytes
    computed = set(batch["absent"].tolist())
    assert len(computed) == len(split) - len(known._firsts)
    stays = [length for row, length in enumerate(split.lengths) if row not in computed]
    assert max(stays) <= min(split.lengths[row] for row in computed)

    seen = []
    original = model.backbone.forward

    def forward(**inputs: Tensor) -> Any:
        seen.append(len(inputs["input_ids"]))
        return original(**inputs)

    monkeypatch.setattr(model.backbone, "forward", forward)
    run(model, batch)
    assert seen[0] == len(computed)


@pytest.mark.parametrize("drop_layers", [None, (0,)])
def test_what_is_kept_does_not_depend_on_what_was_asked_first(drop_layers, make: Make) -> None:
    """The resumed run asks for another batch first, and reads the same bits."""
    model, split = make(drop_layers), make_split()
    one, other = (cache(model, split, 0.6 * cache(model, split).bytes) for _ in range(2))
    other.extend(collate(split, np.arange(20, 30), 0))
    batch = collate(split, np.arange(10), 0)
    first, second = one.extend(batch), other.extend(batch)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_inputs_that_differ_in_their_token_types_alone_are_kept_apart(make: Make) -> None:
    """The same words, cut into a pair at another place."""
    tokens = np.arange(5, 15, dtype=np.int32)
    types = [(np.arange(10) >= cut).astype(np.int32) for cut in (3, 7)]
    split = TokenisedSplit([tokens, tokens], types, None, np.zeros(2, dtype=np.int64))
    model, batch = make((0,)).eval(), collate(split, np.arange(2), 0)
    outputs, _ = run(model, cache(model, split).extend(batch))
    assert (outputs[0] - outputs[1]).abs().max() > 1e-3
    torch.testing.assert_close(outputs, run(model, batch)[0], atol=1e-6, rtol=1e-5)


def test_a_lean_encoder_takes_what_is_kept(make: Make) -> None:
    """Its last layer answers for the first token alone."""
    model, split = make((0,)), make_split()
    model.pooling = "cls"
    make_lean(model.backbone, "cls")
    batch = collate(split, np.arange(8), 0)
    outputs, gradients = run(model, cache(model, split).extend(batch))
    expected, expected_gradients = run(model, batch)
    torch.testing.assert_close(outputs, expected, atol=1e-6, rtol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
