"""What sequential tuning forgot: its model on an earlier task again, with the head it had there."""

import pandas as pd
from accelerate import Accelerator
from transformers import PreTrainedModel

from pipeline.records.ledger import Ledger, RunRecord, TaskScore
from pipeline.runs.build import assemble
from pipeline.runs.scoring import scored_again, scoring_of
from pipeline.runs.weights import load_weights
from pipeline.runs.workspace import Workspace
from pipeline.system.errors import PipelineError


def lineage(start: RunRecord | None, ledger: Ledger) -> list[RunRecord]:
    """The runs that sequential tuning went through before, the first one first.

    Raises:
        PipelineError: one is no longer in the ledger.
    """
    steps: list[RunRecord] = []
    while start is not None:
        steps.insert(0, start)
        source = start.sources[0].run if start.sources else None
        start = ledger.find(source) if source is not None else None
        if source is not None and start is None:
            raise PipelineError(f"run {source}, which run {steps[0].run} started from, is no longer in {ledger.root}")
    return steps


def score_again(
    encoder: PreTrainedModel, start: RunRecord, workspace: Workspace, accelerator: Accelerator
) -> tuple[TaskScore, pd.DataFrame]:
    """Score and predictions of ``encoder`` on the dev rows that ``start`` was scored on.

    Args:
        encoder: tuned further after ``start``; it is made lean for the pooling of that task.
    """
    task = workspace.task(start.task)
    data = workspace.task_data(task, start.own.limit, start.seed)
    scoring = scoring_of(task, data.dev, start.recipe, workspace.backbone, accelerator)
    model = assemble(encoder, start.recipe, task)
    load_weights(model.head, start, workspace.ledger, part="head.")
    score, table = scored_again(scoring, model.to(accelerator.device))
    same_rows = start.described(start.task)["data"]["dev"] == data.fingerprint["dev"]
    return score.model_copy(update={"before": start.dev if same_rows else None}), table
