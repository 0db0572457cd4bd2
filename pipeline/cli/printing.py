"""Print results as text and, with ``--json``, as one JSON object on the last line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipeline.settings.parts import gates_text
from pipeline.system.errors import few, one_line
from pipeline.system.process import is_main_process

if TYPE_CHECKING:  # they load pandas, or are not needed at once
    from jinja2 import Environment

    from pipeline.records.run_record import RunRecord
    from pipeline.runs.scoring import ProbeScore
    from stages.doctor import Finding
    from stages.evaluate import Evaluation
    from stages.runs import ListedRun, RunDescription


_MOST_CLASSES, _LONGEST_NAME = 12, 24
"""In a table."""


def print_lines(*lines: str) -> None:
    """Print lines that may quote untrusted text, such as an imported artifact's manifest."""
    for line in lines:
        print(one_line(line))


def print_result(lines: Iterable[str], summary: dict[str, Any], as_json: bool) -> None:
    """Print a result once, even if several processes train together."""
    if is_main_process():
        print_lines(*lines)
        if as_json:
            print(json.dumps(summary))


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("results")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: one_line(str(value)),  # quoted text must not start a new line
    )
    environment.filters |= {"f": format, "few": few, "gates": gates_text, "columns": columns, "setting": _setting}
    environment.filters["size"] = size_text
    return environment


def filled(result: str, **values: Any) -> list[str]:
    """The lines of ``results/RESULT.txt``, filled with ``values``."""
    return _templates().get_template(f"{result}.txt").render(values).removesuffix("\n").split("\n")


def print_filled(result: str, summary: dict[str, Any], as_json: bool, **values: Any) -> None:
    """Print the lines of :func:`filled`."""
    print_result(filled(result, **values), summary, as_json)


def print_run(
    record: RunRecord,
    as_json: bool,
    is_new: bool = True,
    shares: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    probe: ProbeScore | None = None,
) -> None:
    """Print a run's scores, cost and folder, and for a gated fusion what the linear probes chose.

    Args:
        is_new: whether this command made the run; otherwise it was already finished.
        probe: the score without training.
        shares: for a pruned fusion, see :func:`stages.prune.shares_of`.
    """
    opened = {task: gate for task, gate in record.gates.items() if gate}
    offered = dict.fromkeys(source["task"] for source in record.chosen_from) if record.gates else {}
    print_filled(
        "run",
        {**record.summary(), **({"probe": probe._asdict()} if probe else {})},
        as_json,
        probe=probe,
        record=record,
        rows=dev_rows(record),
        is_new=is_new,
        opened=opened,
        closed=[task for task in record.gates if task not in opened],  # trained nevertheless
        left_out=[task for task in offered if task not in (*record.gates, record.anchor, record.task)],
        shares=shares,
    )


def print_evaluation(evaluation: Evaluation, as_json: bool) -> None:
    """Print which rows the model has seen, and its score on the others: beside the baselines, by class, by confidence.

    With many classes, only those with the most errors.
    """
    counts = {"in training": evaluation.trained_on}
    if not evaluation.selecting:
        counts["to select its epoch"] = evaluation.selected_on
    counts |= {f"in the rows of {source}": count for source, count in evaluation.seen_by_sources.items()}
    known = {evaluation.task: evaluation.trained_on, **evaluation.seen_by_sources}
    numbered = list(enumerate(evaluation.classes))
    if len(numbered) > _MOST_CLASSES:
        numbered = sorted(numbered, key=lambda each: -each[1].errors)[:_MOST_CLASSES]
    others = [number for number in range(len(evaluation.classes)) if number not in dict(numbered)]
    heads = [*map(str, range(1, len(numbered) + 1)), *(["other"] if others else [])]
    table, confusion = [["class", "rows", "precision", "recall", "F1"]], [["true \\ predicted", *heads]]
    for place, (number, each) in enumerate(numbered, start=1):
        shares = ("-" if share is None else f"{share:.4f}" for share in (each.precision, each.recall, each.f1))
        table.append([each.name, f"{each.rows}", *shares])
        row = evaluation.confusion[number] if evaluation.confusion else [0] * len(evaluation.classes)
        cells = [*(row[other] for other, _ in numbered), *([sum(row[other] for other in others)] if others else [])]
        confusion.append([f"{place} {each.name:.{_LONGEST_NAME}}", *map(str, cells)])
    print_filled(
        "evaluation",
        asdict(evaluation),
        as_json,
        it=evaluation,
        seen=[f"{count} {what}" for what, count in counts.items() if count],
        unknown=[name for name, count in known.items() if count is None],
        table=table,
        confusion=confusion,
    )


_MOST_WORDS = 12
"""Words of an explanation that are shown: those on which the answer depends most."""


