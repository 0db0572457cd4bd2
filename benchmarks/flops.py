"""Count the floating-point operations of matrix products and attention."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


def flop_of(call: Callable[[], object]) -> int:
    """The FLOP of a ``call``, by :class:`FlopCounter`."""
    with FlopCounter() as counter:
        call()
    return counter.total


class FlopCounter(TorchDispatchMode):
    """Adds up the FLOP of matrix products and attention, backward included, by PyTorch's formulas.

    PyTorch's ``FlopCounterMode`` also hooks every module, and fails on one that is called inside a hand-written
    ``autograd.Function``, as fusion's activations are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=outputs)
        return outputs
