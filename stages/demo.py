"""The whole pipeline in a few minutes: generated tasks, a nano BERT made here, extract, fuse, compare."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

from pipeline.data.tokens import Tokenizer, tokenise
from pipeline.records.store import DEFAULT_STORE
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import make_folder, new_folder, write_json
from pipeline.system.errors import PipelineError, writing
from pipeline.system.reading import present, read_json
from pipeline.training.devices import make_accelerator
from pipeline.training.masked_lm import Masking, fit_masked
from stages.compare.compare import compare
from stages.demo_tasks import corpus, write_tasks
from stages.extract import extract
from stages.fuse import fuse
from stages.report import summary_of
from stages.studies import find_study

TARGET = "tickets"
_SEED_FILE = "demo.json"

_CONFIG = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    # BERT's 0.02 is meant for width 768.
    "initializer_range": 0.08,
}
_RECIPE = Recipe(trainable="full", epochs=5, learning_rate=2e-3, batch_size=64, precision="fp32")
# More tokens than usual are kept as they are: with one in ten, a nano BERT hardly passes a word it sees on to its top.
_MASKING = Masking(chosen=0.2, masked=0.6, random=0.1)
_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def demo(folder: Path, seed: int) -> int:
    """Make everything under ``folder``, a new or empty one, and say what came out; run again, what is there is used.

    The exit status is 2 if a run of the comparison failed, else 0.
    """
    began = time.monotonic()
    # The seed is written before anything else. Among other files the demo would overwrite the tasks, and use the
    # backbone, models and runs that it finds.
    file, remedy = make_folder(folder) / _SEED_FILE, "give another folder (--output)"
    if not present(file):
        if any(folder.iterdir()):
            raise PipelineError(f"{folder} holds other files: {remedy}")
        write_json(file, {"seed": seed})
    elif read_json(file, remedy) != {"seed": seed}:
        raise PipelineError(f"{folder} was made with another seed: {remedy}")
    data, backbone = folder / "data", folder / "backbone"
    _say(f"Four generated tasks: {data}")
    with writing(data):
        names = write_tasks(data, seed)
    if not (backbone / "config.json").is_file():
        _say("A nano BERT, pretrained on other sentences of their kinds")
        score = pretrain_fresh(corpus(data, seed), backbone, BertConfig(**_CONFIG), _RECIPE, _MASKING, seed=seed)
        _say(f"Its masked-token accuracy is {score:.0%}: {backbone}")
    study = find_study("demo")
    places = str(backbone), data, folder / DEFAULT_STORE, folder / "reports"
    workspace = Workspace(*places, scoring=study.scoring)  # the study's, which then finds these runs
    _say("Stage one: an adapter for each task, the nano BERT frozen")
    for name in names:
        record = extract(name, study.recipe_for("adapter", name), workspace, seed=study.seeds[0]).record
        print(f"{name}: dev {record.metric} {record.dev:.3f}", flush=True)
    _say(f"Stage two: fusion of the others for {TARGET}, which has few rows")
    fused = fuse(TARGET, study.recipe_for("fusion", TARGET), workspace, seed=study.seeds[0]).record
    print(f"{TARGET}: dev {fused.metric} {fused.dev:.3f}", flush=True)
    _say("Stage three: the alternatives, on the same rows and seed")
    result, report = compare(study, workspace)
    print()
    print("\n".join(summary_of(report)))
    _say(f"Done in {time.monotonic() - began:.0f} s")
    return 2 if any(entry.error for entry in result.entries) else 0


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def pretrain_fresh(
    texts: Sequence[str],
    folder: Path,
    config: BertConfig,
    recipe: Recipe,
    masking: Masking,
    *,
    seed: int,
    held_out: int = 256,
) -> float:
    """Train a fresh BERT on the sentences ``texts`` and write it to ``folder`` as a backbone.

    The vocabulary's size in ``config`` is set here. ``held_out`` texts are not trained on: returns the share of their
    masked tokens that the kept epoch guesses right.
    """
    length = config.max_position_embeddings
    with new_folder(folder) as temporary:
        # Every word has its token, which is fit for a small, closed language.
        words = sorted({word for text in texts for word in text.split()})
        vocabulary = temporary / "vocab.txt"
        vocabulary.write_text("\n".join((*_SPECIALS, *words)) + "\n", encoding="utf-8")
        fast = BertTokenizerFast(vocab_file=str(vocabulary), do_lower_case=True, model_max_length=length)
        fast.save_pretrained(temporary)
        tokenizer = Tokenizer(fast, token_types=True)
        order = np.random.default_rng(seed).permutation(len(texts))
        rows = pd.DataFrame({"text_a": [texts[i] for i in order]})
        dev, train = (tokenise(part, tokenizer, "cross", length) for part in (rows[:held_out], rows[held_out:]))
        torch.manual_seed(seed)
        config.vocab_size = len(fast)
        model = BertForMaskedLM(config)
        accelerator = make_accelerator(recipe.precision)
        fitted = fit_masked(model, train, {"text": dev}, tokenizer, recipe, masking, seed=seed, accelerator=accelerator)
        model.bert.save_pretrained(temporary, safe_serialization=True)
    return fitted.best_score
