"""RunRequest: what is to be trained, before anything is read or built."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pipeline.records.ledger import Kind, RunRecord
from pipeline.records.store import Artifact
from pipeline.settings.recipe import Recipe


@dataclass(frozen=True)
class Part:
    """A task to train on."""

    task: str
    recipe: Recipe
    limit: int | None = None
    """Training rows; None is all."""


@dataclass(frozen=True)
class RunRequest:
    """What is to be trained. Equal requests on equal data and backbone are one run."""

    kind: Kind
    parts: tuple[Part, ...]
    """One task, or for joint training several."""
    seed: int
    adapters: tuple[Artifact, ...] = ()
    """The sources of a fusion, in its order; for an adapter those of other tasks that it may be warm-started from."""
    start: RunRecord | None = None
    """The fine-tuning whose backbone is tuned further: of sequential tuning, or before joint training."""
    keep_weights: bool = False
    """Keep the trained weights even of a kind that does not: another run starts from them, or they are to predict."""

    @classmethod
    def single(cls, kind: Kind, task: str, recipe: Recipe, seed: int, limit: int | None = None, **rest: Any) -> Self:
        """The request to train for one task."""
        return cls(kind, (Part(task, recipe, limit),), seed, **rest)

    @classmethod
    def joint(
        cls,
        tasks: Sequence[str],
        recipes: Mapping[str, Recipe],
        *,
        seed: int,
        limits: Mapping[str, int | None],
        **rest: Any,
    ) -> Self:
        """The request to train one model for all of ``tasks`` at once; their order does not count."""
        return cls("multitask", tuple(Part(task, recipes[task], limits[task]) for task in tasks), seed, **rest)
