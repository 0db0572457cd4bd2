"""What a command finds here: versions, hardware, the Hub, backbone, data, disks, and the health of store and ledger."""

import os
import platform
import shutil
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import psutil
import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE
from packaging.requirements import Requirement
from torch.utils.benchmark import Timer

from pipeline.data.tasks import check_folder, own_files
from pipeline.models.repository import family_of
from pipeline.records.ledger import Ledger
from pipeline.records.store import Store
from pipeline.system.atomic import CLEARED, leftovers
from pipeline.system.backbone_name import is_folder
from pipeline.system.errors import PipelineError, few
from pipeline.system.process import c_library, cores
from pipeline.system.version import VERSION
from pipeline.training.devices import hardware, on_gpu, resolve_precision
from pipeline.training.memory import free_bytes, free_host_bytes
from stages.runs import Need, Runs

State = Literal["ok", "note", "problem"]

_DISTRIBUTION = "adapter-fusion-pipeline"
_SHOWN = ("torch", "transformers", "adapters", "datasets", "accelerate")
_GIB = 2**30
_LITTLE_DISK, _SOME_DISK = 0.5 * _GIB, 5 * _GIB
"""Less than the first is a problem: a fully tuned BERT-base and its checkpoint are larger. The second is a note."""
_LITTLE_MEMORY = 2 * _GIB
_HUB_SECONDS = 5.0
_MOST_LINES = 5


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, and what to do about it."""

    state: State
    topic: str
    text: str
    remedy: str = ""


def examine(reports: Path, store: Path, backbone: str | None = None, data: Sequence[Path] = ()) -> Iterator[Finding]:
    """Every finding in turn; nothing is written, and what fails is a finding, not an error."""
    yield from _versions()
    yield _cores()
    yield _memory()
    yield from _allocator()
    yield _device()
    yield _precision()
    yield _hub()
    if backbone is not None:
        yield _backbone(backbone)
    yield from map(_data, data)
    for option, folder in (("--store", store), ("--reports", reports)):
        yield _disk(option, folder)
    yield from _store(store)
    yield from ledger_findings(reports, store)


def _versions() -> Iterator[Finding]:
    yield Finding("ok", "versions", f"pipeline {VERSION}, Python {platform.python_version()}, {_listed(_SHOWN)}")
    try:
        needed = [Requirement(text) for text in requires(_DISTRIBUTION) or ()]
    except PackageNotFoundError:  # run from its folder
        return
    for requirement in needed:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        try:
            here = version(requirement.name)
        except PackageNotFoundError:
            yield Finding("problem", "versions", f"{requirement.name} is not installed", remedy)
        else:
            if not requirement.specifier.contains(here, prereleases=True):
                text = f"{requirement.name} {here} is not {requirement.specifier}, which was tested"
                yield Finding("problem", "versions", text, remedy)


def _listed(names: tuple[str, ...]) -> str:
    def shown(name: str) -> str:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            return f"no {name}"

    return ", ".join(map(shown, names))


def _cores() -> Finding:
    usable = cores()
    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    text = f"usable cores: {usable}, threads: {threads}, load {load:.1f}"
    if threads > usable:
        return Finding("note", "cores", text, f"more threads than cores slow training down: OMP_NUM_THREADS={usable}")
    if load > 1.5 * usable:
        return Finding("note", "cores", text, "other programs keep the cores busy: expect slow training")
    return Finding("ok", "cores", text)


def _memory() -> Finding:
    free = free_host_bytes()
    text = f"{free / _GIB:.1f} GiB free of {psutil.virtual_memory().total / _GIB:.1f}"
    if free < _LITTLE_MEMORY:
        return Finding(
            "note", "memory", text, "little: use a small backbone, --gradient-accumulation-steps, --cache-gb 0"
        )
    return Finding("ok", "memory", text)


def _allocator() -> Iterator[Finding]:
    """A note where another allocator would train faster: glibc's searches long among free blocks of many sizes."""
    library = c_library()
    if on_gpu() or not hasattr(library, "gnu_get_libc_version"):
        return
    if not any(hasattr(library, name) for name in ("mallctl", "tc_malloc", "mi_malloc")):
        text, remedy = "allocator: glibc's", "a CPU trains faster with jemalloc, see docs/machines.md"
        yield Finding("note", "memory", text, remedy)


