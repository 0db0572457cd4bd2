"""Task: a labelled text task. Each built-in task is a TOML file beside this one."""

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.stats.names import METRICS_OF, Kind, Metric
from pipeline.system.errors import PipelineError, raise_all, shortened, validation_problems
from pipeline.system.reading import present, read_toml

Encoding = Literal["cross", "siamese"]
Pooling = Literal["cls", "mean"]
"""The first token's state or the mean over tokens.

BERT's pooler, ``tanh(W cls + b)``, is not offered: it is trained for next-sentence prediction, later families have
none, and a frozen one would not be part of the backbone's identity. An ``mlp`` head on "cls" trains such a layer.
"""
HeadKind = Literal["linear", "mlp", "cosine", "difference", "difference-mlp"]
CosineScale = Literal["clamped", "shifted"]
Truncation = Literal["head", "head-and-tail"]
Split = Literal["train", "dev", "test"]

PAIR_HEADS: frozenset[HeadKind] = frozenset({"cosine", "difference", "difference-mlp"})
"""The heads that compare two sentence vectors; they need siamese encoding."""

BUILT_IN = Path(__file__).parent

# No comma (AdapterHub joins adapter names with commas), no dot or slash (names become folders and module names).
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=32)]


def is_name(text: str) -> bool:
    """Whether ``text`` could be a :data:`Name`, and so the name of a folder."""
    return re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", text) is not None


Bound = Annotated[float, Field(ge=-1e38, le=1e38)]
"""An end of a range of scores. Any two differ by no more than fp32 can hold."""


