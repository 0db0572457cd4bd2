"""Trained models in a Python program: ``from pipeline import load``.

Computes what the ``predict`` command computes, and keeps the model in memory between calls. Nothing here creates a
process group or sets Accelerate's state, because the program may have its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from torch import Tensor

from pipeline.data.batches import BACKBONE_INPUTS, collate, sentences_of
from pipeline.data.cells import check_input
from pipeline.data.labels import Prediction, names_in
from pipeline.data.tasks import Task
from pipeline.data.tokens import Cut, whole_lengths
from pipeline.methods.attention import token_attention
from pipeline.methods.registry import leaving_out, members_of
from pipeline.models.tensors import lifted, round_for_good, share_equal
from pipeline.models.transfer_model import JointModel, TransferModel
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs import kept_models
from pipeline.runs.build import outputs_of, restore, restore_together, task_of
from pipeline.runs.kept_models import Target
from pipeline.runs.scoring import splits_of
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Precision
from pipeline.system.errors import PipelineError, shortened
from pipeline.training.devices import HALF, OneDevice, full_memory_explained, on_gpu, resolve_precision
from pipeline.training.objectives import Compute, mean_outputs, objective_of

_PATH = str, PathLike
Text = str | tuple[str, str]
"""A text, or the two texts of a pair."""


@dataclass(frozen=True)
class Predicted:
    """The prediction for one text or pair: a class, several labels or a score, depending on the task."""

    label: str | None
    """The name of the most probable class; None for a task of scores, or of several labels."""
    score: float | None
    """The score, which may lie outside the task's range by a little; None for a task of classes."""
    probabilities: Mapping[str, float]
    """Probability of each class by name, in the task's order; empty for a task of scores."""
    outputs: tuple[float, ...] = field(default=(), compare=False, repr=False)
    """The head's raw outputs: one logit per class, or one number for a score, a cosine or two classes."""
    labels: tuple[str, ...] = ()
    """The labels with a probability above one half, for a task of several labels."""


