"""Modules of every kind: a no-op where they should be, the same after saving, blind to padding, one task's alone."""

import copy
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import PreTrainedModel

from pipeline.methods.houlsby import BOTTLENECK, bottleneck_of
from pipeline.methods.registry import METHODS, add_modules, load_modules
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.models.layout import activate, module_parameter_names
from pipeline.models.lean import make_lean
from pipeline.settings.parts import ADAPTER_KINDS, BOTTLENECKS, AdapterKind
from pipeline.settings.recipe import FLAGS, PARTS, Recipe
from pipeline.system.errors import PipelineError
from tests.nano import FAMILIES, SIZES, WIDTH
from tests.pipeline.methods.adapted import IDS, MASK, hidden, trainable, with_gradients

KINDS = list(METHODS)
STOCK_PREFIX = ("prefix-tuning", "unipelt")
UNFIT = {
    "distilbert": STOCK_PREFIX,
    "deberta-v2": ("prefix", "unipelt"),
    "modernbert": ("pal", "bitfit", "prefix", *STOCK_PREFIX),
}
REFUSED = [(kind, family) for family, kinds in UNFIT.items() for kind in kinds]
PLACES = [(kind, family) for kind in KINDS for family in FAMILIES if (kind, family) not in REFUSED]
WIDE = [
    (kind, key)
    for kind in KINDS
    for key, (part, _) in FLAGS.items()
    if part == ADAPTER_KINDS[kind] and type(Recipe().flat()[key]) is int and key != "pal_heads"  # they divide the size
]


def recipe(kind: str, **values: Any) -> Recipe:
    return Recipe.parse({"trainable": "adapter", "adapter": kind, **SIZES, **values}, "test")


def adapted(backbone: Backbone, kind: str, tasks: tuple[str, ...] = ("films",), **values: Any) -> PreTrainedModel:
    """An encoder whose modules have weights that matter."""
    torch.manual_seed(0)
    encoder = backbone.load()
    add_modules(encoder, tasks, recipe(kind, **values))
    generator = torch.Generator().manual_seed(0)
    own = module_parameter_names(encoder)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name in own:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return encoder


def states(encoder: PreTrainedModel, mask: Tensor = MASK) -> Tensor:
    """Hidden states of the tokens that are no padding, one after the other."""
    found = encoder(input_ids=IDS, attention_mask=mask).last_hidden_state
    return found[mask[:, : found.shape[1]].bool()]


def gradients(encoder: nn.Module, mask: Tensor = MASK) -> dict[str, Tensor]:
    return with_gradients(encoder, lambda: states(encoder, mask))[1]


def same(found: dict[str, Tensor], expected: dict[str, Tensor], **tolerances: float) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, msg=name, **{"rtol": 1e-4, "atol": 1e-5, **tolerances})