class Source(BaseModel):
    """Where the splits come from and how raw labels become the task's labels."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    labels: dict[str, float] = Field({}, description="raw label -> label; every raw label must be listed")
    scale: tuple[float, float] | None = Field(None, description="label = scale[0] * raw + scale[1]")
    dev_fraction: float | None = Field(
        None, gt=0, lt=1, description="no dev split is published: hold out this share of train"
    )
    drop_blank: bool = Field(False, description="leave out rows with an empty text, which are otherwise an error")


class Files(Source):
    """Files of ``--data DIR``: ``DIR/<task>/<stem>.{parquet,csv,tsv,jsonl}``; values are stems."""

    train: str = "train"
    dev: str = "dev"
    test: str = "test"


class Hub(Source):
    """A data set of the Hugging Face Hub."""

    dataset: str
    config: str | None = None
    revision: str | None = None
    text: tuple[str, ...] = Field(min_length=1, max_length=2)
    label: str
    splits: dict[Split, str] = Field(min_length=1)


class Task(BaseModel):
    """One labelled text task in the project's terms."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Name
    description: str = ""
    aliases: tuple[Name, ...] = ()
    kind: Kind
    text: tuple[str, ...] = Field(min_length=1, max_length=2, description="one column, or two for a pair")
    label: str = Field(description="column of the label")
    classes: tuple[str, ...] = Field((), description="names of the classes 0, 1, ...")
    range: tuple[Bound, Bound] | None = Field(None, description="lowest and highest score")
    metric: Metric
    encoding: Encoding = "cross"
    pooling: Pooling = "mean"
    head: HeadKind = "linear"
    max_length: int = Field(128, ge=4, le=8192)
    files: Files = Files()
    hub: Hub | None = None

    @property
    def is_pair(self) -> bool:
        return len(self.text) == 2

    @property
    def outputs(self) -> int:
        """Width of a head's output: one a class, or one score."""
        return len(self.classes) if self.kind == "classes" else 1

    @property
    def meaning(self) -> dict[str, Any]:
        """The part of the task that, besides its rows, changes a training run; it belongs to a run's identity."""
        return self.model_dump(mode="json", include={"kind", "classes", "range", "metric"})

    @classmethod
    def parse(cls, raw: dict[str, Any], where: str) -> Self:
        """Validate ``raw``.

        Raises:
            PipelineError: naming ``where`` and all mistakes, within and between keys.
        """
        problems = _mistakes_between_keys(raw)
        try:
            task = cls.model_validate(raw)
        except ValidationError as error:
            problems = validation_problems(error) + problems
        raise_all(where, problems)
        return task

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read one task file.

        Raises:
            PipelineError: the file is missing, is not TOML, or describes no valid task.
        """
        return cls.parse(read_toml(file), str(file))


def _mistakes_between_keys(raw: dict[str, Any]) -> list[str]:
    problems = []
    kind, classes, bounds = raw.get("kind"), raw.get("classes"), raw.get("range")
    if kind == "classes":
        if not isinstance(classes, list) or len(classes) < 2:
            problems.append("classes: a task of kind 'classes' names at least two classes")
        elif len({str(name) for name in classes}) < len(classes):
            problems.append(f"classes: names repeat (got {shortened(classes)})")
        if bounds is not None:
            problems.append("range: belongs to kind 'score'")
    if kind == "score":
        if bounds is None:
            problems.append("range: a task of kind 'score' needs its lowest and highest score")
        elif isinstance(bounds, list) and len(bounds) == 2 and not _is_interval(bounds):
            problems.append(f"range: the first number must be below the second (got {shortened(bounds)})")
        if classes:
            problems.append("classes: belongs to kind 'classes'")
    for other, metrics in METRICS_OF.items():
        if kind != other and raw.get("metric") in metrics and isinstance(kind, str) and kind in METRICS_OF:
            fitting = " or ".join(f"'{name}'" for name in METRICS_OF[kind])
            problems.append(f"metric: '{raw['metric']}' belongs to kind '{other}'; use {fitting}")
    text = raw.get("text")
    columns = list(text) if isinstance(text, list) else []
    if len(set(map(str, columns))) < len(columns):
        problems.append(f"text: the two columns are the same (got {shortened(text)})")
    if raw.get("label") in columns:
        problems.append(f"label: column {raw['label']!r} is also a text column")
    paired = isinstance(raw.get("head"), str) and raw["head"] in PAIR_HEADS
    if len(columns) == 1 and (paired or raw.get("encoding") == "siamese"):
        problems.append("encoding/head: siamese encoding and its heads need two text columns")
    elif paired and raw.get("encoding", "cross") == "cross":
        problems.append(f"head: '{raw['head']}' needs encoding = 'siamese'")
    hub = raw.get("hub")
    if isinstance(hub, dict) and isinstance(hub.get("text"), list) and len(hub["text"]) != len(columns):
        problems.append("hub.text: as many columns as text")
    return problems


def _is_interval(bounds: list[Any]) -> bool:
    return all(isinstance(bound, int | float) for bound in bounds) and bounds[0] < bounds[1]


@cache
def built_in_tasks() -> dict[str, Task]:
    """Every shipped task by name, in alphabetical order."""
    return {file.stem: Task.read(file) for file in sorted(BUILT_IN.glob("*.toml"))}


def find_task(name: str, data: Path | None = None) -> Task:
    """The task called ``name``: a task file, ``<data>/<name>/task.toml``, a built-in task or an alias of one.

    Raises:
        PipelineError: there is no such task; the message lists the known ones.
    """
    if name.endswith(".toml"):
        return Task.read(Path(name))
    own = data / name / "task.toml" if data is not None and is_name(name) else None
    if own is not None and present(own):
        task = Task.read(own)
        if task.name != name:
            raise PipelineError(f"{own}: names itself '{task.name}' but stands in folder '{name}': make them agree")
        return task
    tasks = built_in_tasks()
    for task in tasks.values():
        if name in task.aliases:
            return find_task(task.name, data)
        if name == task.name:
            return task
    here = sorted(file.parent.name for file in data.glob("*/task.toml")) if data is not None else []
    known = ", ".join([*here, *tasks])
    raise PipelineError(
        f"unknown task {shortened(name)}: name one of {known}; or a task file; or put <task>/task.toml into --data DIR"
    )
