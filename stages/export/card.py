"""The model card of an export: README.md with the Hub's metadata, scores, data, limits, licence and how to load it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from pipeline.data.tasks import Task
from pipeline.system.atomic import write_text
from stages.export.check import Checked
from stages.export.trained import SCRIPT, TASK_FILE, Trained, Written

CARD = "README.md"
TEMPLATE = Path(__file__).parent / "card.md.jinja"
_KINDS = {"adapter": "adapter", "merge": "merged adapter", "frozen": "head on a frozen encoder"}


def write_card(
    trained: Trained,
    folder: Path,
    written: Written,
    scores: Mapping[str, Any],
    others: Sequence[Task],
    checked: Checked,
    licence: str | None,
) -> None:
    """Write ``README.md``, whose code loads the model from the same folder.

    Args:
        scores: the run's scores, their numbers of rows, and its training data; None: not recorded.
        others: the other tasks that it learned from.
    """
    sources = list(dict.fromkeys(adapter.manifest.task for adapter in trained.adapters))
    what = (
        f"fusion of {len(trained.adapters)} adapters ({', '.join(sources)})"
        if trained.kind == "fusion"
        else _KINDS.get(trained.kind)
    )
    card = ModelCard.from_template(
        _metadata(trained, written, scores, others, licence),
        template_path=str(TEMPLATE),
        trained=trained,
        task=trained.task,
        recipe=trained.recipe,
        written=written,
        scores=scores,
        checked=checked,
        licence=licence,
        what=what or "fine-tuned encoder",
        sources=sources,
        before=[name for name in scores["before"] if name not in sources],
        described=[trained.task, *others],
        script=SCRIPT,
        task_file=TASK_FILE,
        code=lambda names: ", ".join(f"`{name}`" for name in names),
        count=lambda rows: "not recorded" if rows is None else f"{rows:,}",
    )
    write_text(folder / CARD, f"{card}\n")


def _metadata(
    trained: Trained, written: Written, scores: Mapping[str, Any], others: Sequence[Task], licence: str | None
) -> ModelCardData:
    task, split = trained.task, "dev" if scores["test"] is None else "held out"
    result = EvalResult(
        task_type="text-classification",
        dataset_type=task.hub.dataset if task.hub else task.name,
        dataset_name=task.name,
        dataset_split=split,
        metric_type=scores["metric"],
        metric_value=round(scores["dev" if split == "dev" else "test"], 4),
    )
    return ModelCardData(
        license=licence,
        library_name=written.library,
        base_model=None if trained.backbone.is_folder else trained.backbone.name,
        datasets=list(dict.fromkeys(known.hub.dataset for known in (task, *others) if known.hub)) or None,
        metrics=[scores["metric"]],
        pipeline_tag="text-classification",
        tags=["adapter-fusion", trained.kind],
        model_name=task.name,
        eval_results=[result],
    )
