"""RunRequest: what is to be trained, before anything is read or built."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.records.ledger import Kind, RunRecord
from pipeline.records.store import Artifact
from pipeline.settings.recipe import Recipe


@dataclass(frozen=True)
class RunRequest:
    """What is to be trained. Equal requests on equal data and backbone are one run."""

    kind: Kind
    task: str
    recipe: Recipe
    seed: int
    limit: int | None = None
    adapters: tuple[Artifact, ...] = ()
    """The sources of a fusion, in its order; for an adapter those of other tasks, of which it may begin as one."""
    start: RunRecord | None = None
    """The fine-tuning that sequential tuning starts from."""
    keep_weights: bool = False
    """Keep the trained weights even of a kind that does not, since another run starts from them."""
