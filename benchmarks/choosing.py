"""``fuse --sources best:8`` in a store of many adapters: all are probed at their bottlenecks, the best run whole."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

from pipeline.data.tasks import Task
from pipeline.methods.houlsby import BOTTLENECK
from pipeline.models.backbone import Backbone, open_backbone
from pipeline.records.store import Artifact
from pipeline.runs.initial import RANKED_ROWS, WHOLE, Chooser
from pipeline.runs.scoring import Scoring
from pipeline.runs.workspace import RunRequest, Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import sha256_file
from pipeline.training.devices import make_accelerator, resolve_precision

from .backbones import MINILM, NANO, backbone_folder
from .ours import manifest_of
from .report import Report
from .rows import real_lengths
from .setting import Setting
from .timing import Row, interleave, milliseconds

_CHOSEN = 8
_TASK = Task(name="target", kind="classes", text=("text",), label="label", classes=("no", "yes"), metric="accuracy")


def run(setting: Setting) -> Report:
    shape, rows, sizes = (NANO, 32, [9, 20]) if setting.quick else (MINILM, RANKED_ROWS, [16, 100, 1000])
    return Report(
        (
            f"Seconds to choose {_CHOSEN} adapters of width {setting.bottleneck}: d = {shape.width}, {shape.layers}"
            f" layers, random weights; {rows} rows as long as QQP's pairs, in the precision that is faster here.",
            f"If there are more than {WHOLE} adapters, all are probed at their bottlenecks and {WHOLE} are run whole.",
            "Medians (lowest to highest).",
        ),
        ([_row(setting, backbone_folder(setting, shape), rows, count) for count in sizes],),
    )


def _row(setting: Setting, folder: Path, size: int, count: int) -> Row:
    backbone, accelerator = open_backbone(str(folder)), make_accelerator(resolve_precision("auto"))
    adapters = _write_adapters(backbone, setting.scratch / f"adapters-{count}", setting.bottleneck, count)
    texts = [" ".join(["word"] * (length - 2)) for length in real_lengths("quora", size)]
    labels = np.random.default_rng(0).integers(0, 2, size)
    rows = pd.DataFrame({"id": [str(row) for row in range(size)], "text_a": texts, "label": labels})
    workspace = Workspace(str(folder), None, setting.scratch / "store", setting.scratch / "reports")
    recipe = workspace.resolve(Recipe(trainable="fusion"), _TASK)
    request = RunRequest.single("fusion", _TASK, recipe, 0)
    run: Any = SimpleNamespace(request=request, task=_TASK, recipe=recipe, backbone=backbone, workspace=workspace)
    run.data = {_TASK.name: SimpleNamespace(train=rows)}
    chooser = Chooser(run, Scoring(_TASK, rows, recipe, backbone, accelerator))
    step = milliseconds(lambda: chooser.best_sources(_CHOSEN, adapters))
    return {"adapters": count, **interleave({"seconds": lambda: step() / 1000}, min(setting.repeats, 3))}


def _write_adapters(backbone: Backbone, root: Path, bottleneck: int, count: int) -> list[Artifact]:
    """Adapters with random weights, each for a different task."""
    recipe = Recipe(trainable="adapter", bottleneck=bottleneck, encoding="cross")
    root.mkdir()
    encoder = backbone.load()
    artifacts = []
    for number in range(count):
        name = f"task{number}"
        BOTTLENECK.put_in(encoder, name, recipe, ())
        torch.manual_seed(number)
        for key, parameter in encoder.named_parameters():
            if f".{name}." in key:
                torch.nn.init.normal_(parameter, std=0.02)
        BOTTLENECK.save(encoder, name, root / name)
        encoder.delete_adapter(name)
        files = {file.name: sha256_file(file) for file in sorted((root / name).iterdir())}
        task = _TASK.model_copy(update={"name": name})
        manifest = manifest_of(number, task, recipe, backbone, seed=0, dev=0.5, files=files)
        artifacts.append(Artifact(folder=root / name, manifest=manifest))
    return artifacts
