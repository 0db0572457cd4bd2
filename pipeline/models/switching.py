"""Modules of several tasks in one backbone, of which one task's are active at a time."""

from typing import Any

from adapters.methods.adapter_layer_base import AdapterLayerBase
from adapters.methods.prefix_tuning import PrefixTuningPool
from torch import nn

from pipeline.system.errors import PipelineError


class TaskSite(nn.Module):
    """A place in a layer that holds one module per task; with none active it does nothing.

    Names of its parameters contain ``.tasks.<task>.``. A subclass registers bound methods as hooks, never closures, so
    that the hooks of a deep copy belong to the copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tasks = nn.ModuleDict()
        self.active = ""

    @property
    def current(self) -> Any:
        """The active task's module, or None."""
        if self.active not in self.tasks:
            return None
        return self.tasks[self.active]


def activate(backbone: nn.Module, task: str) -> None:
    """Activate the modules of ``task`` alone; raises a KeyError if only other tasks have modules.

    With gradient checkpointing, run the backward pass before activating another task: it recomputes activations.
    """
    sites = [module for module in backbone.modules() if isinstance(module, TaskSite)]
    known = {name for site in sites for name in site.tasks}
    for site in sites:
        site.active = task
    stock: Any = getattr(backbone, "adapters_config", None)  # AdapterHub's
    if stock is not None and task in stock.adapters:
        if [*(stock.active_setup or ())] != [task]:
            backbone.set_active_adapters(task)  # type: ignore[operator]
    elif known | set(getattr(stock, "adapters", ())) and task not in known:
        raise KeyError(f"no modules of task '{task}' in this backbone")


def module_parameter_names(model: nn.Module) -> set[str]:
    """Names of the parameters of all adapters, of any kind, and fusions in the backbone of ``model``."""
    added: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, TaskSite | PrefixTuningPool):
            added.append(module)
        elif isinstance(module, AdapterLayerBase):
            names = (module.adapter_modules_name, "adapter_fusion_layer", "prefix_gates")
            added += [child for name, child in module.named_children() if name in names]
    ours = {id(parameter) for module in added for parameter in module.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in ours}


def check_task_name(task: str) -> None:
    """Raise a :class:`PipelineError` for a name that cannot be a key of a ModuleDict."""
    if hasattr(nn.ModuleDict(), task):
        raise PipelineError(f"task name '{task}' clashes with an attribute of torch's modules: rename the task")
