"""The resources that a cell of a study needs on a cluster. They do not affect a run's identity."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pipeline.settings.fields import Real, Whole

ExecutorName = Literal["local", "ray", "slurm"]


class Resources(BaseModel):
    """The resources for every cell under ``--executor ray`` and ``slurm``."""

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
    partition: str | None = Field(None, min_length=1, max_length=200, description="slurm: where to queue")

    @field_validator("gpus")
    @classmethod
    def _share_or_whole(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError("give a share of one GPU (0 to 1) or a whole number")
        return value

    @model_validator(mode="after")
    def _partition_is_a_word(self) -> Self:
        if self.partition is not None and not self.partition.isprintable():
            raise ValueError("partition: give a name")
        return self

    @property
    def processes(self) -> int:
        """How many processes train a cell together: one per GPU."""
        return max(1, int(self.gpus))
