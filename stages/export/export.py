"""Export a trained model for other programs: as a folder that is checked against the model before it appears."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
import torch

from pipeline.data.load import has_rows, load_split
from pipeline.data.tasks import Task
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.inference import head_outputs, inputs_of
from pipeline.runs.kept_models import Target, target_of
from pipeline.runs.restore import restore
from pipeline.runs.seen import seen_by
from pipeline.runs.workspace import Workspace
from pipeline.system.atomic import new_folder, size_of, write_json
from pipeline.system.errors import PipelineError
from pipeline.system.reading import read_json
from pipeline.training.devices import OneDevice
from pipeline.training.memory import full_memory_explained
from pipeline.training.objectives import objective_of
from stages.export import hub
from stages.export.card import Checked, Scores, Written, write_card
from stages.export.check import Answers, check, compare
from stages.export.options import check_place, names_in
from stages.export.trained import TASK_FILE, Texts, Trained

FormatName = Literal["onnx", "adapterhub"]

_DEV_ROWS, _DRAWN_ROWS = 200, 24


class Writer(Protocol):
    """What writes a format."""

    def write(self, trained: Trained, folder: Path, /) -> Written:
        """Write the model's files and a script that asks it; a :class:`PipelineError` if the format cannot hold it."""


@dataclass(frozen=True)
class Format:
    """What a model is exported as."""

    name: FormatName
    writer: Writer
    quantise: Callable[[Path], None] | None = None
    """Makes int8 of the checked files; without it they stay in fp32."""


def format_of(name: FormatName, int8: bool = False) -> Format:
    """The format called ``name``; of onnx in ``int8``, if wanted. It imports what writes that format, and no other."""
    match name:
        case "onnx":
            from stages.export import onnx

            return Format(name, onnx, onnx.quantise if int8 else None)
        case "adapterhub":
            from stages.export import adapterhub

            return Format(name, adapterhub)


@dataclass(frozen=True)
class Push:
    """A push to a repository of the Hub."""

    repository: str
    upload: bool
    """Else it is only said what would be sent there."""


@dataclass(frozen=True)
class Published:
    """Where on the Hub an export is, or would be."""

    address: str
    files: tuple[tuple[str, int], ...]
    """Names and bytes."""
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
    format: Format,
    *,
    using: str = "auto",
    licence: str | None = None,
    push: Push | None = None,
) -> Export:
    """Write the model of ``target`` into ``folder``, which appears when its answers are those of the model.

    Args:
        using: as for ``predict``, but for ensembles.
        licence: the identifier that the model card names.

    Raises:
        PipelineError: no such model, one that the format cannot hold, answers that differ by more than rounding, or a
            folder with files that no export wrote.
    """
    check_place(folder)
    kept = _to_export(target, using, workspace, push if format.name == "adapterhub" else None)
    trained = _restored(kept)
    with full_memory_explained(f"export --target {target}", "close other programs"):
        written, checked = _write(kept, trained, folder, workspace, format, licence)
    return Export(
        folder=folder,
        task=kept.task.name,
        run=kept.run,
        kind=trained.kind,
        format=format.name,
        precision="fp32" if format.quantise is None else "int8",
        bytes=size_of(folder),
        pair=kept.task.is_pair,
        checked=checked,
        notes=written.notes,
        published=None if push is None else _publish(folder, push),
    )


def _to_export(target: str, using: str, workspace: Workspace, push: Push | None) -> Target:
    """The model to export; one that others can load, if it is to be pushed to the Hub without its encoder."""
    kept = target_of(workspace.task(target), using, workspace, ())
    backbone = kept.workspace.backbone
    if push is not None and backbone.is_folder:
        raise PipelineError(
            f"--push-to-hub {push.repository}: the encoder is a folder here, {backbone.name}, which nobody else has:"
            " give its Hub id with --backbone (its weights are compared)"
        )
    return kept


def _write(
    kept: Target, trained: Trained, folder: Path, workspace: Workspace, format: Format, licence: str | None
) -> tuple[Written, Checked]:
    """Write ``folder``, which appears only if its answers are those of the model."""
    texts, where = _texts(trained, workspace)
    expected = _answers(kept, trained, texts)
    with new_folder(folder) as temporary:
        written = format.writer.write(trained, temporary)
        checked = Checked(where, compare(trained, expected, temporary, texts))
        check(checked.fp32, folder)
        if format.quantise is not None:
            format.quantise(temporary)
            checked = replace(checked, int8=compare(trained, expected, temporary, texts))
        write_card(trained, temporary, written, _scores(kept), checked, licence)
        described = read_json(temporary / TASK_FILE, "")
        write_json(temporary / TASK_FILE, {**described, "files": sorted(names_in(temporary))})
        check_place(folder)  # again: minutes have passed
    return written, checked


