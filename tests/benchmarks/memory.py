"""What a forward pass keeps for its backward pass."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


def saved_mb(model: nn.Module, forward: Callable[[], Tensor]) -> float:
    """MB (2^20 bytes) of the storages that autograd holds when ``forward`` returns, parameters and buffers apart.

    A storage counts once, however many views of it are held. Exact and the same at each call, unlike resident memory.
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in own:
            # Held, so that no later tensor can be given the address of one that is gone.
            kept[address] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = forward()
    size = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del outputs
    return size / 2**20
