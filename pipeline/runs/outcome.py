"""What a run leaves: its record, found or made by training; an artifact in the store, or weights beside the record;
and hashes of the rows that it has seen.

Every run is trained once: :func:`get_or_train` takes it from the ledger, or trains it under a lock so that others find
it. Its record says where its numbers come from (:func:`provenance`).

A score on rows that a model or its sources were trained or selected on says less about new texts. The hashes of these
rows, in ``seen.parquet``, are known wherever the model goes, whatever became of the splits or the sources. Anyone who
has a text can tell from its hash whether the model was trained on it.
"""

import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.data.split import row_hashes
from pipeline.data.tables import write_table
from pipeline.data.task_data import TaskData, read_test_texts
from pipeline.data.tasks import Task
from pipeline.methods.registry import METHODS, save_fusion
from pipeline.methods.saved import SavedModules
from pipeline.models.tensors import fill, read_tensors
from pipeline.models.transfer_model import MultitaskModel, TransferModel, is_threshold
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord, run_name
from pipeline.records.store import HEAD, LAYERNORMS, SEEN, Artifact, Manifest, SourceRun, Store
from pipeline.runs.workspace import Workspace
from pipeline.settings.kinds import KINDS
from pipeline.system.atomic import new_file, sha256_file
from pipeline.system.errors import PipelineError
from pipeline.system.process import process_count
from pipeline.system.reading import check_regular, present, reading
from pipeline.system.version import VERSION
from pipeline.training.devices import hardware, on_main_process, processor

Record = TypeVar("Record", covariant=True)
Use = Literal["trained", "selected", "unknown"]
"""What a model used a row of a task for; unknown: the model was made before models kept hashes."""


class Trainable(Protocol[Record]):
    """A run that can be trained, and the record that it leaves."""

    workspace: Workspace

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the run's numbers depend on."""

    @cached_property
    def name(self) -> str:
        return run_name(self.identity)

    def finished(self) -> Record | None:
        """The record, if everything that the run leaves is still there."""

    def train(self) -> Record: ...


@dataclass(frozen=True)
class Made(Generic[Record]):
    """The record of a finished run."""

    record: Record
    is_new: bool
    """Whether it was trained now rather than found finished."""


def get_or_train(run: Trainable[Record], force: bool = False) -> Made[Record]:
    """The finished record: found, or made by training (from the last checkpoint, if there is one).

    Args:
        force: train again even if finished; resume a checkpoint only if a call with ``force`` wrote it.

    Raises:
        RunBusy: another command is training the run.
    """
    ledger = run.workspace.ledger
    if not force and (record := on_main_process(run.finished)) is not None:
        on_main_process(lambda: ledger.tidy(run.name))
        return Made(record, is_new=False)
    # If several processes train this run together, one holds the lock against other commands.
    with ExitStack() as held:
        on_main_process(lambda: held.enter_context(ledger.lock(run.name)))
        if force:
            on_main_process(lambda: ledger.begin_again(run.name))
        # Another command may have finished it between the first look and the lock.
        elif (record := on_main_process(run.finished)) is not None:
            return Made(record, is_new=False)
        record = run.train()
        on_main_process(lambda: ledger.drop_checkpoint(run.name))
    return Made(record, is_new=True)


@cache
def provenance() -> dict[str, Any]:
    """The commit of this code, whether it was changed, versions and hardware, as found by a process's first call."""
    commit, dirty = commit_of(Path(__file__).parent)
    return {
        "pipeline": VERSION,
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "adapters")},
        "platform": platform.platform(),
        "hardware": hardware(process_count()),
        "processor": processor(),
        "processes": process_count(),
    }


