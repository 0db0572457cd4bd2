"""Results as text and, with ``--json``, as one JSON object on the last line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipeline.settings.forms import gates_text
from pipeline.system.errors import few, one_line
from pipeline.system.process import is_main_process

if TYPE_CHECKING:  # it loads pandas
    from pipeline.records.ensembles import EnsembleRecord
    from pipeline.records.run_record import RunRecord
    from stages.compare.compare import DryRun
    from stages.disk_usage import Usage
    from stages.doctor import Finding
    from stages.evaluate import Evaluation
    from stages.export.export import Export
    from stages.predict import PredictedTable


_MOST_CLASSES = 10
"""In a table."""


def print_lines(*lines: str) -> None:
    """Print lines that may quote what somebody else wrote, such as the manifest of an imported artifact."""
    for line in lines:
        print(one_line(line))


def print_result(lines: Iterable[str], summary: dict[str, Any], as_json: bool) -> None:
    """Print a result once, however many processes train together."""
    if is_main_process():
        print_lines(*lines)
        if as_json:
            print(json.dumps(summary))


def print_run(record: RunRecord, as_json: bool, is_new: bool = True, shares: Mapping[str, float] | None = None) -> None:
    """A run's scores, cost and place.

    Args:
        is_new: this command has made it; else it was finished before.
        shares: of a pruned fusion, the share of each source in the one that it was made from.
    """
    cost = record.cost
    lines = [
        f"{record.kind} {record.task}: dev {record.metric} {record.dev:.4f} on {dev_rows(record)} rows"
        f" (epoch {record.best_epoch}),"
        f" {cost.trainable_parameters:,} trainable parameters, {cost.seconds:.0f} s,"
        f" {cost.examples_per_second:.0f} examples/s, {cost.peak_memory_mb:.0f} MB, run {record.run}"
    ]
    if record.anchor and record.anchor != record.task:
        lines.append(f"initialised from the adapter of {record.anchor}")
    if record.gates:
        lines += _gates(record)
    if shares:
        kept = {source.task for source in record.sources} | ({record.task} if record.recipe.trains_own else set())
        for what, names in (("keeps", kept), ("leaves out", shares.keys() - kept)):
            listed = (f"{name} ({share:.1%})" for name, share in shares.items() if name in names)
            lines.append(f"{what} {', '.join(listed)}")
    if record.artifact:
        lines.append(f"saved in {record.artifact}")
    if not is_new:
        lines.append(f"It was finished at {record.finished_at}: nothing was computed. --force runs it again")
    print_result(lines, record.summary(), as_json)


def _gates(record: RunRecord) -> Iterator[str]:
    """The gates that linear probes opened, a source that is kept with a closed one, and those that are left out."""
    opened = {task: gate for task, gate in record.gates.items() if gate}
    if opened:
        yield f"gates began at {gates_text(opened)}"
    elif record.anchor not in (None, record.task):
        yield "linear probes found no further source that helps"
    else:
        own = "the backbone" if record.recipe.gated.own == "none" else "the target's own adapter"
        yield f"linear probes found no source that helps: the fusion began as {own} alone"
    # Probes find no use for it, but its gate is trained all the same.
    if closed := [task for task in record.gates if task not in opened]:
        yield f"kept with a gate that starts at 0: {', '.join(closed)}"
    offered = dict.fromkeys(source["task"] for source in record.chosen_from)
    if left := [task for task in offered if task not in (*record.gates, record.anchor, record.task)]:
        yield f"left out: {', '.join(few(left))}"


def print_predictions(table: PredictedTable, as_json: bool) -> None:
    """A line per task: how many predictions, of what, and where they are."""
    lines = [
        f"{table.rows - task.blank} predictions of {task.kind} {task.name} for {task.task} in {table.output}"
        for task in table.tasks
    ]
    print_result(lines, table.summary(), as_json)


def print_ensemble(record: EnsembleRecord, as_json: bool) -> None:
    """Its members, and its score beside the best single model's."""
    summary = record.summary()
    lines = [
        f"ensemble {record.name} ({record.rule}) of {record.task}, {len(record.members)} of"
        f" {len(record.considered)} runs"
    ]
    lines += [
        f"  {member.weight:.3f}  {member.run}  {member.kind} seed {member.seed} on {member.backbone},"
        f" dev {record.metric} {member.dev:.4f}"
        for member in sorted(record.members, key=lambda member: -member.weight)
    ]
    others = "test rows" if record.chosen_on == "dev" else "other half of dev"
    lines += [
        f"{rows} ({scores.rows}): {record.metric} {scores.ensemble:.4f}, best single run {scores.best:.4f}"
        f" ({record.best})"
        for rows, scores in (("rows selected on", record.chosen), (others, record.held_out))
        if scores is not None
    ]
    if record.drop is None:
        lines.append("selected and scored on the same rows, which is optimistic: --choose-on half is less so")
    else:
        chosen = "half" if record.chosen_on == "half" else "rows"
        lines.append(f"drop from the {chosen} selected on to the {others.removesuffix(' of dev')}: {record.drop:.4f}")
        if record.chosen_on == "half":
            lines.append(f"the other half is {summary['held_out_is']}")
    print_result(lines, summary, as_json)


