"""Task: a labelled text task. Each built-in task is a TOML file beside this one."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.data.metric_names import METRICS_OF, Kind, Metric
from pipeline.data.texts import same_form
from pipeline.system.errors import PipelineError, few, nearest, raise_all, shortened, validation_problems
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
        return len(self.classes) if self.kind == "classes" else 1

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
        """Validate ``raw``; a :class:`PipelineError` names ``where`` and all mistakes, within and between keys."""
        raise_all(where, cls.problems(raw))
        return cls.model_validate(raw)

    @classmethod
    def problems(cls, raw: dict[str, Any]) -> list[str]:
        """All mistakes in ``raw``, within and between keys."""
        problems = list(_mistakes_between_keys(raw))
        try:
            cls.model_validate(raw)
        except ValidationError as error:
            problems = validation_problems(error) + problems
        return problems

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


def _mistakes_between_keys(raw: dict[str, Any]) -> Iterator[str]:
    """Keys that do not go together. Values may be of any type: validation reports those of a wrong one."""
    if raw.get("kind") == "classes":
        yield from _mistakes_of_classes(raw)
    elif raw.get("kind") == "score":
        yield from _mistakes_of_scores(raw)
    yield from _metric_mistakes(raw)
    yield from _text_mistakes(raw)
    yield from _encoding_mistakes(raw)
    yield from _hub_mistakes(raw)


def _mistakes_of_classes(raw: dict[str, Any]) -> Iterator[str]:
    names = _listed(raw.get("classes"))
    if len(names) < 2:
        yield "classes: a task of kind 'classes' names at least two classes"
    if len({same_form(str(name)) for name in names}) < len(names):
        yield f"classes: names repeat (got {shortened(names)})"
    if raw.get("range") is not None:
        yield "range: belongs to kind 'score'"
    if (similar := raw.get("similar")) is not None:
        if len(names) != 2 or len(_listed(raw.get("text"))) != 2:
            yield "similar: belongs to pairs with two classes"
        elif similar not in names:
            yield f"similar: {shortened(similar)} is neither '{names[0]}' nor '{names[1]}'"


def _mistakes_of_scores(raw: dict[str, Any]) -> Iterator[str]:
    bounds = raw.get("range")
    if bounds is None:
        yield "range: a task of kind 'score' needs its lowest and highest score"
    elif isinstance(bounds, list) and len(bounds) == 2 and not _are_ordered(*bounds):
        yield f"range: the first number must be below the second (got {shortened(bounds)})"
    for key in ("classes", "similar"):
        if raw.get(key):
            yield f"{key}: belongs to kind 'classes'"


def _are_ordered(low: Any, high: Any) -> bool:
    return isinstance(low, int | float) and isinstance(high, int | float) and low < high


def _metric_mistakes(raw: dict[str, Any]) -> Iterator[str]:
    kind, metric = raw.get("kind"), raw.get("metric")
    fitting = " or ".join(f"'{name}'" for owner, metrics in METRICS_OF.items() if owner == kind for name in metrics)
    for owner, metrics in METRICS_OF.items():
        if fitting and owner != kind and metric in metrics:
            yield f"metric: '{metric}' belongs to kind '{owner}'; use {fitting}"


def _text_mistakes(raw: dict[str, Any]) -> Iterator[str]:
    columns, name, shared = _listed(raw.get("text")), str(raw.get("name")), raw.get("shares_text")
    if len(set(map(str, columns))) < len(columns):
        yield f"text: the two columns are the same (got {shortened(columns)})"
    if isinstance(shared, dict) and name in shared:
        yield f"shares_text: '{name}' is the task itself"
    if raw.get("label") in columns:
        yield f"label: column {shortened(raw.get('label'))} is also a text column"


def _encoding_mistakes(raw: dict[str, Any]) -> Iterator[str]:
    head, encoding = raw.get("head"), raw.get("encoding", "cross")
    is_single, compares_two = len(_listed(raw.get("text"))) == 1, isinstance(head, str) and head in PAIR_HEADS
    if is_single and (compares_two or encoding == "siamese"):
        yield "encoding/head: siamese encoding and its heads need two text columns"
    if not is_single and compares_two and encoding == "cross":
        yield f"head: '{head}' needs encoding = 'siamese'"


def _hub_mistakes(raw: dict[str, Any]) -> Iterator[str]:
    hub = raw.get("hub")
    columns = hub.get("text") if isinstance(hub, dict) else None
    if isinstance(columns, list) and len(columns) != len(_listed(raw.get("text"))):
        yield "hub.text: as many columns as text"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


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


def _with_alias(alias: str, files: dict[str, Path]) -> list[Task]:
    """The tasks that have ``alias``, of task files by the names of their folders."""
    aliased = []
    for folder, file in files.items():
        with suppress(PipelineError):  # a broken file is reported to whoever names its task
            task = Task.read(file)
            if task.name == folder and alias in task.aliases:
                aliased.append(task)
    return aliased


def find_task(name: str, *data: Path) -> Task:
    """The task called ``name``: a task file, ``<folder>/<name>/task.toml``, a built-in task or its alias, or an alias
    of a task in a folder.

    The first of these that there is counts; of several folders that have a task, the first one.

    Raises:
        UnknownTaskError: there is none.
        PipelineError: its file is unfit, or several tasks of the folders have the alias.
    """
    if name.endswith(".toml"):
        return Task.read(Path(name))
    files = [folder / name / "task.toml" for folder in data] if is_name(name) else []
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
    for file in (file for folder in data for file in own_files(folder)):
        here.setdefault(file.parent.name, file)
    if aliased := _with_alias(name, here):
        if len(aliased) > 1:
            owners = " and of ".join(task.name for task in aliased)
            raise PipelineError(f"'{name}' is an alias of {owners}: give the name of one")
        return aliased[0]
    raise UnknownTaskError(f"unknown task {shortened(name)}{_instead_of(name, [*here], [*tasks])}")


def _instead_of(name: str, own: Sequence[str], built_in: Sequence[str]) -> str:
    """What to name instead of an unknown task: its misspelling, else one of the user's ``own`` or another."""
    known = [*own, *built_in]
    task, _, run = name.partition("@")
    if run and task in known:
        return f": name '{task}', and the run with --using {run}"
    listed = "python -m pipeline tasks list"
    if near := nearest(name, known):
        return f" (did you mean '{near}'?): {listed} names all"
    mine = f"one of {', '.join(few(own, 20))}; or " if own else ""
    return f": name {mine}a built-in one ({listed}); or a task file; or put <task>/task.toml into --data DIR"
