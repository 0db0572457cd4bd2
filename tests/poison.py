"""Ways in which a file of tensors may be wrong although its sha256 is right: one change of the file for each."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
WORDS = "embeddings.word_embeddings.weight"


def first(tensors: Tensors) -> str:
    return min(tensors)


def smuggled(tensors: Tensors) -> Tensors:
    return {**tensors, WORDS: torch.zeros(29, 32)}


def mapped(tensors: Tensors) -> Tensors:
    """AdapterHub accepts names with the family as prefix for those without."""
    return {f"bert.{name}": tensor for name, tensor in smuggled(tensors).items()}


def of_another_task(tensors: Tensors) -> Tensors:
    return {name.replace("films", "games"): tensor for name, tensor in tensors.items()}


def with_another_tasks(tensors: Tensors) -> Tensors:
    return {**tensors, **{f"{name}.adapters.games.weight": tensor for name, tensor in tensors.items()}}


def missing(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != first(tensors)}


def reshaped(change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, first(tensors): change(tensors[first(tensors)]).contiguous()}


def turned(tensor: Tensor) -> Tensor:
    return tensor.t() if tensor.ndim == 2 and len(set(tensor.shape)) == 2 else tensor.unsqueeze(0)


def with_value(value: float) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        changed = tensors[first(tensors)].clone()
        changed.view(-1)[-1] = value
        return {**tensors, first(tensors): changed}

    return change


def rewritten(change: Callable[[Tensors], Tensors]) -> Callable[[Path], None]:
    return lambda file: save_file({name: tensor.clone() for name, tensor in change(load_file(file)).items()}, file)


POISONS: Mapping[str, Callable[[Path], object]] = {
    "backbone tensor": rewritten(smuggled),
    "backbone tensor, mapped": rewritten(mapped),
    "another task's": rewritten(of_another_task),
    "another task's beside": rewritten(with_another_tasks),
    "a tensor missing": rewritten(missing),
    "transposed": rewritten(reshaped(turned)),
    "one number": rewritten(reshaped(lambda tensor: tensor.flatten()[:1])),
    "half precision": rewritten(lambda tensors: {name: tensor.half() for name, tensor in tensors.items()}),
    "double precision": rewritten(reshaped(Tensor.double)),
    "whole numbers": rewritten(reshaped(Tensor.int)),
    "zero tensors": rewritten(lambda _: {}),
    "another kind": rewritten(lambda _: {"encoder.layer.0.attention.self.lora.films.A": torch.ones(2, 2)}),
    "NaN": rewritten(with_value(float("nan"))),
    "infinity": rewritten(with_value(float("-inf"))),
    "empty": lambda file: file.write_bytes(b""),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-3]),
    "half a header": lambda file: file.write_bytes(file.read_bytes()[:40]),
    "a huge header": lambda file: file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:]),
    "JSON": lambda file: file.write_text("{}"),
}
