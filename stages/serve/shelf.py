"""The models of a store for a server, on one copy of the backbone; they follow the changes of the store."""

import traceback
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.records.store import Artifact, Store
from pipeline.runs.kept_models import best_of, other_meaning_note, parse_model, usable_artifacts
from pipeline.runs.model import Model, Predicted, Text, load
from pipeline.settings.recipe import Precision
from pipeline.system.errors import PipelineError
from pipeline.system.streams import notice
from stages.explain import TooLong, explain, passes_of
from stages.serve.door import Limits, tasks_to_serve

_Key = tuple[str, str]
"""Run and digest, because a run that was trained again has different contents."""
_LISTED = {"task", "run", "kind", "pair", "metric", "dev", "dev_interval"}
"""What is said of a model as its manifest has it."""


class ServedModel:
    """A model wrapped for the server's queue."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = f"{model.task}@{model.run}"
        self.is_pair = model.is_pair

    def check(self, text: object, where: str) -> Text:
        """The text or pair as the model reads it; raises a :class:`PipelineError` that names ``where`` if unfit."""
        first, *second = self.model.check(text, where)
        return (first, second[0]) if second else first

    def answers(self, rows: Sequence[tuple[Text, bool]]) -> list[Predicted | TooLong]:
        """One answer per row (a text or pair, and whether it may be cut), or TooLong if it may not but would be."""
        model = self.model
        lengths = iter(model.lengths([text for text, truncate in rows if not truncate]))
        most, tokens = model.max_length, [0 if truncate else next(lengths) for _, truncate in rows]
        texts = [text for (text, _), count in zip(rows, tokens, strict=True) if count <= most]
        # The queue limits the batch, so one forward pass answers it.
        answers = iter(model.predict(texts, batch_size=max(1, len(texts))))
        return [
            TooLong(
                f"has {count} tokens, and {model.task} reads {most}: shorten it, or send"
                ' "truncate": true to have its end cut'
            )
            if count > most
            else next(answers)
            for count in tokens
        ]


@dataclass(frozen=True)
class _Listing:
    """The store's artifacts for the server's backbone."""

    best: dict[str, Artifact]
    """The artifact that a task's name stands for."""
    runs: dict[str, Artifact]
    """Every artifact by TASK@RUN."""


