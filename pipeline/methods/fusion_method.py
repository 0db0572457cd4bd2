"""The interface of a form of fusion; :mod:`pipeline.methods.fusion` has the table of forms."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from pipeline.methods.saved import SavedModules
from pipeline.settings.recipe import Recipe


class FusionMethod(ABC):
    """A form of fusion: its layers in AdapterHub's sites, their files, and what training them adds to the loss.

    ``members`` are the names of the adapters that it mixes, in their order. Its settings are in
    ``pipeline.settings.forms``.
    """

    def misfit(self, recipe: Recipe, width: int) -> str:
        """Why the recipe cannot work in a backbone of this width; empty if it can."""
        return ""

    def put_in(  # noqa: B027 - AdapterHub's own layers are a form too
        self,
        backbone: PreTrainedModel,
        members: Sequence[str],
        task: str,
        recipe: Recipe,
        anchor: str | None,
    ) -> None:
        """Replace AdapterHub's fresh fusion layers over ``members`` by fresh ones of this form.

        Args:
            task: that it is for.
            anchor: the member that the fusion starts as, for a form that starts as one.

        Raises:
            PipelineError: the recipe cannot work with these members or this backbone.
        """

    @abstractmethod
    def save(self, backbone: PreTrainedModel, members: Sequence[str], saved: SavedModules) -> None:
        """Write the fusion that was trained for ``saved`` into its folder; a missing folder is made."""

    @abstractmethod
    def load(
        self, backbone: PreTrainedModel, members: Sequence[str], saved: SavedModules, trained: Sequence[int]
    ) -> None:
        """Load a saved fusion into fresh layers.

        Args:
            trained: the layers that had a fusion when it was saved; ``backbone`` may have it in fewer.

        Raises:
            PipelineError: a file is missing, damaged, or does not fit the recipe.
        """

    def without_decay(self, backbone: PreTrainedModel) -> set[str]:
        """The parameters of ``backbone`` that weight decay leaves alone."""
        return set()

    def penalty(self, backbone: PreTrainedModel, recipe: Recipe) -> Callable[[], Tensor] | None:
        """A term that is added to the loss of every step, if any."""
        return None

    def stock_lacks(self, recipe: Recipe, files: Collection[str]) -> str:
        """Why stock AdapterHub cannot compute the fusion in ``files``, the names of an artifact's; empty if it can."""
        return ""

    def as_adapters(self, backbone: PreTrainedModel, members: Sequence[str]) -> list[dict[str, Tensor]] | None:
        """Weights and biases of the bottleneck that the fusion is at each site; None if stock AdapterHub fuses it."""
        return None
