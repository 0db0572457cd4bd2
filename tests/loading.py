"""Two task files, and a function that loads a task as a run does: all rows, then a sample."""

from pathlib import Path
from typing import Any

from pipeline.data.task_data import TaskData, load_all_rows
from pipeline.data.tasks import Task

MOOD: dict[str, Any] = {
    "name": "mood",
    "kind": "classes",
    "text": ["text"],
    "label": "label",
    "classes": ["bad", "good"],
    "metric": "accuracy",
}
LIKENESS: dict[str, Any] = {
    "name": "likeness",
    "kind": "score",
    "text": ["first", "second"],
    "label": "score",
    "range": [0.0, 5.0],
    "metric": "pearson",
}


def load_task_data(
    task: Task,
    data: Path | None,
    *,
    limit: int | None = None,
    seed: int = 0,
    dev_limit: int | None = None,
    drop_overlap: bool = False,
) -> TaskData:
    loaded = load_all_rows(task, data)
    if drop_overlap:
        loaded = loaded.without({task.name: loaded.held_out})
    return loaded.sample(task, limit, seed, dev_limit)
