"""Options that several verbs share, and the settings file that may set some of them.

That is the nearest ``pipeline.toml``, or ``[tool.adapter-fusion]`` in pyproject.toml, from the working folder upwards,
as for ruff; files are not merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, ArgumentCollection, Group, Parameter, Token
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pipeline.data.tasks import BEST, Encoding, HeadKind, Pooling, Task, check_folder, find_task, task_and_run
from pipeline.records.store import DEFAULT_STORE
from pipeline.settings.recipe import ClassWeights, Precision, Recipe, layered
from pipeline.system.errors import PipelineError, make_all, raise_all, validation_problems
from pipeline.system.reading import is_folder, read_toml

if TYPE_CHECKING:  # it loads torch
    from pipeline.runs.workspace import Workspace
    from stages.runs import Runs


class _Advanced:
    """Prints the options of a group in full with --help-all, and otherwise their names in a line."""

    in_full = False

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        from cyclopts.help import DefaultFormatter  # it loads rich

        if self.in_full:
            DefaultFormatter()(console, options, panel)
        else:
            names = ", ".join(entry.names[0] for entry in panel.entries)
            console.print(f"{panel.title} (--help-all): {names}", highlight=False)


ADVANCED = _Advanced()


def _groups(title: str, rank: int) -> tuple[Group, Parameter]:
    """A group of options, and what marks those options of it that few need."""
    few = Group(f"{title}, advanced" if title else "Advanced", sort_key=rank + 0.5, help_formatter=ADVANCED)
    return Group(title, sort_key=rank), Parameter(group=few)


Advanced = _groups("", 0)[1]
TRAINING, _OfTraining = _groups("Training", 1)
RUN, _OfRun = _groups("Run", 2)
BACKBONE = "google-bert/bert-base-uncased"
DATA, STORE, REPORTS = Path("data"), Path(DEFAULT_STORE), Path("reports")
PLACES = Group(
    "Where",
    help="Also from the nearest pipeline.toml, or [tool.adapter-fusion] of a pyproject.toml, from the working folder"
    " upwards: backbone, data, store, reports. Flags override.",
    sort_key=4,
)
"""Group of the options that a settings file may set; :func:`fill_in`."""


def between(low: float, high: float = inf) -> Parameter:
    """A number from ``low`` to ``high``, checked before the libraries load, which takes seconds."""

    def check(_type: object, value: float | None) -> None:
        if value is not None and not low <= value <= high:
            raise ValueError(f"Give {low:,} or more." if high == inf else f"Give {low:,} to {high:,}.")

    return Parameter(validator=check)


TableFile = Annotated[Path, Parameter(allow_leading_hyphen=True)]
"""A file, or a hyphen for standard input or output."""
StoreFolder = Annotated[
    Path, Parameter(name="--store", group=PLACES, help="Where trained adapters and fusions are kept.")
]
ReportsFolder = Annotated[Path, Parameter(group=PLACES, help="Where runs, tables and pages are kept.")]
DataFolders = Annotated[
    tuple[Path, ...],
    Parameter(
        name="--data",
        group=PLACES,
        negative=(),
        show_default=False,
        help="Folder with <task>/{train,dev,test} as tables (csv, parquet and others) and <task>/task.toml; may be"
        " given several times. A task in none of them is read from its Hub data set (the folder data, if there is"
        " one).",
    ),
]
Count = Annotated[int | None, between(1)]
Seed = Annotated[int, between(0, 2**32 - 1)]
FreeText = Annotated[str, Parameter(allow_leading_hyphen=True)]
"""Text in any language, which may begin with a dash or a negative number."""
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Json = Annotated[Flag, Parameter(help="Print the result as one JSON object on the last line.")]


@Parameter(name="*", group=TRAINING)
@dataclass(frozen=True, kw_only=True)
class Training:
    """How a run trains. What is not given comes from --recipe, then from the task and the method."""

    epochs: int | None = None
    "Passes over the training rows (head, adapter, full: 4; fusion: 3; standard fusion: 2; more to reach --min-steps)."
    min_steps: int | None = None
    "Train at least N optimiser steps, in as many epochs as that takes (400; warm start: 200; with --epochs: 0)."
    learning_rate: float | None = None
    "Peak learning rate (head, adapter, fusion: 1e-3; standard fusion: 5e-4; full: 5e-5)."
    backbone_learning_rate: Annotated[float | None, _OfTraining] = None
    "Peak learning rate of pretrained weights (as --learning-rate)."
    head_learning_rate: Annotated[float | None, _OfTraining] = None
    "Peak learning rate of heads (as --learning-rate)."
    batch_size: int | None = None
    "Rows per optimiser step, over all processes (32)."
    gradient_accumulation_steps: Annotated[int | None, _OfTraining] = None
    "Split each batch into N pieces to save memory (1)."
    max_length: int | None = None
    "Longest input in tokens (from the task)."
    encoding: Encoding | None = None
    "How pairs are read: cross, as one input; siamese, as two (from the task)."
    pooling: Annotated[Pooling | None, _OfTraining] = None
    "Sentence vector: cls, the first token; mean, the mean over tokens; pooler, BERT's own (from the task)."
    head: Annotated[HeadKind | None, _OfTraining] = None
    "How sentence vectors become a prediction (from the task; cosine and difference imply siamese)."
    class_weights: ClassWeights | None = None
    "balanced: all classes count equally in the loss, whatever their number of training rows (none)."
    label_smoothing: Annotated[float | None, _OfTraining] = None
    "Share of a class's label that is spread over all classes, from 0 to below 1 (0)."
    early_stopping_patience: Annotated[int | None, _OfTraining] = None
    "Stop after N epochs without a better dev score (off)."
    precision: Annotated[Precision | None, _OfTraining] = None
    "auto: bf16 where the GPU or CPU has instructions for it, else fp32 (auto)."
    recipe: Path | None = None
    "TOML file with any keys of a recipe; flags override it."

    def given(self, **flags: Any) -> dict[str, Any]:
        """The keys set by flags; ``flags`` are the verb's additional options."""
        options = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "recipe"} | flags
        return {name: value for name, value in options.items() if value is not None and value is not False}

    def values(self, **flags: Any) -> dict[str, Any]:
        """The keys set by the file and the flags, unchecked; see :meth:`given`."""
        return layered(read_toml(self.recipe) if self.recipe else {}, self.given(**flags))

    def parse(self, trainable: str, usual: Mapping[str, Any] | None = None, /, **flags: Any) -> Recipe:
        """The recipe for a verb that trains ``trainable``: flags override the file, the file ``usual``."""
        values = layered(usual or {}, self.values(**flags))
        where = str(self.recipe) if self.recipe else "options"
        named = values.setdefault("trainable", trainable)
        if named != trainable:
            raise PipelineError(f"{where}: trainable = '{named}', but this command trains '{trainable}': remove it")
        return Recipe.parse(values, where)


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, kw_only=True)
class Running:
    """What a training command does besides training."""

    limit: Count = None
    "Use only N training rows (a seeded, stratified sample)."
    dev_limit: Annotated[Count, _OfRun] = None
    "Select on only N rows of dev; score at most N test rows, unless held out of train (all; compare: from the study)."
    drop_overlap: Flag = False
    "Drop training rows whose text also occurs in dev, or in test where that is scored."
    track: Annotated[Literal["tensorboard", "mlflow", "wandb"] | None, _OfRun] = None
    "Log settings and curve: tensorboard, in the run's folder; mlflow, in <reports>/mlruns; wandb (off)."
    checkpoint_seconds: Annotated[float, between(0), _OfRun] = 60.0
    "Maximum seconds between two checkpoints of an unfinished run; the first come sooner."
    cache_gb: Annotated[float, between(0, 10**6), _OfRun] = 2.0
    "Memory in GiB for the outputs of frozen layers, which are then computed once and not in every epoch; 0: off."
    json: Json = False


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, kw_only=True)
class OneRun(Running):
    """The same for a command that trains one run."""

    seed: Seed = 0
    "Determines initial weights, sample, order of rows and dropout."
    force: Flag = False
    "Train again even if this run is finished."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Passes:
    """How a trained model reads rows."""

    batch_size: Annotated[int, between(1)] = 64
    "Rows per forward pass."
    precision: Precision = "auto"
    "auto: bf16 where the GPU or CPU has instructions for it, else fp32."