class StoreShelf:
    """The models of a store that share the backbone of ``base``.

    A task's name stands for its pinned run, or else for its fusion or adapter with the highest dev score. The shelf
    loads these at the start, as many as fit, and others on request, replacing the least recently used model. All share
    one copy of the backbone's weights.
    """

    def __init__(self, base: Model, store: Store, named: Mapping[str, str], most: int = Limits.max_models) -> None:
        """Take ``named``, the run that stands for a task ("": the best), the first of which is the default."""
        assert base.artifact is not None
        self._base, self._store = base, store
        self._weights = base.artifact.manifest.backbone_weights
        self._pinned = {task: run for task, run in named.items() if run}
        self._named_default = next((f"{task}@{run}" if run else task for task, run in named.items()), None)
        self._most = most
        self._memory = OrderedDict({_key(base.artifact): ServedModel(base)})  # the least recently used first
        self._failed = set[_Key]()
        self._listing = _Listing({}, {})
        self._told = set[str]()
        self.refresh()

    @classmethod
    def open(
        cls,
        root: Path,
        targets: Sequence[str],
        backbone: str | None,
        precision: Precision,
        most: int = Limits.max_models,
    ) -> "StoreShelf":
        """The shelf of the store ``root`` with at most ``most`` models in memory; raises as :func:`serve`."""
        store = Store(root)
        problems: list[PipelineError] = []
        for task in tasks_to_serve(store, targets, backbone):
            try:
                base = load(task, store=root, backbone=backbone, precision=precision)
            except PipelineError as error:
                problems.append(error)
                continue
            # An alias becomes the task's name.
            return cls(base, store, {task: run for task, run, _ in (parse_model(each, root) for each in targets)}, most)
        raise problems[0]

    @property
    def default(self) -> str | None:
        """The name of the model that answers ``POST /predict``."""
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
        """Every available model, named TASK@RUN."""
        listing, default = self._listing, self.default
        best = {_key(artifact) for artifact in listing.best.values()}
        return [
            {
                "name": name,
                **artifact.manifest.model_dump(include=_LISTED),
                "classes": artifact.manifest.meaning.get("classes") or [],
                "several": artifact.manifest.meaning.get("kind") == "labels",
                "range": artifact.manifest.meaning.get("range"),
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
        return None if artifact is None else self._used(_key(artifact))

    def load(self, name: str) -> ServedModel:
        """Like :meth:`find`, but loads the model if needed; KeyError if unknown, PipelineError if damaged."""
        artifact, listing = self._artifact(name), self._listing
        if artifact is None:
            raise KeyError(name)
        if name in listing.best and _key(artifact) not in self._memory:
            # If the best is damaged, the next best takes its place, as at the start.
            own = [each for each in listing.runs.values() if each.manifest.task == name and self._may_be_best(each)]
            artifact = self._loadable(own) or artifact
            self._listing = _Listing({**listing.best, name: artifact}, listing.runs)
        served = self._load(artifact)
        self._forget()
        return served

    def explainer(self, name: str, text: Text) -> tuple[Callable[[], dict[str, Any]], int]:
        """A function that explains the model's answer, with its adapters in memory, and its number of texts."""
        model = self.load(name).model
        singles = [self._load(artifact).model for artifact in model.beside()]
        self._forget()
        return lambda: explain(model, text, singles), passes_of(model, singles, text)

    def refresh(self) -> int:
        """Reload the store's listing and changed models; returns how many tasks got another model.

        Reports once what cannot be read or loaded, and goes on serving what was there before. Tries a failed artifact
        again, because it may have been read while being copied.
        """
        try:
            self._store.check()
            usable = usable_artifacts(self._store.artifacts(), self._weights)
        except PipelineError as error:
            self._tell(f"warning: the store cannot be read: {error}")
            return 0
        runs = {f"{artifact.manifest.task}@{artifact.manifest.run}": artifact for artifact in usable}
        if runs == self._listing.runs and not self._failed:
            return 0
        self._failed.clear()
        before, best, by_task = self._listing.best, {}, defaultdict[str, list[Artifact]](list)
        for artifact in filter(self._may_be_best, usable):
            by_task[artifact.manifest.task].append(artifact)
        for task, own in sorted(by_task.items()):
            # Without room, a model is loaded on request; a model in use is swapped when its successor is ready.
            is_asked = task in before and _key(before[task]) in self._memory
            has_room = len(self._memory) < self._most
            chosen = self._loadable(own) if is_asked or has_room else best_of(own, "auto")
            chosen = before.get(task) if chosen is None else chosen
            if chosen is not None:
                best[task] = chosen
                if chosen != self._base.artifact:  # whose note :func:`load` prints
                    self._tell(other_meaning_note(chosen, own))
        self._listing = _Listing(best, runs)
        self._forget()
        return sum(task in before and _key(before[task]) != _key(best[task]) for task in best)

    def _may_be_best(self, artifact: Artifact) -> bool:
        """Whether its task's name may stand for the artifact: it is pinned, or no run of the task is."""
        return self._pinned.get(artifact.manifest.task, artifact.manifest.run) == artifact.manifest.run

    def _tell(self, text: str) -> None:
        """Print a line on stderr, once."""
        if text and text not in self._told:
            notice(text)
        self._told.add(text)

    def _loadable(self, artifacts: Sequence[Artifact]) -> Artifact | None:
        """Load the best loadable artifact of a task and return it."""
        left = list(artifacts)
        while (best := best_of(left, "auto")) is not None:
            try:
                self._load(best)
            except Exception as error:  # one faulty model must not stop the others
                reason = str(error) if isinstance(error, PipelineError) else "".join(traceback.format_exception(error))
                self._tell(f"warning: {best.manifest.task}@{best.manifest.run} cannot be loaded yet: {reason}")
                self._failed.add(_key(best))
                left.remove(best)
            else:
                return best
        return None

    def _used(self, key: _Key) -> ServedModel | None:
        """The model if it is in memory, which is now the most recently used."""
        with suppress(KeyError):
            self._memory.move_to_end(key)
        return self._memory.get(key)

    def _load(self, artifact: Artifact) -> ServedModel:
        if (served := self._used(_key(artifact))) is not None:
            return served
        model = self._base.sibling(artifact)
        if model.artifact != artifact:
            raise PipelineError(f"{artifact.folder}: changed while it was read")
        return self._memory.setdefault(_key(artifact), ServedModel(model))

    def _forget(self) -> None:
        """Drop models that the store no longer has, and the least recently used ones if there are too many."""
        listing = self._listing
        served = {_key(artifact) for artifact in (*listing.best.values(), *listing.runs.values())}
        in_memory = list(self._memory)  # copied, because requests move models to its end meanwhile
        kept = [key for key in in_memory if key in served]
        for key in {*in_memory} - {*kept[-self._most :]}:
            del self._memory[key]

    def _artifact(self, name: str) -> Artifact | None:
        listing = self._listing
        return listing.best.get(name) or listing.runs.get(name)


def _key(artifact: Artifact) -> _Key:
    return artifact.manifest.run, artifact.manifest.digest
