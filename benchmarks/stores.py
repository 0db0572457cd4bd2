"""Stores of up to 100,000 adapters: time and memory to list them, to pick those to fuse and to start a fusion."""

import shutil
from pathlib import Path

from pipeline.models.backbone import Backbone
from pipeline.records.store import MANIFEST, Artifact, Store
from pipeline.runs.sources import Fusion, SourceName
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import canonical_json, sha256_text
from stages.demo import write_tasks

from . import child
from .backbones import NANO, backbone_folder
from .child import Step
from .ours import manifest_of, run_of, source_task
from .report import Report
from .setting import Setting
from .timing import Row

_SIZES = (100, 1000, 10_000, 100_000)
_SEEDS = 10
_FUSED = 4
_TARGET = "tickets"


def run(setting: Setting) -> Report:
    data = setting.scratch / "stores-data"
    write_tasks(data)
    backbone = backbone_folder(setting, NANO)
    return Report(
        (
            f"Only manifests, of {_SEEDS} adapters per task. Cold: without an index, which is then written. Warm: with"
            f" it. Pick: the adapters of {_FUSED} named tasks for a fusion, or of all. Start: read the data and"
            " identify the run of that fusion, without training. Look up: one adapter by its run.",
            "CPU seconds, and MB of peak memory beyond what the libraries take. Cold and warm are separate processes.",
        ),
        ([_row(setting, data, backbone, count) for count in ([60] if setting.quick else _SIZES)],),
    )


def _row(setting: Setting, data: Path, backbone: Path, count: int) -> Row:
    root = setting.scratch / f"stores-{count}"
    _write(root, count, Workspace(str(backbone), data, root, setting.scratch).backbone)
    row: Row = {
        "adapters": count,
        **child.measured(setting, cold, root),
        **child.measured(setting, warm, root, backbone, data),
    }
    shutil.rmtree(root)
    return row


def cold(root: str) -> dict[str, Step]:
    return {"list cold": lambda: Store(Path(root)).artifacts()}


def warm(root: str, backbone: str, data: str) -> dict[str, Step]:
    workspace = Workspace(backbone, Path(data), Path(root), Path(root) / "reports")
    task, recipe = workspace.task(_TARGET), Recipe(trainable="fusion")
    names = [SourceName(_task_of(number * _SEEDS)) for number in range(_FUSED)]
    run = run_of(0)
    fusion = Fusion(task, recipe, workspace)
    _ = workspace.backbone.weights_hash
    chosen = list[Artifact]()

    def pick() -> None:
        chosen[:] = fusion.choose(fusion.named(names), seed=0)

    def start() -> None:
        _ = TrainingRun(fusion.request(chosen, seed=0, limit=None), workspace).name

    return {
        "list warm": workspace.store.artifacts,
        f"pick {_FUSED}": pick,
        "start": start,
        "pick all": lambda: fusion.choose(None, seed=0),
        "look up": lambda: workspace.store.find(run),
    }


def _task_of(number: int) -> str:
    """The name of an adapter's task; the last adapters are the target's."""
    return f"task{number // _SEEDS}"


def _write(root: Path, count: int, backbone: Backbone) -> None:
    """Write manifests without files; the target's come last."""
    recipe = Recipe(trainable="adapter", encoding="cross", bottleneck=8)
    files = {name: sha256_text(name) for name in ("adapter.safetensors", "head.safetensors")}
    for number in range(count):
        name = _TARGET if number >= count - _SEEDS else _task_of(number)
        task, dev = source_task(number).model_copy(update={"name": name}), 0.5 + number / (4 * count)
        manifest = manifest_of(number, task, recipe, backbone, seed=number % _SEEDS, dev=dev, files=files)
        folder = root / manifest.place
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_text(canonical_json(manifest.model_dump(mode="json")), encoding="ascii")
