"""Task: a labelled text task. Each built-in task is a TOML file beside this one."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from pipeline.data.labels import METRICS_OF, Kind, Metric, names_in, same_form
from pipeline.system.errors import PipelineError, nearest, raise_all, shortened, validation_problems
from pipeline.system.reading import present, read_toml, reading

Encoding = Literal["cross", "siamese"]
Pooling = Literal["cls", "mean", "pooler"]
"""The first token's state, the mean over tokens, or what BERT's pretrained pooler makes of the first token's state,
``tanh(W cls + b)`` (Devlin et al. 2019, trained for next-sentence prediction; other families have none)."""
HeadKind = Literal["linear", "mlp", "cosine", "difference", "difference-mlp", "comparison"]
CosineScale = Literal["clamped", "shifted"]
Truncation = Literal["head", "head-and-tail"]
Split = Literal["train", "dev", "test"]

PAIR_HEADS: frozenset[HeadKind] = frozenset({"cosine", "difference", "difference-mlp", "comparison"})
"""The heads that compare two sentence vectors; they need siamese encoding."""

BUILT_IN = Path(__file__).parent
BEST = "best"
"""What options that name tasks take for a choice among them (``--sources best:8``): no new task's name."""

# No comma (AdapterHub joins adapter names with commas), no dot or slash (names become folders and module names).
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=32)]
# An end of a range of scores. Any two differ by no more than fp32 can hold.
Bound = Annotated[float, Field(ge=-1e38, le=1e38)]


class UnknownTaskError(PipelineError):
    """No folder has a task of this name, and none is built in."""


def is_name(text: str) -> bool:
    """Whether ``text`` could be a :data:`Name`, and so the name of a folder."""
    return re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", text) is not None


def task_and_run(text: str) -> tuple[str, str]:
    """The parts of ``TASK@RUN``, or of ``TASK``, which names no run; raises for an ``@`` without a run."""
    task, at, run = text.partition("@")
    if at and not run.strip():
        raise PipelineError(f"{shortened(text)}: name a run after @, or leave @ out")
    return task, run


