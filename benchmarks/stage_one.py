"""Stage one, examples per second: this project's loop against AdapterHub's trainer with three kinds of padding."""

from collections.abc import Callable

from pipeline.data.tokens import TokenisedSplit

from .backbones import describe, given_or_minilm
from .ours import make_run, train_epoch
from .report import Report
from .rows import sst_rows
from .setting import Setting
from .timing import Row, interleave, ratio

_OURS = "ours, pooling cls as AdapterHub's head"
_MEAN = "ours, pooling mean (the tasks' default)"


def run(setting: Setting) -> Report:
    from .adapter_trainer import Padding, examples_per_second

    backbone, batch_size = given_or_minilm(setting), 8 if setting.quick else 32
    stage_one, mean = (
        make_run(setting, "adapter", backbone, batch_size=batch_size, pooling=pooling) for pooling in ("cls", "mean")
    )
    rows = sst_rows(stage_one, setting, 16 if setting.quick else 640)
    # Padded to 128 tokens, every step costs the same, so few steps are enough.
    few = _first(rows, 8 if setting.quick else 160)

    def trainer(padding: Padding, split: TokenisedSplit) -> Callable[[], float]:
        return lambda: examples_per_second(stage_one, split, padding, setting)

    peers = {
        _OURS: lambda: train_epoch(stage_one, rows).examples_per_second,
        _MEAN: lambda: train_epoch(mean, rows).examples_per_second,
        "AdapterTrainer, padded to 128 tokens (its default)": trainer("128 tokens", few),
        "AdapterTrainer, dynamic padding": trainer("dynamic", rows),
        "AdapterTrainer, dynamic padding, group_by_length": trainer("dynamic, group_by_length", rows),
    }
    found = interleave(peers, setting.repeats)
    table: list[Row] = [
        {"stage one": name, "examples/s": sample, "ours is faster by": ratio(found[_OURS], sample)}
        for name, sample in found.items()
    ]
    return Report(
        (
            f"Houlsby adapter of bottleneck {stage_one.recipe.bottleneck.width} and a linear head of five outputs,"
            f" {describe(setting)}: {len(rows)} rows ({len(few)} where padded to 128), batch"
            f" {stage_one.recipe.batch_size}, one epoch, fp32; only training steps are timed.",
            "Medians (lowest to highest) of rounds in which the peers ran in turn.",
        ),
        (table,),
    )


def _first(split: TokenisedSplit, count: int) -> TokenisedSplit:
    assert split.types_a is not None and split.labels is not None
    return TokenisedSplit(split.a[:count], split.types_a[:count], None, split.labels[:count])
