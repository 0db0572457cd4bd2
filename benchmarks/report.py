"""Report: a benchmark's tables, on the screen and as JSON with everything needed to repeat it."""

import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from pipeline.runs.outcome import provenance
from pipeline.system.atomic import make_folder, write_json

from .setting import Setting
from .timing import Rows, Sample


@dataclass(frozen=True)
class Report:
    """One or more tables, whose rows each have the same columns, and notes for the reader."""

    notes: tuple[str, ...]
    tables: tuple[Rows, ...] = ()

    def markdown(self) -> str:
        return "\n\n".join([*map(_table, self.tables), *self.notes])

    def write(self, file: Path, name: str, setting: Setting) -> None:
        """Write the report with every measurement, and hardware, versions, commit, date and command."""
        make_folder(file.parent)
        write_json(
            file,
            {
                "benchmark": name,
                "tables": [
                    [{key: _plain(value) for key, value in row.items()} for row in rows] for rows in self.tables
                ],
                "notes": list(self.notes),
                "quick": setting.quick,
                "repeats": setting.repeats,
                "threads": torch.get_num_threads(),
                **provenance(),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
            },
        )


def _table(rows: Rows) -> str:
    names = list(rows[0])
    lines = [names, ["---" if isinstance(value, str) else "---:" for value in rows[0].values()]]
    lines += [[_cell(row[name]) for name in names] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, Sample):
        return f"{value:{_digits(value.median)}}"
    return f"{value:{_digits(value)}}" if isinstance(value, float) else str(value)


def _digits(value: float) -> str:
    """A format with three significant digits, or all before the point, and no exponent."""
    return ",.0f" if abs(value) >= 100 else ".1f" if abs(value) >= 10 else ".2f" if abs(value) >= 1 else ".3f"


def _plain(value: Any) -> Any:
    return {"median": value.median, "values": list(value.values)} if isinstance(value, Sample) else value