class Model:
    """A trained model in memory; made by :func:`load`. Not for several threads at once."""

    def __init__(self, target: Target, model: TransferModel, device: OneDevice) -> None:
        self._target, self._model, self._device = target, model, device

    def __repr__(self) -> str:
        return f"<{self.kind} {self.task}@{self.run} on {self.backbone}, {self._device.device}>"

    @property
    def task(self) -> str:
        return self._target.task.name

    @property
    def run(self) -> str:
        return self._target.run

    @property
    def kind(self) -> str:
        """``adapter``, ``fusion``, or the kind of another run."""
        return self._target.kind

    @property
    def backbone(self) -> str:
        """The folder or Hub id that the backbone was read from."""
        return self._target.workspace.backbone_name

    @property
    def artifact(self) -> Artifact | None:
        """Its entry in the store; None for a run that is kept elsewhere."""
        return self._target.trained if isinstance(self._target.trained, Artifact) else None

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters that a fusion mixes, in its order, by task, or ``task@run`` for several of the target; empty for
        any other model."""
        if self.artifact is None or self.artifact.manifest.kind != "fusion":
            return ()
        recipe = self._target.recipe
        return tuple(members_of(recipe, self.task, recipe.form.names_of(self.artifact.manifest.sources)))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes in the task's order; empty for a task of scores."""
        return self._target.task.classes

    @property
    def is_pair(self) -> bool:
        """Whether it reads pairs of texts."""
        return self._target.task.is_pair

    @property
    def max_length(self) -> int:
        """The number of tokens that it reads; longer inputs are cut."""
        assert self._target.recipe.max_length is not None  # a trained model's recipe is resolved
        return self._target.recipe.max_length

    @property
    def mask_token(self) -> str:
        """What stands in a text for a word that the model must not see; empty if its tokenizer has no such token."""
        tokenizer = self._target.workspace.backbone.tokenizer.fast
        return "" if tokenizer.split_special_tokens else str(tokenizer.mask_token or "")

    def predict(self, texts: Iterable[Text], *, batch_size: int = 64, without: str | None = None) -> list[Predicted]:
        """The predictions for B texts or pairs, in their order.

        The numbers equal those of the ``predict`` command at the same precision, up to rounding: inputs are padded to
        the longest of their batch, so the other texts of a call matter.

        Args:
            texts: ``["...", ...]``, or for a task of pairs ``[("...", "..."), ...]``. Tuples, table columns and
                iterators work too. If empty, so is the result.
            batch_size: rows per forward pass, above 0.
            without: one of :attr:`adapters` to leave out. A fusion renormalises its softmax over the others; a gated
                fusion drops the adapter's term.

        Raises:
            PipelineError: ``texts`` is no list or contains a blank text or anything but the task's texts or pairs; the
                adapter is not in the fusion or is its only one; or ``batch_size`` is not positive.
        """
        _check_types(("batch_size", batch_size, Integral, "a whole number"))
        if batch_size < 1:
            raise PipelineError(f"batch_size={batch_size}: give at least 1")
        if (rows := self._rows(texts)).empty:
            return []
        leaving: AbstractContextManager[None] = nullcontext()
        if without is not None:
            if without not in self.adapters or len(self.adapters) == 1:
                mixed = ", ".join(self.adapters) or "no adapters"
                raise PipelineError(f"without={without!r}: {self!r} mixes {mixed}: give one of several")
            leaving = leaving_out(self._model.backbone, self.adapters, without)
        with full_memory_explained(f"predict with {self!r}", "give a smaller batch_size"), leaving:
            (outputs,), _ = head_outputs(self._model, [self._target], rows, batch_size, self._device, cached=False)
        prediction = objective_of(self._target.task, self._target.recipe).predict(outputs)
        return list(_each(prediction.calibrated(self._target.temperature), outputs, self.classes))

    def lengths(self, texts: Iterable[Text]) -> list[int]:
        """The number of tokens of each text or pair before cutting; of the longer text if the two are encoded apart.

        Raises:
            PipelineError: as for :meth:`predict`.
        """
        encoding = self._target.recipe.encoding
        assert encoding is not None
        if (rows := self._rows(texts)).empty:
            return []
        return whole_lengths(rows, self._target.workspace.backbone.tokenizer, encoding).max(axis=1).tolist()

    def explain(self, text: Text) -> pd.DataFrame:
        """How much each adapter of a fusion contributes at each token and layer, for one text or pair.

        The shares say what the fusion mixed, not what the prediction depends on: leaving out an adapter with a large
        share may change nothing.

        Returns:
            Columns ``input`` (0; 1 for the second text of a siamese pair), ``position`` and ``token`` from ``[CLS]``
            on, ``layer`` from 0 at the bottom, ``site`` (``attention`` or ``ffn``, after which the adapters stand),
            ``adapter``, and ``share`` (0 to 1). The shares of a token at a site add up to 1. With CLS pooling the last
            layer computes only the first token, so the table has no other tokens for it.

        Raises:
            PipelineError: the model is not a fusion, or ``text`` is invalid as for :meth:`predict`.
        """
        recipe = self._target.recipe
        if not self.adapters:
            raise PipelineError(
                f"run {self.run} ({self.kind} of '{self.task}') is not a fusion: only a fusion has shares of adapters"
            )
        rows = self._rows([text])
        tokenizer = self._target.workspace.backbone.tokenizer
        (split,) = splits_of(rows, recipe, tokenizer, both_orders=False, cached=False)
        positions, tables = np.zeros(1, dtype=np.int64), []
        inputs, positions = (split, positions) if split.b is None else sentences_of(split, positions)
        with lifted(self._model.backbone):
            for number, position in enumerate(positions):
                batch = collate(inputs, np.array([position]), tokenizer.pad_token_id)  # (1, T) each
                read = {name: batch[name].to(self._device.device) for name in BACKBONE_INPUTS if name in batch}
                tokens = tokenizer.fast.convert_ids_to_tokens(read["input_ids"][0])
                shares = token_attention(self._model.backbone, self.adapters, read, tokens)
                tables.append(shares.assign(input=number))
        table = pd.concat(tables, ignore_index=True)
        return table[["input", *table.columns.drop("input")]]

    def beside(self) -> list[Artifact]:
        """The adapters of the store that can be compared with this model, if they read as many texts.

        For a fusion these are the adapters that it mixes, as it was trained over them, and the target's best one.
        """
        trained, store = self.artifact, self._target.workspace.store
        if trained is None:
            return []
        manifest = trained.manifest
        sources = store.adapters_of(manifest)
        usable = kept_models.usable_artifacts(store.artifacts(), manifest.backbone_weights)
        same_task = [each for each in usable if each.manifest.task == self.task]
        own = kept_models.best_of(same_task, "adapter", self._target.task)
        if own is not None and own.manifest.task not in {source.manifest.task for source in sources}:
            sources = [own, *sources]
        return [each for each in sources if each.manifest.pair == self.is_pair and each != trained]

    def sibling(self, artifact: Artifact) -> "Model":
        """Load another artifact of the store onto the same device; both models share one frozen backbone.

        Raises:
            PipelineError: it is damaged or was trained on another backbone.
        """
        task = task_of(artifact, artifact.manifest.task)
        other = _open(artifact, task, self._target.workspace, self._device)
        share_equal(other._model.backbone, self._model.backbone, self._target.workspace.backbone.tensor_names)
        return other

    def _rows(self, texts: Iterable[Text]) -> pd.DataFrame:
        """The texts as checked canonical rows."""
        column = 'list(zip(table["text_a"], table["text_b"]))' if self.is_pair else 'table["text"].tolist()'
        parts = [self.check(text, f"texts[{number}]") for number, text in enumerate(_one_by_one(texts, column))]
        rows = pd.DataFrame(parts, columns=["text_a", "text_b"] if self.is_pair else ["text_a"], dtype=object)
        rows.insert(0, "id", [str(number) for number in range(len(rows))])
        return rows

    def check(self, text: object, where: str) -> tuple[str, ...]:
        """The one or two texts of an input; a :class:`PipelineError` that says ``where`` an invalid input stands."""
        return check_input(text, where, self.task, self.is_pair)


