"""The run of a row of method ``ensemble``: it joins the saved predictions of finished runs and trains nothing.

Members and weights are chosen on the validation rows, and the ensemble is scored on the test rows, as every row is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.data.metric_names import EnsembleRule
from pipeline.data.tasks import Task
from pipeline.records.run_record import Cost, Parameters, RunRecord, TaskScore, run_name
from pipeline.records.store import SourceRun
from pipeline.runs.once import get_or_train
from pipeline.runs.provenance import provenance
from pipeline.runs.saved_predictions import saved_predictions
from pipeline.runs.workspace import Workspace
from pipeline.settings.rows import JoinedBy
from pipeline.stats.ensembling import BEST
from pipeline.system.errors import PipelineError
from pipeline.training.process_group import on_main_process

_OF_A_MEMBER = ("train_rows", "limit", "dev_in_train", "test_in_train", "added")


class EnsembleRun:
    """What finished runs say together of one task.

    Args:
        members: what may take part; one that stands twice counts once.
        joined_by: how; ``vote`` is ``mode`` for classes and ``median`` for scores.
        most: how many take part at most.
    """

    def __init__(
        self,
        task: Task,
        members: Sequence[RunRecord],
        joined_by: JoinedBy,
        most: int | None,
        seed: int,
        workspace: Workspace,
    ) -> None:
        self.task, self.seed, self.workspace = task, seed, workspace
        self.members = {record.run: record for record in members}
        self.most = most
        self.rule = _rule(joined_by, task)

    @cached_property
    def identity(self) -> dict[str, Any]:
        return {
            "kind": "ensemble",
            "tasks": {self.task.name: {"meaning": self.task.meaning}},
            "seed": self.seed,
            "rule": self.rule,
            "most": self.most,
            "members": list(self.members),  # whose names are hashes of all that determines them
        }

    @cached_property
    def name(self) -> str:
        return run_name(self.identity)

    @property
    def title(self) -> str:
        return f"ensemble {self.task.name} seed {self.seed}"

    def finished(self) -> RunRecord | None:
        record = self.workspace.finished(self.name, with_model=False)
        # A member that was trained again, on another machine, may answer otherwise under the same name.
        newest = max(member.finished_at for member in self.members.values())
        return record if record is not None and record.finished_at >= newest else None

    def get(self, force: bool = False) -> RunRecord:
        """The finished record; its predictions are made in a moment."""
        return get_or_train(self, force).record

    def train(self) -> RunRecord:
        """Choose, score and write; a :class:`PipelineError` if there are no test rows."""
        return on_main_process(self._join)

    def _join(self) -> RunRecord:
        ledger, task = self.workspace.ledger, self.task
        saved = saved_predictions(self.members, task, ledger)
        chooses = saved.is_dev
        if chooses.all():
            raise PipelineError(f"{self.title}: all rows of '{task.name}' select members: none is left to score it on")
        joined = saved.join(task, chooses, self.rule, self.most or BEST, self.most)
        dev, test = (saved.score(task, joined.prediction, part) for part in (chooses, ~chooses))
        taken = [self.members[run] for run in joined.weights]
        first = next(iter(self.members.values()))
        own = first.score(task.name)
        counts = [each.parameters.model_dump() for each in taken]
        record = RunRecord(
            run=self.name,
            kind="ensemble",
            seed=self.seed,
            identity=self.identity,
            sources=tuple(SourceRun(task=task.name, run=each.run, digest=each.run) for each in taken),
            backbone=first.backbone,
            best_epoch=0,
            scores={
                task.name: TaskScore(
                    metric=task.metric,
                    dev=dev,
                    rows=int(chooses.sum()),
                    test=test,
                    test_rows=int((~chooses).sum()),
                    recipe=own.recipe or first.recipe,
                    pair=task.is_pair,
                    **{key: getattr(own, key) for key in _OF_A_MEMBER},
                )
            },
            cost=Cost(
                trainable_parameters=sum(each.cost.trainable_parameters for each in taken),
                seconds=0.0,
                examples_per_second=0.0,
                peak_memory_mb=0.0,
            ),
            parameters=Parameters(**{part: sum(each[part] for each in counts) for part in Parameters.model_fields}),
            provenance=provenance(),
        )
        table = joined.table.assign(split=np.where(chooses, "dev", "test"))
        curve = [{"epoch": 0, "loss": None, "dev": dev, "learning_rate": 0.0, "examples": 0, "seconds": 0.0}]
        ledger.finish(record, curve, {task.name: table})
        return record


def _rule(joined_by: JoinedBy, task: Task) -> EnsembleRule:
    match joined_by:
        case "vote":
            return "mode" if task.kind == "classes" else "median"
        case "mean" | "uniform" | "weighted":
            return joined_by
