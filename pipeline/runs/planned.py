"""A run before it is trained: a request in a workspace, whose parts are resolved and whose rows identify it."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from pipeline.data.task_data import TaskData
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact, SourceRun
from pipeline.runs.outcome import Trainable
from pipeline.runs.workspace import RunRequest, Workspace, first_of, resolve_parts
from pipeline.settings.kinds import KINDS, Kind


class PlannedRun(Trainable[RunRecord]):
    """A request in a workspace: its resolved recipes, its rows, and the identity that names its run.

    ``task`` is the only task or the first by name, and ``recipe`` its recipe. All recipes of a run share their encoder
    and training settings.

    Raises:
        PipelineError: as :func:`pipeline.runs.workspace.resolve_parts`.
    """

    def __init__(self, request: RunRequest, workspace: Workspace) -> None:
        self.request, self.workspace = request, workspace
        self.parts = resolve_parts(request, workspace)
        self.backbone = workspace.backbone_for(*(part.recipe for part in self.parts.values()))
        self.task, self.recipe, _ = first_of(self.parts)

    @property
    def kind(self) -> Kind:
        return KINDS[self.request.kind]

    @cached_property
    def data(self) -> dict[str, TaskData]:
        """The rows of each task."""
        seed, data = self.request.seed, dict[str, TaskData]()
        for name, part in self.parts.items():
            rows = self.workspace.splits.of(part.task, part.limit, seed, part.recipe.extra)
            data[name] = rows.permuted(seed) if part.recipe.permute_labels else rows
        return data

    def sources(self, adapters: Sequence[Artifact]) -> tuple[SourceRun, ...]:
        """The runs that this one builds on: the run that it continues, else ``adapters``."""
        start = self.request.start
        if start is not None:
            assert start.weights_sha256 is not None
            return (SourceRun(task=start.task, run=start.run, digest=start.weights_sha256),)
        return tuple(artifact.manifest.as_source for artifact in adapters)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the run's numbers depend on. A source is identified by the digest of its contents."""
        request = self.request
        return {
            "kind": request.kind,
            "tasks": {
                name: {
                    "meaning": part.task.meaning,
                    "recipe": part.recipe.identity,
                    "data": self.data[name].fingerprint,
                }
                for name, part in self.parts.items()
            },
            "seed": request.seed,
            "backbone": self.backbone.identity,
            "sources": [{"task": each.task, "digest": each.digest} for each in self.sources(request.adapters)],
            # A warm-started adapter has the same candidates, and may start from none of them.
            **({"start": request.start_rule} if request.start_rule else {}),
        }

    @property
    def title(self) -> str:
        start, source = self.request.start, ""
        if self.request.in_turn:
            source = f" from {self.request.adapters[0].manifest.task}"
        elif start is not None:
            source = " after linear probing" if self.request.probe else f" from {start.task}"
        again = f" again ({self.recipe.reshuffle})" if self.recipe.reshuffle else ""
        return f"{self.request.kind} {'+'.join(self.parts)}{source} seed {self.request.seed}{again}"
