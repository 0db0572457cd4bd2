"""Extra data: add another task's training rows to a target's, without the rows that are scored."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from pipeline.data.load import Added, TaskData, label_key, stratified
from pipeline.data.overlap import overlapping_rows
from pipeline.data.tasks import Task
from pipeline.data.tasks.extra import Extra
from pipeline.system.errors import raise_all


def extra_rows(source: Task, rows: pd.DataFrame, target: Task, extra: Extra) -> pd.DataFrame:
    """Canonical rows of ``source`` with labels of ``target``, and ids that name the source.

    Raises:
        PipelineError: the rows do not fit; with every reason and its remedy.
    """
    labels, problems = _as_target(source, rows["label"], target, extra)
    if source.is_pair != target.is_pair:
        have, wanted = ("pairs", "one text") if source.is_pair else ("one text", "pairs")
        problems.insert(0, f"its rows are {have}, and those of '{target.name}' are {wanted}: leave it out")
    raise_all(f"extra data '{source.name}' for '{target.name}'", problems)
    return rows.assign(id=f"{source.name}:" + rows["id"], label=labels)


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
    """Add ``rows`` of source ``name`` to the training rows of ``data``, except those that are scored.

    Rows that are also among the target's own training rows are kept and counted: two people may have labelled a text.

    Args:
        dev: all dev rows of the target, even if ``data`` has a sample of them.
        test: its test texts, if they can be read.
        held_out: dev rows of other tasks that a study scores.
        limit: the most rows to add, a stratified sample drawn by ``seed``.
    """
    rows, in_dev = _without(rows, dev)
    rows, in_test = _without(rows, test)
    in_other_dev = 0
    for other in held_out:
        rows, count = _without(rows, other)
        in_other_dev += count
    if limit is not None and limit < len(rows):
        rows = rows.iloc[stratified(rows["label"], limit, seed)]
    in_train = int(overlapping_rows(rows, data.train)[0].sum()) if len(rows) else 0
    added = Added(rows=len(rows), in_dev=in_dev, in_test=in_test, in_other_dev=in_other_dev, in_train=in_train)
    train = pd.concat([data.train, rows[list(data.train.columns)]], ignore_index=True)
    return TaskData(train, data.dev, data.dropped, {**data.added, name: added})


def _without(rows: pd.DataFrame, other: pd.DataFrame | None) -> tuple[pd.DataFrame, int]:
    if other is None or rows.empty:
        return rows, 0
    overlapping, _ = overlapping_rows(rows, other)
    return rows[~overlapping], int(overlapping.sum())


def _as_target(source: Task, labels: pd.Series, target: Task, extra: Extra) -> tuple[pd.Series, list[str]]:
    """The labels converted to the target's, and what prevents that."""
    if extra.labels:
        converted, problems = _mapped(source, labels, extra)
    elif extra.scale is not None:
        converted, problems = extra.scale[0] * labels + extra.scale[1], _scale_problems(source, target)
    else:
        converted, problems = labels, _meaning_problems(source, target)
    return (converted, problems) if problems else _in_range(converted, target)


def _mapped(source: Task, labels: pd.Series, extra: Extra) -> tuple[pd.Series, list[str]]:
    if source.kind != "classes":
        return labels, ["labels: its labels are scores: write scale = [a, b] for a x + b"]
    table = {label_key(key): label for key, label in extra.labels}
    known = {str(number) for number in range(source.outputs)}
    problems = [f"labels: '{key}' is none of its classes 0..{source.outputs - 1}" for key in table if key not in known]
    if missing := sorted(known - set(table)):
        problems.append(f"labels: class {', '.join(missing)} is not listed: say which label of the target it is")
    return labels.map(lambda label: table.get(str(label), np.nan)), problems


def _scale_problems(source: Task, target: Task) -> list[str]:
    return [
        f"scale: the labels of '{task.name}' are classes, not scores: write labels = {{ 0 = ..., 1 = ... }}"
        for task in (source, target)
        if task.kind != "score"
    ]


def _meaning_problems(source: Task, target: Task) -> list[str]:
    if (source.kind, source.classes, source.range) == (target.kind, target.classes, target.range):
        return []
    difference = f"its labels are {_description(source)}, and those of '{target.name}' {_description(target)}"
    if source.kind == "classes":
        return [f"{difference}: say what each is there, labels = {{ 0 = ..., 1 = ... }}"]
    if target.kind == "score":
        return [f"{difference}: say how the one becomes the other, scale = [a, b] for a x + b"]
    return [f"{difference}: scores cannot be made classes: leave it out"]


def _description(task: Task) -> str:
    if task.range is not None:
        return f"scores {task.range[0]:g} to {task.range[1]:g}"
    return f"{task.outputs} classes ({', '.join(task.classes)})"


def _in_range(labels: pd.Series, target: Task) -> tuple[pd.Series, list[str]]:
    values = labels.to_numpy(dtype=float)
    if target.kind == "classes":
        wrong = (values != np.floor(values)) | (values < 0) | (values >= target.outputs)
        allowed = f"a class of '{target.name}', 0..{target.outputs - 1}"
    else:
        assert target.range is not None
        low, high = target.range
        slack = 1e-9 * (high - low)  # a score rescaled in floating point may overshoot its end by rounding
        wrong = (values < low - slack) | (values > high + slack)
        allowed = f"in the range of '{target.name}', {low:g}..{high:g}"
        values = values.clip(low, high)
    if wrong.any():
        shown = ", ".join(f"{value:g}" for value in sorted(set(labels[wrong]))[:3])
        return labels, [f"{wrong.sum()} labels are not {allowed}: {shown}"]
    whole = values.astype("int64") if target.kind == "classes" else values
    return pd.Series(whole, index=labels.index), []
