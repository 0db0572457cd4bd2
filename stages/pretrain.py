"""Further pretraining: a backbone reads the tasks' texts before it is taught the tasks (Gururangan et al. 2020).

Masked-language-model training on training texts alone (Devlin et al. 2019); what comes out is a backbone folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pipeline.atomic import new_folder, write_json
from pipeline.data.load import TaskData
from pipeline.data.pair_order import joined
from pipeline.data.tokens import TokenisedSplit, Tokenizer, tokenise, tokenizer_of
from pipeline.errors import PipelineError
from pipeline.ledger import run_name
from pipeline.recipe import Recipe, check_seed
from pipeline.tasks import Task
from stages.workspace import Workspace, provenance

if TYPE_CHECKING:
    from transformers import BertConfig

    from pipeline.training.masked_lm import Masking

RESULT = "pretraining.json"
ENCODER_RATE, FRESH_HEAD_RATE = 1e-5, 1e-3
"""Peak learning rates unless given: Hayes 2024's for Quora, and what fresh heads have elsewhere. A fresh head sends the
encoder gradients of no use at first: at fine-tuning's 5e-5 for both, MiniLM lost most of what it knew of sentences."""
_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def pretrain(
    tasks: Sequence[str], output: Path, recipe: Recipe, workspace: Workspace, *, seed: int, limit: int | None = None
) -> dict[str, Any]:
    """Train the workspace's backbone further on the training texts of ``tasks``, and write it to ``output``.

    The kept epoch is the one that guesses most hidden words of the tasks' dev texts, or the start if none is better.
    Texts that stand in any of these tasks' dev are not trained on. What was trained to the end is not trained again.

    Returns:
        What stands in the folder's ``pretraining.json``: tasks, recipe, masked accuracy by task before and after, and
        what the backbone was.

    Raises:
        PipelineError: no task or one twice, texts that cannot be read, or a folder that holds something else.
    """
    from pipeline.training.devices import is_main_process, resolve_precision
    from pipeline.training.masked_lm import Masking

    check_seed(seed)
    found = [workspace.task(name) for name in tasks]
    names = [task.name for task in found]
    if not names or len(set(names)) < len(names):
        raise PipelineError(f"--tasks {','.join(tasks)}: name each task once, such as --tasks sst,quora")
    backbone = workspace.backbone
    if backbone.tokenizer.fast.mask_token_id is None:
        raise PipelineError(f"backbone '{backbone.name}': its tokenizer has no mask token, so no word can be hidden")
    update = {
        "epochs": recipe.epochs or recipe.usual_epochs,
        "learning_rate": recipe.learning_rate or ENCODER_RATE,
        "precision": resolve_precision(recipe.precision),
        "score_start": True,
    }
    recipe = recipe.model_copy(update=update)
    data = {task.name: _texts(task, found, workspace, limit, seed) for task in found}
    identity = {
        "kind": "pretrain",
        "tasks": {name: rows.fingerprint for name, rows in sorted(data.items())},
        "recipe": recipe.identity,
        "masking": asdict(Masking()),
        "fresh_head_rate": FRESH_HEAD_RATE,
        "seed": seed,
        "backbone": backbone.identity,
    }
    done = _finished(output, identity)
    if done is not None:
        return done
    with workspace.ledger.lock(run_name(identity)):
        result = _train(found, data, output, recipe, workspace, identity, seed)
    if is_main_process():
        workspace.ledger.drop_checkpoint(run_name(identity))
    return result


def _train(
    tasks: Sequence[Task],
    data: dict[str, TaskData],
    output: Path,
    recipe: Recipe,
    workspace: Workspace,
    identity: dict[str, Any],
    seed: int,
) -> dict[str, Any]:
    import torch

    from pipeline.models.backbone import load_masked_lm
    from pipeline.training.devices import make_accelerator
    from pipeline.training.masked_lm import Masking, fit_masked

    backbone, run = workspace.backbone, run_name(identity)
    torch.manual_seed(seed)
    model, had_head = load_masked_lm(backbone.name)
    if not had_head:
        print(f"{backbone.name} has no masked-language-model head: a fresh one is trained with it", file=sys.stderr)
        recipe = recipe.model_copy(update={"head_learning_rate": recipe.head_learning_rate or FRESH_HEAD_RATE})
    if recipe.freeze_embeddings:
        model.base_model.embeddings.requires_grad_(False)

    def tokenised(task: Task, rows: pd.DataFrame) -> TokenisedSplit:
        length = recipe.max_length or min(task.max_length, backbone.max_length)
        return tokenise(rows, backbone.tokenizer, "cross", length)

    train = joined([tokenised(task, data[task.name].train) for task in tasks])
    fitted = fit_masked(
        model,
        train,
        {task.name: tokenised(task, data[task.name].dev) for task in tasks},
        backbone.tokenizer,
        recipe,
        Masking(),
        seed=seed,
        accelerator=make_accelerator(recipe.precision),
        title=f"pretrain {'+'.join(data)} seed {seed}",
        checkpoint_file=workspace.ledger.checkpoint_file(run),
        checkpoint_seconds=workspace.checkpoint_seconds,
    )
    result = {
        "run": run,
        "backbone": str(output),
        "from": backbone.name,
        "had_head": had_head,
        "rows": {name: len(rows.train) for name, rows in data.items()},
        "left_out": {name: dict(rows.dropped) for name, rows in data.items()},
        "masked_accuracy": {"before": fitted.curve[0]["dev"], "after": fitted.best_score},
        "best_epoch": fitted.best_epoch,
        "curve": fitted.curve,
        "seconds": round(fitted.seconds, 3),
        "identity": identity,
        "provenance": provenance(),
    }
    with new_folder(output) as temporary:
        model.save_pretrained(temporary, safe_serialization=True)
        backbone.tokenizer.fast.save_pretrained(temporary)
        write_json(temporary / RESULT, result)
    return result


