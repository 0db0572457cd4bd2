"""The interface of a form of fusion; :mod:`pipeline.methods.fusion` has the table of forms."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from pipeline.methods.saved import SavedModules
from pipeline.settings.recipe import Recipe


class FusionMethod(ABC):
    """A form of fusion: its layers in AdapterHub's sites, their files, and what training them adds to the loss.

    ``members`` are the names of the adapters that it mixes, in order. Its settings are in ``pipeline.settings.parts``.
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
        """Replace AdapterHub's fresh fusion layers over ``members`` with fresh ones of this form.

        Args:
            task: the fusion's target.
            anchor: the member that the fusion is initialised to, if the form has an anchor.

        Raises:
            PipelineError: the recipe cannot work with these members or this backbone.
        """

    @abstractmethod
    def save(self, backbone: PreTrainedModel, members: Sequence[str], saved: SavedModules) -> None:
        """Write the fusion that was trained for ``saved`` into its folder, which is created if missing."""

    @abstractmethod
    def load(
        self, backbone: PreTrainedModel, members: Sequence[str], saved: SavedModules, trained: Sequence[int]
    ) -> None:
        """Load a saved fusion into fresh layers.

        Args:
            trained: the layers that had a fusion when it was saved; ``backbone`` may have fewer.

        Raises:
            PipelineError: a file is missing, damaged, or does not fit the recipe.
        """

    def without_decay(self, backbone: PreTrainedModel) -> set[str]:
        """Names of the parameters of ``backbone`` that are exempt from weight decay."""
        return set()

    def penalty(self, backbone: PreTrainedModel, recipe: Recipe) -> Callable[[], Tensor] | None:
        """A term to add to the loss at every step, if any."""
        return None

    def stock_lacks(self, recipe: Recipe, files: Collection[str]) -> str:
        """Why stock AdapterHub cannot compute the fusion that an artifact saved as ``files``; empty if it can."""
        return ""

    def as_adapters(self, backbone: PreTrainedModel, members: Sequence[str]) -> list[dict[str, Tensor]] | None:
        """Weights and biases of an equivalent bottleneck at each site; None if stock AdapterHub has this fusion."""
        return None
