"""Predictions for N tasks: all adapters in one forward pass, against one pass per adapter."""

from collections.abc import Callable, Sequence

from pipeline.data.tokens import TokenisedSplit
from pipeline.models.transfer_model import JointModel, TransferModel
from pipeline.runs.build import restore, restore_together
from pipeline.runs.training_run import TrainingRun
from pipeline.training.devices import make_accelerator
from pipeline.training.objectives import mean_outputs

from .backbones import describe, given_or_minilm
from .ours import make_run, source_task
from .report import Report
from .rows import sst_rows
from .setting import Setting
from .timing import Row, interleave, per_second, ratio

Models = Sequence[TransferModel | JointModel]


def run(setting: Setting) -> Report:
    counts, size = ((2,), 16) if setting.quick else ((2, 4, 8), 256)
    table = [_row(setting, count, size, dropped) for dropped in (False, True) for count in counts]
    return Report(
        (
            f"{describe(setting)}: {size} rows in batches of 64 of similar length, fp32; Houlsby adapters of bottleneck"
            f" {setting.bottleneck}. A row counts once, however many predictions it has. One pass computes the layers"
            " below the first adapter once: the more layers have no adapter, the more it saves.",
            "Medians (lowest to highest) of rounds in which the peers ran in turn.",
        ),
        (table,),
    )


def _row(setting: Setting, count: int, size: int, drop_half: bool) -> Row:
    # The run only provides adapters: nothing is fused.
    run = make_run(setting, "fusion", given_or_minilm(setting), adapters=count, fusion="standard")
    rows, backbone = sst_rows(run, setting, size), run.backbone
    dropped = tuple(range(backbone.layers // 2)) if drop_half else ()
    chosen = [(artifact, source_task(number)) for number, artifact in enumerate(run.request.adapters)]
    apart = [restore(*pair, run.workspace, dropped) for pair in chosen]
    artifacts, tasks = zip(*chosen, strict=True)
    together = restore_together(artifacts, tasks, run.workspace, dropped)
    peers: dict[str, Models] = {"N passes": apart, "one pass": [together]}
    found = interleave(
        {name: per_second(size, _predict(run, rows, models)) for name, models in peers.items()}, setting.repeats
    )
    return {
        "N": count,
        "layers without adapters": len(dropped),
        **{f"{name}, rows/s": sample for name, sample in found.items()},
        "one pass is faster by": ratio(found["one pass"], found["N passes"]),
    }


def _predict(run: TrainingRun, rows: TokenisedSplit, models: Models) -> Callable[[], None]:
    accelerator = make_accelerator("fp32")
    pad = run.backbone.tokenizer.pad_token_id
    placed = [model.to(accelerator.device) for model in models]

    def predict() -> None:
        for model in placed:
            mean_outputs(model, [rows], batch_size=64, pad_token_id=pad, accelerator=accelerator)

    return predict
