"""Studies of many tasks: runs, training and planning for pairwise sequential fine-tuning, fusion and multitask."""

import json
import time
from pathlib import Path

from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from stages.compare.compare import dry_run
from stages.compare.plan import in_order, jobs_of, plan
from stages.compare.progress import Estimate

from .backbones import NANO, backbone_folder
from .report import Report
from .setting import Setting
from .timing import Row

_ROWS = 64
_METHODS = {
    "pairwise sequential": ("full", "sequential"),
    "fusion": ("adapter", "fusion"),
    "multitask": ("full", "multitask"),
}


def run(setting: Setting) -> Report:
    sizes = [3, 4] if setting.quick else [3, 9, 30, 100]
    data = setting.scratch / "studies-data"
    tasks = [_write(data, number) for number in range(max(sizes))]
    return Report(
        (
            "Every task is a target, and the others are its sources; one seed; includes a single-task model per task,"
            " fully tuned or an adapter. Work: rows trained on, over all epochs, times their passes (forward counts"
            f" one, backward two), as a multiple of full fine-tuning on all tasks; {_ROWS} rows per task, default"
            " recipes. Planning: compare --dry-run, in CPU seconds, once.",
        ),
        ([_row(setting, data, tasks[:size], name) for size in sizes for name in _METHODS],),
    )


def _row(setting: Setting, data: Path, tasks: list[str], name: str) -> Row:
    methods = _METHODS[name]
    values = {"name": "scaling", "methods": methods, "targets": tasks, "seeds": [1], "recipe": {"bottleneck": 8}}
    study = parse_study(values, "scaling")
    places = Workspace(
        str(backbone_folder(setting, NANO)),
        data,
        setting.scratch / "studies-store",
        setting.scratch / "studies-reports",
    )
    _ = places.backbone.weights_hash
    started = time.process_time()
    total = dry_run(study, places).total
    seconds = time.process_time() - started
    estimate, jobs = Estimate(places), in_order(jobs_of(study, plan(study)).values())
    work = {kind: sum(estimate.work(job)[0] for job in jobs if job.kind == kind) for kind in methods}
    tuned = parse_study({**values, "methods": ["full"]}, "scaling")
    single = sum(estimate.work(job)[0] for job in in_order(jobs_of(tuned, plan(tuned)).values()))
    return {
        "tasks": len(tasks),
        "study": name,
        "runs": total.runs,
        "work": sum(work.values()) / single,
        "planning, s": seconds,
        "ms a run": 1000 * seconds / total.runs,
    }


def _write(data: Path, number: int) -> str:
    name = f"task{number}"
    folder = data / name
    folder.mkdir(parents=True)
    values = {"name": name, "kind": "classes", "text": ["text"], "label": "label", "metric": "accuracy"}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in {**values, "classes": ["no", "yes"]}.items()]
    (folder / "task.toml").write_text("".join(lines), encoding="ascii")
    for split in ("train", "dev"):
        rows = [f"{row},{split} text {row} of {name},{row % 2}\n" for row in range(_ROWS)]
        (folder / f"{split}.csv").write_text("id,text,label\n" + "".join(rows), encoding="ascii")
    return name
