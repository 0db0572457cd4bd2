"""What a backbone knows of pairs of texts before any training: the cosine of their sentence vectors.

A sentence encoder was made for that (Reimers & Gurevych 2019). An adapter that reads both texts as one input begins
without it, and few rows may not bring it as far.
"""

from typing import NamedTuple

import numpy as np

from pipeline.data.sample import at_most
from pipeline.data.tasks import Task
from pipeline.records.run_record import RunRecord
from pipeline.runs.build import assemble
from pipeline.runs.scoring import Scoring
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.stats.metrics import score
from pipeline.training.devices import make_accelerator

ROWS = 1000
"""Rows of dev that are compared; of more, a sample."""


class Untrained(NamedTuple):
    """The backbone's own cosine beside a run, on the same rows of dev."""

    cosine: float
    """Its score."""
    run: float
    """That of the run."""
    constant: float
    """That of the largest class as the only answer; 0 of a task of scores."""
    rows: int

    @property
    def is_better(self) -> bool:
        """Whether it is worth telling: a cosine that tells nothing apart may still have a few rows more."""
        return self.cosine > max(self.run, self.constant)


def reversed_note(task: Task) -> str:
    """What to do where a cosine head has the two classes of a task in the wrong order."""
    first, second = task.classes
    return (
        f"{task.name}: texts of '{first}' are more similar than those of '{second}', but a cosine head reads the second"
        f' class as similar: write classes = ["{second}", "{first}"] in its task.toml, and swap the numbers that its'
        " labels mean, if it has any"
    )


def untrained_cosine(record: RunRecord, workspace: Workspace) -> Untrained | None:
    """The scores of the untrained backbone's cosine and of a run, on the same rows of dev.

    None unless the run read the pairs of one task as one input each, and the task has two classes or a score. Two
    classes are told apart by the threshold that is best on these rows.
    """
    if len(record.trained_on) > 1 or record.recipe.encoding != "cross":
        return None
    task = workspace.task(record.task)
    if not (task.is_pair and (task.kind == "score" or len(task.classes) == 2)):
        return None
    settings = {"trainable": "head", "encoding": "siamese", "head": "cosine", "cosine_threshold": "tuned"}
    recipe = workspace.resolve(Recipe.parse(settings, "the untrained cosine"), task)
    dev = workspace.splits.of(task, record.own.limit, record.seed).dev
    rows = at_most(dev, ROWS)
    scoring = Scoring(task, rows, recipe, workspace.backbone, make_accelerator(recipe.precision))
    model = assemble(workspace.backbone.load(), recipe, task).requires_grad_(False).to(scoring.accelerator.device)
    cosine = scoring.value(scoring.predict_choosing(model))
    predictions = workspace.ledger.predictions(record.run, task.name, "dev").set_index("id")["prediction"]
    labels = rows["label"].to_numpy()
    constant = 0.0
    if task.kind == "classes":
        constant = score(task.metric, np.full(len(labels), np.bincount(labels.astype(int)).argmax()), labels)
    own = score(task.metric, predictions.loc[rows["id"]].to_numpy(), labels)
    return Untrained(cosine, own, constant, len(rows))
