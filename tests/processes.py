"""Run short scripts in separate processes, to be killed or to interfere with each other."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.system import atomic

_HEAD = "import os, signal, sys\nfrom pathlib import Path\nROOT, *ARGUMENTS = Path(sys.argv[1]), *sys.argv[2:]\n"


WITH_WIDE_GAPS = """
import time
from pipeline.system import atomic

def slow(path, target):
    rename(path, target)
    time.sleep(0.001)

rename, Path.rename, atomic._flush = Path.rename, slow, lambda _: None
"""
"""Code that prolongs the moment after each rename, and shortens the rest."""


@contextmanager
def in_a_process(code: str, root: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run Python ``code``, which sees ``root`` as ``ROOT`` and the rest as ``ARGUMENTS``; it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", _HEAD + code, *map(str, (root, *arguments))],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that ``process`` prints."""
    return process.stdout.readline().rstrip("\n")


def left_behind(parent: Path, name: str) -> Path:
    """The temporary path for ``name`` in ``parent`` of a process of this machine that has ended; it is not created."""
    beyond_any_number = 2**22 + 1
    return parent / f".{name}.{atomic._MACHINE}-{beyond_any_number}-00000000.tmp"