def print_export(exported: Export, as_json: bool) -> None:
    """Where it is, how it was checked, and what was or would be uploaded."""
    checked = exported.checked
    lines = [
        f"{exported.kind} {exported.task}, run {exported.run}: {exported.format} {exported.precision},"
        f" {_size(exported.bytes)} in {exported.folder}",
        *(f"checked on {sentence}" if not number else sentence for number, sentence in enumerate(checked.sentences())),
        *exported.notes,
        f'try it: python {exported.folder / "run.py"} "A text."' + (' "Another text."' if exported.pair else ""),
    ]
    if exported.published is not None:
        files = [f"  {size:>12,}  {name}" for name, size in exported.published.files]
        if exported.published.uploaded:
            lines.append(f"uploaded to {exported.published.address}")
        else:
            lines += [f"would be uploaded to {exported.published.address}, a private repository if it is new:", *files]
            lines.append("files of an earlier export there that this one lacks would be deleted")
            lines.append("nothing was uploaded: give --yes to do it")
    print_result(lines, exported.summary(), as_json)


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def print_evaluation(evaluation: Evaluation, as_json: bool) -> None:
    """Which rows the model has seen, then its score on the others with its interval, and the scores of the classes."""
    low, high = evaluation.interval
    lines = [
        *_seen_lines(evaluation),
        f"{evaluation.kind} {evaluation.run} on {evaluation.rows} rows of {evaluation.task}:"
        f" {evaluation.metric} {evaluation.score:.4f} (95 % CI {low:.4f} to {high:.4f})",
    ]
    if evaluation.mean_absolute_error is not None:
        lines.append(f"mean absolute error: {evaluation.mean_absolute_error:.4f}")
    if (largest := evaluation.largest_class) is not None:
        lines.append(f"always answering {largest.name}, the largest class: {evaluation.metric} {largest.score:.4f}")
        lines += _class_table(evaluation)
        if sum(each.rows > 0 for each in evaluation.classes) < 2:
            lines.append(
                f"all rows have the label {largest.name}: {evaluation.metric} says nothing about the other classes"
            )
    if evaluation.outside:
        lines.append(f"rows with a score beyond the task's range, scored as they are: {evaluation.outside}")
    if evaluation.left_out:
        lines.append(f"rows without a text or a label, left out: {evaluation.left_out}")
    print_result(lines, evaluation.summary(), as_json)


def _seen_lines(evaluation: Evaluation) -> Iterator[str]:
    """What the rows had to do with the model and with those that it builds on, before the score is read."""
    given, sources = evaluation.rows + evaluation.seen, evaluation.seen_by_sources
    counts = {"in training": evaluation.trained_on}
    if not evaluation.selecting:
        counts["to select its epoch"] = evaluation.selected_on
    counts |= {f"in the rows of {source}": count for source, count in sources.items()}
    unknown = [name for name, count in {evaluation.task: evaluation.trained_on, **sources}.items() if count is None]
    if evaluation.seen:
        listed = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        yield f"{evaluation.seen} of {given} rows are left out, since the model has seen their text: {listed}"
    elif not unknown:
        yield f"the model was trained on none of these {given} rows"
    if evaluation.selecting:
        yield f"{evaluation.selecting} of the scored rows selected its epoch: it does better on them than on others"
    if unknown:
        names = " and ".join(unknown)
        yield (
            f"which rows of {names} the model was trained on is unknown, since it was made before models kept that: the"
            " score may count some of them"
        )


