"""What a command finds here: versions, hardware, the Hub, backbone, data, disks, and the health of store and ledger."""

import os
import platform
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
from pipeline.system.process import cores
from pipeline.system.version import VERSION
from pipeline.training.devices import hardware, on_gpu, resolve_precision
from pipeline.training.memory import free_bytes, free_host_bytes
from stages.runs import Runs

State = Literal["ok", "note", "problem"]

_DISTRIBUTION = "adapter-fusion-pipeline"
_SHOWN = ("torch", "transformers", "adapters", "datasets", "accelerate")
_GIB = 2**30
_LITTLE_DISK, _SOME_DISK = 0.5 * _GIB, 5 * _GIB
"""Less than the first is a problem: a fully tuned BERT-base and its checkpoint are larger. The second is a note."""
_LITTLE_MEMORY = 2 * _GIB
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
    yield from _machine()
    yield _hub()
    if backbone is not None:
        yield from _tried("backbone", lambda: _backbone(backbone))
    for folder in data:
        yield from _tried("data", partial(_data, folder))
    for option, folder in (("--store", store), ("--reports", reports)):
        yield _disk(option, folder)
    if store.exists():
        yield from _tried("store", lambda: f"{store}: {Store(store).verify()} artifacts are complete and unchanged")
    else:
        yield Finding("ok", "store", f"{store}: none yet")
    yield from ledger_findings(reports, store)


def _tried(topic: str, look: Callable[[], str]) -> Iterator[Finding]:
    """What ``look`` finds, or each line of the error that it raises."""
    try:
        yield Finding("ok", topic, look())
    except PipelineError as error:
        first, *rest = str(error).splitlines()
        for line in few(rest or [first], _MOST_LINES):
            yield Finding("problem", topic, line.strip())


def _versions() -> Iterator[Finding]:
    shown = ", ".join(f"{name} {version(name)}" for name in _SHOWN)
    yield Finding("ok", "versions", f"pipeline {VERSION}, Python {platform.python_version()}, {shown}")
    try:
        needed = [Requirement(text) for text in requires(_DISTRIBUTION) or ()]
    except PackageNotFoundError:  # run from its folder
        return
    for requirement in needed:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            here = version(requirement.name)
        except PackageNotFoundError:
            here = "missing"
        if here == "missing" or not requirement.specifier.contains(here, prereleases=True):
            text, fitting = f"{requirement.name} is {here}", f"{requirement.name}{requirement.specifier}"
            yield Finding("problem", "versions", f"{text}, not {fitting}", f"pip install '{fitting}'")


def _machine() -> Iterator[Finding]:
    usable, threads, load = cores(), torch.get_num_threads(), os.getloadavg()[0]
    text = f"usable cores: {usable}, threads: {threads}, load {load:.1f}"
    if threads > usable:
        remedy = f"more threads than cores slow training down: OMP_NUM_THREADS={usable}"
    else:
        remedy = "other programs keep the cores busy: expect slow training" if load > 1.5 * usable else ""
    yield Finding("note" if remedy else "ok", "cores", text, remedy)
    free = free_host_bytes()
    text = f"{free / _GIB:.1f} GiB free of {psutil.virtual_memory().total / _GIB:.1f}"
    remedy = "use a small backbone, --gradient-accumulation-steps, --cache-gb 0" if free < _LITTLE_MEMORY else ""
    yield Finding("note" if remedy else "ok", "memory", text, remedy)
    name, remedy = hardware(torch.cuda.device_count()), ""
    if on_gpu():
        name += f", {free_bytes() / _GIB:.1f} GiB free"
    elif torch.cuda.is_available():
        remedy = "unset ACCELERATE_USE_CPU to use the GPU"
    elif Path("/proc/driver/nvidia/version").exists():
        remedy = f"torch {torch.__version__} does not see the NVIDIA GPU: https://pytorch.org/get-started/locally"
    yield Finding("note" if remedy else "ok", "device", name, remedy)
    seconds = _product_seconds()
    speeds = ", ".join(f"{name} {seconds['fp32'] / each:.1f} x" for name, each in seconds.items())
    fastest, auto = min(seconds, key=lambda name: seconds[name]), resolve_precision("auto")
    yield Finding("ok", "precision", f"speed {speeds}; fastest {fastest}; --precision auto is {auto}")


