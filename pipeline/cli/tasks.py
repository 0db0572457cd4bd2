"""Verbs for tasks: tasks list, show, check."""

from cyclopts import App

from pipeline.cli.options import FileOrFolder, TaskFolder
from pipeline.data.tasks import Task, built_in_tasks, find_task

tasks = App(name="tasks", help="The tasks that can be trained.")


@tasks.command(name="list")
def tasks_list() -> None:
    """Every built-in task."""
    for task in built_in_tasks().values():
        names = ", ".join((task.name, *task.aliases))
        print(f"{names:<14} {task.metric:<9} {task.description}")


@tasks.command(name="show")
def tasks_show(name: str, *, data: TaskFolder = None) -> None:
    """A task with all its settings.

    Args:
        name: A built-in task, a task in --data, or a task file.
    """
    print(find_task(name, data).model_dump_json(indent=2))


@tasks.command(name="check")
def tasks_check(file: FileOrFolder) -> None:
    """Check a task file; every mistake is reported at once.

    Args:
        file: The TOML file.
    """
    print(f"{file}: task '{Task.read(file).name}' is fine")
