"""How a step of stage two scales with adapters, length and rows, and the planning of a study with its runs."""

import time

from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import Study
from stages.compare.compare import dry_run
from stages.demo import write_tasks

from .backbones import FOUR_OF_BERT_BASE, MINILM, NANO, Shape, backbone_folder
from .report import Report
from .setting import Setting
from .step import fusion_batch, fusion_run, our_step, stock_step
from .timing import Row, columns, interleave, milliseconds, ratio

_FEW = 4


def run(setting: Setting) -> Report:
    counts, many_adapters = ([2, 4], [2, 4]) if setting.quick else ([2, 4, 8, 16], [2, 4, 8, 16, 32, 64])
    lengths = [8, 16] if setting.quick else [32, 64, 128, 256, 512]
    sizes = [2, 4] if setting.quick else [4, 8, 16, 32, 64]
    rows, tokens = (2, 8) if setting.quick else (8, 64)
    seeds = [1, 2] if setting.quick else [1, 25, 860]
    wide, many = (NANO, (2, 8)) if setting.quick else (FOUR_OF_BERT_BASE, (32, 64))
    return Report(
        (
            f"d = {NANO.width if setting.quick else MINILM.width}, random weights, fp32; the first table with {rows}"
            f" inputs of {tokens} tokens, the second with {rows} inputs, the third with {tokens} tokens. MB kept"
            " for the backward pass.",
            f"The fourth table: a model of d = {wide.width}, {wide.layers} layers, {many[0]} inputs of {many[1]}"
            " tokens; all its rows ran in turn.",
            "The fifth: more adapters, otherwise as in the first, in CPU seconds.",
            "The last: planning, which reads and checks data and recipes and looks up every run in an empty ledger.",
            "Medians (lowest to highest); peers of a row ran in turn.",
        ),
        (
            [_against_stock(setting, count, rows, tokens) for count in counts],
            [_ours(setting, rows, length) for length in lengths],
            [_ours(setting, size, tokens) for size in sizes],
            _by_count(setting, wide, counts, *many),
            [_by_adapters(setting, count, rows, tokens) for count in many_adapters],
            _by_study(setting, seeds),
        ),
    )


def _against_stock(setting: Setting, count: int, rows: int, tokens: int) -> Row:
    run = fusion_run(setting, backbone_folder(setting, NANO if setting.quick else MINILM), count)
    batch = fusion_batch(run, rows, tokens, setting.device)
    steps = {"stock": stock_step(run, batch, setting.device), "ours": our_step(run, batch, setting.device)}
    found = interleave({name: milliseconds(step) for name, step in steps.items()}, setting.repeats)
    return {"N": count, **columns(found, "ms"), **{f"{name}, MB": step.saved_mb() for name, step in steps.items()}}


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


def _by_study(setting: Setting, counts: list[int]) -> list[Row]:
    """``compare --dry-run`` of the demo's tasks with more and more seeds."""
    data = setting.scratch / "growth-data"
    tasks = write_tasks(data)
    folder = str(backbone_folder(setting, NANO))
    found, runs = {}, {}
    for count in counts:
        methods = ("frozen", "full", "sequential", "adapter", "fusion")
        values = {"name": "growth", "methods": methods, "targets": tasks[:2], "sources": tasks[2:]}
        sizes = {"seeds": range(count), "limit": 100, "recipe": {"bottleneck": 8}}
        study = parse_study(values | sizes, "growth")

        def plan(study: Study = study) -> int:
            # A new workspace each time, so that nothing is cached from the round before.
            places = Workspace(folder, data, setting.scratch / "growth-store", setting.scratch / "growth-reports")
            return dry_run(study, places).total.runs

        runs[count], found[str(count)] = plan(), milliseconds(plan)
    samples = interleave(found, setting.repeats)
    return [
        {
            "seeds": count,
            "runs": runs[count],
            "planning, ms": samples[str(count)],
            "ms a run": samples[str(count)].median / runs[count],
        }
        for count in counts
    ]
