"""How a step of stage two scales with length, rows and adapters; stage_two has it beside AdapterHub's."""

import time

from .backbones import FOUR_OF_BERT_BASE, MINILM, NANO, Shape, backbone_folder
from .report import Report
from .setting import Setting
from .step import fusion_batch, fusion_run, our_step
from .timing import Row, interleave, milliseconds, ratio

_FEW = 4


def run(setting: Setting) -> Report:
    counts, many_adapters = ([2, 4], [2, 4]) if setting.quick else ([2, 4, 8, 16], [2, 4, 8, 16, 32, 64])
    lengths = [8, 16] if setting.quick else [32, 64, 128, 256, 512]
    sizes = [2, 4] if setting.quick else [4, 8, 16, 32, 64]
    rows, tokens = (2, 8) if setting.quick else (8, 64)
    wide, many = (NANO, (2, 8)) if setting.quick else (FOUR_OF_BERT_BASE, (32, 64))
    return Report(
        (
            f"d = {NANO.width if setting.quick else MINILM.width}, random weights, fp32; the first table with {rows}"
            f" inputs, the second with {tokens} tokens, the last with both. MB kept for the backward pass.",
            f"The third table: a model of d = {wide.width}, {wide.layers} layers, {many[0]} inputs of {many[1]}"
            " tokens; all its rows ran in turn.",
            "The last: more and more adapters, in CPU seconds.",
            "Medians (lowest to highest).",
        ),
        (
            [_ours(setting, rows, length) for length in lengths],
            [_ours(setting, size, tokens) for size in sizes],
            _by_count(setting, wide, counts, *many),
            [_by_adapters(setting, count, rows, tokens) for count in many_adapters],
        ),
    )


def _ours(setting: Setting, rows: int, tokens: int) -> Row:
    run = fusion_run(setting, backbone_folder(setting, NANO if setting.quick else MINILM), _FEW)
    step = our_step(run, fusion_batch(run, rows, tokens, setting.device), setting.device)
    (sample,) = interleave({"ours": milliseconds(step)}, setting.repeats).values()
    kept, thousands = step.saved_mb(), rows * tokens / 1000
    return {
        "N": _FEW,
        "rows": rows,
        "tokens a row": tokens,
        "ours, ms": sample,
        "ms a 1,000 tokens": sample.median / thousands,
        "ours, MB": kept,
        "MB a 1,000 tokens": kept / thousands,
    }


def _by_count(setting: Setting, shape: Shape, counts: list[int], rows: int, tokens: int) -> list[Row]:
    folder = backbone_folder(setting, shape)
    steps = {}
    for count in counts:
        run = fusion_run(setting, folder, count)
        steps[str(count)] = milliseconds(our_step(run, fusion_batch(run, rows, tokens, setting.device), setting.device))
    found = interleave(steps, setting.repeats)
    first = found[str(counts[0])]
    return [
        {"N": count, "ours, ms": sample, f"against N = {counts[0]}": ratio(sample, first)}
        for count, sample in zip(counts, found.values(), strict=True)
    ]


def _by_adapters(setting: Setting, count: int, rows: int, tokens: int) -> Row:
    run = fusion_run(setting, backbone_folder(setting, NANO if setting.quick else MINILM), count)
    step = our_step(run, fusion_batch(run, rows, tokens, setting.device), setting.device)

    def seconds() -> float:
        started = time.process_time()
        step()
        return time.process_time() - started

    (sample,) = interleave({"ours": seconds}, min(setting.repeats, 3)).values()
    return {"N": count, "ours, s": sample, "ours, MB": step.saved_mb()}
