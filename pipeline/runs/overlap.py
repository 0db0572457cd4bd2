"""What a run says of training rows that are also in dev."""

import sys

from pipeline.data.load import TaskData
from pipeline.data.tasks import Task


def tell_overlap(data: TaskData, task: Task) -> None:
    """Say on stderr which rows stand both in train and in dev, and what came of them."""
    name = task.name
    for other, rows in data.dropped.items():
        print(f"{name}: {rows} training rows that also stand in dev of {other} are left out", file=sys.stderr)
    for other, added in data.added.items():
        left_out = added.in_dev + added.in_test + added.in_other_dev
        print(
            f"{name}: {added.rows} training rows of {other} are added ({added.in_train} also stand in train);"
            f" {left_out} are left out, since they stand in dev or test",
            file=sys.stderr,
        )
    if data.dev_in_train:
        print(
            f"{name}: {data.dev_in_train} rows of dev also stand in train (--drop-overlap drops those from train)",
            file=sys.stderr,
        )
