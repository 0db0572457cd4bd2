"""Ledgers of up to 100,000 finished runs: time and memory to list all, and to look up and report a study's."""

import json
import shutil
from pathlib import Path

from pipeline.records.ledger import Ledger
from pipeline.records.studies import StudyResult
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import Study
from pipeline.system.atomic import sha256_text
from stages.compare.compare import compare, dry_run
from stages.demo import write_tasks
from stages.report import report
from stages.runs import Runs

from . import child
from .backbones import NANO, backbone_folder
from .child import Step
from .report import Report
from .setting import Setting
from .timing import Row

_SIZES = (100, 1000, 10_000, 100_000)
_STUDY = "few"


def run(setting: Setting) -> Report:
    data, reports = setting.scratch / "ledgers-data", setting.scratch / "ledgers"
    write_tasks(data)
    backbone = backbone_folder(setting, NANO)
    result, _ = compare(_study(), _workspace(backbone, data, reports))
    table = [_row(setting, reports, result, data, backbone, count) for count in ([20] if setting.quick else _SIZES)]
    return Report(
        (
            f"A study of {len(result.entries)} runs in a ledger with this many others on the same backbone. List: runs"
            " list. Plan: compare --dry-run, which finds all runs of the study. Report: its tables, figures and page.",
            "CPU seconds, and MB of peak memory beyond what the libraries take. Each step runs in its own process.",
        ),
        (table,),
    )


def _study() -> Study:
    recipe = {"bottleneck": 8, "epochs": 1}
    methods, targets = ["full", "adapter"], ["tickets", "reviews"]
    values = {"name": _STUDY, "methods": methods, "targets": targets, "seeds": [1, 2], "limit": 32, "recipe": recipe}
    return parse_study({**values, "dev_limit": 32}, _STUDY)


def _workspace(backbone: Path, data: Path, reports: Path) -> Workspace:
    return Workspace(str(backbone), data, reports / "store", reports)


def _row(setting: Setting, reports: Path, result: StudyResult, data: Path, backbone: Path, count: int) -> Row:
    _fill(Ledger(reports), next(entry.run for entry in result.entries if entry.run is not None), count)
    found = [child.measured(setting, step, reports, data, backbone) for step in (listing, planning, reporting)]
    return {"runs": count, **{name: value for each in found for name, value in each.items()}}


def listing(reports: str, _data: str, _backbone: str) -> dict[str, Step]:
    return {"list": lambda: Runs(Path(reports), Path(reports) / "store").listed()}


def planning(reports: str, data: str, backbone: str) -> dict[str, Step]:
    workspace, study = _workspace(Path(backbone), Path(data), Path(reports)), _study()
    _ = workspace.backbone.weights_hash

    def plan() -> None:
        total = dry_run(study, workspace).total
        assert total.done == total.runs

    return {"plan": plan}


def reporting(reports: str, _data: str, _backbone: str) -> dict[str, Step]:
    return {"report": lambda: report(_STUDY, Path(reports))}


def _fill(ledger: Ledger, like: str, count: int) -> None:
    """Copy a run under other names until there are ``count`` copies."""
    record = json.loads((ledger.folder(like) / "run.json").read_text(encoding="utf-8"))
    for number in range(count):
        name = sha256_text(f"copy {number}")[:12]
        if not (folder := ledger.folder(name)).is_dir():
            folder.mkdir()
            (folder / "run.json").write_text(json.dumps(record | {"run": name, "seed": number}), encoding="utf-8")
            shutil.copy(ledger.folder(like) / "curve.csv", folder)