def _device() -> Finding:
    name = hardware(torch.cuda.device_count())
    if on_gpu():
        return Finding("ok", "device", f"{name}, {free_bytes() / _GIB:.1f} GiB free")
    if torch.cuda.is_available():
        return Finding("note", "device", f"{name}: ACCELERATE_USE_CPU forbids the GPU", "unset it to use the GPU")
    if Path("/proc/driver/nvidia/version").exists():
        remedy = "install the torch that fits the driver: https://pytorch.org/get-started/locally"
        return Finding("note", "device", f"{name}: torch {torch.__version__} does not see the NVIDIA GPU", remedy)
    return Finding("ok", "device", name)


def _precision() -> Finding:
    gpu = on_gpu()
    device = "cuda" if gpu else "cpu"
    dtypes = {"fp32": torch.float32}
    # On a CPU without such instructions bf16 is many times slower, and measuring it takes long.
    if gpu or torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        dtypes["bf16"] = torch.bfloat16
    if gpu:
        dtypes["fp16"] = torch.float16
    seconds = {name: _product_seconds(device, dtype) for name, dtype in dtypes.items()}
    speeds = ", ".join(f"{name} {seconds['fp32'] / each:.1f} x" for name, each in seconds.items())
    missing = "" if "bf16" in seconds else "; bf16 not measured: the CPU has no instructions for it"
    fastest = min(seconds, key=lambda name: seconds[name])
    auto = resolve_precision("auto")
    return Finding("ok", "precision", f"speed {speeds}{missing}; fastest {fastest}; --precision auto is {auto}")


def _product_seconds(device: str, dtype: torch.dtype) -> float:
    """Seconds of a product of two matrices, (1024, 768) and (768, 768), on a GPU (4096, 4096): the least of five."""
    sizes = ((4096, 4096), (4096, 4096)) if device.startswith("cuda") else ((1024, 768), (768, 768))
    left, right = (torch.ones(size, device=device, dtype=dtype) for size in sizes)
    return min(_timed(left, right) for _ in range(5))


def _timed(left: torch.Tensor, right: torch.Tensor) -> float:
    """Seconds of a product; on a GPU with the device idle before and after."""
    timer = Timer("left @ right", globals={"left": left, "right": right}, num_threads=torch.get_num_threads())
    with torch.cuda.device(left.get_device()):  # which the timer waits for; -1, of a CPU, changes nothing
        return timer.timeit(10).mean


def _hub() -> Finding:
    if HF_HUB_OFFLINE:
        remedy = "unset it to download backbones and data sets"
        return Finding("note", "Hub", "HF_HUB_OFFLINE is set: only what is in the cache can be read", remedy)
    try:
        with urllib.request.urlopen(urllib.request.Request(ENDPOINT, method="HEAD"), timeout=_HUB_SECONDS):
            pass
    except urllib.error.HTTPError as error:  # it answers
        if error.code >= 500:
            return Finding("note", "Hub", f"{ENDPOINT} answers with status {error.code}", "try again later")
    except (OSError, ValueError) as error:
        remedy = "give local folders (--backbone DIR, --data DIR), and set HF_HUB_OFFLINE=1 to save the wait"
        return Finding("note", "Hub", f"{ENDPOINT} cannot be reached: {error}", remedy)
    return Finding("ok", "Hub", f"{ENDPOINT} answers")


def _backbone(name: str) -> Finding:
    """Whether a folder holds an encoder of a supported family, or the encoder of a Hub id is in the cache."""
    try:
        if is_folder(name):
            return Finding("ok", "backbone", f"{name}: {family_of(name)}")
        is_cached = isinstance(try_to_load_from_cache(name, "config.json"), str)
    except PipelineError as error:
        return Finding("problem", "backbone", str(error))
    except ValueError:
        return Finding("problem", "backbone", f"{name}: neither a folder nor a Hub id", "give another --backbone")
    if is_cached:
        return Finding("ok", "backbone", f"{name}: in the Hub's cache")
    if HF_HUB_OFFLINE:
        remedy = "unset HF_HUB_OFFLINE to download it, or give a folder"
        return Finding("problem", "backbone", f"{name}: no folder, and not in the Hub's cache", remedy)
    return Finding("ok", "backbone", f"{name}: no folder; downloaded from the Hub when it is needed")


def _data(folder: Path) -> Finding:
    try:
        check_folder(folder)
        return Finding("ok", "data", f"{folder}, task files: {len(own_files(folder))}")
    except PipelineError as error:
        return Finding("problem", "data", str(error))


