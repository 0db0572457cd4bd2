"""Load a task's splits from files or the Hub into canonical, checked rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pipeline.data.canonical import Unknown, canonical_rows, has_labels
from pipeline.data.cells import is_blank
from pipeline.data.split import stratified
from pipeline.data.tables import SUFFIXES, read_table
from pipeline.data.task_data import DEV_SEED, TaskData
from pipeline.data.tasks import Hub, Split, Task, check_folder
from pipeline.data.texts import name_among
from pipeline.data.typed import as_pandas
from pipeline.system.errors import PipelineError
from pipeline.system.reading import reading


def load_all_rows(task: Task, data: Path | None, *, test: bool = False) -> TaskData:
    """Checked train and dev rows of ``task``; with ``test``, for a study, also those of its labelled test split.

    Raises:
        PipelineError: it names file, row and value.
    """
    share = held_out_share(task, data)
    if share is not None:
        rows = load_split(task, data, "train")
        dev_size = max(1, round(len(rows) * share))
        chosen = stratified(rows["label"], dev_size, DEV_SEED)
        train, dev = rows.drop(chosen).reset_index(drop=True), rows.iloc[chosen].reset_index(drop=True)
        if min(train["label"].nunique(), dev["label"].nunique()) < 2:
            raise PipelineError(
                f"task '{task.name}': dev_fraction {share} of {len(rows)} rows leaves {len(train)} to"
                f" train on and {len(dev)} for dev, and one of the two has a single label: give more rows, another"
                " dev_fraction, or a dev split"
            )
    else:
        train, dev = load_split(task, data, "train"), load_split(task, data, "dev")
    instead = "--scoring half scores a half of dev instead"
    return TaskData(train, dev, load_split(task, data, "test", instead) if test else None)


def held_out_share(task: Task, data: Path | None) -> float | None:
    """The share of train held out as dev (the source's ``dev_fraction``); None if there is a dev split, or no fraction.

    Raises:
        PipelineError: ``data`` has no folder of the task.
    """
    if data is None:
        hub = _hub_of(task)
        return None if "dev" in hub.splits else hub.dev_fraction
    share = task.files.dev_fraction
    return None if share is None or _files_of(task, data, task.files.dev)[1] else share


def load_split(
    task: Task,
    data: Path | None,
    split: Split,
    instead: str = "",
    *,
    is_scored: bool = False,
    unknown: Unknown | None = None,
) -> pd.DataFrame:
    """One labelled split in canonical form, checked.

    Args:
        instead: for the error if the split is missing: what the command can do without it.
        is_scored, unknown: as in :func:`pipeline.data.canonical.canonical_rows`.
    """
    instead = instead and f"; {instead}"
    if data is None:
        hub = _hub_of(task)
        if split not in hub.splits:
            remedy = f"give the files with --data DIR{instead}"
            raise PipelineError(f"{hub.dataset}: publishes no '{split}' split: {remedy}")
        return _hub_rows(hub, task, split, labelled=True, is_scored=is_scored)
    stem = getattr(task.files, split)
    folder, files = _files_of(task, data, stem)
    if not files:
        raise PipelineError(f"{folder}: split '{split}' is missing: no {stem}{{{','.join(SUFFIXES)}}}{instead}")
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise PipelineError(f"{folder}: split '{split}' is ambiguous: {names}: keep one")
    table, where = read_table(files[0]), str(files[0])
    return canonical_rows(task, table, where, source=task.files, is_scored=is_scored, unknown=unknown)


def read_test_texts(task: Task, data: Path | None) -> pd.DataFrame | None:
    """The texts of the test split in canonical form, with or without labels; None if there are none.

    Files beside ``train`` and ``dev``: ``test``, or ``test_unlabelled`` as some releases publish it.
    """
    if data is None:
        hub = _hub_of(task)
        return _hub_rows(hub, task, "test", labelled=False) if "test" in hub.splits else None
    _, files = _files_of(task, data, task.files.test, f"{task.files.test}_unlabelled")
    tables = [canonical_rows(task, read_table(file), str(file), source=task.files, labelled=False) for file in files]
    return pd.concat(tables, ignore_index=True) if tables else None


def _hub_of(task: Task) -> Hub:
    if task.hub is None:
        raise PipelineError(f"task '{task.name}' has no Hub data set: give its folder with --data DIR")
    return task.hub


def _hub_rows(hub: Hub, task: Task, split: Split, labelled: bool, is_scored: bool = False) -> pd.DataFrame:
    """One split in canonical form, from the local cache if it was downloaded before; no loading script is run."""
    # Imported here, since it takes half a second and only tasks without files need it.
    import datasets

    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(hub.dataset, hub.config, split=hub.splits[split], revision=hub.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise PipelineError(
            f"data set '{hub.dataset}' cannot be downloaded from the Hub: connect, or give its files with --data DIR"
            f" ({reason})"
        ) from error
    table = as_pandas(loaded.data.table)
    # Without ids, use the row numbers ("idx") that some Hub data sets have.
    if "id" not in table.columns and "idx" in table.columns:
        table = table.rename(columns={"idx": "id"})
    where = f"{hub.dataset}:{hub.splits[split]}"
    return canonical_rows(task, table, where, source=hub, labelled=labelled, is_scored=is_scored)


def has_rows(task: Task, data: Path) -> bool:
    """Whether ``data`` has a table for any split of the task.

    Raises:
        PipelineError: there is no such folder.
    """
    folder = _folder_of(task, data)
    return folder is not None and bool(tables_in(folder, task.files.train, task.files.dev, task.files.test))


def has_labelled_test(task: Task, data: Path | None) -> bool:
    """Whether the task has a labelled test split in ``data``, or on the Hub if None."""
    if data is None:
        return "test" in _hub_of(task).splits
    return any(is_labelled(task, read_table(file)) for file in _files_of(task, data, task.files.test)[1])


def is_labelled(task: Task, table: pd.DataFrame) -> bool:
    if not has_labels(task, table.columns):
        return name_among(task.text[0], table.columns) is None  # a mistake, which is reported when the rows are read
    label = name_among(task.label, table.columns)
    return label is None or not table[label].map(is_blank).all()


def _files_of(task: Task, data: Path, *stems: str) -> tuple[Path, list[Path]]:
    """The task's folder and its tables with these names; one that is not a regular file fails when it is read."""
    folder = _folder_of(task, data)
    if folder is None:
        raise PipelineError(f"{data / task.name}: no such folder: --data must have <task>/train and <task>/dev")
    return folder, tables_in(folder, *stems)


def _folder_of(task: Task, data: Path) -> Path | None:
    check_folder(data)
    with reading(data):
        return next((data / name for name in (task.name, *task.aliases) if (data / name).is_dir()), None)


def tables_in(folder: Path, *stems: str) -> list[Path]:
    """The tables with these names in ``folder``, in the order of ``stems``; suffixes may be in any case."""
    with reading(folder):
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
        return [file for stem in stems for file in files if file.stem == stem and file.exists()]
