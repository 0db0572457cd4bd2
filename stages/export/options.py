"""Mistakes in the options of ``export``; imports no model, so that they are reported before the libraries load."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pipeline.runs.kept_models import find_model
from pipeline.system.errors import PipelineError, shortened, writing
from pipeline.system.reading import read_json
from stages.export import hub
from stages.export.trained import TASK_FILE, files_in


def check(task: str, using: str, folder: Path, push_to: str | None, store: Path, reports: Path) -> None:
    """Find mistakes in the arguments of :func:`stages.export.export`; raises as that does."""
    if push_to is not None:
        hub.check_name(push_to)
    find_model(task, using, store, reports)
    check_place(folder)


def check_place(folder: Path) -> None:
    """Refuse to replace a folder that holds what no export wrote, such as notes or the ``.git`` of a repository."""
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise PipelineError(f"--output {folder}: this is a file: name a folder")
        earlier = list[str]()
        with suppress(PipelineError):  # it is missing, or no file of ours
            earlier = files_in(read_json(folder / TASK_FILE, ""))
        if (other := next((name for name in names_in(folder) if name not in earlier), None)) is not None:
            raise PipelineError(
                f"--output {folder}: holds {shortened(other)}, which no export wrote and a new one would delete: name a"
                " new folder"
            )


def names_in(folder: Path) -> Iterator[str]:
    """What stands in ``folder`` at any depth, without folders and what Python caches of scripts."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if (path.is_symlink() or not path.is_dir()) and "__pycache__" not in name.parts:
            yield name.as_posix()
