"""What is exported, a trained model and how it reads texts; and where to, a folder or a repository of the Hub.

Imports no model, so that mistakes are reported before the libraries load.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, validate_repo_id

from pipeline.data.tasks import Task
from pipeline.records.store import Artifact
from pipeline.runs.kept_models import find_model
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError, shortened, writing
from pipeline.system.reading import read_json

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
            **{key: getattr(self.recipe, key) for key in ("encoding", "pooling", "head", "max_length", "truncation")},
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


def check_export(task: str, using: str, folder: Path, push_to: str | None, store: Path, reports: Path) -> None:
    """Find mistakes in the arguments of :func:`stages.export.export`; raises as that does."""
    if push_to is not None:
        try:
            validate_repo_id(push_to)
        except HFValidationError as error:
            raise PipelineError(f"--push-to-hub {shortened(push_to)}: {error}") from None
        if push_to.count("/") != 1:
            raise PipelineError(f"--push-to-hub {push_to}: write OWNER/NAME, with your name or your organisation's")
    find_model(task, using, store, reports)
    check_place(folder)


def check_place(folder: Path) -> None:
    """Refuse to replace a folder with files that no export wrote, such as notes or a repository's ``.git``."""
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise PipelineError(f"--output {folder}: this is a file: name a folder")
        earlier = list[str]()
        with suppress(PipelineError):  # missing, or not written by an export
            earlier = _files_in(read_json(folder / TASK_FILE, ""))
        if (other := next((name for name in names_in(folder) if name not in earlier), None)) is not None:
            raise PipelineError(
                f"--output {folder}: holds {shortened(other)}, which no export wrote and a new one would delete: name a"
                " new folder"
            )


def names_in(folder: Path) -> Iterator[str]:
    """All files in ``folder`` at any depth, except Python's caches."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if (path.is_symlink() or not path.is_dir()) and "__pycache__" not in name.parts:
            yield name.as_posix()


def _files_in(described: object) -> list[str]:
    """The file names that an export listed in its :data:`TASK_FILE`; empty if ``described`` is not such a file's."""
    files = described.get("files") if isinstance(described, dict) else None
    return [name for name in files if isinstance(name, str)] if isinstance(files, list) else []


def address_of(name: str) -> str:
    """The repository's web address."""
    return f"{constants.ENDPOINT}/{name}"


def push(folder: Path, name: str) -> str:
    """Upload an export to the repository ``name``, creating a private one if needed; returns its address.

    The same commit deletes files of an earlier export that this one lacks; other files stay.

    Raises:
        PipelineError: there is no token or write permission, or the Hub cannot be reached.
    """
    api = HfApi()
    try:
        address = api.create_repo(name, private=True, exist_ok=True)
        written = set(names_in(folder))
        outdated = [escape(file) for file in _earlier_files(name) if file not in written]
        message = "Upload an exported model"
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, delete_patterns=outdated or None)
    except LocalTokenNotFoundError:
        raise PipelineError(f"--push-to-hub {name}: no token: log in first (hf auth login), or set HF_TOKEN") from None
    except HfHubHTTPError as error:
        status = 0 if error.response is None else error.response.status_code
        advice = {401: "log in first (hf auth login)", 403: "the token has no right to write there"}.get(status, "")
        raise PipelineError(f"--push-to-hub {name}: the Hub refused it ({status}): {advice or error}") from error
    except OSError as error:  # requests' connection errors, and huggingface_hub's offline mode
        raise PipelineError(
            f"--push-to-hub {name}: the Hub cannot be reached ({type(error).__name__}): connect, or unset"
            " HF_HUB_OFFLINE. The export is in its folder"
        ) from error
    return str(address)


def _earlier_files(name: str) -> list[str]:
    """The files of the export in the repository; empty if it has none."""
    answer = get_session().get(
        hf_hub_url(name, TASK_FILE), headers=build_hf_headers(), timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
    )
    try:
        hf_raise_for_status(answer)
        return _files_in(json.loads(answer.content))
    except (EntryNotFoundError, ValueError):  # missing, or not written by an export
        return []
