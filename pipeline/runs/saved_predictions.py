"""Predictions of finished runs from the ledger, checked to be for the same rows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from pipeline.data.label_sets import are_sets
from pipeline.data.metric_names import EnsembleRule
from pipeline.data.prediction import Prediction
from pipeline.data.tasks import Task
from pipeline.records.ledger import Ledger, train_again
from pipeline.records.run_record import RunRecord
from pipeline.runs.scoring import prediction_table
from pipeline.stats.ensembling import choose, combine
from pipeline.stats.metrics import score
from pipeline.system.errors import PipelineError, noted, raise_all


@dataclass(frozen=True)
class SavedPredictions:
    """Predictions of several runs for the B rows that they share."""

    rows: pd.DataFrame
    """``id``, ``label`` and, where known, ``group``."""
    is_dev: np.ndarray
    """(B,): which rows are dev; the others are only scored."""
    by_run: dict[str, Prediction]

    @property
    def labels(self) -> np.ndarray:
        return self.rows["label"].to_numpy()

    def join(
        self, task: Task, choosing: np.ndarray, rule: EnsembleRule, best: int, most: int | None = None
    ) -> "Joined":
        """Combine the runs into an ensemble: :func:`choose` sees only the rows marked in ``choosing`` (B,)."""
        runs, predictions = [*self.by_run], [*self.by_run.values()]
        seen = [prediction.on(choosing) for prediction in predictions]
        chosen = choose(seen, self.labels[choosing], task.metric, rule, best, most)
        prediction = combine([predictions[index] for index in chosen], list(chosen.values()), rule)
        weights = {runs[index]: weight for index, weight in chosen.items()}
        return Joined(weights, prediction, prediction_table(self.rows, prediction))

    def score(self, task: Task, prediction: Prediction, part: np.ndarray) -> float:
        """The task's metric of a prediction on a part (B,) of the rows."""
        return score(task.metric, prediction.values[part], self.labels[part])


class Joined(NamedTuple):
    """An ensemble: the weights of the runs that take part, and their joint prediction, also as a table."""

    weights: dict[str, float]
    prediction: Prediction
    table: pd.DataFrame


def saved_predictions(records: Mapping[str, RunRecord], task: Task, ledger: Ledger) -> SavedPredictions:
    """The predictions of all runs; a :class:`PipelineError` if one cannot be read or is for other rows."""
    saved, problems = readable_predictions(records.values(), task, ledger)
    raise_all("saved predictions", problems)
    assert saved is not None
    return saved


def readable_predictions(
    records: Iterable[RunRecord], task: Task, ledger: Ledger
) -> tuple[SavedPredictions | None, list[str]]:
    """The predictions of the runs that are readable and are for the same rows as most; and why the others are left out.

    On a tie, the rows of the runs that come first.
    """
    tables: dict[str, pd.DataFrame] = {}
    rows: dict[str, tuple[Any, ...]] = {}
    problems: list[str] = []
    for record in records:
        with noted(problems):
            table = tables[record.run] = _table_of(record.run, task, ledger)
            marks = record.fingerprints(task.name)
            same = table[["id", "label", "is_dev"]].itertuples(index=False, name=None)
            rows[record.run] = (marks.get("dev"), marks.get("test"), *same)
    usual = Counter(rows.values()).most_common(1)[0][0] if rows else ()
    problems += [
        f"{ledger.folder(run)}: its predictions are of other rows than those of most runs: leave it out, or"
        f" {train_again(run)}"
        for run in tables
        if rows[run] != usual
    ]
    by_run = dict[str, Prediction]()
    for run, table in tables.items():
        if rows[run] == usual:
            columns, values = _probabilities_of(task), table["prediction"].to_numpy()
            values = values.astype(str) if are_sets(values) else values
            by_run[run] = Prediction(values, table[columns].to_numpy() if columns else None)
    if not by_run:
        return None, problems
    first = tables[next(iter(by_run))]
    return SavedPredictions(first.filter(["id", "label", "group"]), first["is_dev"].to_numpy(), by_run), problems


def _table_of(run: str, task: Task, ledger: Ledger) -> pd.DataFrame:
    """Read a run's saved predictions, with ``is_dev``; a :class:`PipelineError` if they do not fit ``task``."""
    parts = {split: ledger.predictions(run, task.name, split) for split in ("dev", "test")}
    marked = [table.assign(is_dev=split == "dev") for split, table in parts.items() if len(table)]
    if not marked:
        raise PipelineError(f"{ledger.folder(run)}: its predictions have no rows: {train_again(run)}")
    table = pd.concat(marked, ignore_index=True)
    probabilities = table.filter(regex="^probability_")
    is_numeric = all(map(is_numeric_dtype, probabilities.dtypes)) and np.isfinite(probabilities.to_numpy(float)).all()
    if [*probabilities] != _probabilities_of(task) or not is_numeric:
        raise PipelineError(
            f"{ledger.folder(run)}: its probabilities are not those of the {len(task.classes)} classes of"
            f" '{task.name}': {train_again(run)}"
        )
    return table


def _probabilities_of(task: Task) -> list[str]:
    """The probability columns of the classes; none for a task of scores."""
    return [f"probability_{number}" for number in range(len(task.classes))]
