"""Processes that train one run together: shared decisions, work that only the main process does, and FSDP.

Under FSDP each process holds a share of the weights, of their gradients and of Adam's moments (Zhao et al. 2023). A
sharded copy of the model trains. The model itself stays whole: it is evaluated, kept and saved as without FSDP, and
gets the copy's weights when it needs them. Training needs memory for four times the weights (weights, gradients and two
moments): each process holds its share of the four, and the whole weights once.
"""

import atexit
import copy
import os
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType, broadcast_object_list, convert_outputs_to_fp32, parse_flag_from_env
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor

from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process, process_count

T = TypeVar("T")


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


def process_group() -> PartialState:
    """The processes that train together; the first call joins this one to them."""
    if is_sharded():  # the model stays whole in every process: transformers shall load the weights in each
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    # The first call decides for good whether the processes form a group; PartialState itself does not read this flag.
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
    _leave_at_exit()
    return state


@cache
def _leave_at_exit() -> None:
    """End Gloo's threads before the interpreter exits: one that still runs then can abort a finished process."""
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        atexit.register(torch.distributed.destroy_process_group)


def is_sharded() -> bool:
    """Whether ``accelerate launch --use_fsdp`` started this process."""
    return parse_flag_from_env("ACCELERATE_USE_FSDP")


def set_up_sharding(accelerator: Accelerator) -> None:
    """Complete Accelerate's setup of FSDP; does nothing without FSDP."""
    state = accelerator.state
    if not is_sharded() or accelerator.distributed_type == DistributedType.NO:
        return
    if accelerator.device.type == "cpu":
        # Accelerate turns FSDP on only for GPUs: on CPUs it would silently train without.
        state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin()
    # Weights and their gradients stay in fp32, as without FSDP; autocast is for the rest.
    state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy()


def check_sharding(title: str, recipe: Recipe, reads_weights: Collection[str] = (), tasks: int = 1) -> None:
    """Under FSDP, raise a :class:`PipelineError` for a run that does not support it.

    Args:
        reads_weights: settings whose code reads or changes the model's weights while its copy trains.
    """
    if not is_sharded():
        return
    flat, why = recipe.flat(), []
    if recipe.trainable != "full":
        why.append(f"this one has trainable = '{recipe.trainable}'")
    if tasks > 1:
        why.append(f"this one trains {tasks} tasks together")
    why += [f"this one has {key}" for key in (*reads_weights, "score_train") if flat[key]]
    if recipe.precision == "fp16":
        why.append("in bf16 or fp32")
    if os.environ.get("FSDP_VERSION", "1") != "2":
        why.append("in version 2 (--fsdp_version 2)")
    if parse_flag_from_env("FSDP_OFFLOAD_PARAMS"):
        why.append("without --fsdp_offload_params")
    if why:
        raise PipelineError(
            f"{title}: FSDP is for full fine-tuning of one task: {'; '.join(why)}. Start it without --use_fsdp"
        )


def copy_to_shard(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    """The model to train: the model itself, or under FSDP a copy, which Accelerate will shard."""
    if not is_sharded():
        return model
    copied = copy.deepcopy(model.to(accelerator.device))
    if accelerator.mixed_precision == "bf16":
        autocast = torch.autocast(accelerator.device.type, dtype=torch.bfloat16)
        copied.forward = convert_outputs_to_fp32(autocast(copied.forward))
    return copied


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor in full, which all processes must request together; any other tensor unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shared_as(tensor: Tensor, other: Tensor) -> Tensor:
    """This process's share of a whole tensor, if ``other``, which has the same shape, is sharded; else the whole."""
    if not isinstance(other, DTensor) or tensor.shape != other.shape:
        return tensor
    # Every process has the same tensor: nothing has to be sent.
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)
