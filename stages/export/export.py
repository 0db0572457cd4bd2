"""Export a trained model for other programs, as a folder that is checked against the model before it appears."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from pipeline.data.task_data import has_rows, load_split
from pipeline.data.tasks import Task
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.build import restore
from pipeline.runs.kept_models import Target, target_of
from pipeline.runs.model import head_outputs
from pipeline.runs.outcome import seen_by
from pipeline.runs.workspace import Workspace
from pipeline.system.atomic import new_folder, size_of, write_json, write_text
from pipeline.system.errors import PipelineError
from pipeline.system.reading import read_json
from pipeline.training.devices import OneDevice, full_memory_explained
from pipeline.training.objectives import objective_of
from stages.export import exported
from stages.export.exported import SCRIPT, TASK_FILE, Texts, Trained, Written, check_place, names_in

FormatName = Literal["onnx", "adapterhub"]
"""Each is a module of this package with ``write``, which raises a :class:`PipelineError` if it cannot hold a model."""

_DEV_ROWS, _DRAWN_ROWS = 200, 24
_KINDS = {"adapter": "adapter", "merge": "merged adapter", "frozen": "head on a frozen encoder"}
_TRAINED = {"head": "head on a frozen encoder", "probe": "regression on a frozen encoder", "adapter": "adapter"}


TOLERANCE = 1e-4
"""Largest difference that fp32 rounding explains, in an output, a probability, or a score in its unit."""

Answers = Mapping[str, np.ndarray]
"""``outputs`` of the head (B, k), and ``probabilities`` (B, C) or ``scores`` (B,)."""


@dataclass(frozen=True)
class Agreement:
    """How far an export's answers are from the model's."""

    rows: int
    batches: int
    difference: float
    """Largest difference in outputs, probabilities or scores, whichever come closest to their limit."""
    allowed: float
    """That limit: the largest difference that fp32 rounding explains."""
    agree: float | None
    """Share of rows with the same class; None for scores."""


@dataclass(frozen=True)
class Checked:
    """The result of comparing an export's answers with the model's."""

    texts: str
    """Where the compared texts come from."""
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


def script_of(folder: Path) -> Callable[[Texts], Answers]:
    """The function ``answer`` of the script in ``folder``, as a user's program would import it."""
    # Compiled here because an import would leave its cache in the folder.
    file = folder / SCRIPT
    names: dict[str, Any] = {"__name__": "exported", "__file__": str(file)}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
    answer: Callable[[Texts], Answers] = names["answer"]
    return answer


def compare(trained: Trained, expected: Answers, folder: Path, texts: Texts) -> Agreement:
    """Compare the answers of the script in ``folder``, in batches of many sizes and so of many lengths."""
    answer, rows = script_of(folder), len(texts)
    starts = [start for start in (0, 1, 3, 7, 15, *range(31, rows, 32)) if start < rows]  # of 1, 2, 4, ... 32 rows
    parts = [answer([*texts][start:end]) for start, end in pairwise([*starts, rows])]
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    low, high = trained.task.range or (-1.0, 1.0)
    # What an output of 1 adds to a score; more if scores are too large for fp32, where one of 5,000 has steps of .0005.
    unit = max(1.0, (high - low) / 2, max(abs(low), abs(high)) / 1000)
    is_score = trained.recipe.score_loss == "raw" and trained.recipe.head != "cosine"
    units = {"scores": unit, "outputs": unit if is_score else 1.0, "probabilities": max(1.0, 1 / trained.temperature)}
    differences = [
        (float(np.abs(values - expected[name]).max()), TOLERANCE * units.get(name, 1.0))
        for name, values in outputs.items()
    ]
    difference, allowed = max(differences, key=lambda pair: pair[0] / pair[1])
    agree = None
    if trained.answer == "probabilities":
        ours, theirs = outputs[trained.answer], expected[trained.answer]
        are_labels = trained.task.kind == "labels"
        same = ((ours > 0.5) == (theirs > 0.5)).all(-1) if are_labels else ours.argmax(-1) == theirs.argmax(-1)
        agree = float(same.mean())
    return Agreement(rows, len(parts), difference, allowed, agree)


def check(agreement: Agreement, folder: Path) -> None:
    """Raise a :class:`PipelineError` if answers differ by more than rounding."""
    if not agreement.difference <= agreement.allowed:
        raise PipelineError(
            f"{folder}: not written: the exported model's answers differ from the model's own by"
            f" {agreement.difference:.2g}, more than {agreement.allowed:g}, on {agreement.rows} texts. This is a limit"
            " of the format for this model: use another --format, or predict here"
        )


