"""What an artifact or a run names as its origin."""

from pydantic import BaseModel, ConfigDict, Field

from pipeline.data.tasks import Name


class SourceRun(BaseModel):
    """A run this one is built on: an adapter of a fusion, or the step before in sequential tuning."""

    model_config = ConfigDict(frozen=True)

    task: Name
    run: str
    digest: str = Field(description="sha256 over what was taken from it")
    tensors: str | None = Field(None, description="sha256 over an adapter's tensors as they were before training")
