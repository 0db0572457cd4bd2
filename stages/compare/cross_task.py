"""Models trained on one task, scored on the other targets of a study as far as their outputs allow.

Liu & Shen 2023, table 7. What a model says of another task is read without training anything: as it is where both
tasks mean the same, and for pairs by two readings, of a probability as a score and of a score as a class.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import pandas as pd

from pipeline.data.tasks import Task
from pipeline.records.ledger import Reading, RunRecord, TaskScore
from pipeline.runs.restore import restore_run
from pipeline.runs.scoring import Scoring
from pipeline.runs.workspace import Workspace
from pipeline.stats.metrics import Prediction
from pipeline.system.errors import PipelineError
from pipeline.training.devices import is_main_process, make_accelerator, on_main_process, wait_for_everyone
from pipeline.training.objectives import Objective, objective_of

_ONE_TASK = ("frozen", "full", "adapter", "fusion")
"""Kinds of runs that answer the task that they were trained on and keep what answers it."""


def score_across(runs: Iterable[str], targets: Iterable[str], workspace: Workspace) -> None:
    """Score the model of each run on every other target that it can be read on; what was scored before stays.

    Scores and predictions are kept with the run. A model that cannot be had is told on stderr and left out.
    """
    tasks = [workspace.task(name) for name in targets]
    for name in dict.fromkeys(runs):
        record = on_main_process(partial(workspace.ledger.find, name))
        if record is None or record.kind not in _ONE_TASK:
            continue
        try:
            found = _missing_scores(record, tasks, workspace)
        except PipelineError as error:
            if is_main_process():
                print(f"note: run {name} is not scored on other tasks: {error}", file=sys.stderr)
            continue
        if found and is_main_process():
            workspace.ledger.add_scores(record, found)
        wait_for_everyone()


@dataclass(frozen=True)
class _Way:
    """How a model's predictions are read on another task."""

    reading: Reading
    read: Callable[[Prediction], Prediction]


def way_of(trained: Task, target: Task) -> _Way | None:
    """How a model of ``trained`` is read on ``target``; None where its outputs do not allow it.

    Tasks with as many texts and the same classes or range: as it is. Of pairs also: the probability of class 1 of two
    on a score, brought to the score's range; and a score on two classes, class 1 above the middle of its own range.
    """
    if trained.is_pair != target.is_pair:
        return None
    if (trained.kind, trained.classes, trained.range) == (target.kind, target.classes, target.range):
        return _Way("same", lambda prediction: prediction)
    if not trained.is_pair:
        return None
    if len(trained.classes) == 2 and target.range is not None:
        return _Way("probability", lambda prediction: _as_score(prediction, target))
    if trained.range is not None and len(target.classes) == 2:
        return _Way("middle", lambda prediction: _as_class(prediction, trained))
    return None


def _as_score(prediction: Prediction, target: Task) -> Prediction:
    assert target.range is not None and prediction.probabilities is not None
    low, high = target.range
    return Prediction(low + (high - low) * prediction.probabilities[:, 1].astype("float64"), None)


def _as_class(prediction: Prediction, trained: Task) -> Prediction:
    assert trained.range is not None
    return Prediction((prediction.values > sum(trained.range) / 2).astype("int64"), None)


def _missing_scores(
    record: RunRecord, targets: Iterable[Task], workspace: Workspace
) -> dict[str, tuple[TaskScore, pd.DataFrame]]:
    """Scores and predictions on the targets that the run has none of, or none of these dev rows."""
    trained = workspace.task(record.task)
    wanted = {}
    for target in targets:
        way = way_of(trained, target) if target.name != trained.name else None
        if way is None:
            continue
        data = workspace.task_data(target, None, 0)
        known = record.scores.get(target.name)
        if known is None or known.dev_rows != data.fingerprint["dev"]:
            wanted[target.name] = (target, way, data)
    if not wanted:
        return {}

    accelerator = make_accelerator(record.recipe.precision)
    model = restore_run(record, trained, workspace).to(accelerator.device)
    own = objective_of(trained, record.recipe)
    found = {}
    for name, (target, way, data) in wanted.items():
        scoring = Scoring(target, data.dev, record.recipe, workspace.backbone, accelerator)
        scoring.objective = _read(own, way)
        score, table = scoring.scored(scoring.predict(model))
        told = {"reading": way.reading, "dev_rows": data.fingerprint["dev"]}
        found[name] = (score.model_copy(update=told), table)
    return found


def _read(objective: Objective, way: _Way) -> Objective:
    return Objective(objective.loss, lambda outputs: way.read(objective.predict(outputs)))
