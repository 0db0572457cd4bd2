"""Rows that a model and its sources were trained or selected on; a score on these says less about new texts.

A model keeps their hashes in ``seen.parquet``, beside its artifact's manifest or its run's weights. So they are known
wherever the model goes, whatever became of the splits or the sources. Anyone who has a text can tell from its hash
whether the model was trained on it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd

from pipeline.data.load import read_test_texts
from pipeline.data.overlap import row_hashes
from pipeline.data.tables import write_table
from pipeline.data.task_data import TaskData
from pipeline.data.tasks import Task
from pipeline.records.store import SEEN, SourceRun
from pipeline.runs.workspace import Workspace
from pipeline.system.reading import check_regular, present, reading

Use = Literal["trained", "selected", "unknown"]
"""What a model used a row of a task for; unknown: the model was made before models kept hashes."""


def seen_rows(data: Mapping[str, TaskData], sources: Sequence[SourceRun], workspace: Workspace) -> pd.DataFrame:
    """The table that a model keeps: ``task``, ``use`` and ``hash`` of the rows of its sources, then of its ``data``."""
    tables = [*(seen_by(source.task, source.run, workspace) for source in sources), *_of_data(data)]
    return pd.concat(tables, ignore_index=True).drop_duplicates(ignore_index=True)


def _of_data(data: Mapping[str, TaskData]) -> Iterator[pd.DataFrame]:
    for name, rows in data.items():
        sizes = [added.rows for added in rows.added.values()]  # added rows follow the task's own
        ends = np.cumsum([len(rows.train) - sum(sizes), *sizes])[:-1]
        for task, hashes in zip((name, *rows.added), np.split(row_hashes(rows.train), ends), strict=True):
            yield _table(task, "trained", hashes)
        yield _table(name, "selected", row_hashes(rows.dev))


def _table(task: str, use: Use, hashes: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"task": task, "use": use, "hash": hashes})


def seen_by(task: str, run: str, workspace: Workspace) -> pd.DataFrame:
    """The table of the model of ``run`` for ``task`` (:func:`seen_rows`); if it has no file, its rows are ``unknown``.

    Raises:
        PipelineError: the file is damaged.
    """
    artifact = workspace.store.find(run)
    file = (workspace.ledger.folder(run) if artifact is None else artifact.folder) / SEEN
    if not present(file):
        return _table(task, "unknown", np.zeros(1, np.uint64))
    with reading(file, "delete it, and which rows the model has seen is unknown"):
        check_regular(file)
        table = pd.read_parquet(file)[["task", "use", "hash"]]
        return table.astype({"task": str, "use": str, "hash": np.uint64})


def keep_seen(run: str, table: pd.DataFrame, workspace: Workspace) -> None:
    """Write the table that :func:`seen_by` reads, for a run that keeps its weights beside its record."""
    write_table(table, workspace.ledger.folder(run) / SEEN)


def overlap(rows: pd.DataFrame, seen: pd.DataFrame) -> dict[tuple[str, str], np.ndarray]:
    """Which ``rows`` (n,) share a text with ``seen``, by the task and use there; ``unknown`` rows are left out."""
    hashes = row_hashes(rows)
    groups = seen.groupby(["task", "use"], sort=False)["hash"]
    return {(str(task), str(use)): np.isin(hashes, group.to_numpy()) for (task, use), group in groups}


def seen_notes(
    target: Task, dev: pd.DataFrame, sources: Sequence[SourceRun], workspace: Workspace, option: str
) -> Iterator[str]:
    """A line for each source that was trained on texts of ``dev`` or of the target's test rows, with advice.

    Args:
        option: how the command that takes the sources names an adapter; without it, the same one may be taken again.
    """
    if not sources:
        return
    seen = pd.concat([seen_by(source.task, source.run, workspace) for source in sources])
    test = read_test_texts(target, workspace.splits.folder_of(target))
    parts = {"dev": dev} if test is None else {"dev": dev, "test": test}
    overlaps = {kind: overlap(rows, seen) for kind, rows in parts.items()}
    for task, use in overlaps["dev"]:
        counts = {kind: int(overlaps[kind][task, use].sum()) for kind in parts}
        is_own = task == target.name
        if use == "trained" and any(counts.values()) and (option == "--start-from" or not is_own):
            listed = " and ".join(f"{counts[kind]} of {len(rows)} rows of {kind}" for kind, rows in parts.items())
            remedy = f"extract --task {task} --without-rows-of {target.name} trains an adapter without them"
            yield (
                f"{listed} of {target.name} also occur in the training rows of its source {task}, so its score there"
                " says less about new texts: "
                + ("evaluate leaves them out" if is_own else f"{remedy}; then name it: {option} {task}@RUN")
            )


def overlap_notes(name: str, data: TaskData) -> Iterator[str]:
    """Say which training rows of task ``name`` also occur in dev or test, and whether they were dropped."""
    for other, rows in data.dropped.items():
        yield f"{name}: {rows} training rows that also occur in dev or test of {other} are left out"
    for other, added in data.added.items():
        left_out = added.in_dev + added.in_test + added.in_other_dev
        yield (
            f"{name}: {added.rows} training rows of {other} are added ({added.in_train} also occur in train);"
            f" {left_out} are left out, since they occur in dev or test"
        )
    for rows, kind in ((data.dev_in_train, "rows of dev"), (data.test_in_train, "test rows")):
        if rows:
            yield f"{name}: {rows} {kind} also occur in train (--drop-overlap drops those from train)"
