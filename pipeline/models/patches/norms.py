"""Task-specific LayerNorms over a backbone that several tasks share (Houlsby et al. 2019; Liu & Shen 2023).

Each task trains copies of both LayerNorms of each layer, initialised to the pretrained ones: 4d parameters per layer.
The LayerNorm of the embeddings stays shared. A single task needs no copies and trains the LayerNorms themselves.
"""

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from pipeline.models.layout import kept_layers, norms_of
from pipeline.models.switching import TaskSite, check_task_name


class NormSite(TaskSite):
    """Replaces ``forward`` of a LayerNorm."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self._own = (norm,)  # in a tuple, so that its weights do not get a second name
        norm.forward = self.normalise  # type: ignore[assignment, method-assign]

    def normalise(self, states: Tensor) -> Tensor:
        (norm,) = self._own
        result: Tensor = nn.LayerNorm.forward(norm, states) if self.current is None else self.current(states)
        return result


def add_layernorms(backbone: nn.Module, task: str, drop_layers: Collection[int] = ()) -> None:
    """Give ``task`` copies of the LayerNorms in every layer of ``backbone`` but ``drop_layers``."""
    check_task_name(task)
    for layer in kept_layers(backbone, drop_layers):
        for norm in norms_of(layer):
            if not hasattr(norm, "own"):
                norm.own = NormSite(norm)
            own = nn.LayerNorm(list(norm.normalized_shape), eps=norm.eps).to(norm.weight.device)
            own.load_state_dict({name: getattr(norm, name) for name in ("weight", "bias")})
            site: Any = norm.own
            site.tasks[task] = own


def replaced_norms(backbone: nn.Module) -> list[nn.LayerNorm]:
    """The LayerNorms that no task uses any more, because each has a copy."""
    return [norm for norm in backbone.modules() if isinstance(norm, nn.LayerNorm) and hasattr(norm, "own")]
