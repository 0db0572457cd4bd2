"""Processes that train one run together: shared decisions, and work that only the main process does."""

import atexit
import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list, gather_object, parse_flag_from_env

from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process
from pipeline.training.sharding import load_whole

T = TypeVar("T")


def process_count() -> int:
    """How many processes train together, according to the launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for_everyone() -> None:
    """Wait until all processes that train together have called this."""
    process_group().wait_for_everyone()


def on_main_process(action: Callable[[], T]) -> T:
    """Run ``action`` in the main process and broadcast its result, or its :class:`PipelineError`, to all processes.

    Files change while processes read them. If each read for itself, they could diverge and wait for each other forever.
    """
    if process_count() == 1:
        return action()
    process_group()
    outcome: list[Any] = [None]
    if is_main_process():
        try:
            outcome = [action()]
        except PipelineError as error:
            outcome = [error]
    (result,) = broadcast_object_list(outcome)
    if isinstance(result, PipelineError):
        raise result
    return result


def in_any_process(accelerator: Accelerator, flag: bool) -> bool:
    """Whether ``flag`` is set in any process; all must call this together, and get the same answer."""
    if accelerator.num_processes == 1:
        return flag
    raised: torch.Tensor = accelerator.reduce(torch.tensor(float(flag), device=accelerator.device), "sum")
    return bool(raised.item() > 0)


def same_in_all_processes(accelerator: Accelerator, value: object) -> bool:
    """Whether ``value`` is equal in all processes; all must call this together, and get the same answer."""
    if accelerator.num_processes == 1:
        return True
    values = gather_object([value])
    return all(other == value for other in values)


def process_group() -> PartialState:
    """The processes that train together; the first call joins this one to them."""
    # The first call decides for good whether the processes form a group; PartialState itself does not read this flag.
    load_whole()
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
    _leave_at_exit()
    return state


@cache
def _leave_at_exit() -> None:
    """End Gloo's threads before the interpreter exits: one that still runs then can abort a finished process."""
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        atexit.register(torch.distributed.destroy_process_group)
