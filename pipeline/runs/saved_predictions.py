"""What finished runs predicted, as the ledger keeps it: the same rows of each, checked."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from pipeline.data.prediction import Prediction
from pipeline.data.tasks import Task
from pipeline.records.ledger import Ledger, train_again
from pipeline.system.errors import PipelineError, noted, raise_all


@dataclass(frozen=True)
class SavedPredictions:
    """What runs predicted for the B rows that they share."""

    rows: pd.DataFrame
    """``id``, ``label`` and, where known, ``group``."""
    is_dev: np.ndarray
    """(B,): the other rows are only scored."""
    by_run: dict[str, Prediction]

    @property
    def labels(self) -> np.ndarray:
        return self.rows["label"].to_numpy()


def saved_predictions(runs: Iterable[str], task: Task, ledger: Ledger) -> SavedPredictions:
    """The predictions of all ``runs``; a :class:`PipelineError` if those of one cannot be read or are of other rows."""
    saved, problems = readable_predictions(runs, task, ledger)
    raise_all("saved predictions", problems)
    assert saved is not None
    return saved


def readable_predictions(runs: Iterable[str], task: Task, ledger: Ledger) -> tuple[SavedPredictions | None, list[str]]:
    """The predictions of those of ``runs`` that can be read and are of the same rows as most; why others are not."""
    tables: dict[str, pd.DataFrame] = {}
    problems: list[str] = []
    for run in runs:
        with noted(problems):
            tables[run] = _table_of(run, task, ledger)
    alike = ["id", "label", "is_dev"]
    rows = {run: tuple(table[alike].itertuples(index=False, name=None)) for run, table in tables.items()}
    usual = Counter(rows.values()).most_common(1)[0][0] if rows else ()
    problems += [
        f"{ledger.folder(run)}: its predictions are not of the rows it was scored on: {train_again(run)}"
        for run in tables
        if rows[run] != usual
    ]
    by_run = {run: _prediction(table, task) for run, table in tables.items() if rows[run] == usual}
    if not by_run:
        return None, problems
    first = tables[next(iter(by_run))]
    return SavedPredictions(first.filter(["id", "label", "group"]), first["is_dev"].to_numpy(), by_run), problems


def _table_of(run: str, task: Task, ledger: Ledger) -> pd.DataFrame:
    """The saved predictions of a run, with ``is_dev``; a :class:`PipelineError` if they are none of such a task."""
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
    """The columns with the probabilities of the classes; none of a task of scores."""
    return [f"probability_{number}" for number in range(len(task.classes))]


def _prediction(table: pd.DataFrame, task: Task) -> Prediction:
    columns = _probabilities_of(task)
    return Prediction(table["prediction"].to_numpy(), table[columns].to_numpy() if columns else None)
