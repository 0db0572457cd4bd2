"""What sequential tuning forgot: its model on the source task again, with the head it had there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.ledger import OtherScore, RunRecord
from stages.scoring import scoring_of
from stages.workspace import Workspace

if TYPE_CHECKING:
    import pandas as pd
    from accelerate import Accelerator
    from transformers import PreTrainedModel


def score_source(
    encoder: PreTrainedModel, start: RunRecord, workspace: Workspace, accelerator: Accelerator
) -> tuple[OtherScore, pd.DataFrame]:
    """Score and predictions of ``encoder`` on the dev rows that ``start`` was scored on.

    It is left made lean for the source's pooling.

    Args:
        encoder: tuned on, from where ``start`` ended.
    """
    from stages.build import assemble, load_weights

    task = workspace.task(start.task)
    data = workspace.task_data(task, start.limit, start.seed)
    scoring = scoring_of(task, data.dev, start.recipe, workspace.backbone, accelerator)
    model = assemble(encoder, start.recipe, task)
    kept = load_weights(start, workspace.ledger)
    model.head.load_state_dict({name.removeprefix("head."): t for name, t in kept.items() if name.startswith("head.")})
    prediction = scoring.predict(model.to(accelerator.device))
    same_rows = start.identity["data"]["dev"] == data.fingerprint["dev"]
    found = OtherScore(
        metric=task.metric,
        dev=scoring.value(prediction),
        rows=len(data.dev),
        before=start.dev if same_rows else None,
    )
    return found, scoring.table(prediction)
