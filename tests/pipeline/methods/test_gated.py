"""Gated fusion: it begins as its equation says, fast and plain forms agree, and what was trained is what is saved."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters.composition import Fuse
from torch import nn

from pipeline.methods.gated import GATED_FILE, GatedFusion
from pipeline.methods.houlsby import load_adapter
from pipeline.methods.registry import add_fusion, load_fusion, prune_fusion, save_fusion
from pipeline.methods.registry import use_fusion_implementation as use
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.models.transfer_model import TransferModel, build_head
from pipeline.settings.parts import Gated
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from pipeline.training.optim import peak_rates
from tests.pipeline.methods.adapted import WHOLE, hidden, randomise, trainable, with_gradients

SOURCES = ("films", "pairs", "scores")
TARGET = "tickets"
GATES: dict[str, dict[str, Any]] = {
    **{gate: {"gate": gate} for gate in ("token", "scalar", "vector", "matrix")},
    "low-rank": {"gate": "matrix", "gate_rank": 3},
}
OWNS = ["fresh", "warm", "trained", "frozen", "none"]
ADDED = ("fresh", "warm")
"""An own adapter that is made with the fusion; of the others, if any, stage one has made it."""


@pytest.fixture
def folders(saved: Callable[..., SavedModules]) -> dict[str, SavedModules]:
    return {name: saved(name, seed) for seed, name in enumerate(SOURCES)}


def recipe_of(**settings: Any) -> Recipe:
    return Recipe(trainable="fusion", fusion="gated", bottleneck=8, **settings)


def gated(backbone: Backbone, folders: dict[str, SavedModules], target: str = TARGET, **settings: Any) -> Any:
    encoder = backbone.load()
    add_fusion(encoder, folders, recipe_of(**settings), target)
    return encoder


def layers(encoder: nn.Module) -> list[GatedFusion]:
    return [module for module in encoder.modules() if isinstance(module, GatedFusion)]


def outputs_and_gradients(encoder: Any, implementation: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    use(encoder, implementation)
    return with_gradients(encoder, lambda: encoder(**WHOLE).last_hidden_state)


def alone(backbone: Backbone, folder: SavedModules) -> torch.Tensor:
    encoder = backbone.load()
    load_adapter(encoder, folder.task, folder)
    return hidden(encoder)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("implementation", ["fast", "stock"])
def test_one_source_let_through_whole_is_that_adapter(
    gate: str, implementation: Any, backbone: Backbone, folders: dict[str, SavedModules]
) -> None:
    encoder = gated(backbone, {"pairs": folders["pairs"]}, **GATES[gate], gate_start=1.0)
    with torch.no_grad():  # a fresh bottleneck is nearly, not exactly, nothing
        for name, parameter in encoder.named_parameters():
            if f"adapters.{TARGET}" in name:
                parameter.zero_()
    use(encoder, implementation)
    torch.testing.assert_close(hidden(encoder), alone(backbone, folders["pairs"]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("own", ["trained", "frozen"])
def test_closed_gates_leave_the_own_adapter(own: str, backbone: Backbone, folders: dict[str, SavedModules]) -> None:
    encoder = gated(backbone, folders, "pairs", own_adapter=own, gate_start=0.0)
    use(encoder, "fast")
    torch.testing.assert_close(hidden(encoder), alone(backbone, folders["pairs"]), atol=1e-5, rtol=0)


@pytest.mark.covering(1)
@pytest.mark.parametrize("own", OWNS)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(("rate", "of_gates"), [(None, 1e-3), (6e-3, 6e-3)])
def test_the_gates_alone_have_their_rate(
    rate: float | None, of_gates: float, gate: str, own: str, backbone: Backbone, folders: dict[str, SavedModules]
) -> None:
    settings = {**GATES[gate], "own_adapter": own, "learning_rate": 1e-3, "gate_learning_rate": rate}
    pretrained = [name for name, _ in backbone.load().named_parameters()]
    encoder = gated(backbone, folders, TARGET if own in ADDED else "pairs", **settings)
    model = TransferModel(encoder, build_head("linear", backbone.hidden_size, 2, 1, 0.0), "cross", "mean")
    gates = {id(parameter) for layer in layers(encoder) for parameter in layer.parameters()}
    rates = peak_rates(model, recipe_of(**settings), pretrained)
    assert rates == {
        name: of_gates if id(parameter) in gates else 1e-3
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


@pytest.mark.covering(1)
@pytest.mark.parametrize("own", OWNS)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("shared", [False, True])
def test_it_has_the_parameters_of_its_equation(
    gate: str, own: str, shared: bool, backbone: Backbone, folders: dict[str, SavedModules]
) -> None:
    target = TARGET if own in ADDED else "pairs"
    settings, d = {**GATES[gate], "own_adapter": own, "gate_shared": shared}, backbone.hidden_size
    encoder = gated(backbone, folders, target, **settings)
    gates = {"fresh": 3, "warm": 3, "trained": 2, "frozen": 2, "none": 3}[own]
    each = {"token": d + 1, "scalar": 1, "vector": d, "matrix": 1 + d * d, "low-rank": 1 + 2 * 3 * d}[gate] * gates
    adapter = (2 * 8 * d + 8 + d) if own in (*ADDED, "trained") else 0
    sites = 2 * backbone.layers
    assert trainable(encoder) == (1 if shared else sites) * each + sites * adapter


@pytest.mark.covering(1)
@pytest.mark.parametrize("own", OWNS)
@pytest.mark.parametrize("gate", GATES)
def test_the_fast_form_is_the_plain_one(
    gate: str, own: str, backbone: Backbone, folders: dict[str, SavedModules], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and gradients, in fp64, with an own adapter that trains."""
    calls, mixed = [], GatedFusion.mixed
    monkeypatch.setattr(GatedFusion, "mixed", lambda *given: calls.append(1) or mixed(*given))
    target = TARGET if own in ADDED else "pairs"
    encoder = gated(backbone, folders, target, **GATES[gate], own_adapter=own)
    randomise(encoder, "adapter_fusion_layer", seed=5)
    encoder.double().eval()  # without dropout
    expected, expected_gradients = outputs_and_gradients(encoder, "stock")
    assert not calls
    found, gradients = outputs_and_gradients(encoder, "fast")
    assert len(calls) == 2 * backbone.layers
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert gradients.keys() == expected_gradients.keys()
    assert any("adapter_fusion_layer" in name for name in gradients)
    assert any(f"adapters.{target}" in name for name in gradients) == (own in (*ADDED, "trained"))
    for name, gradient in gradients.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=0, atol=1e-10, msg=name)


