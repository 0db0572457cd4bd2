"""A study in one process with a thread for each core, against as many processes with one thread each."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from pipeline.system.process import cores
from stages.demo_tasks import write_tasks

from .backbones import MINILM, NANO, backbone_folder
from .report import Report
from .setting import Setting
from .timing import Row, columns, interleave

_ROOT = Path(__file__).parents[1]
_STUDY = """
methods = ["{method}"]
targets = [{targets}]
seeds = {seeds}
limit = {limit}
[recipe]
epochs = 2
bottleneck = {bottleneck}
precision = "fp32"
"""


def run(setting: Setting) -> Report:
    runs, limit = (2, 32) if setting.quick else (4, 2000)
    jobs = min(max(2, cores()), runs)
    methods = ["adapter"] if setting.quick else ["adapter", "full"]
    data = setting.scratch / "jobs-data"
    tasks = write_tasks(data)[:2]
    backbone = setting.backbone or backbone_folder(setting, NANO if setting.quick else MINILM)
    return Report(
        (
            f"{runs} runs of 2 epochs on {limit} rows; seconds of the whole command, start and report included: in one"
            f" process with {jobs} threads, and in {jobs} processes (--jobs {jobs}) with one thread each, on {cores()}"
            " cores.",
            "Medians (lowest to highest); peers of a row ran in turn.",
        ),
        ([_row(setting, method, tasks, runs, limit, jobs, data, backbone) for method in methods],),
    )


def _row(
    setting: Setting, method: str, tasks: list[str], runs: int, limit: int, jobs: int, data: Path, backbone: Path
) -> Row:
    study = setting.scratch / f"jobs-{method}.toml"
    targets, seeds = ", ".join(f'"{task}"' for task in tasks), list(range(1, runs // len(tasks) + 1))
    study.write_text(
        _STUDY.format(method=method, targets=targets, seeds=seeds, limit=limit, bottleneck=setting.bottleneck)
    )

    def seconds(threads: int, *options: str) -> float:
        folder = setting.scratch / "jobs"
        command = ["compare", f"--study={study}", f"--backbone={backbone}", f"--data={data}"]
        places = [f"--store={folder / 'store'}", f"--reports={folder / 'reports'}"]
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", *command, *places, *options],
            cwd=_ROOT, env=os.environ | {"OMP_NUM_THREADS": str(threads)}, capture_output=True, text=True,
        )  # fmt: skip
        taken = time.perf_counter() - started
        if done.returncode:
            raise SystemExit(done.stderr)
        shutil.rmtree(folder)
        return taken

    peers = {f"1 x {jobs} threads": lambda: seconds(jobs), "ours": lambda: seconds(1, f"--jobs={jobs}")}
    return {"method": method, "runs": runs, "jobs": jobs, **columns(interleave(peers, setting.repeats), "s")}