@dataclass(frozen=True)
class Published:
    """An export's place on the Hub, uploaded or not."""

    address: str
    files: tuple[tuple[str, int], ...]
    """Names and sizes in bytes."""
    uploaded: bool


@dataclass(frozen=True)
class Export:
    """A finished export."""

    folder: Path
    task: str
    run: str
    kind: str
    format: FormatName
    precision: Literal["fp32", "int8"]
    bytes: int
    pair: bool
    checked: Checked
    notes: tuple[str, ...]
    published: Published | None = None

    def summary(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}


def export(
    target: str,
    folder: Path,
    workspace: Workspace,
    format: FormatName,
    *,
    int8: bool = False,
    using: str = "auto",
    licence: str | None = None,
    push_to: str | None = None,
    upload: bool = False,
) -> Export:
    """Write the model of ``target`` into ``folder``, which appears only if its answers match the model's.

    Args:
        int8: store the weights as 8-bit integers (onnx only).
        using: as for ``predict``, except ensembles.
        licence: identifier for the model card.
        push_to: Hub repository for the folder; without ``upload``, only lists what would be sent.

    Raises:
        PipelineError: the model does not exist, the format cannot hold it, its answers differ by more than rounding, or
            the folder has files that no export wrote.
    """
    check_place(folder)
    kept = target_of(workspace.task(target), using, workspace, ())
    if push_to is not None and format == "adapterhub" and kept.workspace.backbone.is_folder:
        raise PipelineError(
            f"--push-to-hub {push_to}: the encoder is a folder here, {kept.workspace.backbone.name}, which nobody else"
            " has: give its Hub id with --backbone (its weights are compared)"
        )
    artifact = kept.trained if isinstance(kept.trained, Artifact) else None
    adapters = () if artifact is None else tuple(kept.workspace.store.adapters_of(artifact.manifest))
    read = kept.task, kept.recipe, restore(kept.trained, kept.task, kept.workspace), kept.workspace.backbone
    trained = Trained(*read, kept.run, kept.kind, kept.temperature, artifact, adapters)
    writer = import_module(f"stages.export.{format}")
    texts, where = _texts(trained, workspace)
    with full_memory_explained(f"export --target {target}", "close other programs"):
        expected = _answers(kept, trained, texts)
        with new_folder(folder) as temporary:
            written = writer.write(trained, temporary)
            checked = Checked(where, compare(trained, expected, temporary, texts))
            check(checked.fp32, folder)
            if int8:
                writer.quantise(temporary)
                checked = replace(checked, int8=compare(trained, expected, temporary, texts))
            _write_card(trained, temporary, written, *_scores(kept), checked, licence)
            described = read_json(temporary / TASK_FILE, "")
            write_json(temporary / TASK_FILE, {**described, "files": sorted(names_in(temporary))})
            check_place(folder)  # again, because minutes have passed
    published = None
    if push_to is not None:
        address = exported.push(folder, push_to) if upload else exported.address_of(push_to)
        files = sorted((name, (folder / name).stat().st_size) for name in names_in(folder))
        published = Published(address, tuple(files), upload)
    return Export(
        folder=folder,
        task=kept.task.name,
        run=kept.run,
        kind=trained.kind,
        format=format,
        precision="int8" if int8 else "fp32",
        bytes=size_of(folder),
        pair=kept.task.is_pair,
        checked=checked,
        notes=written.notes,
        published=published,
    )


def _scores(target: Target) -> tuple[dict[str, Any], list[Task]]:
    """Scores and rows from the run's record, or else its manifest, and the other tasks that it learned from.

    Includes only the tasks whose description is available; the card names the others.
    """
    task, workspace = target.task.name, target.workspace
    record = workspace.ledger.find(target.run)
    names = ("metric", "dev", "test", "test_rows", "dev_in_train", "test_in_train")
    if record is not None:
        score = record.score(task)
        scores: dict[str, Any] = {name: getattr(score, name) for name in names}
        scores |= {"seed": record.seed, "dev_rows": score.rows, "added": [*score.added]}
        scores |= {"beside": [name for name in record.trained_on if name != task]}
        scores |= {"train_rows": _trained_rows(record, task, workspace.ledger)}
    else:
        assert isinstance(target.trained, Artifact)
        manifest = target.trained.manifest
        scores = dict.fromkeys((*names, "train_rows")) | manifest.model_dump(include={*names, "seed", "dev_rows"})
        scores |= {"added": [extra.task for extra in manifest.recipe.extra], "beside": []}
    before = seen_by(task, target.run, workspace)["task"].unique()  # in training order
    scores["before"] = [name for name in before if name not in (task, *scores["beside"])]
    others = list[Task]()
    for name in dict.fromkeys((*scores["before"], *scores["beside"], *scores["added"])):
        with suppress(PipelineError):
            others.append(workspace.task(name))
    return scores, others


