"""Studies of generated tasks with the command ``compare``, timed as a whole: start-up, training and report."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.demo import write_tasks

from .backbones import MINILM, NANO, backbone_folder
from .setting import Setting

_ROOT = Path(__file__).parents[1]
_STUDY = """
methods = {methods}
targets = {targets}
seeds = {seeds}
limit = {limit}
[recipe]
epochs = 2
bottleneck = {bottleneck}
precision = "fp32"
"""


@dataclass(frozen=True)
class WholeStudy:
    """Rows on two generated tasks, two epochs each."""

    setting: Setting
    methods: Sequence[str]
    seeds: Sequence[int]
    limit: int

    @property
    def runs(self) -> int:
        return 2 * len(self.methods) * len(self.seeds)

    def seconds(self, threads: int, *options: str) -> float:
        """Run the study from scratch with ``options`` of ``compare`` and ``threads`` threads per process."""
        setting, folder = self.setting, self.setting.scratch / "whole-study"
        folder.mkdir()
        targets = write_tasks(folder / "data")[:2]
        study = folder / "study.toml"
        study.write_text(
            _STUDY.format(
                methods=list(self.methods),
                targets=targets,
                seeds=list(self.seeds),
                limit=self.limit,
                bottleneck=setting.bottleneck,
            )
        )
        backbone = setting.backbone or backbone_folder(setting, NANO if setting.quick else MINILM)
        command = ["compare", f"--study={study}", f"--backbone={backbone}", f"--data={folder / 'data'}"]
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
