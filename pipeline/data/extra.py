"""Extra data: another task's training rows with the labels of a target, to be added to the target's."""

import numpy as np
import pandas as pd

from pipeline.data.canonical import as_labels
from pipeline.data.cells import as_label
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


def _mistakes(source: Task, target: Task, extra: Extra) -> list[str]:
    """Why the source's labels cannot be converted as ``extra`` asks."""
    if "labels" in (source.kind, target.kind):
        same = (source.kind, source.classes) == (target.kind, target.classes) and not extra.labels and not extra.scale
        return [] if same else ["rows with several labels need a source of the same classes, in the same order"]
    if extra.labels:
        keys = {as_label(key) or key for key, _ in extra.labels}
        if source.kind == "classes" and keys == {str(number) for number in range(source.outputs)}:
            return []
        return [f"labels: write one for each of its classes 0..{source.outputs - 1}; for scores write scale = [a, b]"]
    if extra.scale is not None:
        if source.kind == target.kind == "score":
            return []
        return ["scale: is for scores of both tasks: for classes write labels = { 0 = ..., 1 = ... }"]
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
