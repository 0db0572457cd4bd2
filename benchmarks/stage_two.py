"""A training step of stage two on a whole BERT: AdapterHub's fusion against this project's."""

from .backbones import FOUR_OF_BERT_BASE, MINILM, NANO, Shape, backbone_folder
from .report import Report
from .setting import Setting
from .step import fusion_batch, fusion_run, our_step, stock_step
from .timing import Row, columns, interleave, milliseconds


def run(setting: Setting) -> Report:
    shapes, counts = ((NANO,), (2, 4)) if setting.quick else ((MINILM, FOUR_OF_BERT_BASE), (2, 8, 16))
    rows, tokens = (2, 8) if setting.quick else (32, 32)
    return Report(
        (
            f"Forward, backward and AdamW step on {rows} inputs of {tokens} tokens, fp32, Houlsby adapters of"
            f" bottleneck {setting.bottleneck} at two sites per layer; random weights. MB kept for the backward pass.",
            "Medians (lowest to highest) of rounds in which the peers ran in turn.",
        ),
        ([_row(setting, shape, count, rows, tokens) for shape in shapes for count in counts],),
    )


def _row(setting: Setting, shape: Shape, count: int, rows: int, tokens: int) -> Row:
    run = fusion_run(setting, backbone_folder(setting, shape), count)
    batch = fusion_batch(run, rows, tokens, setting.device)
    steps = {"stock": stock_step(run, batch, setting.device), "ours": our_step(run, batch, setting.device)}
    found = interleave({name: milliseconds(step) for name, step in steps.items()}, setting.repeats)
    kept = {name: step.saved_mb() for name, step in steps.items()}
    return {
        "d": shape.width,
        "layers": shape.layers,
        "N": count,
        **columns(found, "ms"),
        **{f"{name}, MB": size for name, size in kept.items()},
        "MB, stock / ours": kept["stock"] / kept["ours"],
    }
