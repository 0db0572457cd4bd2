"""What is made of several runs, on disk: the outcome of a study, and ensembles.

``<reports>/<study>/study.json`` has for every cell a run, or the reason why there is none.
``<reports>/ensembles/<name>/`` has ``ensemble.json`` and the ensemble's predictions on dev.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import pandas as pd
from pydantic import BaseModel, Field, model_validator

from pipeline.data.labels import EnsembleRule
from pipeline.data.tables import write_table
from pipeline.data.tasks import Metric, Name, is_name
from pipeline.settings.kinds import KINDS
from pipeline.settings.study import Study
from pipeline.system.atomic import new_folder, write_json
from pipeline.system.errors import PipelineError, noted
from pipeline.system.reading import present, read_model

ChosenOn = Literal["half", "all", "dev"]
"""One half of dev, with scores on the other; all of dev; or all of dev while the runs are scored on other rows."""

QUALIFICATION = (
    "slightly optimistic: the members' epochs and other choices of their runs were made on all of dev, including this"
    " half"
)
"""Accompanies every score on the half of dev that members and weights were not chosen on."""


@dataclass(frozen=True, order=True)
class Line:
    """A line of the tables: a row of the study, or a row of sequential fine-tuning with one of its sources."""

    row: str
    source: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``<row>`` or ``<row>:<source>``, the form that files hold and that ``str`` writes."""
        row, _, source = text.partition(":")
        return cls(row, source)

    def __str__(self) -> str:
        return f"{self.row}:{self.source}" if self.source else self.row


class Entry(BaseModel, frozen=True):
    """One cell of a study: a run, or the reason why there is none.

    A run may serve several cells: the model of a multitask run answers every target.
    """

    method: str
    """The line as text."""
    target: str
    seed: int
    rows: int | None = None
    """Training rows of the target at a point of the low-resource curve; None in the main table."""
    run: str | None = None
    total_seconds: float | None = None
    """Training seconds, including the runs it is built on and all trials with this seed."""
    trials: tuple[str, ...] = ()
    """The trials that were compared on dev for the recipe, including this run or its counterpart with another seed."""
    source_trials: tuple[str, ...] = ()
    """The trials of the runs that it is built on, without the chosen ones."""
    error: str | None = None

    @property
    def line(self) -> Line:
        return Line.parse(self.method)


class StudyResult(BaseModel, frozen=True):
    """A study and its entries; stored as ``study.json``."""

    study: Study
    backbone: str
    entries: tuple[Entry, ...]
    shared_text: tuple[str, ...] = ()
    """Sentences that say which targets share texts with tasks that rows use for them."""

    @property
    def tried(self) -> set[str]:
        """The trials of all cells, and of the runs that these are built on."""
        return {run for entry in self.entries for run in (*entry.trials, *entry.source_trials)}

    @property
    def spare_trials(self) -> set[str]:
        """The trials that no cell kept; a page shows their recipes, number and cost.

        It shows their scores only if a cell is built on them: the target's adapter in a fusion, chosen with one seed,
        is only a trial for the other seeds.
        """
        return self.tried - {entry.run for entry in self.entries}

    @model_validator(mode="after")
    def _fits_the_study(self) -> Self:
        study = self.study
        on_curve = study.curve.methods if study.curve is not None else None
        for name in (*study.methods, *(on_curve or ())):
            if name not in study.rows and name not in KINDS:
                raise ValueError(f"study.methods: '{name}' is not a method, nor a row of study {study.name}")
        for entry in self.entries:
            if entry.line.row not in study.methods or entry.target not in study.targets:
                raise ValueError(f"entries: study {study.name} has no '{entry.method}' on '{entry.target}'")
        return self


class Member(BaseModel, frozen=True):
    """A run that takes part in the ensemble."""

    run: str
    kind: str
    backbone: str
    seed: int
    weight: float = Field(gt=0)
    dev: float = Field(description="its score on all of dev")


class Scores(BaseModel, frozen=True):
    """Scores on some rows of dev."""

    rows: int
    ensemble: float
    best: float = Field(description="of the model that is best by itself on the rows chosen on")


class EnsembleRecord(BaseModel, frozen=True):
    """The content of ``ensemble.json``."""

    schema_version: int = 1
    name: Name
    task: Name
    metric: Metric
    meaning: dict[str, Any] = Field(description="classes or range of the task when it was made")
    rule: EnsembleRule
    members: tuple[Member, ...] = Field(min_length=1)
    best: str = Field(description="the run that is best by itself on the rows chosen on")
    considered: tuple[str, ...] = Field(description="runs that the members were chosen from")
    chosen_on: ChosenOn
    seed: int = Field(description="of the halves")
    dev_rows: str = Field(description="fingerprint of the rows that all chose by and were scored on")
    chosen: Scores = Field(description="on the rows that members and weights were chosen on: flattering")
    held_out: Scores | None = Field(description=f"on test rows, or on the other half of dev, {QUALIFICATION}")
    provenance: dict[str, Any]
    finished_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def drop(self) -> float | None:
        """The ensemble's score on the rows that chose members and weights, minus its score on the other rows.

        The members' epochs were selected on both, so the optimism of that selection does not show here.
        """
        return None if self.held_out is None else self.chosen.ensemble - self.held_out.ensemble

    def summary(self) -> dict[str, Any]:
        """The object that the command prints with ``--json``."""
        return {
            "ensemble": self.name,
            **self.model_dump(include={"task", "metric", "rule"}),
            "members": {member.run: member.weight for member in self.members},
            **self.model_dump(include={"chosen", "held_out"}),
            "held_out_is": QUALIFICATION if self.chosen_on == "half" else None,
            "drop": self.drop,
        }


class Ensembles:
    """The ensembles of one reports folder."""

    def __init__(self, reports: Path) -> None:
        self.root = reports / "ensembles"

    def find(self, name: str) -> EnsembleRecord | None:
        """The ensemble called ``name``, or None; a :class:`PipelineError` if its file is damaged."""
        file = self.root / name / "ensemble.json"
        if not is_name(name) or not present(file):
            return None
        return read_model(EnsembleRecord, file, "delete it and make the ensemble again")

    def names(self) -> list[str]:
        return sorted(file.parent.name for file in self.root.glob("*/ensemble.json"))

    def read_all(self) -> tuple[list[EnsembleRecord], list[str]]:
        """Every readable ensemble by name, and why the others cannot be read."""
        records, problems = list[EnsembleRecord](), list[str]()
        for name in self.names():
            with noted(problems):
                if (record := self.find(name)) is not None:
                    records.append(record)
        return records, problems

    def why_kept(self, run: str) -> list[str]:
        """Why ensembles need the model of ``run``."""
        users = [each.name for each in self.read_all()[0] if run in {member.run for member in each.members}]
        return [f"run {run} is a member of the ensemble in {self.root / name}" for name in users]

    def named(self, name: str) -> EnsembleRecord:
        """The ensemble called ``name``, or a :class:`PipelineError` that lists the existing ones."""
        record = self.find(name)
        if record is None:
            here = ", ".join(self.names()) or "none"
            raise PipelineError(
                f"no ensemble '{name}' in {self.root} (there: {here}): make it with"
                f" python -m pipeline ensemble --target TASK --name {name}"
            )
        return record

    def write(self, record: EnsembleRecord, predictions: pd.DataFrame) -> Path:
        """Write the record and the predictions, both or neither; returns their folder."""
        folder = self.root / record.name
        with new_folder(folder) as temporary:
            write_table(predictions, temporary / "predictions.parquet")
            write_json(temporary / "ensemble.json", record.model_dump(mode="json"))
        return folder