def _texts(task: Task, tasks: Sequence[Task], workspace: Workspace, limit: int | None, seed: int) -> TaskData:
    """Rows of ``task`` whose training texts stand in dev of none of ``tasks``."""
    rows = workspace.task_data(task, limit, seed)
    for other in tasks:
        try:
            rows = rows.without(workspace.task_data(other, None, 0).dev, other.name)
        except PipelineError as error:
            raise PipelineError(f"task '{task.name}': {error}") from None
    return rows


def _finished(output: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """What an earlier run with the same identity left in ``output``.

    Raises:
        PipelineError: something else is there.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    found = _result_in(output)
    if found is None:
        raise PipelineError(f"{output}: holds something else: give another folder (--output)")
    if found.get("identity") != identity:
        raise PipelineError(
            f"{output}: holds a backbone that was trained otherwise (other tasks, recipe, rows, seed or backbone):"
            " give another folder (--output)"
        )
    return found


def pretraining_seconds(backbone: Path) -> float:
    """What further pretraining took for a backbone folder, with any that it went on from; 0 for one that had none."""
    found = _result_in(backbone)
    return 0.0 if found is None else found["seconds"] + pretraining_seconds(Path(found["from"]))


def _result_in(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def pretrain_fresh(
    texts: Sequence[tuple[str, ...]],
    folder: Path,
    config: BertConfig,
    recipe: Recipe,
    masking: Masking,
    *,
    seed: int,
    held_out: int = 256,
) -> float:
    """Train a fresh BERT on ``texts`` (one sentence or a pair each) and write it to ``folder`` as a backbone.

    Args:
        config: sizes; the vocabulary's is set here.
        held_out: texts that are not trained on, for the score.

    Returns:
        The share of masked tokens of the held-out texts that the kept epoch guesses right.
    """
    import numpy as np
    import torch
    from transformers import BertForMaskedLM

    from pipeline.training.devices import make_accelerator
    from pipeline.training.masked_lm import fit_masked

    with new_folder(folder) as temporary:
        tokenizer = word_tokenizer(texts, temporary, config.max_position_embeddings)
        order = np.random.default_rng(seed).permutation(len(texts))
        dev, train = (
            _tokenised([texts[i] for i in part], tokenizer, config.max_position_embeddings)
            for part in (order[:held_out], order[held_out:])
        )
        torch.manual_seed(seed)
        config.vocab_size = len(tokenizer.fast)
        model = BertForMaskedLM(config)
        accelerator = make_accelerator(recipe.precision)
        fitted = fit_masked(model, train, {"text": dev}, tokenizer, recipe, masking, seed=seed, accelerator=accelerator)
        model.bert.save_pretrained(temporary, safe_serialization=True)
    return fitted.best_score


def word_tokenizer(texts: Sequence[tuple[str, ...]], folder: Path, max_length: int) -> Tokenizer:
    """A BERT tokenizer whose vocabulary is every word of ``texts``; fit for a small, closed language."""
    from transformers import BertTokenizerFast

    words = sorted({word for text in texts for sentence in text for word in sentence.split()})
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join((*_SPECIALS, *words)) + "\n", encoding="utf-8")
    fast = BertTokenizerFast(vocab_file=str(vocabulary), do_lower_case=True, model_max_length=max_length)
    fast.save_pretrained(folder)
    return tokenizer_of(fast, token_types=True)


def _tokenised(texts: Sequence[tuple[str, ...]], tokenizer: Tokenizer, max_length: int) -> TokenisedSplit:
    """Singles and pairs as one split; the singles come first."""
    parts = []
    for size in (1, 2):
        chosen = [text for text in texts if len(text) == size]
        columns = {"id": map(str, range(len(chosen))), "text_a": [text[0] for text in chosen]}
        if size == 2:
            columns["text_b"] = [text[1] for text in chosen]
        if chosen:
            parts.append(tokenise(pd.DataFrame(columns), tokenizer, "cross", max_length))
    return joined(parts)
