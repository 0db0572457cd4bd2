"""A task's dev split, and what a model makes of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import pandas as pd
from accelerate import Accelerator
from torch import Tensor

from pipeline.data.batches import BACKBONE_INPUTS, collate, evaluation_order
from pipeline.data.tasks import Task
from pipeline.data.tokens import TokenisedSplit
from pipeline.models.backbone import Backbone
from pipeline.records.ledger import TaskScore
from pipeline.runs.inputs import scored_splits
from pipeline.settings.recipe import Recipe
from pipeline.stats.metrics import Prediction, score
from pipeline.training.curve import Scores
from pipeline.training.fit import Fitted
from pipeline.training.objectives import Objective, objective_of
from pipeline.training.predict import Encoder, Extend, mean_outputs

P = TypeVar("P")


@dataclass(frozen=True)
class Scoring:
    """Labelled rows of a task as a model reads them, and how its outputs are read; see :func:`scoring_of`."""

    task: Task
    rows: pd.DataFrame
    splits: Sequence[TokenisedSplit]
    """The rows, and where both orders of pairs count, the same with each pair the other way round."""
    objective: Objective
    batch_size: int
    pad_token_id: int
    accelerator: Accelerator
    extend: Extend | None = None
    """Adds to a batch what is known of its inputs."""

    def predict(self, model: Encoder) -> Prediction:
        """Predictions for every row; all processes take part and have them."""
        outputs = mean_outputs(
            model,
            self.splits,
            batch_size=self.batch_size,
            pad_token_id=self.pad_token_id,
            accelerator=self.accelerator,
            extend=self.extend,
        )
        return self.objective.predict(outputs)

    def value(self, prediction: Prediction) -> float:
        """The task's metric."""
        return score(self.task.metric, prediction.values, self.rows["label"].to_numpy())

    def table(self, prediction: Prediction) -> pd.DataFrame:
        return prediction_table(self.rows, prediction)

    def inputs(self) -> Iterator[dict[str, Tensor]]:
        """What a backbone reads of all rows, in batches of like length on its device."""
        split = self.splits[0]
        for rows in evaluation_order(split.lengths, self.batch_size):
            batch = collate(split, rows, self.pad_token_id)
            yield {name: batch[name].to(self.accelerator.device) for name in BACKBONE_INPUTS if name in batch}


class Evaluations(Generic[P]):
    """Predicts for ``fit``, and keeps what was said at each score: the best epoch's need not be made again.

    Args:
        predict: what the model says now.
        value: the dev score of that, or one a task.
    """

    def __init__(self, predict: Callable[[], P], value: Callable[[P], Scores]) -> None:
        self._predict, self._value = predict, value
        self._said: list[P] = []

    def __call__(self, _: object) -> Scores:
        self._said.append(self._predict())
        return self._value(self._said[-1])

    def best(self, fitted: Fitted) -> P:
        """Predictions at the kept epoch, by the model that holds its weights if that epoch was of another process."""
        number = [point["epoch"] for point in fitted.curve].index(fitted.best_epoch)
        number -= len(fitted.curve) - len(self._said)
        return self._said[number] if number >= 0 else self._predict()


def scoring_of(task: Task, rows: pd.DataFrame, recipe: Recipe, backbone: Backbone, accelerator: Accelerator) -> Scoring:
    """How a model of a resolved ``recipe`` is scored on ``rows``."""
    return Scoring(
        task=task,
        rows=rows,
        splits=scored_splits(rows, recipe, backbone.tokenizer),
        objective=objective_of(task, recipe),
        batch_size=2 * recipe.batch_size,
        pad_token_id=backbone.tokenizer.pad_token_id,
        accelerator=accelerator,
    )


def scored_again(scoring: Scoring, model: Encoder) -> tuple[TaskScore, pd.DataFrame]:
    """Score and predictions of a trained model on rows that it was not selected by."""
    prediction = scoring.predict(model)
    score = TaskScore(metric=scoring.task.metric, dev=scoring.value(prediction), rows=len(scoring.rows))
    return score, scoring.table(prediction)


def prediction_table(rows: pd.DataFrame, prediction: Prediction) -> pd.DataFrame:
    """``id``, ``label`` where known, ``prediction``, and for classes ``probability_<number of the class>``."""
    table = pd.DataFrame({"id": rows["id"]})
    if "label" in rows:
        table["label"] = rows["label"]
    table["prediction"] = prediction.values
    if prediction.probabilities is not None:
        for index in range(prediction.probabilities.shape[1]):
            table[f"probability_{index}"] = prediction.probabilities[:, index]
    return table