def _disk(option: str, folder: Path) -> Finding:
    topic, place = f"disk of {option}", folder.absolute()
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    try:
        if not place.is_dir():
            return Finding(
                "problem", topic, f"{place}: there is a file where a folder is needed", f"give another {option}"
            )
        if not os.access(place, os.W_OK | os.X_OK):
            return Finding(
                "problem", topic, f"{place}: cannot be written", f"make it writable, or give another {option}"
            )
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding("problem", topic, f"{place}: {error.strerror}", f"give another {option}")
    text = f"{folder}: {free / _GIB:.1f} GiB free"
    if free < _SOME_DISK:
        state: State = "problem" if free < _LITTLE_DISK else "note"
        return Finding(state, topic, text, "see du for what can be deleted")
    return Finding("ok", topic, text)


def _store(root: Path) -> Iterator[Finding]:
    if not root.exists():
        yield Finding("ok", "store", f"{root}: none yet")
        return
    try:
        yield Finding("ok", "store", f"{root}: {Store(root).verify()} artifacts are complete and unchanged")
    except PipelineError as error:
        first, *rest = str(error).splitlines()
        lines = rest or [first]
        for line in lines[:_MOST_LINES]:
            yield Finding("problem", "store", line.strip())
        if len(lines) > _MOST_LINES:
            yield Finding("problem", "store", f"{len(lines) - _MOST_LINES} more", "store verify names them all")


def ledger_findings(reports: Path, store: Path) -> Iterator[Finding]:
    """What is damaged, unfinished or lost of the runs in ``reports``, and half-written in either folder."""
    ledger = Ledger(reports)
    try:
        runs = Runs(reports, store)
        uses = runs.uses  # before the problems, which then tell of damaged studies and ensembles too
        records, problems, unfinished = runs.records, runs.problems, runs.unfinished
    except OSError as error:
        yield Finding("problem", "ledger", f"{ledger.root}: {error.strerror}", "make it readable, or give --reports")
        return
    busy = [name for name in unfinished if ledger.is_busy(name)]
    stopped = len(unfinished) - len(busy)
    yield Finding("ok", "ledger", f"{ledger.root}: {len(records)} finished runs, {len(busy)} in training")
    for problem in problems:
        yield Finding("problem", "ledger", problem)
    if stopped:
        remedy = "run their commands again to resume, or remove them (du names them)"
        yield Finding("note", "ledger", f"{stopped} unfinished runs that nobody trains", remedy)
    without_weights = [
        record
        for run, record in records.items()
        if record.weights_sha256 is not None and not ledger.weights_file(run).is_file()
    ]
    for record in without_weights:
        text = f"run {record.run} ({record.kind} of {record.task}) lost its weights.safetensors"
        yield Finding("note", "ledger", text, "it is trained again when its model is asked for")
    lost = [run for run, record in records.items() if _lost_its_artifact(record.artifact, store)]
    if lost:
        text = f"artifacts of {len(lost)} finished runs are not in {store}, first {lost[0]}"
        yield Finding("note", "ledger", text, "they are trained again when they are asked for, or store import them")
    kept = {artifact.manifest.run for artifact in runs.store.artifacts()}
    gone = {*lost, *(record.run for record in without_weights), *(uses.keys() - records.keys() - kept)}
    yield from _ensembles(uses, gone)
    staged = [folder for root in (reports, store) for folder in leftovers(root)]
    if staged:
        text = f"{len(staged)} half-written files of killed commands, first {staged[0]}"
        yield Finding("note", "leftovers", text, CLEARED)


def _ensembles(uses: Mapping[str, Sequence[Need]], gone: Collection[str]) -> Iterator[Finding]:
    """The ensembles that cannot predict, since models of their members are ``gone``."""
    lacking = defaultdict[str, list[str]](list)
    for run in gone:
        for need in uses.get(run, ()):
            if need.kind == "ensemble":
                lacking[need.name].append(run)
    for name, members in sorted(lacking.items()):
        text = f"ensemble {name} cannot predict: members without their models: {', '.join(few(sorted(members)))}"
        yield Finding("problem", "ensembles", text, "train them again, or make the ensemble of other runs")


def _lost_its_artifact(folder: str | None, store: Path) -> bool:
    """Whether an artifact that belongs into ``store`` is not there."""
    if folder is None or len(parts := Path(folder).parts) < 3:
        return False
    return not os.path.isdir(store.joinpath(*parts[-3:]))  # noqa: PTH112  (False for a name that no file can have)
