"""The model card of an export: README.md with the Hub's metadata, scores, data, limits, licence and how to load it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from pipeline.data.tasks import Metric, Task
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Manifest
from pipeline.system.atomic import write_text
from stages.export.check import Agreement
from stages.export.trained import SCRIPT, TASK_FILE, Trained

CARD = "README.md"
TEMPLATE = Path(__file__).parent / "card.md.jinja"


@dataclass(frozen=True)
class Scores:
    """A run's scores, the rows behind them, and what it was trained on; None: not recorded."""

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
    task, sources = trained.task, [adapter.manifest.task for adapter in trained.adapters]
    kinds = {
        "adapter": "adapter",
        "merge": "merged adapter",
        "fusion": f"fusion of adapters ({', '.join(sources)})",
        "frozen": "head on a frozen encoder",
    }
    card = ModelCard.from_template(
        _metadata(trained, written, scores, licence),
        template_path=str(TEMPLATE),
        trained=trained,
        task=task,
        recipe=trained.recipe,
        written=written,
        scores=scores,
        checked=checked,
        licence=licence,
        what=kinds.get(trained.kind, "fine-tuned encoder"),
        sources=sources,
        before=[name for name in scores.before if name not in sources],
        described=[task, *scores.others],
        script=SCRIPT,
        task_file=TASK_FILE,
        code=lambda names: ", ".join(f"`{name}`" for name in names),
        count=lambda rows: "not recorded" if rows is None else f"{rows:,}",
    )
    write_text(folder / CARD, f"{card}\n")


def _metadata(trained: Trained, written: Written, scores: Scores, licence: str | None) -> ModelCardData:
    task, (split, value) = trained.task, scores.scored
    result = EvalResult(
        task_type="text-classification",
        dataset_type=task.hub.dataset if task.hub else task.name,
        dataset_name=task.name,
        dataset_split=split,
        metric_type=scores.metric,
        metric_value=round(value, 4),
    )
    return ModelCardData(
        license=licence,
        library_name=written.library,
        base_model=None if trained.backbone.is_folder else trained.backbone.name,
        datasets=list(dict.fromkeys(known.hub.dataset for known in (task, *scores.others) if known.hub)) or None,
        metrics=[scores.metric],
        pipeline_tag="text-classification",
        tags=["adapter-fusion", trained.kind],
        model_name=task.name,
        eval_results=[result],
    )
