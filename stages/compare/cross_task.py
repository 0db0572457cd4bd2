"""Models trained on one task, scored on the other targets of a study as far as their outputs allow.

Liu & Shen 2023, table 7. Nothing is trained. If both tasks have the same labels, the predictions count unchanged. If
the row scores the other task by a cosine, which has no weights, the model's vectors are scored by that cosine. For
pairs, a probability can be read as a score, and a score as a class.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any

import pandas as pd

from pipeline.data.labels import Prediction
from pipeline.data.tasks import Task
from pipeline.models.lean import make_lean
from pipeline.records.run_record import Reading, RunRecord, TaskScore
from pipeline.records.studies import Entry
from pipeline.runs.build import assemble, restore_run
from pipeline.runs.scoring import Scoring
from pipeline.runs.workspace import Workspace
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import canonical_json, sha256_text
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process
from pipeline.system.streams import notice
from pipeline.training.devices import make_accelerator, on_main_process, process_group
from pipeline.training.objectives import objective_of
from stages.compare.jobs import Jobs
from stages.compare.plan import Job

Cosines = Mapping[str, Recipe]
"""The resolved recipes of the targets that a row scores by a cosine."""


_OF_A_READING = (
    "encoding", "pooling", "max_length", "truncation", "average_orders", "cosine_scale", "cosine_threshold",
)  # fmt: skip
"""The keys of a target's recipe that decide the score by its cosine."""


def runs_to_read(cells: Mapping[Entry, Job], jobs: Jobs) -> dict[str | None, dict[str, Cosines]]:
    """By backbone, the finished runs of the main table with the cosines of their row and seed, as trials chose them.

    A run that several rows share is scored by the cosines on which they agree.
    """
    main = [
        (cell, job, record)
        for cell, job in cells.items()
        if cell.rows is None and (record := jobs.find(job)) is not None
    ]
    cosines = defaultdict[tuple[str, int], dict[str, Recipe]](dict)
    for cell, _, record in main:
        if cell.target in record.trained_on and (recipe := record.recipe_of(cell.target)).head == "cosine":
            cosines[cell.line.row, cell.seed][cell.target] = recipe
    runs: dict[str | None, dict[str, Cosines]] = {}
    for cell, job, record in main:
        own, by_run = cosines[cell.line.row, cell.seed], runs.setdefault(job.backbone, {})
        before = by_run.get(record.run, own)
        by_run[record.run] = {target: recipe for target, recipe in own.items() if before.get(target) == recipe}
    return runs


def unread(read: Set[Job], cells: Mapping[Entry, Job], targets: Iterable[str], jobs: Jobs) -> set[Job]:
    """The jobs among ``read`` whose models still lack a score on some of the ``targets`` that they can answer."""
    tasks, runs = [jobs.workspace.task(name) for name in targets], runs_to_read(cells, jobs)

    def is_read(job: Job) -> bool:
        record, place = jobs.find(job), jobs.workspace.on(job.backbone)
        return record is not None and not _unscored(record, tasks, runs[job.backbone][record.run], place)

    return {job for job in read if not is_read(job)}


def score_across(runs: Mapping[str, Cosines], targets: Iterable[str], workspace: Workspace) -> None:
    """Score the model of every run on all other targets that it can answer, unless it has been scored there before.

    ``runs`` have the cosines of their rows. Scores and predictions are kept with the run. A model that cannot be loaded
    is left out, with a note on stderr.
    """
    tasks = [workspace.task(name) for name in targets]
    for name, cosines in runs.items():
        record = on_main_process(partial(workspace.ledger.find, name))
        if record is None or KINDS[record.kind].answers_for_several:
            continue
        try:
            scores = _missing_scores(record, tasks, cosines, workspace)
        except PipelineError as error:
            notice(f"note: run {name} is not scored on other tasks: {error}")
            continue
        if scores and is_main_process():
            workspace.ledger.add_scores(record, scores)
        process_group().wait_for_everyone()


