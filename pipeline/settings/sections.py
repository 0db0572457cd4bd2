"""The tables of a study besides its rows: low-resource curve, scored rows, published numbers, resources."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pipeline.settings.fields import Real, RowName, Rows, TaskName, Whole, no_repeats

ExecutorName = Literal["local", "ray", "slurm"]
ScoredOn = Literal["half", "test", "held-out", "train", "dev"]


class Curve(BaseModel):
    """Low-resource curves: trains the rows again on few rows of the target. Sources keep all of theirs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: tuple[Rows, ...] = Field((100, 300, 1000), min_length=1, description="training rows of the target")
    methods: tuple[RowName, ...] | None = Field(
        None, min_length=1, description="the rows that have a curve; unset: all"
    )
    targets: tuple[TaskName, ...] | None = Field(
        None, min_length=1, description="targets that have a curve; unset: all"
    )
    recipe: dict[str, Any] = Field({}, description="overrides the rows' recipes: few rows need more epochs")

    _no_repeats = field_validator("rows", "methods", "targets")(no_repeats)


class ScoredRows(BaseModel):
    """Which labelled rows select, and which are scored.

    ``half``: one half of dev selects, the other is scored. ``test``: dev selects, the labelled test split is scored.
    ``held-out``: dev selects, rows of train that no task trains on are scored. ``train``: a part of the training rows
    selects, dev is scored. ``dev``: dev selects and is scored.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: ScoredOn = Field("dev", description="which rows are scored")
    tasks: dict[TaskName, ScoredOn] = Field({}, description="the same for one task")
    share: Real = Field(
        0.2, gt=0, lt=1, description="train: share of the training rows (after limits) that are validation rows"
    )
    size: Rows = Field(1000, description="held-out: number of training rows that are held out, at most half of them")
    seed: Whole = Field(0, ge=0, lt=2**32, description="seed of the split, which is the same for all rows and seeds")

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        """``scoring = "half"`` is short for ``scoring = { rows = "half" }``."""
        return {"rows": value} if isinstance(value, str) else value

    def of(self, *names: str) -> ScoredOn:
        """The scored rows of the task with these names."""
        return next((self.tasks[name] for name in names if name in self.tasks), self.rows)


class PublishedCurve(BaseModel):
    """The row and task whose epochs are printed beside a published table of epochs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: RowName = Field(description="the study's row")
    task: TaskName = Field(description="the target")


class Published(BaseModel):
    """Tables of a report, from ``reporting/published/values.csv``, to print beside the study's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    report: str = Field(description="the report's name in values.csv")
    table: str | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        description="a table of the report, or several"
    )
    split: str = Field("dev", description="the split of the tables' scores")
    curves: dict[str, PublishedCurve] = Field({}, description="table of epochs -> its row and target")
    tasks: dict[str, TaskName] = Field(min_length=1, description="metric column of the table -> task")

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,) if isinstance(self.table, str) else self.table


class Resources(BaseModel):
    """The resources for every cell under ``--executor ray`` and ``slurm``; they do not affect a run's identity."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpus: Whole = Field(1, ge=1, le=4096, description="cores, and threads of torch")
    gpus: Real = Field(
        0, ge=0, le=64, description="a share of one GPU (0.25: four cells on a GPU), or several whole ones"
    )
    memory_gb: Real | None = Field(None, gt=0, le=10**5, description="main memory in GiB; not set: not counted")
    retries: Whole = Field(3, ge=0, le=1000, description="how often a cell whose worker is lost is resumed elsewhere")
    minutes: Whole = Field(
        60 * 24, ge=1, le=60 * 24 * 365, description="slurm: time limit of a job; its cell resumes in the next"
    )
    partition: str | None = Field(None, pattern=r"^\S+$", max_length=200, description="slurm: where to queue")

    @field_validator("gpus")
    @classmethod
    def _share_or_whole(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError("give a share of one GPU (0 to 1) or a whole number")
        return value

    @property
    def processes(self) -> int:
        """How many processes train a cell together: one per GPU."""
        return max(1, int(self.gpus))
