"""Models trained on one task, scored on the other targets of a study as far as their outputs allow.

Liu & Shen 2023, table 7. What a model says of another task is read without training anything: as it is where both
tasks mean the same, by the other task's head where the row scores that task by a cosine, which has no weights, and for
pairs by two readings, of a probability as a score and of a score as a class.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import pandas as pd

from pipeline.data.tasks import Task
from pipeline.models.lean import make_lean
from pipeline.records.run_record import Reading, RunRecord, TaskScore
from pipeline.runs.build import assemble
from pipeline.runs.restore import restore_run
from pipeline.runs.scoring import Scoring
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.settings.rows import TRAITS
from pipeline.stats.metrics import Prediction
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process
from pipeline.system.streams import notice
from pipeline.training.devices import make_accelerator
from pipeline.training.objectives import objective_of
from pipeline.training.process_group import on_main_process, wait_for_everyone

Cosines = Mapping[str, Recipe]
"""The resolved recipes of the targets that a row scores by a cosine."""


def score_across(runs: Mapping[str, Cosines], targets: Iterable[str], workspace: Workspace) -> None:
    """Score the model of each run on every other target that it can be read on; what was scored before stays.

    ``runs`` are given with the cosines of their rows. Scores and predictions are kept with the run. A model that cannot
    be had is reported on stderr and left out.
    """
    tasks = [workspace.task(name) for name in targets]
    for name, cosines in runs.items():
        record = on_main_process(partial(workspace.ledger.find, name))
        if record is None or TRAITS[record.kind].answers_for_several:
            continue
        try:
            scores = _missing_scores(record, tasks, cosines, workspace)
        except PipelineError as error:
            notice(f"note: run {name} is not scored on other tasks: {error}")
            continue
        if scores and is_main_process():
            workspace.ledger.add_scores(record, scores)
        wait_for_everyone()


def reading_of(trained: Task, target: Task) -> Reading | None:
    """How a model of ``trained`` is read on ``target``; None where its outputs do not allow it.

    Tasks with as many texts and the same classes or range: as it is. Of pairs also: the probability of class 1 of two
    on a score, brought to the score's range; and a score on two classes, class 1 above the middle of its own range.
    """
    if trained.is_pair != target.is_pair:
        return None
    if (trained.kind, trained.classes, trained.range) == (target.kind, target.classes, target.range):
        return "same"
    if trained.is_pair and len(trained.classes) == 2 and target.range is not None:
        return "probability"
    if trained.is_pair and trained.range is not None and len(target.classes) == 2:
        return "middle"
    return None


def read_on(target: Task, trained: Task, prediction: Prediction) -> Prediction:
    """What a model of ``trained`` says of ``target``."""
    reading = reading_of(trained, target)
    if reading == "probability":
        assert target.range is not None and prediction.probabilities is not None
        low, high = target.range
        return Prediction(low + (high - low) * prediction.probabilities[:, 1].astype("float64"), None)
    if reading == "middle":
        assert trained.range is not None
        return Prediction((prediction.values > sum(trained.range) / 2).astype("int64"), None)
    return prediction


def _missing_scores(
    record: RunRecord, targets: Iterable[Task], cosines: Cosines, workspace: Workspace
) -> dict[str, tuple[TaskScore, pd.DataFrame]]:
    """Scores and predictions on the targets that the run has none of, or none of these test rows."""
    trained = workspace.task(record.task)
    readings: dict[str, Reading | None] = {
        task.name: "cosine" if task.name in cosines else reading_of(trained, task) for task in targets
    }
    readable = [task for task in targets if task.name != trained.name and readings[task.name]]
    data = {task.name: workspace.splits.of(task, None, 0) for task in readable}
    scored = {name: (score.dev_rows, score.reading) for name, score in record.scores.items()}
    wanted = {name: (rows.scored_fingerprint, readings[name]) for name, rows in data.items()}
    missing = [task for task in readable if scored.get(task.name) != wanted[task.name]]
    if not missing:
        return {}
    accelerator = make_accelerator(record.recipe.precision)
    model = restore_run(record, trained, workspace).to(accelerator.device)
    own = objective_of(trained, record.recipe)
    scores = {}
    for task in missing:
        rows = data[task.name]
        recipe = cosines.get(task.name, record.recipe)
        scoring = Scoring(task, rows.dev, recipe, workspace.backbone, accelerator, rows.test)
        parts = [each for each in (scoring, scoring.test) if each is not None]
        if task.name in cosines:
            by_cosine = assemble(model.backbone, recipe, task).to(accelerator.device)
            predictions = [scoring.predict_choosing(by_cosine), *(each.predict(by_cosine) for each in parts[1:])]
            make_lean(model.backbone, model.pooling)
        else:
            for each in parts:
                each.objective = own
            predictions = [read_on(task, trained, each.predict(model)) for each in parts]
        score, table = scoring.scored(*predictions)
        read = {"reading": readings[task.name], "dev_rows": rows.scored_fingerprint}
        scores[task.name] = score.model_copy(update=read), table
    return scores
