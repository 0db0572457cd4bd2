"""Where training computes: the device and its precision, its memory, and the processes that train one run together.

Under FSDP each process holds a share of the weights, of their gradients and of Adam's moments (Zhao et al. 2023). A
sharded copy of the model trains. The model itself stays whole: it is evaluated, kept and saved as without FSDP, and
gets the copy's weights when it needs them. Training needs memory for four times the weights (weights, gradients and two
moments): each process holds its share of the four, and the whole weights once.
"""

import atexit
import copy
import gc
import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed
from accelerate import Accelerator, DistributedDataParallelKwargs, FullyShardedDataParallelPlugin, PartialState
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers
from accelerate.utils import DistributedType, broadcast_object_list, convert_outputs_to_fp32, parse_flag_from_env
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor

from pipeline.settings.recipe import Precision, Recipe
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process, process_count

T = TypeVar("T")

_BF16 = {"avx512_bf16", "amx_bf16"}
"""Linux's names for the bf16 instructions of x86 processors."""

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype of autocast by precision; with fp32 there is no autocast."""

SMALLER_STEPS = "give --gradient-accumulation-steps 2, a smaller --batch-size or a smaller --max-length"
"""The remedy when training fills the memory."""

_CONTAINER = Path("/sys/fs/cgroup")
"""Where Linux reports a container's memory (cgroup v2)."""


@dataclass(frozen=True)
class OneDevice:
    """One device of the calling program, with what prediction needs of an Accelerator but without its global state."""

    device: torch.device
    dtype: torch.dtype | None
    num_processes: int = 1
    process_index: int = 0

    def autocast(self) -> AbstractContextManager[object]:
        return nullcontext() if self.dtype is None else torch.autocast(self.device.type, dtype=self.dtype)


def on_gpu() -> bool:
    """Whether to compute on NVIDIA's GPUs: there is one, and ``ACCELERATE_USE_CPU`` does not forbid it.

    Accelerate trains and predicts on a Mac's GPU (MPS); :func:`pipeline.load` and the server use the CPU there.
    """
    return torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU")


def hardware(gpus: int) -> str:
    """The hardware that trains, in one line: ``gpus`` GPUs or a Mac's if they are used, else the CPU."""
    if on_gpu():
        return f"{gpus} x {torch.cuda.get_device_name(0)}"
    if torch.backends.mps.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU"):
        return "Apple GPU (MPS)"
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}"


@cache
def processor() -> str:
    """The CPU's name, if the system reports it."""
    return _cpu_info("model name") or platform.processor() or platform.machine() or "unknown"


