"""Several tasks' modules over one backbone, of which one at a time is active."""

from __future__ import annotations

from typing import Any

from adapters.methods.bottleneck import BottleneckLayer
from adapters.methods.prefix_tuning import PrefixTuningPool
from torch import nn

from pipeline.system.errors import PipelineError


class TaskSite(nn.Module):
    """A place in a layer where each of several tasks has a module of its own; with none active it does nothing.

    Names of its parameters hold ``.tasks.<task>.``. A subclass hooks its bound methods, never closures, into the
    layer, so that a deep copy of the backbone has hooks into itself.
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
    """Let the modules of ``task`` alone take part in forward passes.

    Where activations are recomputed for the backward pass (gradient checkpointing), that pass comes before another
    task is activated.

    Raises:
        KeyError: other tasks have modules here, this one has none.
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
    """The parameters of ``model`` that belong to modules put into its backbone: adapters, fusions, PAL, prefixes.

    The other ones are the backbone's own and the heads'.
    """
    added: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, TaskSite | PrefixTuningPool):
            added.append(module)
        elif isinstance(module, BottleneckLayer):
            added += [module.adapters, module.adapter_fusion_layer]
    ours = {id(parameter) for module in added for parameter in module.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in ours}


def check_task_name(task: str) -> None:
    """Raise a :class:`PipelineError` for a name that cannot stand in a ModuleDict."""
    if hasattr(nn.ModuleDict(), task):
        raise PipelineError(f"task name '{task}' is taken inside torch's modules: give the task another name")
