"""The interface of a kind of row; :mod:`pipeline.settings.kinds` has a file for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pipeline.settings.recipe import Trainable

if TYPE_CHECKING:
    from pipeline.settings.rows import Row
    from pipeline.settings.study import Study

SOME_KEYS: dict[str, str] = {
    "order": "only sequential fine-tuning goes through tasks in turn",
    "through": "only sequential fine-tuning or an adapter goes through tasks in turn",
    "own": "only a fusion reads an adapter of its target",
    "variant_of": "only a fusion has variants",
    "after": "only joint training (multitask) can start after other tasks",
    "members": "only an ensemble has members: of names one row",
    "most": "only an ensemble has members",
    "experts": "only a merged adapter or an ensemble takes several runs of a row",
    "rule": "only an ensemble joins predictions",
}
"""The keys of a row that only some kinds have, and the reason."""


class Kind:
    """A kind of row: what it trains, what it builds on, and the mistakes that its rows can have."""

    trains: ClassVar[tuple[Trainable, ...]]
    """What its rows may train; the first is the default."""
    title: ClassVar[str]
    keys: ClassVar[frozenset[str]] = frozenset()
    """Its keys among :data:`SOME_KEYS`."""
    takes: ClassVar[Literal["head", "weights", "adapter", "fusion"] | None] = None
    """What a run takes from the runs it builds on: a head; all weights; adapters, to start from one or to merge them;
    or adapters to fuse."""
    artifact: ClassVar[Literal["adapter", "fusion"] | None] = None
    """What its runs put into the store; None if they are not artifacts."""
    base: ClassVar[str | None] = None
    """The kind whose finished runs all its rows start from."""
    joining: ClassVar[str] = ""
    """What all its rows do with several tasks, in words; empty if a row may need only one."""
    is_by_source: ClassVar[bool] = False
    """A row has one run per source of a target."""
    is_joint: ClassVar[bool] = False
    """Trains on a target and its sources at once."""
    combines: ClassVar[bool] = False
    """Takes an adapter of each of its tasks."""
    is_ensemble: ClassVar[bool] = False
    """Joins the predictions of other rows' runs and trains nothing."""
    keeps_weights: ClassVar[bool] = False
    """Its runs always keep their weights, because they are few."""
    builds_on_target: ClassVar[bool] = False
    """It builds on runs of the target, so that their trials count as its trials."""
    builds_on_fresh: ClassVar[bool] = False
    """The adapters that it builds on must be newly initialised."""

    @property
    def takes_adapters(self) -> bool:
        return self.takes in ("adapter", "fusion")

    @property
    def is_one_adapter(self) -> bool:
        """Whether its runs train an adapter for a single task."""
        return self.artifact == "adapter" and not self.combines

    @property
    def answers_for_several(self) -> bool:
        """Whether one of its runs has several tasks or several models."""
        return self.is_joint or self.is_by_source or self.is_ensemble

    def built_on(self, row: Row) -> str | None:
        """The kind whose finished runs a row's runs start from."""
        return self.base

    def joins(self, row: Row) -> str:
        """What a row does with several tasks, in words; empty if it needs only one."""
        return self.joining

    def completed(self, values: dict[str, Any]) -> dict[str, Any]:
        """The raw recipe of a row, with the settings that the kind fixes."""
        return {key: value for key, value in values.items() if key != "merge"}

    def merge_mistake(self, rule: str) -> str:
        """The mistake in a recipe with this merge rule; empty if there is none."""
        return "" if rule == "none" else "only a row of merge merges adapters: leave merge out"

    def mistakes(self, row: Row, rows: Mapping[str, Row]) -> Iterator[str]:
        """Mistakes in the keys that only this kind has, among the ``rows`` of a study."""
        yield from ()

    def mistakes_in(self, study: Study, name: str, rows: Mapping[str, Row]) -> Iterator[str]:
        """What does not fit the study in its row ``name``; each mistake begins with the key."""
        yield from ()
