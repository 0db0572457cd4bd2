"""The layers of a backbone: where their parts are, which are frozen, how to run some, and modules of tasks in them.

BERT, RoBERTa, ELECTRA and DeBERTa normalise after each sub-layer; ModernBERT before it, and once more at the very end.

The *frozen prefix* of a model is the embeddings and layers below the lowest layer that trains. It gives an input the
same hidden states every time, so they can be cached (:class:`PrefixCache`). It runs in evaluation mode and without
gradients: dropout below the lowest trained layer would only blur that layer's input. If the lowest layer trains, as
with adapters in all layers, there is no such prefix, and the embeddings have their dropout.

Of several tasks' modules in one backbone, one task's are active at a time (:class:`TaskSite`).
"""

import copy
from collections.abc import Callable, Collection, Sequence
from functools import reduce
from typing import Any

import torch
from adapters.methods.adapter_layer_base import AdapterLayerBase
from adapters.methods.prefix_tuning import PrefixTuningLayer, PrefixTuningPool
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.system.errors import PipelineError

BASE = ("embeddings", "embeddings_project", "encoder.rel_embeddings", "encoder.LayerNorm", "encoder.conv")
"""Modules below the layers: ELECTRA projects its embeddings; DeBERTa has embeddings of relative positions, and may have
a convolution after its first layer, which only full fine-tuning trains."""
_LAST = "final_norm"
"""The LayerNorm above ModernBERT's layers."""


def stack_of(backbone: nn.Module) -> tuple[Any, str]:
    """The module that runs the layers, and the name under which it holds them; ModernBERT runs them itself."""
    if hasattr(backbone, "layers"):
        return backbone, "layers"
    return backbone.transformer if hasattr(backbone, "transformer") else backbone.encoder, "layer"


def layers_of(backbone: nn.Module) -> Sequence[Any]:
    """The layers from the bottom up."""
    stack, name = stack_of(backbone)
    layers: Sequence[Any] = getattr(stack, name)
    return layers


def base_of(backbone: Any) -> list[nn.Module]:
    """The modules below the layers, :data:`BASE`."""
    parts = [reduce(lambda part, name: getattr(part, name, None), path.split("."), backbone) for path in BASE]
    return [part for part in parts if part is not None]


def kept_indices(backbone: nn.Module, drop_layers: Collection[int]) -> list[int]:
    """The indices of all layers except ``drop_layers``, from the bottom up."""
    return [index for index in range(len(layers_of(backbone))) if index not in drop_layers]


def kept_layers(backbone: nn.Module, drop_layers: Collection[int]) -> list[Any]:
    return [layers_of(backbone)[index] for index in kept_indices(backbone, drop_layers)]


def norms_of(layer: Any) -> list[nn.LayerNorm]:
    """The LayerNorms of a layer: LN1, after attention, and LN2, after the FFN.

    ModernBERT has them before its sub-layers, and none before the first attention.
    """
    if hasattr(layer, "mlp_norm"):
        return [norm for norm in (layer.attn_norm, layer.mlp_norm) if isinstance(norm, nn.LayerNorm)]
    if hasattr(layer, "sa_layer_norm"):
        return [layer.sa_layer_norm, layer.output_layer_norm]
    return [layer.attention.output.LayerNorm, layer.output.LayerNorm]


def attention_of(layer: Any) -> tuple[Any, Any, Any, str]:
    """The self-attention of a layer, its key and value projections, and the name of its mask argument."""
    if hasattr(layer.attention, "k_lin"):
        return layer.attention, layer.attention.k_lin, layer.attention.v_lin, "mask"
    module = layer.attention.self
    return module, module.key, module.value, "attention_mask"


def mask_by_query(mask: Tensor | None) -> Tensor | None:
    """A layer's mask in a shape that broadcasts over (B, heads, T, T): additive, or true where visible.

    None means a batch without padding. Unfused attention may get (B, T) of zeros and ones. In DeBERTa's mask, padding
    sees nothing, so its softmax would be NaN: here padding sees what the first token sees.
    """
    if mask is None or mask.is_floating_point():
        return mask
    mask = mask.to(torch.bool)
    return mask[:, None, None, :] if mask.ndim == 2 else mask[:, :, :1]


def frozen_depth(backbone: Any) -> int:
    """How many layers at the bottom are frozen; 0 if the embeddings train."""
    if any(p.requires_grad for part in base_of(backbone) for p in part.parameters()):
        return 0
    return [*map(_trains, layers_of(backbone)), True].index(True)


def _trains(layer: nn.Module) -> bool:
    """Whether anything in ``layer`` trains.

    AdapterHub's pool of prefixes is a child of every layer; it counts only if the layer uses one of them.
    """
    if any(isinstance(module, PrefixTuningLayer) and module.prefixes for module in layer.modules()):
        return any(parameter.requires_grad for parameter in layer.parameters())
    pools = [module for module in layer.modules() if isinstance(module, PrefixTuningPool)]
    others = {parameter for pool in pools for parameter in pool.parameters()}
    return any(parameter.requires_grad for parameter in layer.parameters() if parameter not in others)


def is_frozen(backbone: nn.Module) -> bool:
    """Whether nothing in ``backbone`` trains."""
    return not any(parameter.requires_grad for parameter in backbone.parameters())


def frozen_parts(backbone: Any) -> list[nn.Module]:
    """The modules of the frozen prefix; the backbone itself if nothing in it trains."""
    if is_frozen(backbone):
        return [backbone]
    depth = frozen_depth(backbone)
    return [*base_of(backbone), *layers_of(backbone)[:depth]] if depth else []


