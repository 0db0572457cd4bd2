"""What a command finds here: versions, hardware, the Hub, backbone, data, disks, and the health of store and ledger."""

import os
import platform
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import psutil
import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

from pipeline.data.tasks import check_folder, own_files
from pipeline.models.backbone import configuration
from pipeline.records.store import Store
from pipeline.system.atomic import CLEARED, leftovers
from pipeline.system.errors import PipelineError, few
from pipeline.system.process import cores
from pipeline.system.reading import is_folder
from pipeline.system.version import VERSION
from pipeline.training.devices import free_bytes, free_host_bytes, hardware, on_gpu, resolve_precision
from stages.runs import Runs

State = Literal["ok", "note", "problem"]

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
    shown = ", ".join(f"{name} {version(name)}" for name in _SHOWN)
    yield Finding("ok", "versions", f"pipeline {VERSION}, Python {platform.python_version()}, {shown}")
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
    try:
        yield from ledger_findings(reports, store)
    except OSError as error:
        yield Finding("problem", "ledger", f"{reports}: {error.strerror}", "make it readable, or give --reports")


def _tried(topic: str, look: Callable[[], str]) -> Iterator[Finding]:
    """What ``look`` finds, or each line of the error that it raises."""
    try:
        yield Finding("ok", topic, look())
    except (PipelineError, ValueError) as error:  # the latter of a name that no Hub id can have
        first, *rest = str(error).splitlines()
        for line in few(rest or [first], _MOST_LINES):
            yield Finding("problem", topic, line.strip())


def _machine() -> Iterator[Finding]:
    usable, load = cores(), os.getloadavg()[0]
    remedy = "other programs keep the cores busy: expect slow training" if load > 1.5 * usable else ""
    text = f"usable cores: {usable}, threads: {torch.get_num_threads()}, load {load:.1f}"
    yield Finding("note" if remedy else "ok", "cores", text, remedy)
    free = free_host_bytes()
    text = f"{free / _GIB:.1f} GiB free of {psutil.virtual_memory().total / _GIB:.1f}"
    remedy = "use a small backbone, --gradient-accumulation-steps, --cache-gb 0" if free < _LITTLE_MEMORY else ""
    yield Finding("note" if remedy else "ok", "memory", text, remedy)
    free_gpu = f", {free_bytes() / _GIB:.1f} GiB free" if on_gpu() else ""
    text = f"{hardware(torch.cuda.device_count())}{free_gpu}; --precision auto is {resolve_precision('auto')}"
    unseen = not torch.cuda.is_available() and Path("/proc/driver/nvidia/version").exists()
    remedy = f"torch {torch.__version__} does not see the NVIDIA GPU: https://pytorch.org/get-started/locally"
    yield Finding("note", "device", text, remedy) if unseen else Finding("ok", "device", text)


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
        return f"{name}: {configuration(name).model_type}"
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return f"{name}: in the Hub's cache"
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
    text = f"{folder}: {free / _GIB:.1f} GiB free"
    if free >= _SOME_DISK:
        return Finding("ok", topic, text)
    return Finding("problem" if free < _LITTLE_DISK else "note", topic, text, "see du for what can be deleted")


def ledger_findings(reports: Path, store: Path) -> Iterator[Finding]:
    """What is damaged, unfinished or lost of the runs in ``reports``, and half-written in either folder."""
    runs = Runs(reports, store)
    uses, ledger = runs.uses, runs.ledger  # before the problems, which then tell of damaged studies and ensembles too
    records, problems, unfinished = runs.records, runs.problems, runs.unfinished
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