def reading_of(trained: Task, target: Task) -> Reading | None:
    """How to read the outputs of a model of ``trained`` as answers to ``target``; None if they do not allow it.

    Tasks with as many texts and the same classes or range: unchanged. Pairs with two classes, one of them named as
    ``similar``, can also be read as a score, the probability of that class scaled to the range; and a score can be read
    as two classes, ``similar`` above the middle of its range.
    """
    if trained.is_pair != target.is_pair:
        return None
    if (trained.kind, trained.classes, trained.range) == (target.kind, target.classes, target.range):
        return "same"
    if trained.similar is not None and target.range is not None:
        return "probability"
    if trained.range is not None and target.similar is not None:
        return "middle"
    return None


def read_on(target: Task, trained: Task, prediction: Prediction) -> Prediction:
    """The prediction of a model of ``trained``, read as an answer to ``target``."""
    reading = reading_of(trained, target)
    if reading == "probability":
        assert target.range is not None and prediction.probabilities is not None
        low, high = target.range
        similar = prediction.probabilities[:, 0 if trained.first_is_similar else 1].astype("float64")
        return Prediction(low + (high - low) * similar, None)
    if reading == "middle":
        assert trained.range is not None
        is_similar = prediction.values > sum(trained.range) / 2
        return Prediction((is_similar != target.first_is_similar).astype("int64"), None)
    return prediction


def read_as(target: Task, cosine: Recipe | None, trained: Task | None = None) -> str:
    """A hash of what decides a model's score on ``target``, apart from the model and the rows.

    Args:
        cosine: the resolved recipe of the target, if its cosine scores the model.
        trained: otherwise, the task of the model.
    """
    recipe = None if cosine is None else {key: cosine.flat()[key] for key in _OF_A_READING}
    if cosine is not None and recipe is not None and cosine.cosine_similar == "first":
        recipe["cosine_similar"] = "first"
    by_similar = trained is not None and cosine is None and reading_of(trained, target) in ("probability", "middle")
    is_first = by_similar and any(task is not None and task.first_is_similar for task in (trained, target))
    first = {"similar": "first"} if is_first else {}
    return sha256_text(canonical_json({"meaning": target.meaning, "cosine": recipe, **first}))


def _unscored(
    record: RunRecord, targets: Sequence[Task], cosines: Cosines, workspace: Workspace
) -> dict[str, dict[str, Any]]:
    """The targets without a score for these test rows and this reading; the values identify such a score."""
    trained, unscored = workspace.task(record.task), dict[str, dict[str, Any]]()
    for task in targets:
        reading = "cosine" if task.name in cosines else reading_of(trained, task)
        if task.name == trained.name or reading is None:
            continue
        rows, hashed = workspace.splits.of(task, None, 0), read_as(task, cosines.get(task.name), trained)
        wanted = {"reading": reading, "scored_fingerprint": rows.scored_fingerprint, "read_as": hashed}
        score = record.scores.get(task.name)
        if score is None or any(getattr(score, key) != value for key, value in wanted.items()):
            unscored[task.name] = wanted
    return unscored


def _missing_scores(
    record: RunRecord, targets: Sequence[Task], cosines: Cosines, workspace: Workspace
) -> dict[str, tuple[TaskScore, pd.DataFrame]]:
    """Scores and predictions on the targets that are :func:`_unscored`."""
    wanted = _unscored(record, targets, cosines, workspace)
    if not wanted:
        return {}
    trained = workspace.task(record.task)
    accelerator = make_accelerator(record.recipe.precision)
    model = restore_run(record, trained, workspace).to(accelerator.device)
    own = objective_of(trained, record.recipe)
    scores = {}
    for task in (each for each in targets if each.name in wanted):
        rows = workspace.splits.of(task, None, 0)
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
        scores[task.name] = score.model_copy(update=wanted[task.name]), table
    return scores