def load(
    target: str | Path,
    *,
    store: str | Path | None = None,
    backbone: str | Path | None = None,
    data: str | Path | Sequence[str | Path] | None = None,
    reports: str | Path = "reports",
    using: str = "auto",
    device: str | None = None,
    precision: Precision = "auto",
) -> Model:
    """Load a trained model into memory.

    Args:
        target: a task, for its best model in the store; ``TASK@RUN`` for one run of the store or the ledger; or the
            folder of an artifact.
        store: the folder of artifacts (``adapters_store``); not needed for the folder of an artifact.
        backbone: folder or Hub id of the backbone; by default the one that the model's manifest or record names.
        data: one or more folders that may hold ``<task>/task.toml``; by default the model's manifest or record
            describes the task.
        reports: where the ledger is, for a run that is not an artifact.
        using: for a task, its best ``fusion`` or ``adapter`` on dev, or a run; auto takes the better of the two.
        device: such as ``cpu``, ``cuda`` or ``cuda:1``; by default a GPU if there is one.
        precision: auto uses bf16 if the device has instructions for it, else fp32.

    Raises:
        PipelineError: the model does not exist, is damaged, or was trained on another backbone or for other classes;
            the device or its precision is not available; ``using`` is given although the target names a run; or an
            argument has the wrong type.
    """
    named_folders = data if isinstance(data, list | tuple) else () if data is None else (data,)
    _check_types(
        ("target", target, _PATH, "a task, TASK@RUN or the folder of an artifact"),
        ("store", store, (*_PATH, type(None)), "a folder"),
        ("backbone", backbone, (*_PATH, type(None)), "a folder or Hub id"),
        *(("data", folder, _PATH, "a folder, or a list of folders") for folder in named_folders),
        ("reports", reports, _PATH, "a folder"),
        ("using", using, str, "auto, fusion, adapter or a run"),
    )
    folders = [*map(Path, named_folders)]
    if precision not in get_args(Precision):
        raise PipelineError(f"precision={precision!r}: give {', '.join(get_args(Precision))}")
    place = _device(device, precision)
    name, run, root = kept_models.parse_model(target, store, *folders)
    if run and using != "auto":
        raise PipelineError(f"target={str(target)!r} names a run, so using={using!r} has no effect: leave it out")
    named = "" if backbone is None else str(backbone)
    first, *more = folders or (None,)
    workspace = Workspace(named, first, root, Path(reports), more_data=tuple(more))
    trained: Artifact | RunRecord
    # The task as the caller's data describes it, else as the model's manifest or record does.
    defined = workspace.task(name) if folders else None
    if run or using not in kept_models.KINDS:
        trained = kept_models.find_run(run or using, name, workspace.store, workspace.reports)
    else:
        trained = kept_models.best_model(name, using, workspace, defined)
    return _open(trained, defined or task_of(trained, name), workspace, place)


def _open(trained: Artifact | RunRecord, task: Task, workspace: Workspace, place: OneDevice) -> Model:
    """Restore the model that was trained for ``task``, on the workspace's backbone or, if it names none, on its own."""
    target = kept_models.as_target(task, trained, workspace)
    with full_memory_explained(f"load {task.name}@{target.run}", "give device='cpu'"):
        model = restore(trained, task, target.workspace).to(place.device)
        round_for_good(model, target.workspace.backbone.tensor_names, place.dtype)
    return Model(target, model, place)


