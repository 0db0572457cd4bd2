"""Further pretraining of a backbone on the tasks' texts, before any task is learned (Gururangan et al. 2020).

It is masked-language-model training on the training texts (Devlin et al. 2019); the result is a backbone folder.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, Field, ValidationError
from transformers import PreTrainedModel

from pipeline.data.task_data import TaskData
from pipeline.data.tokens import TokenisedSplit, joined, tokenise
from pipeline.models.backbone import load_masked_lm
from pipeline.runs.outcome import Made, Trainable, get_or_train, provenance
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import length_for
from pipeline.system.atomic import check_writable, new_folder, sha256_file, write_json
from pipeline.system.errors import PipelineError, writing
from pipeline.system.reading import present, read_text, reading
from pipeline.system.streams import notice
from pipeline.training.devices import (
    SMALLER_STEPS,
    check_sharding,
    full_memory_explained,
    make_accelerator,
    on_main_process,
    resolve_precision,
)
from pipeline.training.masked_lm import Masking, fit_masked
from pipeline.training.progress import Progress, tracking

RESULT = "pretraining.json"
ENCODER_RATE, FRESH_HEAD_RATE = 1e-5, 1e-3
"""Default peak learning rates: that of Hayes (2024) for Quora, and that of new heads in other methods. At first, the
gradients from a new head are useless to the encoder: with 5e-5 for both, MiniLM lost most of its sentence knowledge."""


class MaskedAccuracy(BaseModel, frozen=True):
    """Share of the masked words in the tasks' dev texts that the model predicts."""

    before: float
    after: float


class Pretrained(BaseModel, frozen=True, populate_by_name=True):
    """The record of a further pretraining, ``pretraining.json`` in the backbone's folder."""

    run: str
    backbone: str = Field(description="its folder")
    trained_from: str = Field(alias="from", description="the backbone that was trained further")
    had_head: bool = Field(description="whether it had a masked-language-model head")
    rows: dict[str, int] = Field(description="training rows of each task")
    left_out: dict[str, dict[str, int]] = Field(
        description="for every task, the rows that share a text with these tasks"
    )
    masked_accuracy: MaskedAccuracy
    best_epoch: int
    curve: list[dict[str, Any]]
    seconds: float
    total_seconds: float = Field(description="including earlier pretrainings of the backbone")
    identity: dict[str, Any]
    provenance: dict[str, Any]
    files: dict[str, str] = Field(description="file name -> sha256")

    def summary(self) -> dict[str, Any]:
        """What the command prints with ``--json``."""
        return self.model_dump(include={"run", "backbone", "masked_accuracy", "seconds"})


def pretrain(
    tasks: Sequence[str], output: Path, recipe: Recipe, workspace: Workspace, *, seed: int, limit: int | None = None
) -> Made[Pretrained]:
    """Train the workspace's backbone further on the training texts of ``tasks``, and write it to ``output``.

    The kept epoch is the one that predicts most masked words of the tasks' dev texts, or the initial model if none is
    better. Training leaves out texts that occur in the dev split of any of these tasks. A finished pretraining is not
    repeated.

    Raises:
        PipelineError: no task, or one twice; texts that cannot be read or have no word that the tokenizer knows; a
            length that the backbone cannot read; an output folder that cannot be written, is in use, is damaged or
            contains something else.
    """
    chosen = sorted((workspace.task(name) for name in tasks), key=lambda task: task.name)
    if not chosen or len({task.name for task in chosen}) < len(chosen):
        raise PipelineError(f"--tasks {','.join(tasks)}: name each task once, such as --tasks sst,quora")
    backbone = workspace.backbone
    if backbone.tokenizer.fast.mask_token_id is None:
        raise PipelineError(f"backbone '{backbone.name}': its tokenizer has no mask token, so no word can be masked")
    update = {
        "epochs": recipe.epochs or recipe.usual_epochs,
        "learning_rate": recipe.learning_rate or ENCODER_RATE,
        "precision": resolve_precision(recipe.precision),
        "score_start": True,
    }
    lengths = {task.name: length_for(recipe, task, backbone.max_length) for task in chosen}
    # Training leaves out the texts of all their dev and test splits.
    data = {
        task.name: workspace.splits.without_rows_of(chosen, task, workspace.splits.of(task, limit, seed))
        for task in chosen
    }
    run = _Pretraining(workspace, output, recipe.model_copy(update=update), data, lengths, seed)
    return get_or_train(run)


