"""The stored outcome of a study: for every cell a run, or the reason why there is none."""

from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from pipeline.settings.kinds import KINDS
from pipeline.settings.study import Study


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


class Entry(BaseModel):
    """One cell of a study: a run, or the reason why there is none.

    A run may serve several cells: the model of a multitask run answers every target.
    """

    model_config = ConfigDict(frozen=True)

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


class StudyResult(BaseModel):
    """A study and its entries; stored as ``study.json``."""

    model_config = ConfigDict(frozen=True)

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