def print_explanation(explained: dict[str, Any], as_json: bool) -> None:
    """Print the answer; the words and the adapters that it depends on; and the shares at each token."""
    top, inputs = explained["answer"][0], explained["inputs"]
    tables: list[list[tuple[str, ...]]] = []
    changes = [(each["word"], _first(each["answer"]), _change(top, each["answer"])) for each in explained["words"]]
    if changes := sorted(changes, key=lambda change: -abs(change[2]))[:_MOST_WORDS]:
        effects = [(word, answer, f"{change:+.4f}") for word, answer, change in changes]
        tables.append([("word", "without it", f"change of {top['label']}"), *effects])
    shares, rows = explained["mean_shares"], list[tuple[str, ...]]()
    alone = {single["adapter"]: single["answer"] for single in explained["singles"]}
    left_out = {each["adapter"]: each["answer"] for each in explained["without"]}
    for name in dict.fromkeys((*shares, *alone)):
        own, without = alone.get(name, ()), left_out.get(name, ())
        firsts = (_first(answer) if answer else "-" for answer in (own, without))
        change = f"{_change(top, without):+.4f}" if without else "-"
        rows.append((name, f"{shares[name]:.3f}" if name in shares else "-", *firsts, change))
    if rows:
        tables.append([("adapter", "share", "by itself", "without it", f"change of {top['label']}"), *rows])
    for number, part in enumerate(inputs):
        table = [("token" if len(inputs) == 1 else f"token of text {number + 1}", *explained["adapters"])]
        for place, token in enumerate(part["tokens"]):
            # With CLS pooling, the last layer computes only the first token.
            at_sites = [site["shares"][place] for site in part["layers"] if place < len(site["shares"])]
            table.append((token, *(f"{sum(own) / len(own):.3f}" for own in zip(*at_sites, strict=True))))
        tables.append(table)
    print_filled("explanation", explained, as_json, it=explained, tables=tables)


def _first(answer: Sequence[Mapping[str, Any]]) -> str:
    return f"{answer[0]['label']} {answer[0]['score']:.4f}"


def _change(top: Mapping[str, Any], answer: Sequence[Mapping[str, Any]]) -> float:
    """How much higher an answer has the label of another answer."""
    return float(next(each["score"] for each in answer if each["label"] == top["label"]) - top["score"])


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


def dev_rows(record: RunRecord) -> str:
    """The number of dev rows that each task was scored on."""
    return "+".join(f"{record.scores[task].rows:,}" for task in record.trained_on)


def print_findings(findings: Iterable[Finding], as_json: bool) -> int:
    """Print findings as they arrive; returns the exit status, 1 if one is a problem."""
    seen = []
    for finding in findings:
        remedy = f": {finding.remedy}" if finding.remedy else ""
        print(one_line(f"{finding.state:<8} {finding.topic}: {finding.text}{remedy}"), flush=True)
        seen.append(finding)
    problems = sum(finding.state == "problem" for finding in seen)
    if as_json:
        print(json.dumps({"problems": problems, "findings": [asdict(finding) for finding in seen]}))
    return 1 if problems else 0


def size_text(size: float) -> str:
    """``512 B``, ``14.5 KB``, ``345.0 MB``, in powers of 1024."""
    for unit in ("B", "KB", "MB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


def print_runs(rows: Sequence[ListedRun], unfinished: int, none: str, as_json: bool) -> None:
    """Print a line per run that ends with its differences from others of its kind and task; ``none`` if empty."""
    head = "run", "finished", "kind", "task", "seed", "epochs", "metric", "dev", "rows", "test", "on disk", "differs in"
    records = [row.record for row in rows]
    table = [
        (
            record.run,
            record.finished_at[:16].replace("T", " "),
            record.kind,
            record.task,
            str(record.seed),
            str(record.epochs),
            record.metric,
            f"{record.dev:.4f}",
            dev_rows(record),
            "-" if record.test is None else f"{record.test:.4f}",
            size_text(row.size),
            difference,
        )
        for row, record, difference in zip(rows, records, _differences(records), strict=True)
    ]
    print_result(
        columns([head, *table]) if table else [none],
        {"runs": [row.summary() for row in rows], "unfinished": unfinished},
        as_json,
    )


def _differences(records: Sequence[RunRecord]) -> list[str]:
    """For each run, the settings that not all listed runs of its kind and task share.

    Sources and rows are compared only between runs of one seed, since other seeds have others.
    """
    from stages.run_comparison import settings_of

    of_seed = ("sources", "candidates", "(fingerprint)")
    settings = [
        {
            ((record.kind, record.task, record.seed if key.endswith(of_seed) else None), key): str(value)
            for key, value in settings_of(record).items()
            if key != "seed" and value not in (None, "", [])
        }
        for record in records
    ]
    sizes = Counter((record.kind, record.task, seed) for record in records for seed in (None, record.seed))
    known = Counter(item for own in settings for item in own.items())
    return [
        ", ".join(
            f"{key.replace('_', ' ')} {value}"
            for (group, key), value in own.items()
            if known[(group, key), value] < sizes[group]
        )
        for own in settings
    ]


def print_described_run(description: RunDescription, as_json: bool) -> None:
    """Print all details of a run, with some points of its curve."""
    text = filled("described_run", it=description, size=size_text(description.size))
    print_result(columns([line.split("\t", 1) for line in text]), description.summary(), as_json)