@dataclass
class _Pretraining(Trainable[Pretrained]):
    """A further pretraining to be done."""

    workspace: Workspace
    output: Path
    recipe: Recipe
    """With epochs, rate and precision resolved."""
    data: dict[str, TaskData]
    """By task, in order of name."""
    lengths: dict[str, int]
    """Maximum input of every task, in tokens."""
    seed: int

    @cached_property
    def identity(self) -> dict[str, Any]:
        return {
            "kind": "pretrain",
            "tasks": {name: rows.fingerprint for name, rows in self.data.items()},
            "lengths": self.lengths,
            "recipe": self.recipe.identity,
            "masking": asdict(Masking()),
            "fresh_head_rate": FRESH_HEAD_RATE,
            "seed": self.seed,
            "backbone": self.workspace.backbone.identity,
        }

    @property
    def title(self) -> str:
        return f"pretrain {'+'.join(self.data)} seed {self.seed}"

    def finished(self) -> Pretrained | None:
        """The result of an earlier run with the same identity, if any.

        Raises:
            PipelineError: a file of that result is missing or has changed, or the folder has something else.
        """
        output = self.output
        with writing(output):  # even the check fails for a name that is too long
            if not output.exists() or (output.is_dir() and not any(output.iterdir())):
                return None
        result = _result_in(output)
        if result is not None and result.identity == self.identity:
            for name, expected in result.files.items():
                with reading(output / name):
                    if not (output / name).is_file() or sha256_file(output / name) != expected:
                        remedy = "delete the folder, and the command trains it again"
                        raise PipelineError(f"{output}: {name} is missing or damaged: {remedy}")
            return result
        otherwise = "a backbone that was trained differently (other tasks, recipe, rows, seed or backbone)"
        raise PipelineError(
            f"{output}: holds {otherwise if result else 'something else'}: give another folder (--output)"
        )

    def train(self) -> Pretrained:
        on_main_process(lambda: check_writable(self.output))  # fail now, not after hours
        workspace, recipe, backbone = self.workspace, self.recipe, self.workspace.backbone
        check_sharding(self.title, recipe.model_copy(update={"trainable": "full"}))
        accelerator = make_accelerator(recipe.precision, workspace.track, workspace.ledger.folder(self.name))
        if accelerator.is_main_process:
            provenance()  # before training, while the code on disk is what runs
        train, dev = ({name: self._tokenised(name, split) for name in self.data} for split in ("train", "dev"))
        torch.manual_seed(self.seed)
        model, had_head = load_masked_lm(backbone.name, recipe.hidden_dropout)
        if not had_head:
            notice(f"{backbone.name} has no masked-language-model head: a new one is trained with it")
            recipe = recipe.model_copy(update={"head_learning_rate": recipe.head_learning_rate or FRESH_HEAD_RATE})
        if recipe.pretrained.freeze_embeddings:
            model.base_model.embeddings.requires_grad_(False)
        settings = {"seed": self.seed, **recipe.flat()}
        tracked = tracking(accelerator, workspace.track, self.name, self.title, settings, workspace.reports)
        with full_memory_explained(self.title, SMALLER_STEPS), tracked:
            fitted = fit_masked(
                model,
                joined(list(train.values())),
                dev,
                backbone.tokenizer,
                recipe,
                Masking(),
                seed=self.seed,
                accelerator=accelerator,
                title=self.title,
                checkpoint_file=workspace.ledger.checkpoint_file(self.name),
                checkpoint_seconds=workspace.checkpoint_seconds,
            )
        if accelerator.is_main_process:
            self._write(model, fitted, had_head)
        accelerator.wait_for_everyone()
        result = self.finished()
        assert result is not None
        return result

    def _tokenised(self, task: str, split: str) -> TokenisedSplit:
        rows: pd.DataFrame = getattr(self.data[task], split)
        tokenizer = self.workspace.backbone.tokenizer
        tokens = tokenise(rows, tokenizer, "cross", self.lengths[task])
        if np.isin(np.concatenate(tokens.a), tokenizer.fast.all_special_ids).all():
            raise PipelineError(
                f"task '{task}': its {split} texts have no word that the backbone knows, so none can be masked"
            )
        return tokens

    def _write(self, model: PreTrainedModel, fitted: Progress, had_head: bool) -> None:
        before = self.workspace.backbone
        result = Pretrained(
            run=self.name,
            backbone=str(self.output),
            trained_from=before.name,
            had_head=had_head,
            rows={name: len(rows.train) for name, rows in self.data.items()},
            left_out={name: dict(rows.dropped) for name, rows in self.data.items()},
            masked_accuracy=MaskedAccuracy(before=fitted.curve[0]["dev"], after=fitted.best_score),
            best_epoch=fitted.best_epoch,
            curve=fitted.curve,
            seconds=round(fitted.seconds, 3),
            total_seconds=round(fitted.seconds + pretraining_seconds(Path(before.name)), 3),
            identity=self.identity,
            provenance=provenance(),
            files={},
        )
        with new_folder(self.output) as temporary:
            model.save_pretrained(temporary, safe_serialization=True)
            before.tokenizer.fast.save_pretrained(temporary)
            files = {file.name: sha256_file(file) for file in sorted(temporary.iterdir())}
            write_json(temporary / RESULT, result.model_copy(update={"files": files}).model_dump(by_alias=True))
            self.finished()  # again, since another command may have written there meanwhile


def pretraining_seconds(backbone: Path) -> float:
    """Seconds of all further pretraining of a backbone folder, including earlier rounds; 0 if there was none."""
    result = _result_in(backbone)
    return result.total_seconds if result is not None else 0.0


def tasks_read(backbone: Path) -> set[str]:
    """The tasks whose training texts a backbone folder was pretrained on further, including earlier rounds."""
    read, seen = set[str](), set[Path]()
    while backbone not in seen and (result := _result_in(backbone)) is not None:
        seen.add(backbone)
        read |= {*result.identity.get("tasks", ())}
        backbone = Path(result.trained_from)
    return read


def _result_in(folder: Path) -> Pretrained | None:
    """The record in ``folder``; None if it has none, or another program's file of this name."""
    if not present(folder / RESULT):
        return None
    text = read_text(folder / RESULT)
    try:
        return Pretrained.model_validate_json(text)
    except ValidationError:
        return None