def _trained_rows(record: RunRecord, task: str, ledger: Ledger) -> int | None:
    """The training rows of a run; a pruned fusion, which does not train, has those of the fusion that it comes from."""
    while record.manifest is not None and (origin := record.manifest.pruned_from) is not None:
        before = ledger.find(origin)
        if before is None:
            return None
        record = before
    return record.score(task).train_rows


def _texts(trained: Trained, workspace: Workspace) -> tuple[Texts, str]:
    """Texts to compare answers on (dev rows, if any, and random texts of all lengths), and their description."""
    dev: list[tuple[str, ...]] = []
    with suppress(PipelineError):  # unreadable rows must not prevent an export
        if any(has_rows(trained.task, data) for data in workspace.splits.folders):
            rows = load_split(trained.task, workspace.splits.folder_of(trained.task), "dev")
            spread = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _DEV_ROWS)).astype(int))
            columns = [name for name in ("text_a", "text_b") if name in rows]
            dev = list(rows.iloc[spread][columns].itertuples(index=False, name=None))
    drawn = [
        tuple(_drawn(trained, 2 * row + column) for column in range(len(trained.task.text)))
        for row in range(_DRAWN_ROWS)
    ]
    where = f"{len(drawn)} texts drawn from the vocabulary"
    return [*dev, *drawn], f"{len(dev)} rows of dev and {where}" if dev else where


def _drawn(trained: Trained, number: int) -> str:
    """A text of random tokens, up to 1.5 times the length that the model reads."""
    generator = np.random.default_rng([0, number])
    fast, most = trained.tokenizer.fast, trained.recipe.max_length
    assert most is not None
    words = np.setdiff1d(np.arange(len(fast)), fast.all_special_ids)
    text = fast.decode(generator.choice(words, generator.integers(1, most + most // 2)))
    return text.encode(errors="replace").decode() if text.strip() else "a"


def _answers(target: Target, trained: Trained, texts: Texts) -> Answers:
    """The answers of ``predict`` in fp32."""
    columns = ["text_a", "text_b"][: len(trained.task.text)]
    rows = pd.DataFrame(texts, columns=columns, dtype=object)
    rows.insert(0, "id", [str(number) for number in range(len(rows))])
    device = OneDevice(torch.device("cpu"), None)
    (outputs,), _ = head_outputs(trained.model, [target], rows, 32, device, cached=False)
    prediction = objective_of(trained.task, trained.recipe).predict(outputs).calibrated(trained.temperature)
    answer = prediction.values if prediction.probabilities is None else prediction.probabilities
    return {"outputs": outputs.numpy(), trained.answer: answer}


def _write_card(
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
    task, split = trained.task, "dev" if scores["test"] is None else "held out"
    sources, what = list(dict.fromkeys(adapter.manifest.task for adapter in trained.adapters)), _KINDS.get(trained.kind)
    if trained.kind == "fusion":
        what = f"fusion of {len(trained.adapters)} adapters ({', '.join(sources)})"
    result = EvalResult(
        task_type="text-classification",
        dataset_type=task.hub.dataset if task.hub else task.name,
        dataset_name=task.name,
        dataset_split=split,
        metric_type=scores["metric"],
        metric_value=round(scores["dev" if split == "dev" else "test"], 4),
    )
    metadata = ModelCardData(
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
    card = ModelCard.from_template(
        metadata,
        template_path=str(Path(__file__).parent / "card.md.jinja"),
        trained=trained,
        written=written,
        scores=scores,
        checked=checked,
        licence=licence,
        what=what or _TRAINED.get(trained.recipe.trainable, "fine-tuned encoder"),
        sources=sources,
        described=[task, *others],
        script=SCRIPT,
        task_file=TASK_FILE,
    )
    write_text(folder / "README.md", f"{card}\n")
