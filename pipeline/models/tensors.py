"""A model's tensors: read from a file, shared between models, or held in half precision.

From a file come exactly those that a model expects, in its shapes, as finite fp32 numbers. AdapterHub
(``load_adapter``) and torch (``strict=False``) load every tensor of a file that the model has too, and leave the others
random. A file could then overwrite the frozen backbone, or a model predict with random weights.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import check_regular, reading

_FP32 = "F32"
_LAYER = re.compile(r"\.(layers?)\.(\d+)\.")


def read_tensors(file: Path, expected: Mapping[str, Tensor], remedy: str, part: str = "") -> dict[str, Tensor]:
    """The tensors of the safetensors file ``file``, which must be those of ``expected``.

    The header is checked before any contents are read, so a file of any size costs nothing to refuse. Tensors whose
    names do not begin with ``part`` are ignored.

    Raises:
        PipelineError: the file is missing, damaged, or holds other tensors, other shapes, another dtype, NaN or
            infinity.
    """
    with reading(file, remedy):
        if not file.exists():
            raise PipelineError(f"{file}: missing: {remedy}")
        check_regular(file)
        with safe_open(file, framework="pt") as opened:
            header = {name: opened.get_slice(name) for name in opened.keys() if name.startswith(part)}  # noqa: SIM118
            if problems := _problems(header, expected):
                raise PipelineError(f"{file}: does not match its recipe: {'; '.join(problems)}: {remedy}")
            tensors = {name: opened.get_tensor(name) for name in expected}
    if infinite := [name for name, tensor in tensors.items() if not is_finite(tensor)]:
        raise PipelineError(f"{file}: {_named(infinite)} contains NaN or infinity: {remedy}")
    return tensors


@torch.no_grad()
def fill(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy to every parameter the tensor of the same name."""
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])


@torch.no_grad()
def share_equal(module: nn.Module, other: nn.Module, names: Iterable[str]) -> None:
    """Make the parameters ``names`` of ``module`` share memory with those of ``other`` if all their bits agree."""
    ours, theirs = dict(module.named_parameters()), dict(other.named_parameters())
    for name in names:
        one, two = ours.get(name), theirs.get(name)
        if one is None or two is None or (one.device, one.dtype) != (two.device, two.dtype):
            continue
        bits = torch.int32 if one.element_size() == 4 else torch.int16  # a weight may be rounded
        if torch.equal(one.view(bits), two.view(bits)):
            one.data = two.data


def in_layers(tensors: Mapping[str, Tensor], layers: Iterable[int]) -> dict[str, Tensor]:
    """``tensors`` of a backbone's layers, repeated under the names that they would have in each of ``layers``."""
    return {
        _LAYER.sub(rf".\g<1>.{layer}.", f".{name}", count=1)[1:]: tensor
        for layer in layers
        for name, tensor in tensors.items()
    }


def layer_of(name: str) -> int | None:
    """The layer of the tensor ``name``; None for the embeddings."""
    layer = _LAYER.search(f".{name}")
    return int(layer[2]) if layer else None


def is_finite(tensor: Tensor) -> bool:
    """Whether ``tensor`` has neither NaN nor infinity; ten times as fast as checking each number."""
    return all(edge.isfinite().item() for edge in tensor.aminmax())


@contextmanager
def rounded(model: nn.Module, pretrained: Collection[str], dtype: torch.dtype | None) -> Iterator[None]:
    """Within the block, hold the frozen weights of the encoders' own linear layers in ``dtype``.

    Autocast would round frozen weights again in every pass. Rounded once, they give the same numbers bit for bit with
    less work: on a CPU, a step of an adapter on MiniLM takes 3 to 7 % less time.
    Everything in the block that runs an encoder must do so under autocast with that ``dtype``.

    Args:
        model: its encoders are called ``backbone``, at any depth.
        pretrained: names of the pretrained parameters in an encoder; modules that were added to it stay in fp32.
        dtype: that of autocast; None: no autocast, so nothing is rounded.

    Raises:
        RuntimeError: a frozen weight changed within the block.
    """
    originals = {} if dtype is None else {weight: weight.data for weight in _of_linear_layers(model, pretrained)}
    for parameter, original in originals.items():
        parameter.data = original.to(dtype)
    try:
        yield
        for parameter, original in originals.items():
            if not torch.equal(parameter, original.to(parameter)):
                raise RuntimeError("a frozen weight of a linear layer changed during training: this is a bug")
    finally:
        for parameter, original in originals.items():
            parameter.data = original.to(parameter.device)


def round_for_good(model: nn.Module, pretrained: Collection[str], dtype: torch.dtype | None) -> None:
    """As :func:`rounded`, for a model that only predicts from now on; see :func:`lifted`."""
    for parameter in () if dtype is None else _of_linear_layers(model, pretrained):
        parameter.data = parameter.data.to(dtype)


@contextmanager
def lifted(model: nn.Module) -> Iterator[None]:
    """Within the block, hold rounded weights in fp32, with their rounded values: for passes without autocast."""
    held = {weight: weight.data for weight in model.parameters() if weight.dtype in (torch.bfloat16, torch.float16)}
    for parameter, data in held.items():
        parameter.data = data.float()
    try:
        yield
    finally:
        for parameter, data in held.items():
            parameter.data = data


def _problems(header: Mapping[str, Any], expected: Mapping[str, Tensor]) -> list[str]:
    """How ``header`` differs from ``expected``, each kind of difference with its first example."""
    shared = [name for name in expected if name in header]
    shapes = {name: (tuple(header[name].get_shape()), tuple(expected[name].shape)) for name in shared}
    misshapen = [name for name, (actual, wanted) in shapes.items() if actual != wanted]
    example = "{}, not {}".format(*shapes[misshapen[0]]) if misshapen else ""
    differences = [
        ("missing", [name for name in expected if name not in header]),
        ("unexpected", [name for name in header if name not in expected]),
        (f"of another shape ({example})", misshapen),
        ("not fp32", [name for name in shared if header[name].get_dtype() != _FP32]),
    ]
    return [f"{_named(names)} {'is' if len(names) == 1 else 'are'} {what}" for what, names in differences if names]


def _named(names: list[str]) -> str:
    """``names`` for a message; a file's names may be anything."""
    first = shortened(names[0], most=120)
    return first if len(names) == 1 else f"{len(names)} tensors ({first}, ...)"


def _of_linear_layers(model: nn.Module, pretrained: Collection[str]) -> list[nn.Parameter]:
    """The frozen weights and biases of the encoders' own linear layers."""
    return [
        parameter
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
        for name, parameter in module.named_parameters(recurse=False)
        if not parameter.requires_grad and f".{path}.{name}".rpartition(".backbone.")[2] in pretrained
    ]
