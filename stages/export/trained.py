"""What is exported: a trained model, and how it reads texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.data.tasks import Task
from pipeline.records.store import Artifact
from pipeline.settings.recipe import Recipe

if TYPE_CHECKING:  # they load torch
    from pipeline.data.tokens import Tokenizer
    from pipeline.models.backbone import Backbone
    from pipeline.models.transfer_model import TransferModel

TASK_FILE = "task.json"
SCRIPT = "run.py"

Texts = Sequence[tuple[str, ...]]
"""Rows of one text, or of two for a task of pairs."""


@dataclass(frozen=True)
class Written:
    """What a format wrote.

    Args:
        code: Python that loads the model in the folder and asks it.
        library: the library that loads it, by its name on the Hub.
        notes: what a user should know, in sentences.
    """

    code: str
    library: str
    notes: tuple[str, ...] = ()


def files_in(described: object) -> list[str]:
    """The names of its files that an export listed in what its :data:`TASK_FILE` holds; none of another file's."""
    files = described.get("files") if isinstance(described, dict) else None
    return [name for name in files if isinstance(name, str)] if isinstance(files, list) else []


@dataclass(frozen=True)
class Trained:
    """A restored model on the CPU, in fp32 and in evaluation mode.

    Args:
        artifact: what it is in the store; None of a run that kept its weights elsewhere.
        adapters: what a fusion was trained over, in its order.
    """

    task: Task
    recipe: Recipe
    model: TransferModel
    backbone: Backbone
    run: str
    kind: str
    artifact: Artifact | None = None
    adapters: tuple[Artifact, ...] = ()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.backbone.tokenizer

    @property
    def inputs(self) -> list[list[int]]:
        """The texts of each input that the model reads of a row, by their number: ``[[0, 1]]`` is a pair as one input.

        Of siamese pairs there are two inputs, of a text each; of a model that averages both orders two of the pair.
        """
        if not self.task.is_pair:
            return [[0]]
        if self.recipe.encoding == "siamese":
            return [[0], [1]]
        return [[0, 1], [1, 0]] if self.recipe.pairs.average_orders else [[0, 1]]

    @property
    def cuts_middle(self) -> bool:
        """Whether a long text keeps its beginning and its end."""
        return self.recipe.truncation == "head-and-tail" and not self.task.is_pair

    @property
    def answer(self) -> str:
        """What the model answers: ``probabilities`` (B, C) or ``scores`` (B,)."""
        return "probabilities" if self.task.kind == "classes" else "scores"

    def described(self) -> dict[str, Any]:
        """What a program has to know to ask the model, as :data:`TASK_FILE` holds it."""
        return {
            "task": self.task.name,
            "kind": self.task.kind,
            "classes": list(self.task.classes),
            "range": None if self.task.range is None else list(self.task.range),
            "metric": self.task.metric,
            "encoding": self.recipe.encoding,
            "pooling": self.recipe.pooling,
            "head": self.recipe.head,
            "max_length": self.recipe.max_length,
            "truncation": self.recipe.truncation,
            "split_special_tokens": self.tokenizer.fast.split_special_tokens,
            "inputs": self.inputs,
            "run": self.run,
            "trained": self.kind,
            "backbone": self.backbone.shown_name,
            "backbone_weights": self.backbone.weights_hash,
        }
