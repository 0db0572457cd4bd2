"""What a forward pass keeps for its backward pass."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks


def saved_mb(model: nn.Module, forward: Callable[[], Tensor]) -> float:
    """MB (2^20 bytes) of the storages that autograd holds when ``forward`` returns, parameters and buffers apart.

    A storage counts once, however many views of it are held. Exact and the same at each call, unlike resident memory.
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            # Held, so that no later tensor can be given the address of one that is gone.
            kept[storage.data_ptr()] = storage
        # An operation that saves its own output would hold itself through it, and never be freed.
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = forward()
    size = sum(storage.nbytes() for storage in kept.values())
    del outputs
    return size / 2**20
