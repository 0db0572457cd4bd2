"""The score of a kept model on labelled rows, and whether these trained or chose it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from pipeline.data.canonical import canonical_rows, fingerprint
from pipeline.data.cut import group_numbers
from pipeline.data.foreign import read_input
from pipeline.data.limits import check_batch_size
from pipeline.data.load import load_split
from pipeline.data.overlap import overlapping_rows
from pipeline.data.table_files import name_of
from pipeline.data.tasks import Metric, Task
from pipeline.runs.seen import Gaps, drawn_again, either, lesson_of, others_seen
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Precision
from pipeline.stats.by_class import ClassScore, LargestClass, class_scores, largest_class
from pipeline.stats.metrics import METRICS, score
from pipeline.stats.paired import score_interval
from pipeline.system.errors import PipelineError, noted
from pipeline.training.devices import make_accelerator, resolve_precision
from pipeline.training.memory import full_memory_explained
from stages.kept_models import target_of
from stages.predict import predictions_of

_OTHER_ROWS = "give labelled rows with --input FILE, or --split dev"


@dataclass(frozen=True)
class Evaluation:
    """What ``evaluate`` found."""

    run: str
    kind: str
    task: str
    rows: int
    metric: Metric
    score: float
    interval: tuple[float, float]
    """95 %, over examples: rows that share texts count as one."""
    classes: tuple[ClassScore, ...]
    """In the task's order; empty for a task of scores."""
    largest_class: LargestClass | None
    """What the score is to be compared with; None for a task of scores."""
    mean_absolute_error: float | None
    """On the range of the task's scores; None for a task of classes."""
    trained_on: int | None
    """Rows whose text is in the training rows of the run, or of the target's adapter that it builds on; None where it
    cannot be known."""
    chosen_on: int | None
    """Rows whose text is in those that chose its epoch; None where it cannot be known."""
    sources_trained_on: dict[str, int | None]
    """Rows whose text is in the training rows of another task, which the model builds on or was trained on jointly, by
    task; None as above."""
    left_out: int
    """Rows of the file without a text or a label."""
    cut: int
    """Rows that are longer than the ``max_length`` tokens that the model reads."""
    max_length: int
    changed: tuple[str, ...]
    """The tasks whose data have changed since a model was trained on them, so that its rows cannot be known."""
    problems: tuple[str, ...]
    """What could not be read, so that something cannot be known."""

    def summary(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    target: str,
    workspace: Workspace,
    *,
    using: str = "auto",
    input_file: Path | None = None,
    split: Literal["dev", "test"] = "dev",
    batch_size: int = 64,
    precision: Precision = "auto",
) -> Evaluation:
    """Score a model on the labelled rows of a file, or of a split of the task.

    Args:
        using: as for ``predict``, of the store or a run; an ensemble has its scores in its record.

    Raises:
        PipelineError: no such model, rows that are unfit, unlabelled or fewer than two.
    """
    check_batch_size(batch_size)
    task, left_out = workspace.task(target), 0
    if input_file is None:
        splits = workspace.splits
        is_test = split == "test"
        if is_test:
            rows = load_split(task, splits.folder_of(task), split, _OTHER_ROWS, one_label=True)
        else:
            rows = splits.published(task).dev
    else:
        table = read_input(input_file).drop(columns="id", errors="ignore")
        where = name_of(input_file)
        rows = canonical_rows(task, table, where, source=task.files, leave_out_blank=True, one_label=True)
        rows, left_out = rows.reset_index(drop=True), len(table) - len(rows)
    _check_scorable(rows["label"], task)
    model = target_of(task, using, workspace, ())
    accelerator = make_accelerator(resolve_precision(precision))
    with full_memory_explained(f"evaluate --target {target}", "give a smaller --batch-size"):
        (prediction,), cut = predictions_of([model], rows, (), batch_size, accelerator)
    labels, gaps = rows["label"].to_numpy(), Gaps()
    trained = chosen = None
    with noted(gaps.problems):
        trained, chosen = _seen(rows, model.run, task, workspace, gaps)
    sources, values = others_seen(rows, model.run, workspace, task, gaps), prediction.values
    if task.name in sources:
        trained = either(trained, sources.pop(task.name))
    return Evaluation(
        run=model.run,
        kind=model.kind,
        task=task.name,
        rows=len(rows),
        metric=task.metric,
        score=score(task.metric, values, labels),
        interval=score_interval(task.metric, values, labels, group_numbers(rows)),
        classes=class_scores(values, labels, task.classes) if task.classes else (),
        largest_class=largest_class(labels, task.classes, task.metric) if task.classes else None,
        mean_absolute_error=None if task.classes else float(np.abs(values - labels).mean()),
        trained_on=_count(trained),
        chosen_on=_count(chosen),
        left_out=left_out,
        cut=cut.rows,
        max_length=cut.max_length,
        sources_trained_on={source: _count(seen) for source, seen in sources.items()},
        changed=tuple(dict.fromkeys(gaps.changed)),
        problems=tuple(dict.fromkeys(gaps.problems)),
    )


def _check_scorable(labels: pd.Series, task: Task) -> None:
    """Raise a :class:`PipelineError` if the metric is not defined on ``labels``."""
    if len(labels) < 2:
        raise PipelineError(f"a single row of {task.name}: an interval of its score needs two: give more rows")
    if labels.nunique() < 2 and METRICS[task.metric].worst < 0:
        raise PipelineError(
            f"all {len(labels)} rows of {task.name} have one label: {task.metric} is not defined: add rows with others"
        )


def _count(rows: np.ndarray | None) -> int | None:
    return None if rows is None else int(rows.sum())


def _seen(
    rows: pd.DataFrame, run: str, task: Task, workspace: Workspace, gaps: Gaps
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Which ``rows`` (n,) have a text of the rows that ``run`` trained on, and which of those that chose its epoch.

    The run's rows are found again in the task's data by the ids of its predictions and as :func:`drawn_again` has it,
    and known by their fingerprints. Where they are not those of the run, the answer is None: the rows may have been
    split again since, or removed, so that today's splits do not tell where a text stood then.
    """
    record, splits = workspace.ledger.find(run), workspace.splits
    if record is None or task.name not in record.trained_on or splits.folder_of(task) is None:
        return None, None
    if not (then := record.fingerprints(task.name)):
        return None, None
    data = splits.published(task)

    def shared(part: pd.DataFrame) -> np.ndarray:
        return overlapping_rows(part, rows)[1]

    def known(part: pd.DataFrame, kind: str) -> np.ndarray | None:
        return shared(part) if fingerprint(part.reset_index(drop=True)) == then.get(kind) else None

    saved = workspace.ledger.predictions(run, task.name, "dev")["id"]
    chosen, trained = known(data.dev[data.dev["id"].isin(saved)], "dev"), None
    chose_in_train = chosen is None
    for drawn in drawn_again(lesson_of(record, task.name), splits.changed, workspace.ledger):
        are_chosen = drawn["id"].isin(saved) & chose_in_train
        trained = known(drawn[~are_chosen], "train")
        if chosen is None:
            chosen = known(drawn[are_chosen], "dev")
        if trained is not None:
            break
    if trained is None or chosen is None:
        gaps.changed.append(task.name)
    return trained, chosen
