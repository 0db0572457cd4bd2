"""Which tasks can be trained together, by which recipes."""

from collections.abc import Sequence

from pipeline.data.tasks import Task
from pipeline.settings.recipe import Recipe
from pipeline.settings.rows import METHODS
from pipeline.system.errors import raise_all
from pipeline.training.devices import process_count

# The settings that each task has of its own; the others concern the one model and its training.
_OWN = frozenset(
    {"encoding", "pooling", "head", "cosine_scale", "one_logit", "extra", "head_dropout", "max_length", "batch_size"}
    | {"loss_weight", "pair_order", "average_orders", "truncation"}
)


def resolve_joint(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Resolved recipes; a single task's without what has no effect: there is nothing to mix, to combine or to split."""
    if len(recipes) > 1:
        return list(recipes)
    inert = {"mixing": "simultaneous", "gradient_surgery": "none", "split_layers": 0}
    return [recipe.changed(inert) for recipe in recipes]


def check_joint(tasks: Sequence[Task], recipes: Sequence[Recipe]) -> None:
    """Check that one model can be trained for all of ``tasks``, each by its resolved recipe.

    Raises:
        PipelineError: no task, one named twice, recipes that differ in more than a task may have of its own or that
            train what tasks cannot share, gradient surgery in several processes.
    """
    raise_all("multitask", _mistakes([task.name for task in tasks], recipes))


def _mistakes(names: Sequence[str], recipes: Sequence[Recipe]) -> list[str]:
    if not names:
        return ["no task to train on"]
    problems = [f"task '{name}' is named more than once" for name in sorted(set(names)) if names.count(name) > 1]
    for trainable in sorted({recipe.trainable for recipe in recipes} - set(METHODS["multitask"].trains)):
        allowed = ", ".join(f"'{name}'" for name in METHODS["multitask"].trains)
        problems.append(f"joint training cannot have trainable = '{trainable}': use one of {allowed}")
    if process_count() > 1 and any(recipe.joint.gradient_surgery != "none" for recipe in recipes):
        problems.append("gradient_surgery works in one process only: launch one, or leave it out")
    values = {name: recipe.flat() for name, recipe in zip(names, recipes, strict=True)}
    for key in sorted(Recipe().flat().keys() - _OWN):
        own = {name: str(flat[key]) for name, flat in values.items()}
        if len({*own.values()}) > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in own.items())
            problems.append(f"{key} must be the same for all tasks ({listed})")
    return problems
