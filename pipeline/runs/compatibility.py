"""Whether a trained model still fits the backbone and the task that it is wanted for."""

from typing import Any

from pipeline.data.tasks import Task
from pipeline.models.backbone import Backbone
from pipeline.system.errors import PipelineError


def check_backbone(weights: str, name: str, backbone: Backbone, run: str) -> None:
    """Raise a :class:`PipelineError` unless ``backbone`` has the weights that run ``run`` was trained on."""
    if weights != backbone.weights_hash:
        raise PipelineError(
            f"run {run} was trained on backbone '{name}', whose weights are not those of '{backbone.name}': name that"
            " backbone with --backbone"
        )


def check_meaning(meaning: dict[str, Any], pair: bool, task: Task, run: str) -> None:
    """Raise a :class:`PipelineError` if ``task`` has since got other classes, another range or number of texts."""
    if meaning != task.meaning or pair != task.is_pair:
        changed = [key for key, value in task.meaning.items() if meaning.get(key) != value] or ["text"]
        raise PipelineError(
            f"run {run} was trained when task '{task.name}' had other {', '.join(changed)}: train it again, or give the"
            " task its old definition"
        )