def test_shares_are_lengths_of_what_is_added(backbone: Backbone, folders: dict[str, SavedModules]) -> None:
    """By hand: the own adapter's term stands where it stands among those that are fused."""
    fusion = GatedFusion("scalar", 2, 3, own=1, start=0.5)
    with torch.no_grad():
        fusion.bias.copy_(torch.tensor([0.5, -2.0]))
    value = torch.tensor([[[[3.0, 4.0], [0.0, 1.0], [0.5, 0.0]]]])  # terms of length 2.5, 1 and 1
    query = residual = torch.zeros(1, 1, 2)
    fused, shares = fusion(query, value, value, residual, output_attentions=True)
    assert fused.flatten().tolist() == pytest.approx([1.5 + 0.0 - 1.0, 2.0 + 1.0])
    assert shares.flatten().tolist() == pytest.approx([2.5 / 4.5, 1 / 4.5, 1 / 4.5])


@pytest.mark.covering(1)
@pytest.mark.parametrize("own", OWNS)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("shared", [False, True])
def test_what_is_saved_is_what_was_trained(
    gate: str, own: str, shared: bool, backbone: Backbone, folders: dict[str, SavedModules], tmp_path: Path
) -> None:
    target = TARGET if own in ADDED else "pairs"
    settings = {**GATES[gate], "own_adapter": own, "gate_shared": shared}
    encoder = gated(backbone, folders, target, **settings)
    randomise(encoder, "adapter_fusion_layer", seed=5)
    if own in (*ADDED, "trained"):
        randomise(encoder, f"adapters.{target}", seed=6)
    expected = hidden(encoder)
    folder = SavedModules(target, recipe_of(**settings), tmp_path / "fusion")
    save_fusion(encoder, SOURCES, folder)
    assert [file.name for file in folder.folder.iterdir()] == [GATED_FILE]
    again = backbone.load()
    load_fusion(again, folders, folder)
    assert layers(again) and not trainable(again)
    for implementation in ("stock", "fast"):
        use(again, implementation)
        torch.testing.assert_close(hidden(again), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("gate", GATES)
def test_leaving_out_a_source_behind_a_closed_gate_changes_nothing(
    gate: str, backbone: Backbone, folders: dict[str, SavedModules]
) -> None:
    encoder = gated(backbone, folders, **GATES[gate])
    randomise(encoder, "adapter_fusion_layer", seed=5)
    randomise(encoder, f"adapters.{TARGET}", seed=6)
    with torch.no_grad():
        for layer in layers(encoder):
            for parameter in layer.parameters():
                parameter[1] = 0
    expected, members = hidden(encoder), [*SOURCES, TARGET]
    assert prune_fusion(encoder, members, ["scores", TARGET, "films"]) == ["films", "scores", TARGET]
    use(encoder, "fast")
    torch.testing.assert_close(hidden(encoder), expected, atol=1e-4, rtol=0)
    found = encoder(torch.tensor([[5, 6]]), output_adapter_fusion_attentions=True).adapter_fusion_attentions
    assert [*found] == [Fuse("films", "scores", TARGET).name]


@pytest.mark.parametrize("start", [0.0, 0.5])
@pytest.mark.parametrize("gate", ["matrix", "low-rank"])
def test_a_matrix_starts_as_a_number(
    gate: str, start: float, backbone: Backbone, folders: dict[str, SavedModules]
) -> None:
    expected, found = (
        hidden(gated(backbone, folders, "pairs", own_adapter="frozen", gate_start=start, **settings))
        for settings in ({"gate": "scalar"}, GATES[gate])
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_an_own_adapter_of_stage_one_has_to_be_there(backbone: Backbone, folders: dict[str, SavedModules]) -> None:
    with pytest.raises(PipelineError, match="own_adapter = 'trained'"):
        gated(backbone, folders, own_adapter="trained")


@pytest.mark.parametrize(("gates", "start"), [(1, 1.0), (3, 2 / 3), (8, 0.25)])
def test_gates_start_at_scalearns_mean_unless_one_source_would_count_more_than_once(gates: int, start: float) -> None:
    assert Gated(start="even").start_of(gates) == pytest.approx(start)
    assert Gated(start=-0.5).start_of(gates) == -0.5