class Source(BaseModel):
    """Where the splits come from and how raw labels become the task's labels."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    labels: dict[str, float] = Field({}, description="raw label -> label; must have every raw label")
    scale: tuple[float, float] | None = Field(None, description="label = scale[0] * raw + scale[1]")
    dev_fraction: float | None = Field(
        None, gt=0, lt=1, description="if no dev split is published: the share of train to hold out for it"
    )
    drop_blank: bool = Field(False, description="leave out rows with an empty text, which are otherwise an error")
    drop_labels: tuple[str, ...] = Field((), description="leave out rows with these raw labels, such as -1 for none")
    separator: str = Field("|", min_length=1, description="for kind `labels`: what stands between the labels of a row")


class Files(Source):
    """Files of ``--data DIR``: ``DIR/<task>/<stem>.{parquet,csv,...}``; values are stems."""

    train: str = Field("train", description="file of the training rows, without its suffix")
    dev: str = Field("dev", description="file of the validation rows")
    test: str = Field("test", description="file of the test rows, if there are any")


class Hub(Source):
    """A data set of the Hugging Face Hub."""

    dataset: str = Field(description="id of the data set, such as nyu-mll/glue")
    config: str | None = Field(None, description="its configuration, such as rte")
    revision: str | None = Field(None, description="a commit, branch or tag; unset: the newest")
    text: tuple[str, ...] = Field(min_length=1, max_length=2, description="its columns of texts")
    label: str = Field(description="its column of the label")
    splits: dict[Split, str] = Field(min_length=1, description="its splits that are `train`, `dev` and `test`")


class Task(BaseModel):
    """One labelled text task in the project's terms."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Name = Field(description="the folder's name: at most 32 lower-case letters, digits, `_` and `-`")
    description: str = Field("", description="one line for `tasks list`")
    aliases: tuple[Name, ...] = Field((), description="other names for it on the command line")
    terms: str = Field("", description="licence of the data, or the terms of its release")
    shares_text: dict[Name, str] = Field({}, description="tasks that share text with this one, and which text")
    kind: Kind = Field(description="what is predicted")
    text: tuple[str, ...] = Field(min_length=1, max_length=2, description="the column of the text, or two for a pair")
    label: str = Field(description="column of the label")
    classes: tuple[str, ...] = Field((), description="names of the classes 0, 1, ...")
    similar: str | None = Field(
        None, description="of two classes of pairs, the one of similar texts, for cosine heads; unset: the second"
    )
    range: tuple[Bound, Bound] | None = Field(None, description="lowest and highest score")
    metric: Metric = Field(description="the metric of its scores, which also selects epochs on dev: see below")
    encoding: Encoding = Field(
        "cross", description="default of recipes: read a pair as one input (cross) or two (siamese)"
    )
    pooling: Pooling = Field("mean", description="default of recipes: sentence vector, the first token, mean or pooler")
    head: HeadKind = Field("linear", description="default of recipes: the head")
    max_length: int = Field(
        128, ge=4, le=8192, description="default of recipes: longest input in tokens; longer ones are cut"
    )
    files: Files = Field(Files(), description="names of files and labels, if they are not the usual ones")
    hub: Hub | None = Field(None, description="the data set of the Hub that is downloaded if no folder has the task")

    @property
    def is_pair(self) -> bool:
        return len(self.text) == 2

    @property
    def outputs(self) -> int:
        """Width of a head's output: one a class, or one score."""
        return len(self.classes) or 1

    def shown(self, label: Any) -> str:
        """A class number, score or label set as a table of the user's has it."""
        if self.kind == "labels":
            return self.files.separator.join(names_in(label, self.classes))
        return self.classes[label] if self.classes else f"{label:g}"

    @property
    def first_is_similar(self) -> bool:
        """Whether a high cosine means the first of its two classes; usually it means the second."""
        return self.similar is not None and self.similar == self.classes[0]

    @property
    def meaning(self) -> dict[str, Any]:
        """The part of the task that, besides its rows, changes a training run; it belongs to a run's identity."""
        return self.model_dump(mode="json", include={"kind", "classes", "range", "metric"})

    def text_shared_with(self, other: Self) -> str:
        """What text the two tasks share, in words; either may say it; empty: none is known."""
        return self.shares_text.get(other.name) or other.shares_text.get(self.name, "")

    @classmethod
    def parse(cls, raw: dict[str, Any], where: str) -> Self:
        """Validate ``raw``; a :class:`PipelineError` names ``where`` and all mistakes."""
        raise_all(where, cls.problems(raw))
        return cls.model_validate(raw)

    @classmethod
    def problems(cls, raw: dict[str, Any]) -> list[str]:
        """All mistakes in the keys of ``raw``; without any, the keys that do not go together."""
        try:
            return list(cls.model_validate(raw)._conflicts())
        except ValidationError as error:
            return validation_problems(error)

    def _conflicts(self) -> Iterator[str]:
        names, are_classes, metrics = self.classes, self.kind != "score", METRICS_OF[self.kind]
        compares_two, is_siamese = self.head in PAIR_HEADS, self.encoding == "siamese"
        two_alike = self.is_pair and len(names) == 2 and self.kind != "labels"
        separated = [name for name in names if self.kind == "labels" and self.files.separator in name]
        rules = {
            f"classes: a task of kind '{self.kind}' names at least two classes": are_classes and len(names) < 2,
            f"classes: names repeat (got {shortened(names)})": len({*map(same_form, names)}) < len(names),
            "classes: belongs to kinds 'classes' and 'labels'": names and not are_classes,
            f"files.separator: is in class {shortened(separated[0]) if separated else ''}: give another": separated,
            "range: belongs to kind 'score'": are_classes and self.range is not None,
            "range: a task of kind 'score' needs its lowest and highest score": not are_classes and self.range is None,
            "range: the first number must be below the second": self.range and self.range[0] >= self.range[1],
            "similar: belongs to pairs with two classes": self.similar and not two_alike,
            f"similar: {self.similar!r} is none of {' and '.join(names)}": self.similar and self.similar not in names,
            f"metric: use {' or '.join(metrics)} for kind '{self.kind}'": self.metric not in metrics,
            "text: the two columns are the same": len({*self.text}) < len(self.text),
            f"label: column {self.label!r} is also a text column": self.label in self.text,
            f"shares_text: '{self.name}' is the task itself": self.name in self.shares_text,
            "encoding/head: siamese encoding and its heads need two text columns": not self.is_pair
            and (compares_two or is_siamese),
            f"head: '{self.head}' needs encoding = 'siamese'": self.is_pair and compares_two and not is_siamese,
            "hub.text: as many columns as text": self.hub and len(self.hub.text) != len(self.text),
        }
        return (message for message, is_broken in rules.items() if is_broken)

    @classmethod
    def read(cls, file: Path) -> Self:
        return cls.parse(read_toml(file), str(file))


def described(name: str, meaning: dict[str, Any], pair: bool) -> dict[str, Any]:
    """Task ``name``, to be parsed, as a manifest or record describes it: of ``text_a``, ``text_b`` and ``label``."""
    return {**meaning, "name": name, "text": ["text_a", "text_b"] if pair else ["text_a"], "label": "label"}


def meaning_problems(meaning: dict[str, Any]) -> list[str]:
    """Why no task has this :attr:`Task.meaning`."""
    raw = described("any", meaning, pair=False)
    if problems := Task.problems(raw):
        return problems
    expected = Task.model_validate(raw).meaning
    return [] if meaning == expected else [f"a task's has {', '.join(expected)}, and no other keys"]


@cache
def built_in_tasks() -> dict[str, Task]:
    """Every shipped task by name, in alphabetical order."""
    return {file.stem: Task.read(file) for file in sorted(BUILT_IN.glob("*.toml"))}


def check_folder(data: Path) -> None:
    """Raise a :class:`PipelineError` unless ``data`` is a folder."""
    with reading(data):
        if not data.is_dir():
            raise PipelineError(f"{data}: no such folder (--data, or data in pipeline.toml)")


def own_files(data: Path) -> list[Path]:
    """The task files in a folder of tasks, by name."""
    with reading(data):
        return sorted(data.glob("*/task.toml"))


