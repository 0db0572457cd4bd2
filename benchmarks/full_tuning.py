"""The cost of the training loop: full fine-tuning with ``fit`` against the shortest loop that does the same work."""

import time
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW
from transformers import get_linear_schedule_with_warmup

from pipeline.data.batches import micro_batches, padding_worth_a_pass, training_order
from pipeline.data.tokens import TokenisedSplit
from pipeline.settings.recipe import Recipe

from .backbones import describe, given_or_minilm
from .ours import make_run, train_epoch
from .plain import PlainClassifier, load_encoder
from .report import Report
from .rows import sst_rows
from .setting import Setting
from .timing import Row, interleave, ratio


def run(setting: Setting) -> Report:
    tuning = make_run(setting, "full", given_or_minilm(setting), batch_size=8 if setting.quick else 32)
    rows = sst_rows(tuning, setting, 16 if setting.quick else 640)
    peers = {
        "ours": lambda: train_epoch(tuning, rows).examples_per_second,
        "minimal loop": lambda: minimal_epoch(
            Path(tuning.backbone.name), rows, tuning.recipe, tuning.task.outputs, setting.device
        ),
    }
    found = interleave(peers, setting.repeats)
    table: list[Row] = [
        {"full fine-tuning": name, "examples/s": sample, "ours is faster by": ratio(found["ours"], sample)}
        for name, sample in found.items()
    ]
    return Report(
        (
            f"{describe(setting)}: {len(rows)} rows, batch {tuning.recipe.batch_size}, the same batches for both,"
            " ours without padding where that is faster, else in micro-batches; fused AdamW, clipping, linear schedule,"
            " one epoch, fp32; only training steps are timed.",
            "Medians (lowest to highest) of rounds in which the peers ran in turn.",
        ),
        (table,),
    )


def minimal_epoch(backbone: Path, rows: TokenisedSplit, recipe: Recipe, outputs: int, device: str) -> float:
    """Examples per second over an epoch of bare steps: no checks, progress or checkpoints."""
    assert recipe.learning_rate is not None and rows.labels is not None
    torch.manual_seed(0)
    model = PlainClassifier(load_encoder(backbone), outputs, recipe.head_dropout).to(device).train()
    tokens, labels = [torch.tensor(ids, dtype=torch.long) for ids in rows.a], torch.tensor(rows.labels)
    lengths, most_padding = rows.lengths, padding_worth_a_pass(torch.device(device))
    order = training_order(lengths, recipe.batch_size, 0, 1)
    optimizer = AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)
    warmup = round(recipe.warmup_ratio * len(order))
    schedule = get_linear_schedule_with_warmup(optimizer, warmup, len(order))
    started = time.perf_counter()
    for batch in order:
        for part in micro_batches(lengths[batch], 1, most_padding):
            chosen = batch[part]
            # No real token has number -1, so the mask can be read from the padding.
            padded = pad_sequence([tokens[row] for row in chosen], batch_first=True, padding_value=-1).to(device)
            mask = (padded >= 0).long()
            loss = F.cross_entropy(model(padded.clamp(min=0), mask), labels[chosen].to(device))
            (loss * (len(part) / len(batch))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    return len(rows) / (time.perf_counter() - started)
