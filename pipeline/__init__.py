"""The parts every stage is built from: tasks, data, models, training, store, ledger, reporting.

In a program, ``from pipeline import load`` loads a trained model (:mod:`pipeline.runs.model`).
"""

from typing import TYPE_CHECKING, Any

from pipeline.system.version import VERSION

if TYPE_CHECKING:
    from pipeline.runs.model import Model, Predicted, load
    from pipeline.system.errors import PipelineError

__version__ = VERSION
__all__ = ["Model", "PipelineError", "Predicted", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Here, not above: it loads torch, which the command line's help and a program's start do not wait for.
    from pipeline.runs import model

    return getattr(model, name)