def find_task(name: str, *data: Path) -> Task:
    """The task called ``name``: a task file, ``<folder>/<name>/task.toml``, a built-in task or its alias, or an alias
    of a task in a folder.

    The first of these that there is counts; of several folders that have a task, the first one.

    Raises:
        UnknownTaskError: there is none.
        PipelineError: its file is unfit.
    """
    if name.endswith(".toml"):
        return Task.read(Path(name))
    files = [place / name / "task.toml" for place in data] if is_name(name) else []
    if own := next(filter(present, files), None):
        task = Task.read(own)
        if task.name != name:
            raise PipelineError(f"{own}: its name is '{task.name}', but its folder is '{name}': make them agree")
        return task
    tasks = built_in_tasks()
    for task in tasks.values():
        if name in task.aliases:
            return find_task(task.name, *data)
    if name in tasks:
        return tasks[name]
    here: dict[str, Path] = {}
    for file in (file for place in data for file in own_files(place)):
        here.setdefault(file.parent.name, file)
    for folder, file in here.items():
        with suppress(PipelineError):  # a broken file is reported to whoever names its task
            task = Task.read(file)
            if task.name == folder and name in task.aliases:
                return task
    near = nearest(name, [*here, *tasks])
    hint = f" (did you mean '{near}'?)" if near else ""
    raise UnknownTaskError(
        f"unknown task {shortened(name)}{hint}: python -m pipeline tasks list names all; or name a task file, or put"
        " <task>/task.toml into --data DIR"
    )


@dataclass(frozen=True, kw_only=True)
class NewTask:
    """A task to be made from a table. What is not given is found by names and content, or left out."""

    name: str | None = None
    "Name of the task (from the file's name)."
    text: str | None = None
    "The column of the texts, or two for pairs, such as question,answer (found by name and content)."
    label: str | None = None
    "The column of the labels, or several of 0 and 1, such as toxic,threat (found by name and content)."
    kind: Kind | None = None
    (
        "classes, score, or labels, of which a row may have several or none (by the content: score, if numbers have"
        " fractions or many different values; labels, if cells hold lists, or join what others hold alone)."
    )
    drop_labels: tuple[str, ...] | None = None
    "A label that stands for none, such as -1: its rows are left out; may be given several times."
    rename: tuple[str, ...] | None = None
    "A label under another name, such as Rechnug=Rechnung; several with commas or several times."
    separator: str | None = None
    "What stands between the labels of a row in a text, such as ; (found by content, else |)."
    similar: str | None = None
    "Of two classes of pairs, the one of similar texts, for --head cosine (by its name)."
    split: str = "80/10/10"
    "Percentages of train, dev and test, or of train and dev."


def _in_order(value: Any) -> Any:
    """A table of labels as sorted pairs, so that equal tables give equal recipes."""
    return tuple(sorted((str(key), label) for key, label in value.items())) if isinstance(value, Mapping) else value


class Extra(BaseModel):
    """A source of rows, and how its labels become the target's; by default they mean the same."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    task: Name
    labels: Annotated[tuple[tuple[str, float], ...], BeforeValidator(_in_order), PlainSerializer(dict)] = Field(
        (), description="class of the source -> label of the target"
    )
    scale: tuple[float, float] | None = Field(None, description="label = scale[0] * score of the source + scale[1]")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.labels and self.scale is not None:
            raise ValueError("labels are for classes and scale for scores: give one of them")
        return self

    def __str__(self) -> str:
        """``sick``, ``cfimdb (0 as 1, 1 as 3)``, ``sick (1.25 x - 1.25)``."""
        if self.labels:
            return f"{self.task} ({', '.join(f'{key} as {label:g}' for key, label in self.labels)})"
        if self.scale is not None:
            return f"{self.task} ({self.scale[0]:g} x {self.scale[1]:+g})"
        return self.task


def _listed(value: Any) -> Any:
    """``{ sick = {}, cfimdb = { labels = { 0 = 1, 1 = 3 } } }`` as a list of sources."""
    if isinstance(value, Mapping):
        for name, options in value.items():
            if not isinstance(options, Mapping):
                raise ValueError(f"'{name}': write a table, such as extra = {{ {name} = {{}} }}")
        return [{**value[name], "task": name} for name in value]
    return value


def _by_name(sources: tuple[Extra, ...]) -> tuple[Extra, ...]:
    """Sort ``sources`` by name, so that their order does not tell recipes apart."""
    ordered = tuple(sorted(sources, key=lambda source: source.task))
    for first, second in pairwise(ordered):
        if first.task == second.task:
            raise ValueError(f"'{first.task}' is named more than once: a task is one source")
    return ordered


def _table(sources: tuple[Extra, ...]) -> dict[str, Any]:
    """The inverse of :func:`_listed`."""
    return {source.task: source.model_dump(exclude={"task"}) for source in sources}


Extras = Annotated[tuple[Extra, ...], BeforeValidator(_listed), AfterValidator(_by_name), PlainSerializer(_table)]
read_extras: Callable[[Any], tuple[Extra, ...]] = TypeAdapter(Extras).validate_python
