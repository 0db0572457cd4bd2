"""Workspace: where a command reads and writes, shared by all stages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from pipeline.data.tasks import Task
from pipeline.methods.registry import check_fits
from pipeline.models.backbone import Backbone, open_backbone
from pipeline.models.repository import family_of
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact, Store
from pipeline.runs.splits import Splits
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.settings.study import ScoredRows
from pipeline.system.memo import Memo
from pipeline.system.streams import announce, notice
from pipeline.training.devices import resolve_precision


@dataclass(frozen=True)
class Workspace:
    """The backbone, data, store and reports of one command.

    ``data`` is the folder of ``--data``; ``more_data`` are searched after it. ``cache_gb`` bounds the cached outputs of
    frozen layers; like ``checkpoint_seconds`` it does not affect a run's identity.
    """

    backbone_name: str
    data: Path | None
    store_root: Path
    reports: Path
    drop_overlap: bool = False
    track: str | None = None
    checkpoint_seconds: float = 60.0
    cache_gb: float = 2.0
    dev_limit: int | None = None
    """Number of rows of each task to select by, and to score, the same for every run; part of a run's data. Rows held
    out of train are all scored."""
    scoring: ScoredRows = field(default_factory=ScoredRows)
    """Which rows validate and which test; part of a run's data."""
    more_data: tuple[Path, ...] = ()
    held_out: tuple[str, ...] = ()
    """Targets whose validation and test rows no other task trains on."""
    is_study: bool = False
    """Whether a study trained the adapters that runs start from or fuse, which keeps them from its targets' rows."""
    _memo: Memo = field(default_factory=Memo, init=False, repr=False, compare=False)

    @cached_property
    def family(self) -> str:
        """The backbone's model type, found without reading its weights."""
        return family_of(self.backbone_name)

    @cached_property
    def backbone(self) -> Backbone:
        announce(f"reading backbone {self.backbone_name}")
        return open_backbone(self.backbone_name)

    def backbone_for(self, *recipes: Recipe) -> Backbone:
        """The backbone for models of ``recipes``: with its pooler if one of them pools by it."""
        if not any(recipe.pooling == "pooler" for recipe in recipes):
            return self.backbone
        return self._memo.once(("pooler", self.backbone_name), self.backbone.with_pooler)

    @cached_property
    def splits(self) -> Splits:
        """The rows of tasks, each task read once per command."""
        folders = () if self.data is None else (self.data, *self.more_data)
        return Splits(folders, self.drop_overlap, self.dev_limit, self.scoring, self.held_out)

    @cached_property
    def store(self) -> Store:
        return Store(self.store_root)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.reports)

    def task(self, name: str) -> Task:
        """A task by name, alias or file."""
        return self.splits.task(name)

    def tell_once(self, text: str, about: object = None) -> None:
        """Say once on stderr what is true of the data, and so of every run that reads them.

        Args:
            about: only the first text about the same thing is said; by default the text itself.
        """
        self._memo.once(("told", about or text), lambda: notice(text))

    def on(self, backbone: str | None) -> Workspace:
        """This workspace with another backbone, which is read only once; None keeps the present one."""
        if backbone is None or backbone == self.backbone_name:
            return self
        return self._memo.once(("on", backbone), lambda: self._with_backbone(backbone))

    def _with_backbone(self, name: str) -> Workspace:
        other = replace(self, backbone_name=name)
        # The rows, and the notes about them, do not depend on the backbone.
        vars(other).update(splits=self.splits, _memo=self._memo)
        return other

    def apart_from(self, targets: Iterable[str]) -> Workspace:
        """This workspace, with the validation and test rows of ``targets`` closed to the training of other tasks."""
        names = tuple(dict.fromkeys(self.task(name).name for name in targets))
        if names == self.held_out:
            return self
        other = replace(self, held_out=names)
        vars(other).update(backbone=self.backbone)
        return other

    def resolve(self, recipe: Recipe, task: Task, joint: bool = False) -> Recipe:
        """``recipe`` resolved for training ``task`` here, with its extra tasks by name instead of alias."""
        key = self.backbone_name, recipe, task.model_dump_json(), joint
        return self._memo.once(key, lambda: self._resolved(recipe, task, joint))

    def _resolved(self, recipe: Recipe, task: Task, joint: bool) -> Recipe:
        check_fits(recipe, self.family)
        named = [source.model_copy(update={"task": self.task(source.task).name}) for source in recipe.extra]
        own = recipe.model_copy(update={"extra": tuple(sorted(named, key=lambda source: source.task))})
        precision, backbone = resolve_precision(recipe.precision), self.backbone
        return resolve(own, task, precision, backbone.max_length, backbone.layers, joint)

    def finished(self, run: str, with_model: bool) -> RunRecord | None:
        """The ledger's record of ``run``; with ``with_model`` only if its artifact or its weights are still there."""
        record = self.ledger.find(run)
        if record is None or not with_model:
            return record
        if KINDS[record.kind].artifact is None:
            # Weights without their hash: killed between writing the two files.
            return record if record.weights_sha256 and self.ledger.weights_file(run).is_file() else None
        artifact = self.store.find_unchanged(run, record.artifact_digest)
        # An artifact that lost a file counts as lost, so its run is trained again; elsewhere the file is reported.
        if artifact is None or not artifact.is_whole:
            return None
        return record.model_copy(update={"artifact": str(artifact.folder)})

    def adapter_of(self, record: RunRecord) -> Artifact:
        """The artifact that a run put into the store, even if it is no longer there."""
        assert record.manifest is not None
        return Artifact(folder=self.store.root / record.manifest.place, manifest=record.manifest)
