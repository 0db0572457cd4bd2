"""Companion: what goes along with a training and has a state of its own, such as a running mean of the weights.

:func:`pipeline.training.fit.fit` drives companions without knowing what they are for. What they hold is kept in the
checkpoint, so that a run that was killed goes on as if it never was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class Companion(Protocol):
    """Its methods are called in the order in which they stand here."""

    def start(self, kept: Mapping[str, Tensor]) -> None:
        """The model stands on its device with the weights it goes on from; ``kept`` is an earlier :meth:`state`.

        It is empty where training begins at its beginning. Its tensors are on the CPU.
        """
        ...

    def after_step(self, step: int, total: int) -> None:
        """Optimiser step ``step`` (from 1) of ``total`` is done."""
        ...

    def measured(self) -> dict[str, float | None]:
        """Columns for the curve: what was seen since the last call; None where nothing was."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What :meth:`start` needs to go on."""
        ...