def commit_of(folder: Path) -> tuple[str | None, bool | None]:
    """The commit of a folder's files, and whether any tracked file of the repository has changed since.

    Both are None if git tracks none of the folder's files, as in an environment within a checkout.
    """
    if not _git(folder, "ls-files", "."):
        return None, None
    return _git(folder, "rev-parse", "HEAD"), bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def save_artifact(
    store: Store,
    manifest: Manifest,
    model: TransferModel,
    seen: pd.DataFrame | None = None,
) -> Artifact:
    """Write an adapter, or a fusion over the adapters that ``manifest`` names as its sources, with its head.

    The parameters of ``model`` that require gradients count as trained. ``manifest`` comes without files; for ``seen``
    see :func:`seen_rows`.
    """
    norms: Mapping[str, Tensor] = {}
    if manifest.recipe.bottleneck.train_layernorm:
        # Only adapters and LayerNorms of the backbone train here; families name the latter differently.
        trained = _trained(model.backbone, from_pretrained=True)
        norms = {name: p for name, p in trained.items() if ".adapters." not in name}

    def write(folder: Path) -> None:
        if manifest.kind == "fusion":
            names = manifest.recipe.form.names_of(manifest.sources)
            save_fusion(model.backbone, names, SavedModules(manifest.task, manifest.recipe, folder))
        else:
            METHODS[manifest.recipe.adapter.kind].save(model.backbone, manifest.task, folder)
        for name, tensors in ((HEAD, dict(model.head.named_parameters())), (LAYERNORMS, norms)):
            if tensors:
                _save(tensors, folder / name)
        if seen is not None:
            write_table(seen, folder / SEEN)

    return store.save(manifest, write)


def load_head(artifact: Artifact, head: nn.Module) -> None:
    """Load the head of ``artifact`` into ``head``.

    Raises:
        PipelineError: the file does not fit the head; a head without weights (cosine) has no file.
    """
    file, parameters = artifact.folder / HEAD, dict(head.named_parameters())
    if parameters:
        fill(parameters, read_tensors(file, parameters, artifact.remedy))
    elif file.exists():
        raise PipelineError(f"{file}: its recipe's head has no weights: {artifact.remedy}")


@torch.no_grad()
def load_mean_head(artifacts: Sequence[Artifact], head: nn.Module) -> None:
    """Load the mean of several artifacts' heads; for linear heads it answers with the mean of their logits."""
    parameters, loaded = dict(head.named_parameters()), []
    for artifact in artifacts:
        load_head(artifact, head)
        loaded.append({name: parameter.clone() for name, parameter in parameters.items()})
    for name, parameter in parameters.items():
        parameter.copy_(torch.stack([each[name] for each in loaded]).mean(0))


def save_weights(model: MultitaskModel, run: str, ledger: Ledger, from_pretrained: bool, seen: pd.DataFrame) -> str:
    """Write ``seen``, and the parameters that the pretrained backbone does not determine; returns the latter's sha256.

    If a run is trained again, it counts as unfinished once its weights are replaced: its old record has their hash.

    Args:
        from_pretrained: whether training started from the backbone. If not, even frozen parameters may differ from it.
    """
    write_table(seen, ledger.folder(run) / SEEN)
    file = ledger.weights_file(run)
    with new_file(file) as temporary:
        _save(_trained(model, from_pretrained), temporary)
        ledger.withdraw(run)
    return sha256_file(file)


def load_weights(model: nn.Module, record: RunRecord, ledger: Ledger, part: str = "") -> None:
    """Load the weights that a run kept into ``model``.

    Args:
        model: in the state before training, so that the trained parameters require gradients.
        part: the prefix of its parameters' names, if it is only a part of the run's model.

    Raises:
        PipelineError: the file is missing, damaged, or does not match what the run's recipe trains.
    """
    file = ledger.weights_file(record.run)
    remedy = f"delete {file.parent}, and the run is trained again"
    if not file.is_file() or sha256_file(file) != record.weights_sha256:
        raise PipelineError(f"{file}: missing or damaged: {remedy}")
    from_pretrained = not record.sources or KINDS[record.kind].artifact is not None
    own = _trained(model, from_pretrained, part)
    fill(own, read_tensors(file, own, remedy, part))


def _trained(model: nn.Module, from_pretrained: bool, part: str = "") -> dict[str, nn.Parameter]:
    if isinstance(model, MultitaskModel) and len(model.models) == 1:
        model = model.models[0]  # in files, a single task's parameters have no prefix
    named = ((f"{part}{name}", p) for name, p in model.named_parameters())
    return {name: p for name, p in named if p.requires_grad or not from_pretrained or is_threshold(name)}


