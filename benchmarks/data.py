"""Large data: the memory and time to read and tokenise rows and to draw an epoch's batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.data.batches import training_batches
from pipeline.data.tables import write_table
from pipeline.data.task_data import load_all_rows
from pipeline.data.tasks import Task
from pipeline.data.tokens import tokenise
from pipeline.models.backbone import open_backbone

from . import child
from .backbones import NANO, backbone_folder, worded
from .child import Step
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
            f"Texts of {_WORDS[0]} to {_WORDS[1] - 1} words, batches of {_BATCH}; a separate process for each line."
            " Read: also hashed, and checked against dev. Cached: the tokens come from the cache. Batches: all of an"
            " epoch are drawn. CPU seconds; MB of peak anonymous memory beyond what libraries and tokenizer take,"
            " without mapped files, whose pages the system can reclaim.",
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
    backbone = worded(setting, backbone_folder(setting, NANO))
    found = child.measured(setting, steps, backbone, data, PIPELINE_CACHE=str(data / "cache"))
    return {"file": suffix, "rows": rows, "cached": "yes" if cached else "no", **found}


def _write(folder: Path, suffix: str, rows: int) -> None:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(5, NANO.vocabulary)])

    def part(first: int, size: int) -> pd.DataFrame:
        drawn = generator.choice(words, (size, _WORDS[1] - 1)).tolist()
        counts = generator.integers(*_WORDS, size).tolist()
        texts = [" ".join(row[:count]) for row, count in zip(drawn, counts, strict=True)]
        labels = generator.integers(0, 2, size)
        return pd.DataFrame({"id": np.arange(first, first + size), "text": texts, "label": labels})

    part(0, _DEV).to_parquet(folder / "dev.parquet")
    whole = pd.concat([part(first, min(_PART, rows - first)) for first in range(0, rows, _PART)], ignore_index=True)
    write_table(whole, folder / f"train{suffix}")


def steps(folder: str, data: str) -> dict[str, Step]:
    """Read the rows, tokenise them and draw an epoch's batches."""
    tokenizer = open_backbone(folder).tokenizer
    found: dict[str, Any] = {}

    def read() -> None:
        found["rows"] = rows = load_all_rows(_TASK, Path(data))
        _ = rows.fingerprint, rows.dev_in_train

    def tokens() -> None:
        found["split"] = tokenise(found["rows"].train, tokenizer, "cross", _MAX_LENGTH)

    def batches() -> None:
        for _ in training_batches(found["split"], _BATCH, 1, 0, 0, tokenizer.pad_token_id):
            pass

    return {"read": read, "tokenise": tokens, "batches": batches}
