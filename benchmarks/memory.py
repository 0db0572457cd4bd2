"""The memory that a forward pass keeps for its backward pass."""

from collections.abc import Callable
from weakref import WeakSet

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


def saved_mb(model: nn.Module, forward: Callable[[], Tensor]) -> float:
    """MB (2^20 bytes) of the storages that autograd holds when ``forward`` returns, except parameters and buffers.

    A storage counts once, however many views of it are held. Unlike resident memory, this is exact and reproducible.
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    held: WeakSet[_Held] = WeakSet()

    def pack(tensor: Tensor) -> _Held:
        held.add(kept := _Held(tensor))
        return kept

    with saved_tensors_hooks(pack, lambda kept: kept.tensor):
        outputs = forward()
    # Tensors freed on the way, for example by a backward pass within the loss, are no longer held.
    sizes = {storage.data_ptr(): storage.nbytes() for storage in (each.tensor.untyped_storage() for each in held)}
    del outputs
    return sum(size for address, size in sizes.items() if address not in own) / 2**20


class _Held:
    """A tensor that autograd saved; it lives as long as autograd keeps it."""

    def __init__(self, tensor: Tensor) -> None:
        # An operation that saves its own output would hold itself through it, and never be freed.
        self.tensor = tensor.detach()