def predictions_of(
    targets: Sequence[Target],
    rows: pd.DataFrame,
    drop_layers: tuple[int, ...],
    batch_size: int,
    accelerator: Accelerator,
) -> tuple[list[Prediction], Cut]:
    """One prediction per target, from one forward pass over the rows; and how many rows each target cuts."""
    first, workspace, longest = targets[0], targets[0].workspace, targets[0].recipe.max_length
    assert longest is not None  # a trained model's recipe is resolved
    if rows.empty:
        dtypes = {"score": "float64", "classes": "int64", "labels": "U1"}
        nothing = [
            Prediction(np.empty(0, dtypes[task.kind]), np.empty((0, task.outputs)) if task.classes else None)
            for task in (target.task for target in targets)
        ]
        return nothing, Cut(0, longest)
    model: TransferModel | JointModel
    if len(targets) == 1:
        model = restore(first.trained, first.task, workspace, drop_layers)
    else:
        trained, tasks = [each.trained for each in targets], [each.task for each in targets]
        model = restore_together(trained, tasks, workspace, drop_layers)
    round_for_good(model, workspace.backbone.tensor_names, HALF.get(accelerator.mixed_precision))
    model = accelerator.prepare(model)
    outputs, cut = head_outputs(model, targets, rows, batch_size, accelerator, cached=True)
    # the next pass builds another model
    accelerator.free_memory()
    each = zip(targets, outputs, strict=True)
    predictions = [objective_of(target.task, target.recipe).predict(own) for target, own in each]
    return predictions, Cut(cut, longest)


def head_outputs(
    model: TransferModel | JointModel,
    targets: Sequence[Target],
    rows: pd.DataFrame,
    batch_size: int,
    compute: Compute,
    *,
    cached: bool,
) -> tuple[list[Tensor], int]:
    """Each target's outputs (B, k) for B canonical rows, and how many of these are cut.

    A model that averages over the orders of a pair reads both. Unless ``cached``, the tokens are not saved to disk.

    Args:
        model: restored for the targets, on the device already.
    """
    recipe, tokenizer = targets[0].recipe, targets[0].workspace.backbone.tokenizer
    inputs = splits_of(rows, recipe, tokenizer, recipe.pairs.average_orders, cached)
    pad = tokenizer.pad_token_id
    outputs = mean_outputs(model, inputs, batch_size=batch_size, pad_token_id=pad, accelerator=compute)
    widths = [outputs_of(target.recipe, target.task) for target in targets]
    return list(outputs.split(widths, dim=-1)), inputs[0].cut_rows


def _check_types(*arguments: tuple[str, object, type | tuple[type, ...], str]) -> None:
    """Raise a :class:`PipelineError` for the first argument of the wrong type; the text says what to give."""
    for name, value, types, remedy in arguments:
        if not isinstance(value, types):
            raise PipelineError(f"{name}={shortened(value)}: give {remedy}")


def _one_by_one(texts: Any, column: str) -> Iterator[Any]:
    """Yield the texts in order; a :class:`PipelineError` for a single text, a table, and anything without an order.

    Args:
        column: how to take such texts from a table.
    """
    if isinstance(texts, str):
        raise PipelineError("texts is one text, where a list is needed: write predict([text])")
    if isinstance(texts, pd.DataFrame):
        raise PipelineError(f"texts is a table, where a list is needed: give {column}")
    if not isinstance(texts, Mapping | set | frozenset | bytes):
        with suppress(TypeError):  # a number, None, an array without a dimension
            return iter(texts)
    raise PipelineError(f"texts is {shortened(texts)}, where a list is needed: give one, such as [text]")


def _device(name: str | None, precision: Precision) -> OneDevice:
    if name is None:
        name = "cuda" if on_gpu() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise PipelineError(f"device={name!r}: give cpu, cuda or cuda:N") from None
    gpus = torch.cuda.device_count()
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and (device.index or 0) >= gpus):
        raise PipelineError(f"device={name!r}: there is no such device here ({gpus} GPUs): give cpu, cuda or cuda:N")
    return OneDevice(device, HALF.get(resolve_precision(precision, name)))


def _each(prediction: Prediction, outputs: Tensor, classes: tuple[str, ...]) -> Iterator[Predicted]:
    values, raw = prediction.values.tolist(), map(tuple, outputs.tolist())
    if prediction.probabilities is None:
        yield from (Predicted(None, value, {}, own) for value, own in zip(values, raw, strict=True))
        return
    for value, row, own in zip(values, prediction.probabilities.tolist(), raw, strict=True):
        label, labels = (None, names_in(value, classes)) if isinstance(value, str) else (classes[value], ())
        yield Predicted(label, None, dict(zip(classes, row, strict=True)), own, labels)
