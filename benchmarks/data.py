"""Data of many rows: memory and time of reading them, tokenising them and drawing an epoch's batches."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.data.batches import training_batches
from pipeline.data.load import load_all_rows
from pipeline.data.tables import write_table
from pipeline.data.tasks import Task
from pipeline.data.tokens import tokenise
from pipeline.models.backbone import open_backbone
from pipeline.system import process

from .backbones import NANO, backbone_folder, worded
from .report import Report
from .setting import Setting
from .timing import Row

_TASK = Task(name="rows", kind="classes", text=("text",), label="label", classes=("no", "yes"), metric="accuracy")
_WORDS, _MAX_LENGTH, _BATCH = (4, 12), 32, 32
_DEV = 1000
_PART = 100_000


def run(setting: Setting) -> Report:
    sizes = [500] if setting.quick else [setting.rows] if setting.rows else [10_000, 100_000, 1_000_000]
    return Report(
        (
            f"Texts of {_WORDS[0]} to {_WORDS[1] - 1} words, batches of {_BATCH}; a process of its own for"
            " each line. Seconds of its processor time. MB (2^20 bytes) of memory of its own, the most that was seen:"
            " at its start, with libraries and tokenizer; when the rows are read, hashed and looked for in dev; when"
            " they are tokenised; when every batch of an epoch was drawn. Mapped: of files, which the system takes"
            " back when it needs room. Cached: the tokens are found in the cache.",
        ),
        (
            [
                measured(setting, suffix, rows, cached)
                for suffix in (".parquet", ".csv")
                for rows in sizes
                for cached in (False, True)
            ],
        ),
    )


def measured(setting: Setting, suffix: str, rows: int, cached: bool) -> Row:
    data = setting.scratch / f"rows-{rows}{suffix}"
    if not data.is_dir():
        _write(data / _TASK.name, suffix, rows)
    environment = os.environ | {"PIPELINE_CACHE": str(data / "cache")}
    command = [sys.executable, "-m", "benchmarks.data", str(worded(setting, backbone_folder(setting, NANO))), str(data)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return {"file": suffix, "rows": rows, "cached": "yes" if cached else "no", **json.loads(done.stdout)}


def _write(folder: Path, suffix: str, rows: int) -> None:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(5, NANO.vocabulary)])

    def part(first: int, size: int) -> pd.DataFrame:
        texts = [" ".join(generator.choice(words, count)) for count in generator.integers(*_WORDS, size)]
        labels = generator.integers(0, 2, size)
        return pd.DataFrame({"id": np.arange(first, first + size), "text": texts, "label": labels})

    part(0, _DEV).to_parquet(folder / "dev.parquet")
    whole = pd.concat([part(first, min(_PART, rows - first)) for first in range(0, rows, _PART)], ignore_index=True)
    write_table(whole, folder / f"train{suffix}")


class _Memory:
    """The most memory of its own that this process had, in MB, and the most of mapped files, seen 20 times a second."""

    def __init__(self) -> None:
        self.own = self.mapped = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def look(self) -> None:
        lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        sizes = {words[0]: int(words[1]) / 1024 for words in lines if words[0] in ("RssAnon:", "RssFile:")}
        self.own, self.mapped = max(self.own, sizes["RssAnon:"]), max(self.mapped, sizes["RssFile:"])

    def _watch(self) -> None:
        while True:
            self.look()
            time.sleep(0.05)


@contextmanager
def _phase(name: str, memory: _Memory, into: dict[str, float]) -> Iterator[None]:
    memory.own = memory.mapped = 0.0
    started = time.process_time()
    yield
    into[f"{name}, s"] = time.process_time() - started
    memory.look()
    into[f"{name}, MB"] = memory.own


def _child(folder: str, data: str) -> dict[str, float]:
    process.set_up()
    tokenizer = open_backbone(folder).tokenizer
    memory, found = _Memory(), dict[str, float]()
    memory.look()
    found["start, MB"] = memory.own
    with _phase("read", memory, found):
        rows = load_all_rows(_TASK, Path(data))
        _ = rows.fingerprint, rows.dev_in_train
    with _phase("tokenise", memory, found):
        split = tokenise(rows.train, tokenizer, "cross", _MAX_LENGTH)
    with _phase("batches", memory, found):
        for _ in training_batches(split, _BATCH, 1, 0, 0, tokenizer.pad_token_id):
            pass
    return found | {"mapped, MB": memory.mapped}


if __name__ == "__main__":
    print(json.dumps(_child(*sys.argv[1:])))