def _product_seconds() -> dict[str, float]:
    """Seconds of a product of two square matrices by precision, the least of five."""
    gpu, size = on_gpu(), 4096 if on_gpu() else 768
    dtypes = {"fp32": torch.float32}
    # On a CPU without such instructions bf16 is many times slower, and measuring it takes long.
    if gpu or torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        dtypes["bf16"] = torch.bfloat16
    if gpu:
        dtypes["fp16"] = torch.float16
    found = {}
    for name, dtype in dtypes.items():
        matrix = torch.ones(size, size, device="cuda" if gpu else "cpu", dtype=dtype)
        timer = Timer("matrix @ matrix", globals={"matrix": matrix}, num_threads=torch.get_num_threads())
        found[name] = min(timer.timeit(10).mean for _ in range(5))
    return found


def _hub() -> Finding:
    if HF_HUB_OFFLINE:
        remedy = "unset it to download backbones and data sets"
        return Finding("note", "Hub", "HF_HUB_OFFLINE is set: only what is in the cache can be read", remedy)
    try:
        with urllib.request.urlopen(urllib.request.Request(ENDPOINT, method="HEAD"), timeout=5.0):
            return Finding("ok", "Hub", f"{ENDPOINT} answers")
    except (OSError, ValueError) as error:
        remedy = "give local folders (--backbone DIR, --data DIR), and set HF_HUB_OFFLINE=1 to save the wait"
        return Finding("note", "Hub", f"{ENDPOINT} cannot be reached: {error}", remedy)


def _backbone(name: str) -> str:
    """The family of the encoder in a folder, or where that of a Hub id is."""
    if is_folder(name):
        return f"{name}: {family_of(name)}"
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return f"{name}: in the Hub's cache"
    except ValueError:
        raise PipelineError(f"{name}: neither a folder nor a Hub id: give another --backbone") from None
    if HF_HUB_OFFLINE:
        raise PipelineError(f"{name}: no folder, and not in the Hub's cache: unset HF_HUB_OFFLINE to download it")
    return f"{name}: no folder; downloaded from the Hub when it is needed"


def _data(folder: Path) -> str:
    check_folder(folder)
    return f"{folder}, task files: {len(own_files(folder))}"


def _disk(option: str, folder: Path) -> Finding:
    topic, place = f"disk of {option}", folder.absolute()
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        return Finding("problem", topic, f"{place}: not a folder that can be written", f"give another {option}")
    free = shutil.disk_usage(place).free
    state: State = "problem" if free < _LITTLE_DISK else "note" if free < _SOME_DISK else "ok"
    remedy = "" if state == "ok" else "see du for what can be deleted"
    return Finding(state, topic, f"{folder}: {free / _GIB:.1f} GiB free", remedy)


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
    busy = sum(map(ledger.is_busy, unfinished))
    yield Finding("ok", "ledger", f"{ledger.root}: {len(records)} finished runs, {busy} in training")
    for problem in problems:
        yield Finding("problem", "ledger", problem)
    if stopped := len(unfinished) - busy:
        remedy = "run their commands again to resume, or remove them (du names them)"
        yield Finding("note", "ledger", f"{stopped} unfinished runs that nobody trains", remedy)
    kept = {artifact.manifest.run for artifact in runs.store.artifacts()}
    lost = [
        run
        for run, record in records.items()
        if (record.weights_sha256 is not None and not ledger.weights_file(run).is_file())
        or (record.artifact is not None and run not in kept)
    ]
    if lost:
        text = f"{len(lost)} finished runs lost their model, first {lost[0]}"
        yield Finding("note", "ledger", text, "they are trained again when they are asked for, or store import them")
    gone = {*lost, *(uses.keys() - records.keys() - kept)}
    for name in sorted({need.name for run in gone for need in uses.get(run, ()) if need.kind == "ensemble"}):
        remedy = "train its members again, or make the ensemble of other runs"
        yield Finding("problem", "ensembles", f"ensemble {name} cannot predict: members without their models", remedy)
    if staged := [folder for root in (reports, store) for folder in leftovers(root)]:
        text = f"{len(staged)} half-written files of killed commands, first {staged[0]}"
        yield Finding("note", "leftovers", text, CLEARED)