@Parameter(name="*", group=PLACES)
@dataclass(frozen=True, kw_only=True)
class Kept:
    """Where finished work is."""

    store: StoreFolder = STORE
    reports: ReportsFolder = REPORTS

    def runs(self) -> Runs:
        from stages.runs import Runs

        return Runs(self.reports, self.store)


@Parameter(name="*", group=PLACES)
@dataclass(frozen=True, kw_only=True)
class Places(Kept):
    """Where a command reads and writes."""

    backbone: str | None = None
    "Hub id or local folder of a BERT-family encoder (google-bert/bert-base-uncased; a trained model's own)."
    data: DataFolders = ()

    def check(self, *tasks: str) -> list[Task]:
        """The tasks that a command names, looked up to report typos, also in folders, before the libraries load.

        Raises:
            PipelineError: reports all unknown tasks and missing folders at once.
        """
        folders: list[Callable[[], object]] = [partial(check_folder, folder) for folder in self.data]
        folders += [] if self.backbone is None else [partial(is_folder, self.backbone)]
        make_all("command line", folders, lambda look_up: look_up())  # first, because they may hold the tasks
        return make_all("command line", tasks, self.task)

    def task(self, name: str) -> Task:
        """Like :func:`find_task`."""
        return find_task(name, *self.data)

    def workspace(self, running: Running = Running(), usual: str = BACKBONE) -> Workspace:
        """Args: usual: the default backbone; empty: the backbone of the model that the command uses."""
        from pipeline.runs.workspace import Workspace

        first, *more = self.data or (None,)
        names = ("dev_limit", "drop_overlap", "track", "checkpoint_seconds", "cache_gb")
        settings = {name: getattr(running, name) for name in names}
        return Workspace(self.backbone or usual, first, self.store, self.reports, more_data=tuple(more), **settings)