@cache
def _cpu_info(key: str) -> str:
    """The value of ``key`` for the first core in Linux's /proc/cpuinfo; empty if there is none."""
    with suppress(OSError):
        value = re.search(rf"^{key}\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        return value[1].strip() if value else ""
    return ""


def resolve_precision(precision: Precision, device: str | None = None) -> Precision:
    """Resolve ``precision`` for ``device``, by default the training device; ``auto`` is bf16 where it is fast.

    Raises:
        PipelineError: the hardware does not support it.
    """
    if device is None:
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpu() else "cpu"
    gpu = device.startswith("cuda")
    if precision == "bf16" and gpu and not has_bf16(device):
        raise PipelineError("--precision bf16: this GPU does not support it; use fp16 or fp32")
    if precision == "fp16" and not gpu:
        raise PipelineError("--precision fp16 needs a GPU; use bf16 or fp32 on a CPU")
    if precision != "auto":
        return precision
    if not gpu and process_count() > 1:
        return "fp32"  # processes may run on different kinds of machines, and must agree
    return "bf16" if has_bf16(device) else "fp32"


@cache
def has_bf16(device: str) -> bool:
    """Whether ``device`` has bf16 instructions, with which matrix products take about half the time of fp32.

    Looked up, not measured: a busy machine can mislead a measurement, and the precision is part of a run's name.
    """
    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    known = _BF16.intersection(_cpu_info("flags").split())
    return bool(known) and torch.backends.cpu.get_cpu_capability().startswith("AVX512")  # users can turn it off


def make_accelerator(
    precision: Precision, tracker: str | None = None, folder: Path | None = None, *, resting: bool = False
) -> Accelerator:
    """An Accelerator for one run; ``tracker`` (such as "tensorboard", which must be installed) logs under ``folder``.

    With ``resting``, a step may leave parameters without gradients, so DDP searches for those at every step.
    """
    mixed = "no" if precision == "fp32" else precision
    # Accelerate keeps one state per process and refuses a second precision, but a study may hold two.
    if AcceleratorState._shared_state.get("_mixed_precision", mixed) != mixed:
        AcceleratorState._reset_state()
    if tracker is not None and tracker not in map(str, get_available_trackers()):
        # Accelerate would only write to its debug log, and track nothing.
        raise PipelineError(f"--track {tracker}: not installed: pip install {tracker}")
    handlers = [DistributedDataParallelKwargs(find_unused_parameters=True)] if resting else []
    process_group()
    accelerator = Accelerator(mixed_precision=mixed, log_with=tracker, project_dir=folder, kwargs_handlers=handlers)
    if accelerator.num_processes != process_count():
        raise PipelineError(
            f"{process_count()} processes were launched, but they cannot find each other: on CPUs set"
            " ACCELERATE_USE_CPU=true"
        )
    set_up_sharding(accelerator)
    return accelerator


@contextmanager
def full_memory_explained(what: str, remedy: str) -> Iterator[None]:
    """Turn a GPU's out-of-memory error into a :class:`PipelineError` that names ``what`` failed and the ``remedy``."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise PipelineError(f"{what}: the GPU's memory is full: {remedy}") from error


def reset_peak_memory() -> None:
    """Reset the peak, so that a small run after a big one does not inherit it."""
    gc.collect()  # reference cycles may keep an earlier run's model alive
    if on_gpu():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: sets the high-water mark VmHWM to what is resident now


def peak_memory_mb() -> float:
    """Peak memory in MB (2^20 bytes): allocated on the GPU if one is used, else resident in this process."""
    if on_gpu():
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    # Without /proc only the peak since the process began is known.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)


def check_memory(model: nn.Module, title: str, held: int = 0) -> None:
    """Fail early if weights, gradients and Adam's two moments do not fit in memory. Activations come on top.

    Args:
        model: already loaded, in the machine's own memory.
        held: further bytes that each step holds.
    """
    weights = sum(parameter.nbytes for parameter in model.parameters())
    trained = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    shares = process_count() if is_sharded() else 1
    parts = {
        "weights": weights + (weights // shares if is_sharded() else 0),
        "gradients": trained // shares + held,
        "Adam's moments": 2 * trained // shares,
    }
    needed, available = sum(parts.values()), free_bytes()
    if not on_gpu():
        available += weights
    if needed > available:
        listed = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in parts.items() if size)
        raise PipelineError(
            f"{title}: training needs at least {needed / 2**30:.1f} GiB ({listed}), but only"
            f" {available / 2**30:.1f} are free: train fewer tasks together, less of the model (trainable = 'adapter'),"
            " without gradient surgery, or a smaller backbone"
        )


def free_bytes() -> int:
    """Free memory where training holds its model: of the GPU if one is used, else of the machine."""
    if on_gpu():
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free_host_bytes()


def free_host_bytes() -> int:
    """Free memory of the machine, or of the container if that is less."""
    gc.collect()  # reference cycles may keep an earlier run's model alive
    available: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # "max" is no bound
        most, held = (int((_CONTAINER / f"memory.{name}").read_text()) for name in ("max", "current"))
        # The kernel can reclaim cached files.
        cached = re.search(r"^inactive_file (\d+)$", (_CONTAINER / "memory.stat").read_text(), re.MULTILINE)
        available = min(available, most - held + (int(cached[1]) if cached else 0))
    return available


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
