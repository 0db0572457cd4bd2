"""A server of 1,000 adapters, one per task, of which 20 get requests: memory, start-up, hot and cold answers."""

from pathlib import Path

from pipeline.models.backbone import open_backbone
from pipeline.records.store import Store
from stages.serve.door import Limits
from stages.serve.shelf import StoreShelf

from . import child
from .backbones import Shape, backbone_folder, worded
from .child import Step
from .ours import random_adapter, source_task
from .report import Report
from .rows import VOCABULARY
from .setting import Setting
from .timing import Row

_SHAPE = Shape(64, 2, 2, VOCABULARY)
_HOT, _ANSWERS = 20, 10


def run(setting: Setting) -> Report:
    counts = [4] if setting.quick else [100, 1000]
    folder = worded(setting, backbone_folder(setting, _SHAPE))
    rows: list[Row] = []
    for count in counts:
        backbone, store = open_backbone(str(folder)), Store(setting.scratch / f"shelf-{count}")
        for number in range(count):
            random_adapter(setting, backbone, store, source_task(number), number)
        for most in (Limits.max_models, count):
            found = child.measured(setting, shelf, store.root, most)
            rows.append({"adapters": count, "in memory": min(most, count), **found})
    return Report(
        (
            f"Adapters of width {setting.bottleneck}, d = {_SHAPE.width}, {_SHAPE.layers} layers; in memory:"
            f" --max-models. Hot: {_ANSWERS} answers of each of {_HOT} adapters, in turn. Cold: the first answers of"
            f" {_HOT} others, which are not in memory if it does not hold all. CPU seconds; MB of memory beyond what"
            " the libraries take.",
        ),
        (rows,),
    )


def shelf(root: str, most: str) -> dict[str, Step]:
    opened: list[StoreShelf] = []

    def start() -> None:
        opened.append(StoreShelf.open(Path(root), [], None, "fp32", int(most)))

    def ask(name: str) -> None:
        model = opened[0].find(name) or opened[0].load(name)
        model.answers([("w5 w6 w7", False)])

    def hot() -> None:
        for _ in range(_ANSWERS):
            for name in opened[0].tasks[:_HOT]:
                ask(name)

    def cold() -> None:
        for name in opened[0].tasks[-_HOT:]:
            ask(name)

    return {"start": start, "hot": hot, "cold": cold, "hot again": hot}
