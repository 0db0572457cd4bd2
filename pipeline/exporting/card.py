"""The model card of an export: README.md with the Hub's metadata, scores, data, limits, licence and how to load it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from huggingface_hub import EvalResult, ModelCardData

from pipeline.data.tasks import Metric, Task
from pipeline.exporting.check import Agreement
from pipeline.exporting.trained import SCRIPT, TASK_FILE, Trained
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Manifest
from pipeline.system.atomic import write_text

CARD = "README.md"


@dataclass(frozen=True)
class Scores:
    """What a run scored, on which rows, and what it was trained on; None: not recorded."""

    metric: Metric
    seed: int
    dev: float
    dev_rows: int | None = None
    test: float | None = None
    test_rows: int | None = None
    train_rows: int | None = None
    dev_in_train: int | None = None
    test_in_train: int | None = None
    added: tuple[str, ...] = ()
    """Tasks whose rows were among the training rows."""
    beside: tuple[str, ...] = ()
    """Tasks that the model was trained on at the same time."""
    before: tuple[str, ...] = ()
    """Tasks that what the model builds on was trained on, the first one first."""
    others: tuple[Task, ...] = ()
    """Those of all these tasks whose description is at hand."""

    @classmethod
    def of_record(cls, record: RunRecord, task: str) -> Self:
        score = record.score(task)
        return cls(
            metric=score.metric,
            seed=record.seed,
            dev=score.dev,
            dev_rows=score.rows,
            test=score.test,
            test_rows=score.test_rows,
            train_rows=score.train_rows,
            dev_in_train=score.dev_in_train,
            test_in_train=score.test_in_train,
            added=tuple(score.added),
            beside=tuple(name for name in record.trained_on if name != task),
        )

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> Self:
        added = tuple(extra.task for extra in manifest.recipe.extra)
        return cls(manifest.metric, manifest.seed, manifest.dev, manifest.dev_rows, added=added)

    @property
    def other_tasks(self) -> tuple[str, ...]:
        """The tasks beside its own that it learned from."""
        return tuple(dict.fromkeys((*self.before, *self.beside, *self.added)))

    @property
    def scored(self) -> tuple[str, float]:
        """Which rows the score is of, dev where none are held out, and the score."""
        return ("dev", self.dev) if self.test is None else ("held out", self.test)


@dataclass(frozen=True)
class Written:
    """What a format wrote.

    Args:
        code: Python that loads the model in the folder and asks it.
        notes: what a user should know, in sentences.
        library: the library that loads it, by its name on the Hub.
    """

    code: str
    library: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """How far the export's answers are from the model's."""

    texts: str
    """Where the compared texts are from."""
    fp32: Agreement
    int8: Agreement | None = None

    def sentences(self) -> list[str]:
        sentences = [
            f"{self.fp32.rows} texts ({self.texts}) in {self.fp32.batches} batches of 1 to 32: in fp32 no output"
            f" differs from the trained model's by more than {self.fp32.difference:.1e}"
            f" (allowed: {self.fp32.allowed:g})."
        ]
        if self.int8 is not None:
            same = "" if self.int8.agree is None else f", and {self.int8.agree:.1%} of the classes are the same"
            sentences.append(f"The int8 model's outputs differ by up to {self.int8.difference:.2g}{same}.")
        return sentences


def write_card(
    trained: Trained, folder: Path, written: Written, scores: Scores, checked: Checked, licence: str | None
) -> None:
    """Write ``README.md``, whose code loads the model from the folder that it stands in."""
    parts = [
        f"---\n{_metadata(trained, written, scores, licence)}\n---",
        f"# {trained.task.name}: {_what(trained)}",
        *_about(trained),
        "## How to load",
        *_how_to_load(trained, written),
        "## Scores",
        *_scores(scores),
        "## Data",
        *_data(trained, scores),
        "## Limits",
        "\n".join(f"- {sentence}" for sentence in _limits(trained, written, checked)),
        "## Licence",
        _licence(trained, scores, licence),
    ]
    write_text(folder / CARD, "\n\n".join(part for part in parts if part) + "\n")


def _what(trained: Trained) -> str:
    sources = ", ".join(each.manifest.task for each in trained.adapters)
    return {
        "adapter": "adapter",
        "merge": "merged adapter",
        "fusion": f"fusion of adapters ({sources})",
        "frozen": "head on a frozen encoder",
    }.get(trained.kind, "fine-tuned encoder")


def _metadata(trained: Trained, written: Written, scores: Scores, licence: str | None) -> str:
    task, (split, value) = trained.task, scores.scored
    result = EvalResult(
        task_type="text-classification",
        dataset_type=task.hub.dataset if task.hub else task.name,
        dataset_name=task.name,
        dataset_split=split,
        metric_type=scores.metric,
        metric_value=round(value, 4),
    )
    data = ModelCardData(
        license=licence,
        library_name=written.library,
        base_model=None if trained.backbone.is_folder else trained.backbone.name,
        datasets=list(dict.fromkeys(each.hub.dataset for each in (task, *scores.others) if each.hub)) or None,
        metrics=[scores.metric],
        pipeline_tag="text-classification",
        tags=["adapter-fusion", trained.kind],
        model_name=task.name,
        eval_results=[result],
    )
    return data.to_yaml()


def _about(trained: Trained) -> list[str]:
    task, recipe = trained.task, trained.recipe
    low, high = task.range or (0, 0)
    answers = f"one of {len(task.classes)} classes" if task.classes else f"a score from {low:g} to {high:g}"
    reads = "Two texts" if task.is_pair else "A text"
    about = f" {task.description.rstrip('.')}." if task.description else ""
    read = "apart" if recipe.encoding == "siamese" and task.is_pair else "as one input"
    lines = [f"{reads} in, {answers} out.{about}"]
    if task.classes:
        lines.append("Classes: " + ", ".join(f"`{name}`" for name in task.classes) + ".")
    lines.append(
        f"Encoder: `{trained.backbone.shown_name}`. Inputs of up to {recipe.max_length} tokens, read {read}; pooling"
        f" `{recipe.pooling}`, head `{recipe.head}`."
    )
    return lines


def _how_to_load(trained: Trained, written: Written) -> list[str]:
    if trained.task.is_pair:
        texts, row = '"A text." "Another text."', '("A text.", "Another text.")'
    else:
        texts, row = '"A text."', '("A text.",)'
    return [
        f"In a copy of this folder, `python {SCRIPT} {texts}` prints the answer. The same in a program:",
        f"```python\n{written.code.rstrip()}\n\n\nprint(answer([{row}]))\n```",
        f"`{TASK_FILE}` has the classes in the order of the probabilities." if trained.task.classes else "",
    ]


def _scores(scores: Scores) -> list[str]:
    rows = [
        "| rows | number | " + f"{scores.metric} | what these rows did |",
        "| --- | ---: | ---: | --- |",
        f"| dev | {_count(scores.dev_rows)} | {scores.dev:.4f} | selected this model, so the score is optimistic |",
    ]
    if scores.test is not None:
        rows.append(f"| held out | {_count(scores.test_rows)} | {scores.test:.4f} | scored once, at the end |")
    sentences = [f"One run, seed {scores.seed}. Other seeds score differently."]
    if scores.test is None:
        sentences.append("The score is on rows that also selected the epoch: expect less on new texts.")
    return ["\n".join(rows), " ".join(sentences)]


def _data(trained: Trained, scores: Scores) -> list[str]:
    task = trained.task
    published = (
        f", published as [{task.hub.dataset}](https://huggingface.co/datasets/{task.hub.dataset})" if task.hub else ""
    )
    size = "size not recorded" if scores.train_rows is None else f"{scores.train_rows:,} training rows"
    lines = [f"`{task.name}`{published}: {size}."]
    if scores.added:
        lines.append(f"Rows of other tasks were added: {', '.join(scores.added)}.")
    if scores.beside:
        lines.append(f"The model was trained on {_code(scores.beside)} at the same time.")
    sources = [each.manifest.task for each in trained.adapters]
    if sources:
        lines.append(f"The fused adapters were trained on {_code(sources)}.")
    if before := [name for name in scores.before if name not in sources]:
        subject = (
            "these adapters were" if sources else "the adapter was" if trained.kind == "adapter" else "the model was"
        )
        lines.append(f"Before that, {subject} trained on {_code(before)}.")
    overlaps = [
        f"{count} {split} rows have a text that is also in the training rows"
        for split, count in (("dev", scores.dev_in_train), ("held-out", scores.test_in_train))
        if count
    ]
    if overlaps:
        lines.append("; ".join(overlaps) + ".")
    return [" ".join(lines)]


def _limits(trained: Trained, written: Written, checked: Checked) -> list[str]:
    limits = [
        "It knows the language and the kind of texts that it was trained on. Score it on texts of your own before you"
        " rely on it.",
        "Probabilities are not calibrated.",
        f"What is longer than {trained.recipe.max_length} tokens is cut.",
    ]
    if trained.task.range is not None:
        limits[1] = "A score may lie a little outside its range."
    return [*limits, *written.notes, "Checked on " + " ".join(checked.sentences())]


def _licence(trained: Trained, scores: Scores, licence: str | None) -> str:
    own = f"`{licence}`." if licence else "Not stated by whoever exported this model."
    known = [task for task in (trained.task, *scores.others) if task.terms]
    terms = "".join(f" Of the data of `{task.name}`: {task.terms}." for task in known)
    return f"{own}{terms} The terms of the encoder and of the data apply too."


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _count(number: int | None) -> str:
    return "not recorded" if number is None else f"{number:,}"