def names_in(text: str | None) -> list[str] | None:
    """The parts of ``a,b,c``; None stays None, so that the default of the stage or study applies."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def tasks_in(text: str | None) -> list[str]:
    """The tasks of ``a,b@RUN,c``; empty for ``best`` and ``best:8``, which name none."""
    names = [task_and_run(name)[0] for name in names_in(text) or ()]
    return [name for name in names if name.partition(":")[0] != BEST]


def numbers_in(text: str | None, option: str) -> list[int] | None:
    """The whole numbers of ``1,2,3``, the value of ``option``; None stays None."""
    try:
        return None if text is None else list(map(int, names_in(text) or ()))
    except ValueError:
        raise PipelineError(f"{option} {text}: write whole numbers with commas, such as 1,2,3") from None


def need_extra(extra: str, what: str, *modules: str) -> None:
    """Raise a :class:`PipelineError` if ``what`` needs one of the ``modules`` of ``extra`` and it is not installed."""
    try:
        for module in modules:
            import_module(module)
    except ImportError as error:
        raise PipelineError(
            f"{what} needs {error.name}: install the extra, pip install 'adapter-fusion-pipeline[{extra}]'"
        ) from None


_OWN, _SHARED, _SECTION = "pipeline.toml", "pyproject.toml", "adapter-fusion"
_Text = Annotated[str, Field(pattern=r"\S")]
_Texts = Annotated[list[_Text], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    backbone: _Text | None = None
    data: Annotated[_Texts, Field(min_length=1)] | None = None
    store: _Text | None = None
    reports: _Text | None = None


def fill_in(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill in a command's missing place options from the settings file.

    Ignores settings for which the command has no option. If nothing sets ``data``, it is the folder ``data``, if that
    exists.

    Raises:
        PipelineError: as for :func:`settings`.
    """
    own = [each for each in arguments if PLACES in (each.parameter.group or ())]  # type: ignore[operator]
    if not own:
        return
    values = settings()
    if DATA.is_dir():
        values.setdefault("data", [str(DATA)])
    for argument in own:
        given = [] if argument.has_tokens else values.get(argument.name.removeprefix("--"), [])
        _, takes_several = argument.token_count()
        for index, value in enumerate(given if takes_several else given[:1]):
            argument.append(Token(keyword=argument.name, value=value, source=_OWN, index=index))


def settings() -> dict[str, list[str]]:
    """The values of the nearest settings file, by key; paths are relative to the file.

    Raises:
        PipelineError: the file cannot be read, or has an unknown key or a value that is no path; all mistakes at once.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was deleted
        return {}
    for folder in (here, *here.parents):
        where, table = _table_in(folder)
        if table is not None:
            try:
                values = _Settings.model_validate(table).model_dump(exclude_none=True)
            except ValidationError as error:
                raise_all(where, validation_problems(error))
            # Paths in the working folder's file stay as written, because messages and records name them.
            base = Path() if folder == here else folder
            listed = {key: [value] if isinstance(value, str) else value for key, value in values.items()}
            return {key: [_place(key, value, base) for value in own] for key, own in listed.items()}
    return {}


def _table_in(folder: Path) -> tuple[str, Any]:
    """The settings file in ``folder``, for messages, and its table; None if there is none."""
    if (folder / _OWN).is_file():
        return str(folder / _OWN), read_toml(folder / _OWN)
    tool = read_toml(folder / _SHARED).get("tool") if (folder / _SHARED).is_file() else None
    return f"{folder / _SHARED}: [tool.{_SECTION}]", tool.get(_SECTION) if isinstance(tool, Mapping) else None


def _place(key: str, value: str, folder: Path) -> str:
    """``value`` of ``key`` in the file in ``folder``, relative to the working folder."""
    is_path = key != "backbone" or value.startswith((".", "/")) or (folder / value).is_dir()
    return str(folder / value) if is_path else value
