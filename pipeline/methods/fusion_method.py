"""What a form of fusion has to bring: the forms stand in :mod:`pipeline.methods.fusion`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from pipeline.methods.saved import SavedModules
from pipeline.settings.recipe import Recipe


class FusionMethod(ABC):
    """A form of fusion: its layers in AdapterHub's sites, their files, and what training them adds to the loss.

    ``members`` are the names of the adapters that it mixes, in their order. Its settings stand in
    ``pipeline.settings.parts``.
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
        anchors: Mapping[str, float],
    ) -> None:
        """Replace AdapterHub's fresh fusion layers over ``members`` by fresh ones of this form.

        Args:
            task: that it is for.
            anchors: the score that an adapter starts with, where it is not zero.

        Raises:
            PipelineError: the recipe cannot work with these members or this backbone.
        """

    @abstractmethod
    def save(self, backbone: PreTrainedModel, members: Sequence[str], saved: SavedModules) -> None:
        """Write what was trained for ``saved`` into its folder, which is made, with its parents, if it is missing."""

    @abstractmethod
    def load(
        self, backbone: PreTrainedModel, members: Sequence[str], saved: SavedModules, trained: Sequence[int]
    ) -> None:
        """Load a saved fusion into fresh layers.

        Args:
            trained: the layers that had a fusion when it was saved; ``backbone`` may have it in fewer.

        Raises:
            PipelineError: a file is missing or damaged, or is not what the recipe makes.
        """

    def without_decay(self, backbone: PreTrainedModel) -> set[str]:
        """The parameters of ``backbone`` that weight decay leaves alone."""
        return set()

    def penalty(self, backbone: PreTrainedModel, recipe: Recipe) -> Callable[[], Tensor] | None:
        """What is added to the loss of every step, if anything."""
        return None
