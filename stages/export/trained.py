"""The model to export, and how it reads texts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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
"""Rows with one text, or with two for a task on pairs."""


@dataclass(frozen=True)
class Written:
    """The result of writing a format.

    Args:
        code: Python that loads the model from the folder and runs it.
        library: the Hub's name of the library that loads it.
        notes: sentences for users.
    """

    code: str
    library: str
    notes: tuple[str, ...] = ()


def files_in(described: object) -> list[str]:
    """The file names that an export listed in its :data:`TASK_FILE`; empty if ``described`` is not such a file's."""
    files = described.get("files") if isinstance(described, dict) else None
    return [name for name in files if isinstance(name, str)] if isinstance(files, list) else []


@dataclass(frozen=True)
class Trained:
    """A restored model on the CPU, in fp32 and in evaluation mode.

    Args:
        temperature: calibrates its probabilities.
        artifact: its artifact in the store; None if its run kept the weights elsewhere.
        adapters: the adapters that a fusion was trained over, in its order.
    """

    task: Task
    recipe: Recipe
    model: TransferModel
    backbone: Backbone
    run: str
    kind: str
    temperature: float = 1.0
    artifact: Artifact | None = None
    adapters: tuple[Artifact, ...] = ()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.backbone.tokenizer

    @property
    def inputs(self) -> list[list[int]]:
        """The inputs that the model reads per row, as lists of text numbers: ``[[0, 1]]`` is a pair as one input.

        Siamese pairs have two inputs with one text; a model that averages both orders has two inputs with the pair.
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
        """The kind of answer: ``probabilities`` (B, C) or ``scores`` (B,)."""
        return "probabilities" if self.task.classes else "scores"

    def described(self) -> dict[str, Any]:
        """What a program needs to know to run the model, in the form of :data:`TASK_FILE`."""
        return {
            "task": self.task.name,
            "kind": self.task.kind,
            "classes": list(self.task.classes),
            "range": None if self.task.range is None else list(self.task.range),
            "metric": self.task.metric,
            "temperature": self.temperature,
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

    def write_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer's files for transformers; the tokenizers library alone can read them too.

        ``tokenizer.json`` cuts to the model's length, both texts of a pair alike, and pads to the longest of a batch.
        """
        from tokenizers import Tokenizer

        from pipeline.data.batches import BACKBONE_INPUTS

        fast = copy.deepcopy(self.tokenizer.fast)
        fast.model_max_length = self.recipe.max_length
        fast.padding_side = "right"  # as in training
        # A tokenizer may return token types that this family of encoders does not accept.
        fast.model_input_names = list(BACKBONE_INPUTS if self.tokenizer.token_types else BACKBONE_INPUTS[:2])
        fast.init_kwargs["model_input_names"] = fast.model_input_names  # otherwise it is not saved
        fast.save_pretrained(folder)
        alone = Tokenizer.from_str(fast.backend_tokenizer.to_str())
        if self.cuts_middle:
            alone.no_truncation()
        else:
            alone.enable_truncation(self.recipe.max_length, strategy="longest_first", direction=fast.truncation_side)
        alone.enable_padding(pad_id=fast.pad_token_id, pad_token=fast.pad_token)
        alone.save(str(folder / "tokenizer.json"))
