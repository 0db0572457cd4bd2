"""The models of a store behind HTTP, over one backbone in memory; a store that changes is picked up."""

import os
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from pipeline.records.store import Artifact, Store
from pipeline.runs.kept_models import best_of, other_meaning_note, parse_model, usable_artifacts
from pipeline.runs.model import Model, Text, load
from pipeline.settings.recipe import Precision
from pipeline.system.errors import PipelineError
from pipeline.system.streams import notice
from stages.explain import Answer, TooLong, answer_of, explain, passes_of
from stages.serve.app import make_app
from stages.serve.door import Limits, address_of, hosts_of, is_loopback, listen, tasks_to_serve
from stages.serve.server import run

Key = tuple[str, str]
"""Run and digest: a run that was trained again has other contents."""


def serve(
    store: Path,
    *,
    host: str,
    port: int,
    target: str | None,
    backbone: str | None,
    precision: Precision,
    limits: Limits,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP; then answer the requests that have arrived, and return.

    A line on standard output says where the server is, once it answers.

    Args:
        target: what ``POST /predict`` asks: a task, TASK@RUN or the folder of an artifact of the store; None: the only
            task, if there is one.
        backbone: folder or Hub id; None: the one that the target's manifest or all the store's name.

    Raises:
        PipelineError: the address is taken, or there is no such model, or the store has models of several backbones.
    """
    with listen(host, port) as bound:
        shelf = StoreShelf.open(store, target, backbone, precision, limits.max_models)
        if not is_loopback(bound):
            notice(f"warning: {address_of(bound)} can be reached from other machines, and asks for no password")
        served = f"{', '.join(shelf.tasks)}; POST /predict asks {shelf.default or 'none of them: give --model'}"
        app = make_app(shelf, limits, hosts_of(bound, host))
        run(app, bound, lambda: print(f"serving {address_of(bound)} ({served})", flush=True))


class ServedModel:
    """A model as the server's queue asks it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = f"{model.task}@{model.run}"
        self.is_pair = model.is_pair

    def check(self, text: object, where: str) -> Text:
        """The text or pair as the model reads it; a :class:`PipelineError` that says ``where`` it stands if unfit."""
        first, *second = self.model.check(text, where)
        return (first, second[0]) if second else first

    def answers(self, rows: Sequence[tuple[Text, bool]]) -> list[Answer | TooLong]:
        """An answer a row, which is a text or pair and whether it may be cut; those that may not are measured."""
        model = self.model
        uncut = [number for number, (_, truncate) in enumerate(rows) if not truncate]
        lengths = dict(zip(uncut, model.lengths([rows[number][0] for number in uncut]), strict=True)) if uncut else {}
        long = {number: length for number, length in lengths.items() if length > model.max_length}
        kept = [number for number in range(len(rows)) if number not in long]
        # The queue has cut the batch: one forward pass answers it.
        texts = [rows[number][0] for number in kept]
        predicted = dict(zip(kept, model.predict(texts, batch_size=max(1, len(texts))), strict=True))
        return [
            TooLong(
                f"has {long[number]} tokens, and {model.task} reads {model.max_length}: shorten it, or send"
                ' "truncate": true to have its end cut'
            )
            if number in long
            else answer_of(predicted[number])
            for number in range(len(rows))
        ]


@dataclass(frozen=True)
class _Listing:
    """What the store holds for the server's backbone."""

    best: dict[str, Artifact] = field(default_factory=dict)
    """What is asked by a task's name."""
    runs: dict[str, Artifact] = field(default_factory=dict)
    """Every artifact as TASK@RUN."""


@dataclass(frozen=True)
class _Failure:
    """Why an artifact could not be loaded, and how its files stood then."""

    reason: str
    files: dict[str, tuple[int, int]]


class StoreShelf:
    """The models of a store on the backbone of ``base``, which are loaded beside it.

    A task's name asks its fusion or adapter with the highest dev score. Those are loaded at the start, as many as there
    is room for; others when they are asked for, in place of the model that was not asked longest. All share one copy
    of the backbone's weights.
    """

    def __init__(self, base: Model, store: Store, default: str | None, most: int = Limits.max_models) -> None:
        assert base.artifact is not None
        self._base, self._store = base, store
        self._weights = base.artifact.manifest.backbone_weights
        self._named_default = default
        self._most = most
        self._ticks, self._asked = count(), dict[Key, int]()
        self._memory: dict[Key, ServedModel] = {_key(base.artifact): ServedModel(base)}
        self._failed: dict[Key, _Failure] = {}
        self._problem = ""
        self._listing = _Listing()
        self._told = set[str]()
        self.refresh()

    @classmethod
    def open(
        cls,
        root: Path,
        target: str | None,
        backbone: str | None,
        precision: Precision,
        most: int = Limits.max_models,
    ) -> "StoreShelf":
        """The shelf of the store ``root``, with ``most`` models in memory at most; raises as :func:`serve`."""
        store = Store(root)
        problems: list[PipelineError] = []
        for task in tasks_to_serve(store, target, backbone):
            try:
                base = load(task, store=root, backbone=backbone, precision=precision)
            except PipelineError as error:
                problems.append(error)
                continue
            if target is not None:  # TASK or TASK@RUN, with the task's own name for an alias
                task, run, _ = parse_model(target, root)
                target = f"{task}@{run}" if run else task
            return cls(base, store, target, most)
        raise problems[0]

    @property
    def default(self) -> str | None:
        """What ``POST /predict`` asks."""
        tasks = self.tasks
        return self._named_default or (tasks[0] if len(tasks) == 1 else None)

    @property
    def tasks(self) -> list[str]:
        return list(self._listing.best)

    @property
    def loaded(self) -> int:
        """Models in memory."""
        return len(self._memory)

    def models(self) -> list[dict[str, Any]]:
        """Every model that can be asked, by its name TASK@RUN."""
        listing, default = self._listing, self.default
        best = {_key(artifact) for artifact in listing.best.values()}
        return [
            {
                "name": name,
                "task": artifact.manifest.task,
                "run": artifact.manifest.run,
                "kind": artifact.manifest.kind,
                "pair": artifact.manifest.pair,
                "classes": artifact.manifest.meaning.get("classes") or [],
                "range": artifact.manifest.meaning.get("range"),
                "metric": artifact.manifest.metric,
                "dev": artifact.manifest.dev,
                "sources": [source.task for source in artifact.manifest.sources],
                "best": _key(artifact) in best,
                "loaded": _key(artifact) in self._memory,
                "default": default in (name, artifact.manifest.task) and (default == name or _key(artifact) in best),
            }
            for name, artifact in sorted(listing.runs.items())
        ]

    def has(self, name: str) -> bool:
        """Whether there is a model of a task or TASK@RUN, in memory or not."""
        return self._artifact(name) is not None

    def find(self, name: str) -> ServedModel | None:
        """The model of a task or TASK@RUN if it is in memory."""
        artifact = self._artifact(name)
        if artifact is None:
            return None
        self._asked[_key(artifact)] = next(self._ticks)
        return self._memory.get(_key(artifact))

    def load(self, name: str) -> ServedModel:
        """The same, loaded if need be; KeyError for an unknown name, a PipelineError for a damaged model."""
        artifact, listing = self._artifact(name), self._listing
        if artifact is None:
            raise KeyError(name)
        if name in listing.best and _key(artifact) not in self._memory:
            # One that turns out to be damaged gives way to the next best, as at the start.
            own = [each for each in listing.runs.values() if each.manifest.task == name]
            artifact = self._loadable(own) or artifact
            self._listing = _Listing({**listing.best, name: artifact}, listing.runs)
        served = self._load(artifact)
        self._forget()
        return served

    def explainer(self, name: str) -> tuple[Callable[[Text], dict[str, Any]], int]:
        """What explains an answer of the model, with the adapters beside it in memory, and its forward passes."""
        model = self.load(name).model
        singles = [self._load(artifact).model for artifact in model.beside()]
        self._forget()
        return lambda text: explain(model, text, singles), passes_of(model, singles)

    def refresh(self) -> int:
        """Serve what the store holds now; returns how many tasks got another model.

        What cannot be read or loaded is reported once, and what was served before stays. An artifact that could not be
        loaded is tried again when its files change: it may have been seen while it was copied.
        """
        try:
            self._store.check()
            usable = usable_artifacts(self._store.artifacts(), self._weights)
        except PipelineError as error:
            if str(error) != self._problem:
                notice(f"warning: the store cannot be read: {error!s}")
            self._problem = str(error)
            return 0
        self._problem = ""
        runs = {f"{artifact.manifest.task}@{artifact.manifest.run}": artifact for artifact in usable}
        failed = [artifact for artifact in usable if _key(artifact) in self._failed]
        has_changed = any(self._failed[_key(artifact)].files != self._files_of(artifact) for artifact in failed)
        if runs == self._listing.runs and not has_changed:
            return 0
        self._failed = {_key(artifact): self._failed[_key(artifact)] for artifact in failed}
        before, best, by_task = self._listing.best, {}, defaultdict[str, list[Artifact]](list)
        for artifact in usable:
            by_task[artifact.manifest.task].append(artifact)
        for task, own in sorted(by_task.items()):
            # Where there is no room a model is read when it is asked for; one that is asked now is swapped when ready.
            is_asked = task in before and _key(before[task]) in self._memory
            has_room = len(self._memory) < self._most
            chosen = self._loadable(own) if is_asked or has_room else best_of(own, "auto")
            chosen = before.get(task) if chosen is None else chosen
            if chosen is not None:
                best[task] = chosen
                self._tell_other_meanings(chosen, own)
        self._listing = _Listing(best, runs)
        self._forget()
        return sum(task in before and _key(before[task]) != _key(best[task]) for task in best)

    def _tell_other_meanings(self, chosen: Artifact, own: Sequence[Artifact]) -> None:
        """Say once that a task's models of other classes are not ``chosen``; :func:`load` has said it of the base."""
        note = other_meaning_note(chosen, own)
        if note and note not in self._told and chosen != self._base.artifact:
            notice(note)
        self._told.add(note)

    def _loadable(self, artifacts: Sequence[Artifact]) -> Artifact | None:
        """The best of a task's artifacts that can be loaded, which then is in memory."""
        left = list(artifacts)
        while (best := best_of(left, "auto")) is not None:
            files = self._files_of(best)  # before they are read
            try:
                self._load(best)
            except Exception as error:  # whatever is wrong with one model, the others are served
                self._note(best, error, files)
                left.remove(best)
            else:
                self._failed.pop(_key(best), None)
                return best
        return None

    def _files_of(self, artifact: Artifact) -> dict[str, tuple[int, int]]:
        """When each file that the artifact is loaded from has changed, and its size."""
        manifest, files = artifact.manifest, dict[str, tuple[int, int]]()
        sources = [self._store.root / "adapters" / source.task / source.run for source in manifest.sources]
        for folder in (artifact.folder, *sources):
            with suppress(OSError), os.scandir(folder) as entries:
                files |= {entry.path: (entry.stat().st_ctime_ns, entry.stat().st_size) for entry in entries}
        return files

    def _load(self, artifact: Artifact) -> ServedModel:
        key = _key(artifact)
        if key not in self._memory:
            model = self._base.sibling(artifact)
            if model.artifact != artifact:
                raise PipelineError(f"{artifact.folder}: changed while it was read")
            self._memory[key] = ServedModel(model)
        self._asked[key] = next(self._ticks)
        return self._memory[key]

    def _forget(self) -> None:
        """Let go of models that the store no longer has, and where there are too many of those not asked longest."""
        listing = self._listing
        served = {_key(artifact) for artifact in (*listing.best.values(), *listing.runs.values())}
        gone = [key for key in self._memory if key not in served]
        kept = sorted((key for key in self._memory if key in served), key=lambda key: self._asked.get(key, -1))
        for key in [*gone, *kept[: max(0, len(kept) - self._most)]]:
            del self._memory[key]
        self._asked = {key: tick for key, tick in list(self._asked.items()) if key in self._memory}

    def _artifact(self, name: str) -> Artifact | None:
        listing = self._listing
        return listing.best.get(name) or listing.runs.get(name)

    def _note(self, artifact: Artifact, error: Exception, files: dict[str, tuple[int, int]]) -> None:
        """Keep why an artifact with these ``files`` could not be loaded, and say so if it is news."""
        reason = str(error) if isinstance(error, PipelineError) else "".join(traceback.format_exception(error))
        key, manifest = _key(artifact), artifact.manifest
        if key not in self._failed or self._failed[key].reason != reason:
            name = f"{manifest.task}@{manifest.run}"
            notice(f"warning: {name} cannot be loaded yet: {reason}")
        self._failed[key] = _Failure(reason, files)


def _key(artifact: Artifact) -> Key:
    return artifact.manifest.run, artifact.manifest.digest