def lower_states(backbone: Any, depth: int, inputs: dict[str, Tensor]) -> Tensor:
    """Hidden states (B, T, d) after the embeddings and the lower ``depth`` layers."""
    instead: list[tuple[Any, str, Any]] = [(backbone, _LAST, nn.Identity())]
    return _run_part(backbone, slice(0, depth), instead, inputs)


def upper_states(backbone: Any, depth: int, states: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """The last hidden states (B, T, d), given the output of :func:`lower_states` as ``states``."""
    instead = [(backbone, "embeddings", _Given(states)), (backbone, "embeddings_project", nn.Identity())]
    return _run_part(backbone, slice(depth, None), instead, inputs)


def _run_part(backbone: Any, part: slice, instead: list[tuple[Any, str, Any]], inputs: dict[str, Tensor]) -> Tensor:
    """Run the layers ``part`` with transformers' code, while ``instead`` (owner, name, module) replaces modules."""
    stack, held = stack_of(backbone)
    layers = getattr(stack, held)
    some = layers[part]
    if not len(some) and hasattr(stack, "get_rel_pos"):  # DeBERTa cannot run without layers
        some = nn.ModuleList([_Unchanged()])
    instead = [*instead, (stack, held, some)]
    if part.stop == 0 or part.start:
        instead.append((stack, "conv", None))  # DeBERTa's, after the lowest layer
    instead = [place for place in instead if getattr(place[0], place[1], None) is not None]
    replaced = [(owner, name, getattr(owner, name)) for owner, name, _ in instead]
    try:
        for owner, name, module in instead:
            setattr(owner, name, module)
        return backbone(**inputs).last_hidden_state
    finally:
        for owner, name, module in replaced:
            setattr(owner, name, module)


class _Given(nn.Module):
    """Stands in for the embeddings and returns ``states`` for any input.

    They are its attribute, since transformers takes the dtype of a model without parameters from a module's tensors.
    """

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self.states


class _Unchanged(nn.Module):
    """Stands in for a DeBERTa layer and returns its input states."""

    def forward(self, states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        return states, None


def split_encoder(encoder: PreTrainedModel, top: int, branches: int) -> list[PreTrainedModel]:
    """Split ``encoder`` into ``branches`` encoders that share all but copies of its ``top`` layers (Hayes 2024).

    With ``top`` 0 they share everything; if ``top`` is all layers, only the embeddings. The first is ``encoder``
    itself. Call this before :func:`make_lean`.
    """
    depth = len(layers_of(encoder))
    if not 0 <= top <= depth:
        raise PipelineError(f"split_layers {top}: the backbone has {depth} layers; give 0 to {depth}")
    stack, held = stack_of(encoder)
    layers = getattr(stack, held)
    encoders = [encoder]
    for _ in range(branches - 1):
        other = _shallow(encoder)
        owner = other
        if stack is not encoder:
            owner = _shallow(stack)
            setattr(other, next(name for name, module in encoder.named_children() if module is stack), owner)
        setattr(owner, held, nn.ModuleList([*layers[: depth - top], *copy.deepcopy(layers[depth - top :])]))
        encoders.append(other)
    return encoders


def _shallow(module: Any) -> Any:
    """A shallow copy of ``module``: replacing its children does not change the original."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other


class TaskSite(nn.Module):
    """A place in a layer that holds one module per task; with none active it does nothing.

    Names of its parameters contain ``.tasks.<task>.``. A subclass registers bound methods as hooks, never closures, so
    that the hooks of a deep copy belong to the copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tasks = nn.ModuleDict()
        self.active = ""

    @property
    def current(self) -> Any:
        """The active task's module, or None."""
        if self.active not in self.tasks:
            return None
        return self.tasks[self.active]


def put_into_site(site: Callable[[Any], TaskSite], owner: Any, name: str, task: str, part: nn.Module) -> None:
    """Put ``part``, of ``task``, into the site ``name`` of the module ``owner``; if missing, it is ``site(owner)``.

    Raises a :class:`PipelineError` for a task's name that cannot be a key of a ModuleDict.
    """
    check_task_name(task)
    if not hasattr(owner, name):
        setattr(owner, name, site(owner))
    getattr(owner, name).tasks[task] = part


def activate(backbone: nn.Module, task: str) -> None:
    """Activate the modules of ``task`` alone; raises a KeyError if only other tasks have modules.

    With gradient checkpointing, run the backward pass before activating another task: it recomputes activations.
    """
    sites = [module for module in backbone.modules() if isinstance(module, TaskSite)]
    known = {name for site in sites for name in site.tasks}
    for site in sites:
        site.active = task
    stock: Any = getattr(backbone, "adapters_config", None)  # AdapterHub's
    if stock is not None and task in stock.adapters:
        if [*(stock.active_setup or ())] != [task]:
            backbone.set_active_adapters(task)  # type: ignore[operator]
    elif known | set(getattr(stock, "adapters", ())) and task not in known:
        raise KeyError(f"no modules of task '{task}' in this backbone")


def module_parameter_names(model: nn.Module) -> set[str]:
    """Names of the parameters of all adapters, of any kind, and fusions in the backbone of ``model``."""
    added: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, TaskSite | PrefixTuningPool):
            added.append(module)
        elif isinstance(module, AdapterLayerBase):
            names = (module.adapter_modules_name, "adapter_fusion_layer", "prefix_gates")
            added += [child for name, child in module.named_children() if name in names]
    ours = {id(parameter) for module in added for parameter in module.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in ours}


def check_task_name(task: str) -> None:
    """Raise a :class:`PipelineError` for a name that cannot be a key of a ModuleDict."""
    if hasattr(nn.ModuleDict(), task):
        raise PipelineError(f"task name '{task}' clashes with an attribute of torch's modules: rename the task")
