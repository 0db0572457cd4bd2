"""Verbs for tasks: tasks new, add, list, show, check."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from pipeline.cli.options import DATA, PLACES, DataFolders, Flag, Seed, settings
from pipeline.cli.printing import print_lines
from pipeline.data.tasks import NewTask, Task, built_in_tasks, check_folder, find_task, own_files
from pipeline.system.errors import PipelineError

tasks = App(name="tasks", help="The tasks that can be trained, and new ones from your files.")

DataFolder = Annotated[
    Path, Parameter(group=PLACES, help="Folder of your tasks, in which the task's own folder is made.")
]
Names = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


@tasks.command(name="new")
def tasks_new(
    file: Path,
    *,
    wanted: Annotated[NewTask, Parameter(name="*", negative=())] = NewTask(),
    data: DataFolder = DATA,
    seed: Seed = 0,
    replace: Flag = False,
) -> None:
    """Make a task of your own from a table: a task file and the splits train, dev and test.

    Args:
        file: Table with texts and labels (csv, xlsx, parquet and others).
        seed: Determines the split.
        replace: Delete the task of this name that is there, with its splits.
    """
    from stages.new_task import new_task

    print(new_task(file, data, wanted, seed=seed, replace=replace, is_found=data in _data()))


@tasks.command(name="add")
def tasks_add(folder: Path, file: Path, *, split: str | None = None, rename: Names = (), seed: Seed = 0) -> None:
    """Add new labelled rows to a task of your own; every old row stays in its split.

    Rows whose text the task has are left out; with another label than in dev or test, they are an error.

    Args:
        folder: The task's folder, such as data/emails.
        file: Table with the task's columns (csv, xlsx, parquet and others, as tasks new reads it).
        split: Percentages of the new rows for train, dev and test (train and dev, as they are now: test stays).
        rename: A label under another name, such as Rechnug=Rechnung; several with commas or several times.
        seed: Determines which new rows go to dev.
    """
    from stages.add_rows import add_rows

    is_found = folder.absolute().parent in [each.absolute() for each in _data()]
    print(add_rows(folder, file, split=split, rename=rename, seed=seed, is_found=is_found))


@tasks.command(name="list")
def tasks_list(*, data: DataFolders = ()) -> None:
    """Every task in --data, then every built-in one."""
    for folder in data:
        check_folder(folder)
    for file in [file for folder in data for file in own_files(folder)]:
        try:
            task, own = Task.read(file), file.parent.name
            mark = "" if task.name == own else f" (its folder is {own}: give both one name)"
            _print_task(task, f"{file}{mark}")
        except PipelineError as error:
            print_lines(f"{file.parent.name:<14} {'-':<9} {str(error).splitlines()[0]}: see tasks check {file}")
    for task in built_in_tasks().values():
        _print_task(task, task.description)


def _print_task(task: Task, description: str) -> None:
    print_lines(f"{', '.join((task.name, *task.aliases)):<14} {task.metric:<9} {description}")


@tasks.command(name="show")
def tasks_show(name: str, *, data: DataFolders = ()) -> None:
    """A task with all its settings.

    Args:
        name: A built-in task, a task in --data, or a task file.
    """
    print_lines(*find_task(name, *data).model_dump_json(indent=2).split("\n"))


@tasks.command(name="check")
def tasks_check(file: Path, *, backbone: str | None = None) -> None:
    """Check a task file or, given its folder, its data too; every mistake is reported at once.

    Args:
        file: The TOML file, or the folder with it and the splits.
        backbone: Hub id or folder of an encoder, to count the tokens that max_length cuts off (that of pipeline.toml;
            without one, tokens are not counted).
    """
    if not file.is_dir():
        if backbone is not None:
            raise PipelineError(
                f"--backbone counts the tokens of a task's rows: give the folder of the task, not {file}"
            )
        print(f"{file}: task '{Task.read(file).name}' is fine")
        return
    from stages.check_task import check_task

    usual = next(iter(settings().get("backbone", [])), None)
    print(check_task(file, backbone or usual, is_asked=backbone is not None))


def _data() -> list[Path]:
    """The default folders of tasks."""
    return [Path(folder) for folder in settings().get("data", [str(DATA)])]
