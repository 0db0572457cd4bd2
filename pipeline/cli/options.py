"""Options that several verbs share; importing them loads nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from pipeline.data.tasks import Encoding, HeadKind, Pooling
from pipeline.settings.recipe import Precision, Recipe
from pipeline.system.errors import PipelineError
from pipeline.system.reading import present

if TYPE_CHECKING:
    from pipeline.runs.workspace import Workspace

_MOST_GB = 10**6

Flag = Annotated[bool, Parameter(negative=())]


def _check_path(_type: object, path: Path | None) -> None:
    if path is not None:
        present(path)


FileOrFolder = Annotated[Path, Parameter(validator=_check_path)]
"""A path that the system can look for; what it refuses is told before anything is read or trained."""


def check_text(arguments: Sequence[str]) -> None:
    """Raise a :class:`PipelineError` for an argument with a null byte, or that is not UTF-8: libraries refuse both."""
    for argument in arguments:
        if "\0" in argument or any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise PipelineError(f"argument {argument!a}: not UTF-8 text: rename what it names")


@Parameter(name="*", group="Where")
@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a command reads and writes."""

    backbone: str = "google-bert/bert-base-uncased"
    "Hub id or local folder of a BERT-family encoder."
    data: FileOrFolder | None = None
    "Folder with <task>/{train,dev,test} as parquet, csv, tsv or jsonl; without it, the task's Hub data set."
    store: FileOrFolder = Path("adapters_store")
    "Where trained adapters and fusions are kept."
    reports: FileOrFolder = Path("reports")
    "Where runs, tables and pages are kept."

    def workspace(self, **settings: Any) -> Workspace:
        from pipeline.runs.workspace import Workspace

        return Workspace(self.backbone, self.data, self.store, self.reports, **settings)


@Parameter(name="*", group="Training")
@dataclass(frozen=True, kw_only=True)
class Training:
    """How a run trains; what is not given comes from --recipe, then from the task and the method."""

    epochs: int | None = None
    "Passes over the training rows (head, adapter, full: 4; fusion: 3; standard fusion: 2)."
    learning_rate: float | None = None
    "Peak learning rate (head, adapter, fusion: 1e-3; standard fusion: 5e-4; full: 5e-5)."
    backbone_learning_rate: float | None = None
    "Peak learning rate of pretrained weights (as --learning-rate)."
    head_learning_rate: float | None = None
    "Peak learning rate of heads (as --learning-rate)."
    batch_size: int | None = None
    "Rows per optimiser step, over all processes (32)."
    gradient_accumulation_steps: int | None = None
    "Pieces a batch is run in, to save memory (1)."
    max_length: int | None = None
    "Longest input in tokens (from the task)."
    encoding: Encoding | None = None
    "Pairs as one input or two (from the task)."
    pooling: Pooling | None = None
    "Sentence vector: first token or mean over tokens (from the task)."
    head: HeadKind | None = None
    "What turns sentence vectors into a prediction (from the task; cosine and difference imply siamese)."
    early_stopping_patience: int | None = None
    "Stop after so many epochs without a better dev score (off)."
    precision: Precision | None = None
    "auto is bf16 where that is clearly faster, measured at the start, else fp32 (auto)."
    recipe: FileOrFolder | None = None
    "TOML file with any key of a recipe; flags override it."

    def values(self, **flags: Any) -> dict[str, Any]:
        """What file and flags set, unchecked; ``flags`` are options of one verb alone."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "recipe"} | flags
        values = Recipe.read(self.recipe) if self.recipe else {}
        return values | {name: value for name, value in given.items() if value is not None}

    def parse(self, trainable: str, **flags: Any) -> Recipe:
        """The recipe of file and flags, for a verb that trains ``trainable``."""
        values = self.values(**flags)
        where = str(self.recipe) if self.recipe else "options"
        named = values.setdefault("trainable", trainable)
        if named != trainable:
            raise PipelineError(f"{where}: trainable = '{named}', but this command trains '{trainable}': leave it out")
        return Recipe.parse(values, where)


@Parameter(name="*", group="Run")
@dataclass(frozen=True, kw_only=True)
class Running:
    """What a training command does around training."""

    limit: int | None = None
    "Use only N training rows (a seeded, stratified sample)."
    drop_overlap: Flag = False
    "Drop the training rows whose text also stands in dev."
    track: Literal["tensorboard"] | None = None
    "Log the curve to a tracker, in the run's folder."
    checkpoint_seconds: float = 60.0
    "Keep the state of an unfinished run so often."
    cache_gb: float = 2.0
    "Memory in GiB for what frozen layers give, so that it is computed once and not every epoch; 0 is off."
    json: Flag = False
    "Print the result as one JSON object on the last line."

    def settings(self) -> dict[str, Any]:
        if not 0 <= self.cache_gb <= _MOST_GB:
            raise PipelineError(f"--cache-gb {self.cache_gb}: give 0 to {_MOST_GB}")
        if not self.checkpoint_seconds >= 0:
            raise PipelineError(f"--checkpoint-seconds {self.checkpoint_seconds}: give 0 or more")
        return {
            "drop_overlap": self.drop_overlap,
            "track": self.track,
            "checkpoint_seconds": self.checkpoint_seconds,
            "cache_gb": self.cache_gb,
        }
