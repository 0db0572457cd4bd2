"""The kinds of rows under the names that studies use: what each trains, takes and builds on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pipeline.settings.recipe import Trainable, layered, table

if TYPE_CHECKING:
    from pipeline.settings.rows import Row


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of row."""

    title: str
    trains: tuple[Trainable, ...]
    """What its rows may train; the first is the default."""
    keys: tuple[str, ...] = ()
    """The keys that its rows have and those of most other kinds lack."""
    takes: Literal["head", "weights", "adapter", "fusion"] | None = None
    """What a run takes from the runs it builds on: a head; all weights; adapters, to start from one or to merge them;
    or adapters to fuse."""
    artifact: Literal["adapter", "fusion"] | None = None
    """What its runs put into the store; None if they are not artifacts."""
    base: str | None = None
    """The kind whose finished runs its rows start from."""
    base_if: tuple[str, ...] = ()
    """Keys: a row starts from runs of ``base`` only if it has one of these; empty: all rows do."""
    needs_tasks: bool = False
    """Whether its rows need several tasks."""
    is_by_source: bool = False
    """Whether a row has one run per source of a target."""
    is_joint: bool = False
    """Whether it trains on a target and its sources at once."""
    combines: bool = False
    """Whether it takes an adapter of each of its tasks."""
    is_ensemble: bool = False
    """Whether it joins the predictions of other rows' runs and trains nothing."""
    keeps_weights: bool = False
    """Whether its runs always keep their weights, because they are few."""
    builds_on_target: bool = False
    """Whether it builds on runs of the target, so that their trials count as its trials."""
    builds_on_fresh: bool = False
    """Whether the adapters that it builds on must be newly initialised."""

    @property
    def takes_adapters(self) -> bool:
        return self.takes in ("adapter", "fusion")

    @property
    def is_one_adapter(self) -> bool:
        """Whether its runs train an adapter for a single task."""
        return self.artifact == "adapter" and not self.combines

    @property
    def merges(self) -> bool:
        """Whether it merges adapters into one."""
        return self.artifact == "adapter" and self.combines

    @property
    def answers_for_several(self) -> bool:
        """Whether one of its runs has several tasks or several models."""
        return self.is_joint or self.is_by_source or self.is_ensemble

    def built_on(self, row: Row) -> str | None:
        """The kind whose finished runs a row's runs start from."""
        return self.base if not self.base_if or any(getattr(row, key) for key in self.base_if) else None

    def joins(self, row: Row) -> bool:
        """Whether a row learns from several tasks."""
        if self.is_one_adapter:
            return self.built_on(row) is not None
        return self.needs_tasks and not (self.combines and row.experts)

    def completed(self, values: dict[str, Any]) -> dict[str, Any]:
        """The raw recipe of a row, with the merge rule that the kind fixes."""
        if not self.merges:
            return {key: value for key, value in values.items() if key != "merge"}
        is_usual = table(values.get("merge")).get("rule", "none") == "none"
        return layered(values, {"merge": "mean"}) if is_usual else values


KINDS: Mapping[str, Kind] = {
    # A head on the frozen backbone: the linear probe.
    "frozen": Kind(title="head only", trains=("head",), keeps_weights=True),
    # A linear probe in closed form: logistic or ridge regression on the frozen backbone's sentence vectors.
    "probe": Kind(title="regression on frozen vectors", trains=("probe",), keeps_weights=True),
    # Fine-tuning on the target alone; LP-FT starts with the head of a linear probe (Kumar et al. 2022).
    "full": Kind(
        title="full fine-tuning",
        trains=("full", "full+adapter"),
        takes="head",
        base="frozen",
        base_if=("of",),
        builds_on_target=True,
    ),
    # Fine-tuning on a source, or several in turn, then on the target (Phang et al. 2019).
    "sequential": Kind(
        title="sequential",
        trains=("full",),
        keys=("order", "through"),
        takes="weights",
        base="full",
        needs_tasks=True,
        is_by_source=True,
    ),
    "multitask": Kind(
        title="multitask",
        trains=("full", "full+adapter", "adapter", "head"),
        keys=("after",),
        takes="weights",
        base="full",
        base_if=("after",),
        needs_tasks=True,
        is_joint=True,
    ),
    # New, warm-started from another task's, or trained on several tasks in turn.
    "adapter": Kind(
        title="adapter",
        trains=("adapter",),
        keys=("through", "tested"),
        takes="adapter",
        artifact="adapter",
        base="adapter",
        base_if=("of", "through"),
        builds_on_fresh=True,
    ),
    # One adapter from those of the target and its sources, or from several runs of one row (a soup). Runs with the same
    # start and different batch orders lie in one basin, so the mean of their weights, and of their heads, is often
    # better than each of them (Wortsman et al. 2022, "Model soups").
    "merge": Kind(
        title="merged adapters",
        trains=("adapter",),
        keys=("experts",),
        takes="adapter",
        artifact="adapter",
        base="adapter",
        needs_tasks=True,
        combines=True,
        builds_on_target=True,
        builds_on_fresh=True,
    ),
    "fusion": Kind(
        title="fusion",
        trains=("fusion",),
        keys=("own", "variant_of", "experts"),
        takes="fusion",
        artifact="fusion",
        base="adapter",
        needs_tasks=True,
        combines=True,
        builds_on_target=True,
    ),
    "ensemble": Kind(title="ensemble", trains=("full",), keys=("members", "most", "rule", "experts"), is_ensemble=True),
}

SOME_KEYS = tuple(dict.fromkeys(key for kind in KINDS.values() for key in kind.keys))
"""The keys of a row that only some kinds have."""