@pytest.mark.covering(1)
@pytest.mark.parametrize(("kind", "family"), PLACES)
def test_modules_change_what_the_backbone_says_and_they_alone_train(kind: str, family: str, families: Any) -> None:
    backbone = families[family]
    plain, encoder = backbone.load(), adapted(backbone, kind)
    assert (hidden(plain) - hidden(encoder)).abs().max() > 1e-3
    names = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert names == module_parameter_names(encoder)
    assert names.isdisjoint(backbone.tensor_names)
    assert gradients(encoder).keys() == names
    backbone.check_unchanged(encoder)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_trains_where_the_backbone_does_too(kind: str, backbone: Backbone) -> None:
    encoder = adapted(backbone, kind, trainable="full+adapter")
    assert all(parameter.requires_grad for parameter in encoder.parameters())
    assert gradients(encoder).keys() == {name for name, _ in encoder.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_saved_modules_are_the_trained_ones_and_train_no_more(kind: str, backbone: Backbone, tmp_path: Path) -> None:
    encoder, folder = adapted(backbone, kind), tmp_path / "of" / "films"
    METHODS[kind].save(encoder, "films", folder)
    loaded = backbone.load()
    load_modules(loaded, SavedModules("films", recipe(kind), folder))
    assert trainable(loaded) == 0
    torch.testing.assert_close(hidden(loaded), hidden(encoder), rtol=0, atol=0)


@pytest.mark.parametrize("dropped", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_can_be_left_out_of_what_was_trained_whole(
    kind: str, dropped: int, backbone: Backbone, tmp_path: Path
) -> None:
    """What is left in the other layer is what was trained there: the same as with the dropped layer's emptied."""
    encoder = adapted(backbone, kind)
    METHODS[kind].save(encoder, "films", tmp_path / "films")
    loaded, plain = backbone.load(), backbone.load()
    load_modules(loaded, SavedModules("films", recipe(kind), tmp_path / "films"), (dropped,))
    encoder.eval().encoder.layer[dropped] = plain.encoder.layer[dropped].eval()
    if dropped == 0:  # the embeddings go with the lowest layer
        encoder.embeddings = plain.embeddings.eval()
    torch.testing.assert_close(hidden(loaded), hidden(encoder), rtol=0, atol=1e-6)


@pytest.mark.covering(1)
@pytest.mark.parametrize(("kind", "family"), PLACES)
def test_padding_changes_nothing(kind: str, family: str, families: Any) -> None:
    encoder = adapted(families[family], kind).eval()
    with torch.no_grad():
        short = encoder(input_ids=IDS[1:2, :5], attention_mask=MASK[1:2, :5]).last_hidden_state
        padded = encoder(input_ids=IDS, attention_mask=MASK).last_hidden_state[1:2, :5]
    torch.testing.assert_close(padded, short, rtol=0, atol=1e-5)


@pytest.mark.covering(1)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("mask", [MASK, torch.ones_like(MASK)], ids=["padded", "whole"])
@pytest.mark.parametrize(("kind", "family"), PLACES)
def test_a_lean_encoder_is_the_same_function(kind: str, family: str, mask: Tensor, pooling: Any, families: Any) -> None:
    """The last layer may answer for the first token alone; outputs and gradients are those of all."""
    found = []
    for lean in (False, True):
        encoder = adapted(families[family], kind, trainable="full+adapter")
        if lean:
            make_lean(encoder, pooling)

        def read(encoder: PreTrainedModel = encoder) -> Tensor:
            found = encoder(input_ids=IDS, attention_mask=mask).last_hidden_state
            return found[:, 0] if pooling == "cls" else found[mask.bool()]

        found.append(with_gradients(encoder, read))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=5e-6)
    same(found[1][1], found[0][1], atol=5e-5)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_gives_the_same_gradients(kind: str, family: str, families: Any) -> None:
    encoder = adapted(families[family], kind, trainable="full+adapter").train()
    expected = gradients(encoder)
    encoder.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    same(gradients(encoder), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_precision_is_near_the_full_one(kind: str, backbone: Backbone) -> None:
    encoder = adapted(backbone, kind)
    full = states(encoder)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = states(encoder)
    mixed.float().sum().backward()
    assert (mixed.float() - full).abs().max() < 0.1
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters() if p.requires_grad)


@pytest.mark.parametrize("kind", KINDS)
def test_a_deep_copy_has_modules_of_its_own(kind: str, backbone: Backbone) -> None:
    encoder = adapted(backbone, kind, ("films", "meals"))
    before = hidden(encoder)
    twin = copy.deepcopy(encoder)
    activate(twin, "meals")
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(hidden(encoder), before)
    torch.testing.assert_close(hidden(twin), torch.zeros_like(before))


# Several tasks.


@pytest.mark.parametrize("settings", [{}, {"train_layernorm": True}], ids=["plain", "layernorms"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_one_task_leaves_the_others_bit_for_bit(kind: str, settings: Any, backbone: Backbone) -> None:
    tasks = ("films", "meals", "pairs")
    encoder = adapted(backbone, kind, tasks, **settings)
    optimizer = AdamW([p for p in encoder.parameters() if p.requires_grad], lr=0.1, weight_decay=0.5)

    def step(task: str) -> dict[str, bool]:
        activate(encoder, task)
        before = {name: parameter.detach().clone() for name, parameter in encoder.named_parameters()}
        optimizer.zero_grad()
        states(encoder).square().sum().backward()
        optimizer.step()
        return {name: torch.equal(parameter, before[name]) for name, parameter in encoder.named_parameters()}

    for task in (*tasks, tasks[0]):  # with momentum the second time
        kept = step(task)
        changed = {name for name, stayed in kept.items() if not stayed}
        own = {name for name in module_parameter_names(encoder) if f".{task}." in name}
        assert changed == own
        assert own
    backbone.check_unchanged(encoder)


@pytest.mark.parametrize("kind", KINDS)
def test_an_active_task_computes_as_if_it_were_alone(kind: str, backbone: Backbone) -> None:
    encoder = adapted(backbone, kind, ("films", "meals"))
    outputs = {}
    for task in ("films", "meals", "films"):
        activate(encoder, task)
        outputs.setdefault(task, hidden(encoder))
        assert torch.equal(hidden(encoder), outputs[task])
    assert not torch.equal(outputs["films"], outputs["meals"])
    alone = backbone.load()
    add_modules(alone, ["meals"], recipe(kind))
    state = dict(encoder.named_parameters())
    with torch.no_grad():
        for name, parameter in alone.named_parameters():
            if name in module_parameter_names(alone):
                parameter.copy_(state[name])
    torch.testing.assert_close(hidden(alone), outputs["meals"], rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "key"), WIDE)
def test_a_size_beyond_the_backbones_width_is_a_misfit_or_works(kind: str, key: str, backbone: Backbone) -> None:
    """A study is checked by the misfit alone: what it does not know would fail after hours."""
    wide = recipe(kind, **{key: WIDTH + 1})
    assert METHODS[kind].misfit(wide, WIDTH + 1) == ""
    why = METHODS[kind].misfit(wide, WIDTH)
    if not why:
        assert hidden(adapted(backbone, kind, **{key: WIDTH + 1})).isfinite().all()
        return
    assert why == f"{key} 33 is more than the backbone's width (32): choose a smaller one"
    with pytest.raises(PipelineError, match=re.escape(why)):
        add_modules(backbone.load(), ["films"], wide)


@pytest.mark.parametrize(("kind", "key"), [("prefix-tuning", "prefix_length"), ("unipelt", "unipelt_prefix")])
def test_stock_prefixes_may_be_longer_than_what_the_backbone_reads(kind: str, key: str, backbone: Backbone) -> None:
    assert hidden(adapted(backbone, kind, **{key: backbone.max_length + 8})).isfinite().all()


def test_every_kind_has_settings_and_a_method() -> None:
    assert METHODS.keys() == ADAPTER_KINDS.keys() == {*get_args(AdapterKind)}
    assert {*ADAPTER_KINDS.values()} - {""} <= PARTS.keys()


def test_fusion_takes_and_builds_the_kinds_that_are_named_as_bottlenecks(encoder: PreTrainedModel) -> None:
    """One that shares their settings is neither fused nor taken for one of them."""
    assert {kind for kind, method in METHODS.items() if method is BOTTLENECK} == BOTTLENECKS
    with pytest.raises(KeyError, match="lora"):
        bottleneck_of(recipe("lora"), encoder.config, 8)


def test_a_task_without_modules_cannot_be_activated_where_others_have_some(backbone: Backbone) -> None:
    for kind in KINDS:
        with pytest.raises(KeyError, match="no modules of task 'sst'"):
            activate(adapted(backbone, kind), "sst")
    activate(backbone.load(), "sst")


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_inside_torchs_modules_is_no_tasks(kind: str, encoder: PreTrainedModel) -> None:
    with pytest.raises(PipelineError, match="task name 'keys' clashes with"):
        add_modules(encoder, ["keys"], recipe(kind))


@pytest.mark.parametrize(("kind", "family"), REFUSED)
def test_a_kind_that_cannot_work_in_a_family_is_refused(kind: str, family: str, families: dict[str, Backbone]) -> None:
    encoder = families[family].load()
    with pytest.raises(
        PipelineError, match=f"{kind} on a (DistilBERT|DeBERTa|ModernBERT): .*: use --adapter "
    ) as refused:
        add_modules(encoder, ["films"], recipe(kind))
    instead = str(refused.value).rpartition(" ")[2]
    add_modules(encoder, ["films"], recipe(instead))