def _publish(folder: Path, push: Push) -> Published:
    files, name = tuple(hub.files_of(folder)), push.repository
    return Published(hub.push(folder, name) if push.upload else hub.address_of(name), files, push.upload)


def _restored(target: Target) -> Trained:
    kept, workspace = target.trained, target.workspace
    model = restore(kept, target.task, workspace)
    if not isinstance(kept, Artifact):
        return Trained(target.task, target.recipe, model, workspace.backbone, target.run, kept.kind)
    adapters = tuple(workspace.store.adapters_of(kept.manifest))
    return Trained(
        target.task, target.recipe, model, workspace.backbone, target.run, kept.manifest.kind, kept, adapters
    )


def _scores(target: Target) -> Scores:
    """What the run's record knows of its scores and rows; of an artifact without one, what its manifest does."""
    task, workspace = target.task.name, target.workspace
    record = workspace.ledger.find(target.run)
    if record is not None:
        rows = _trained_rows(record, task, workspace.ledger)
        scores = replace(Scores.of_record(record, task), train_rows=rows)
    else:
        assert isinstance(target.trained, Artifact)
        scores = Scores.of_manifest(target.trained.manifest)
    before = seen_by(task, target.run, workspace)["task"].unique()  # the first to be trained first
    scores = replace(scores, before=tuple(name for name in before if name not in (task, *scores.beside)))
    others = list[Task]()
    for name in scores.other_tasks:
        with suppress(PipelineError):  # its description is not at hand: the card has its name alone
            others.append(workspace.task(name))
    return replace(scores, others=tuple(others))


def _trained_rows(record: RunRecord, task: str, ledger: Ledger) -> int | None:
    """The training rows of a run; of a pruned fusion, which trained on none, those of the one that it is a part of."""
    while record.manifest is not None and (origin := record.manifest.pruned_from) is not None:
        before = ledger.find(origin)
        if before is None:
            return None
        record = before
    return record.score(task).train_rows


def _texts(trained: Trained, workspace: Workspace) -> tuple[Texts, str]:
    """Texts to compare answers on, rows of dev if there are any and drawn ones of all lengths, and what they are."""
    dev: list[tuple[str, ...]] = []
    with suppress(PipelineError):  # rows that cannot be read are no reason not to export
        if any(has_rows(trained.task, data) for data in workspace.splits.folders):
            dev = _some_of(load_split(trained.task, workspace.splits.folder_of(trained.task), "dev"))
    drawn = [
        tuple(_drawn(trained, 2 * row + column) for column in range(len(trained.task.text)))
        for row in range(_DRAWN_ROWS)
    ]
    where = f"{len(drawn)} texts drawn from the vocabulary"
    return [*dev, *drawn], f"{len(dev)} rows of dev and {where}" if dev else where


def _some_of(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """Rows spread evenly over a split."""
    picked = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _DEV_ROWS)).astype(int))
    columns = [name for name in ("text_a", "text_b") if name in rows]
    return list(rows.iloc[picked][columns].itertuples(index=False, name=None))


def _drawn(trained: Trained, number: int) -> str:
    """A text of tokens at random, up to half as long again as what the model reads."""
    generator = np.random.default_rng([0, number])
    fast, most = trained.tokenizer.fast, trained.recipe.max_length
    assert most is not None
    words = np.setdiff1d(np.arange(len(fast)), fast.all_special_ids)
    text = fast.decode(generator.choice(words, generator.integers(1, most + most // 2)))
    return text.encode(errors="replace").decode() if text.strip() else "a"


def _answers(target: Target, trained: Trained, texts: Texts) -> Answers:
    """What ``predict`` computes in fp32."""
    columns = ["text_a", "text_b"][: len(trained.task.text)]
    rows = pd.DataFrame(texts, columns=columns, dtype=object)
    rows.insert(0, "id", [str(number) for number in range(len(rows))])
    device = OneDevice(torch.device("cpu"), None)
    (outputs,) = head_outputs(trained.model, [target], inputs_of(target, rows, cached=False), 32, device)
    read = objective_of(trained.task, trained.recipe).read
    return {"outputs": outputs.numpy(), trained.answer: read(outputs).numpy()}
