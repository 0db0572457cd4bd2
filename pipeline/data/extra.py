"""Extra data: add another task's training rows to a target's, except texts that the target selects or scores on."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from pipeline.data.canonical import as_labels
from pipeline.data.cells import as_label
from pipeline.data.overlap import overlapping_rows
from pipeline.data.sample import stratified
from pipeline.data.task_data import Added, TaskData
from pipeline.data.tasks import Task
from pipeline.data.tasks.extra import Extra
from pipeline.system.errors import raise_all


def extra_rows(source: Task, rows: pd.DataFrame, target: Task, extra: Extra) -> pd.DataFrame:
    """The canonical rows of ``source`` with labels converted to ``target``, and ids that name the source."""
    problems = []
    if source.is_pair != target.is_pair:
        have, wanted = ("pairs", "one text") if source.is_pair else ("one text", "pairs")
        problems.append(f"its rows are {have}, and those of '{target.name}' are {wanted}: leave it out")
    labels = rows["label"].to_numpy()
    if mistakes := _mistakes(source, target, extra):
        raise_all(f"extra data '{source.name}' for '{target.name}'", problems + mistakes)
    if extra.labels:
        table = {as_label(key): label for key, label in extra.labels}
        labels = np.array([table[str(label)] for label in labels], dtype=float)
    elif extra.scale is not None:
        labels = extra.scale[0] * labels + extra.scale[1]
    converted, outside = labels, np.zeros(len(labels), bool)
    if target.kind != "labels":
        converted, outside = as_labels(target, labels.astype(float))
    if outside.any():
        allowed = f"a class of '{target.name}', 0..{target.outputs - 1}"
        if target.range is not None:
            allowed = f"in the range of '{target.name}', {target.range[0]:g}..{target.range[1]:g}"
        shown = ", ".join(f"{value:g}" for value in sorted(set(labels[outside]))[:3])
        problems.append(f"{outside.sum()} labels are not {allowed}: {shown}")
    raise_all(f"extra data '{source.name}' for '{target.name}'", problems)
    return rows.assign(id=f"{source.name}:" + rows["id"], label=converted)


def add_extra(
    data: TaskData,
    name: str,
    rows: pd.DataFrame,
    *,
    dev: pd.DataFrame,
    test: pd.DataFrame | None,
    held_out: Iterable[pd.DataFrame] = (),
    limit: int | None,
    seed: int,
) -> TaskData:
    """Add ``rows`` of source ``name`` to the training rows of ``data``, except rows whose text is held out.

    Rows that repeat a training row of the target are kept and counted: two people may have labelled a text.

    ``dev`` and ``test`` are the target's complete splits, even if ``data`` has a sample of them; ``held_out`` has
    those of other tasks. If more than ``limit`` rows remain, ``seed`` draws a stratified sample.
    """
    left_out = {"in_dev": 0, "in_test": 0, "in_other_dev": 0}
    scored = [("in_dev", dev), ("in_test", test), *(("in_other_dev", other) for other in held_out)]
    for place, texts in scored:
        if texts is not None:
            overlapping, _ = overlapping_rows(rows, texts)
            left_out[place] += int(overlapping.sum())
            rows = rows[~overlapping]
    if limit is not None and limit < len(rows):
        rows = rows.iloc[stratified(rows["label"], limit, seed)]
    in_train = int(overlapping_rows(rows, data.train)[0].sum())
    added = Added(rows=len(rows), in_train=in_train, **left_out)
    train = pd.concat([data.train, rows[list(data.train.columns)]], ignore_index=True)
    return replace(data, train=train, added={**data.added, name: added})


def _mistakes(source: Task, target: Task, extra: Extra) -> list[str]:
    """Why the source's labels cannot be converted as ``extra`` asks."""
    if "labels" in (source.kind, target.kind):
        same = (source.kind, source.classes) == (target.kind, target.classes) and not extra.labels and not extra.scale
        return [] if same else ["rows with several labels need a source of the same classes, in the same order"]
    if extra.labels:
        keys, known = (
            {as_label(key) or key for key, _ in extra.labels},
            {str(number) for number in range(source.outputs)},
        )
        if source.kind == "classes" and keys == known:
            return []
        return [f"labels: write one for each of its classes 0..{source.outputs - 1}; for scores write scale = [a, b]"]
    if extra.scale is not None:
        are_scores = source.kind == target.kind == "score"
        return (
            []
            if are_scores
            else ["scale: is for scores of both tasks: for classes write labels = { 0 = ..., 1 = ... }"]
        )
    if (source.kind, source.classes, source.range) == (target.kind, target.classes, target.range):
        return []
    return [
        f"its labels are {_description(source)}, and those of '{target.name}' {_description(target)}: say what they are"
        " there, labels = { 0 = ..., 1 = ... } for classes and scale = [a, b] for scores, or leave it out"
    ]


def _description(task: Task) -> str:
    if task.range is not None:
        return f"scores {task.range[0]:g} to {task.range[1]:g}"
    return f"{task.outputs} classes ({', '.join(task.classes)})"
