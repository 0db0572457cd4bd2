"""Load a task as a run does: every row, then a sample."""

from pathlib import Path

from pipeline.data.load import TaskData, check_limit, load_all_rows
from pipeline.data.tasks import Task


def load_task_data(
    task: Task,
    data: Path | None,
    *,
    limit: int | None = None,
    seed: int = 0,
    dev_limit: int | None = None,
    drop_overlap: bool = False,
) -> TaskData:
    check_limit(limit)
    return load_all_rows(task, data, drop_overlap=drop_overlap).sample(task, limit, seed, dev_limit)
