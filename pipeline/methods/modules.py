"""The adapters of one or several tasks: added to a backbone, saved and loaded by the method of the recipe's kind."""

from collections.abc import Collection, Sequence
from pathlib import Path

from transformers import PreTrainedModel

from pipeline.methods.layernorms import add_layernorms, replaced_norms, train_layernorms
from pipeline.methods.registry import METHODS
from pipeline.methods.saved import SavedModules
from pipeline.models.switching import activate, module_parameter_names
from pipeline.settings.recipe import Recipe


def add_modules(backbone: PreTrainedModel, tasks: Sequence[str], recipe: Recipe) -> None:
    """Put a fresh adapter for each of ``tasks`` into ``backbone``; the first task's is active.

    Adapters train, and with "full+adapter" so does the backbone, except LayerNorms of which every task has a copy.

    Raises:
        PipelineError: the backbone has no room for them, or is of a family that cannot have them.
    """
    METHODS[recipe.adapter].add(backbone, tasks, recipe)
    for task in tasks if recipe.train_layernorm and len(tasks) > 1 else ():
        add_layernorms(backbone, task, recipe.drop_layers)
    own = module_parameter_names(backbone)
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(recipe.trainable == "full+adapter" or name in own)
    if recipe.train_layernorm and len(tasks) == 1:
        train_layernorms(backbone, recipe.drop_layers)
    for norm in replaced_norms(backbone):
        norm.weight.requires_grad_(False)
        norm.bias.requires_grad_(False)
    activate(backbone, tasks[0])


def save_modules(backbone: PreTrainedModel, task: str, recipe: Recipe, folder: Path) -> None:
    """Write the adapter of ``task`` into ``folder``."""
    METHODS[recipe.adapter].save(backbone, task, folder)


def load_modules(backbone: PreTrainedModel, saved: SavedModules, drop_layers: Collection[int] = ()) -> None:
    """Load a saved adapter, frozen and active, without its part in ``drop_layers``.

    The caller has checked that it was trained on this backbone.

    Raises:
        PipelineError: the files are not what the recipe makes.
    """
    METHODS[saved.recipe.adapter].load(backbone, saved, drop_layers)
    backbone.requires_grad_(False)
    activate(backbone, saved.task)