def _save(tensors: Mapping[str, Tensor], file: Path) -> None:
    save_file({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, file)


def seen_rows(data: Mapping[str, TaskData], sources: Sequence[SourceRun], workspace: Workspace) -> pd.DataFrame:
    """The table that a model keeps: ``task``, ``use`` and ``hash`` of the rows of its sources, then of its ``data``."""
    tables = [seen_by(source.task, source.run, workspace) for source in sources]
    for name, rows in data.items():
        sizes = [added.rows for added in rows.added.values()]  # added rows follow the task's own
        ends = np.cumsum([len(rows.train) - sum(sizes), *sizes])[:-1]
        for task, hashes in zip((name, *rows.added), np.split(row_hashes(rows.train), ends), strict=True):
            tables.append(_table(task, "trained", hashes))
        tables.append(_table(name, "selected", row_hashes(rows.dev)))
    return pd.concat(tables, ignore_index=True).drop_duplicates(ignore_index=True)


def _table(task: str, use: Use, hashes: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"task": task, "use": use, "hash": hashes})


def seen_by(task: str, run: str, workspace: Workspace) -> pd.DataFrame:
    """The table of the model of ``run`` for ``task`` (:func:`seen_rows`); if it has no file, its rows are ``unknown``.

    Raises:
        PipelineError: the file is damaged.
    """
    artifact = workspace.store.find(run)
    file = (workspace.ledger.folder(run) if artifact is None else artifact.folder) / SEEN
    if not present(file):
        return _table(task, "unknown", np.zeros(1, np.uint64))
    with reading(file, "delete it, and which rows the model has seen is unknown"):
        check_regular(file)
        table = pd.read_parquet(file)[["task", "use", "hash"]]
        return table.astype({"task": str, "use": str, "hash": np.uint64})


def overlap(rows: pd.DataFrame, seen: pd.DataFrame) -> dict[tuple[str, str], np.ndarray]:
    """Which ``rows`` (n,) share a text with ``seen``, by the task and use there; ``unknown`` rows are left out."""
    hashes = row_hashes(rows)
    groups = seen.groupby(["task", "use"], sort=False)["hash"]
    return {(str(task), str(use)): np.isin(hashes, group.to_numpy()) for (task, use), group in groups}


def tell_seen(target: Task, dev: pd.DataFrame, sources: Sequence[SourceRun], workspace: Workspace, option: str) -> None:
    """Name each source that was trained on texts of ``dev`` or of the target's test rows, with advice.

    Args:
        option: how the command that takes the sources names an adapter; without it, the same one may be taken again.
    """
    if not sources:
        return
    seen = pd.concat([seen_by(source.task, source.run, workspace) for source in sources])
    test = read_test_texts(target, workspace.splits.folder_of(target))
    parts = {"dev": dev} if test is None else {"dev": dev, "test": test}
    overlaps = {kind: overlap(rows, seen) for kind, rows in parts.items()}
    for task, use in overlaps["dev"]:
        counts = {kind: int(overlaps[kind][task, use].sum()) for kind in parts}
        is_own = task == target.name
        if use == "trained" and any(counts.values()) and (option == "--start-from" or not is_own):
            listed = " and ".join(f"{counts[kind]} of {len(rows)} rows of {kind}" for kind, rows in parts.items())
            remedy = f"extract --task {task} --without-rows-of {target.name} trains an adapter without them"
            workspace.tell_once(
                f"note: {listed} of {target.name} also occur in the training rows of its source {task}, so its score"
                " there says less about new texts: "
                + ("evaluate leaves them out" if is_own else f"{remedy}; then name it: {option} {task}@RUN")
            )


def overlap_notes(name: str, data: TaskData) -> Iterator[str]:
    """Say which training rows of task ``name`` also occur in dev or test, and whether they were dropped."""
    for other, rows in data.dropped.items():
        yield f"{name}: {rows} training rows that also occur in dev or test of {other} are left out"
    for other, added in data.added.items():
        left_out = added.in_dev + added.in_test + added.in_other_dev
        yield (
            f"{name}: {added.rows} training rows of {other} are added ({added.in_train} also occur in train);"
            f" {left_out} are left out, since they occur in dev or test"
        )
    for rows, kind in ((data.dev_in_train, "rows of dev"), (data.test_in_train, "test rows")):
        if rows:
            yield f"{name}: {rows} {kind} also occur in train (--drop-overlap drops those from train)"