def _class_table(evaluation: Evaluation) -> list[str]:
    """The scores of the classes in the task's order; of many, only those with the most errors."""
    scores = evaluation.classes
    shown = scores if len(scores) <= _MOST_CLASSES else sorted(scores, key=lambda each: -each.errors)[:_MOST_CLASSES]
    table = [["class", "rows", "precision", "recall", "F1"]]
    for each in shown:
        shares = ("-" if share is None else f"{share:.4f}" for share in (each.precision, each.recall, each.f1))
        table.append([each.name, f"{each.rows}", *shares])
    rest = [f"the {len(shown)} of {len(scores)} classes with the most errors; --json has all"]
    return [*columns(table), *(rest if len(shown) < len(scores) else [])]


def print_explanation(explained: Mapping[str, Any], as_json: bool) -> None:
    """The answer; each adapter's share, its own answer and the answer without it; the shares of each token."""
    answer, inputs = explained["answer"], explained["inputs"]
    lines = [f"{explained['kind']} {explained['task']}, run {explained['run']}: {_first(answer)}"]
    lines += [f"  {each['label']}  {each['score']:.4f}" for each in answer]
    if explained["tokens"] > explained["max_length"]:
        lines.append(f"cut: the text has {explained['tokens']} tokens, and the model reads {explained['max_length']}")
    head = ("adapter", "share", "by itself", "without it", f"change of {answer[0]['label']}")
    if rows := list(_adapter_rows(explained)):
        lines += ["", *columns([head, *rows])]
    for number, part in enumerate(inputs):
        table = [("token" if len(inputs) == 1 else f"token of text {number + 1}", *explained["adapters"])]
        for place, token in enumerate(part["tokens"]):
            # The last layer of CLS pooling computes the first token alone.
            at_sites = [site["shares"][place] for site in part["layers"] if place < len(site["shares"])]
            table.append((token, *(f"{sum(own) / len(own):.3f}" for own in zip(*at_sites, strict=True))))
        lines += ["", *columns(table)]
    if inputs:
        lines += [
            "",
            "Shares are means over layers and sites; --json has each. They say what the fusion mixed, not what",
        ]
        lines += ["the answer depends on: that is what changes without an adapter."]
    print_result(lines, dict(explained), as_json)


def _adapter_rows(explained: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """For each adapter its name, its share, its own answer, the answer without it, and what that changes."""
    top, shares = explained["answer"][0], explained["mean_shares"]
    alone = {single["task"]: single["answer"] for single in explained["singles"]}
    left_out = {each["adapter"]: each["answer"] for each in explained["without"]}
    for name in dict.fromkeys((*shares, *alone)):
        without = left_out.get(name, ())
        change = next((f"{x['score'] - top['score']:+.4f}" for x in without if x["label"] == top["label"]), "-")
        share = f"{shares[name]:.3f}" if name in shares else "-"
        yield name, share, _first(alone.get(name, ())), _first(without), change


def _first(answer: Sequence[Mapping[str, Any]]) -> str:
    """The first label of an answer with its number; a dash where there is no answer."""
    return f"{answer[0]['label']} {answer[0]['score']:.4f}" if answer else "-"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows with their cells below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def print_plan(plan: DryRun, as_json: bool) -> None:
    """A table of the rows of a study, and how the time was estimated."""
    table = [("", "runs", "done", "to do", "time")]
    for title, runs, done, left in (*plan.rows, plan.total):
        table.append((title, str(runs), str(done), str(runs - done), str(left) if runs > done else "-"))
    width = max(len(line[0]) for line in table)
    lines = [f"study {plan.study.name}: targets {', '.join(plan.study.targets)}"]
    lines += [f"  {first:<{width}}" + "".join(f"  {cell:>6}" for cell in rest) for first, *rest in table]
    if plan.total.runs > plan.total.done:
        lines.append(f"time: from {plan.learned_from} finished runs on the same backbone; unknown if there are none")
    print_result(lines, plan.summary(), as_json)


def dev_rows(record: RunRecord) -> str:
    """How many rows of dev each of its tasks was scored on."""
    return "+".join(f"{record.scores[task].rows:,}" for task in record.trained_on)


def print_usage(usage: Usage, as_json: bool) -> None:
    """A table of what takes room, and what of it can be deleted."""
    lines = [f"{part.name:<13} {part.count:>6}  {size_text(part.bytes):>9}  {part.where}" for part in usage.parts]
    lines += [
        f"can be deleted: {spare.what} ({len(spare.names)}), {size_text(spare.bytes)}: {spare.how}"
        for spare in usage.may_go
    ]
    print_result(lines, asdict(usage), as_json)


def print_findings(findings: Iterable[Finding], as_json: bool) -> int:
    """Each as it is found; the exit status is 1 if one is a problem."""
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
