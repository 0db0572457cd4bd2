"""Measure a step in a separate process: the CPU seconds and the memory that it takes."""

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from .setting import Setting

Step = Callable[[], object]


def measured(
    setting: Setting, prepare: Callable[..., Mapping[str, Step]], *arguments: object, **environment: str
) -> dict[str, float]:
    """``<step>, s`` and ``<step>, MB`` of each step that ``prepare(*arguments)`` returns, in a new process.

    Quick benchmarks, whose numbers mean nothing, run in this one.

    CPU seconds, and the peak of anonymous memory during the step in MB (2^20 bytes), beyond what was in use before the
    first step; mapped files do not count. What ``prepare`` itself does is not measured.
    """
    if setting.quick:
        return _of(prepare(*map(str, arguments)))
    name = f"{prepare.__module__}:{prepare.__name__}"
    command = [sys.executable, "-m", __name__, name, *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


class _Memory:
    """The peak of this process's anonymous memory in MB, sampled 20 times a second while the block runs."""

    def __init__(self) -> None:
        self.most = self.now()
        self._ended = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watching.join()

    @staticmethod
    def now() -> float:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:"))

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            self.most = max(self.most, self.now())


def _of(steps: Mapping[str, Step]) -> dict[str, float]:
    found = dict[str, float]()
    with _Memory() as memory:
        before = memory.now()
        for title, step in steps.items():
            memory.most, started = memory.now(), time.process_time()
            step()
            found[f"{title}, s"] = time.process_time() - started
            found[f"{title}, MB"] = max(memory.most, memory.now()) - before
    return found


if __name__ == "__main__":
    from pipeline.system import process

    process.set_up()
    module, _, function = sys.argv[1].partition(":")
    print(json.dumps(_of(getattr(importlib.import_module(module), function)(*sys.argv[2:]))))
