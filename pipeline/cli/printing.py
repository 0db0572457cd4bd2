"""The one printer of results: as text and, with ``--json``, as one JSON object on the last line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pipeline.system.process import is_main_process

if TYPE_CHECKING:  # it loads pandas
    from pipeline.records.ensembles import EnsembleRecord
    from pipeline.records.ledger import RunRecord
    from stages.compare.compare import DryRun
    from stages.evaluate import Evaluation


def print_result(text: str, summary: dict[str, Any], as_json: bool) -> None:
    """Print a result once, however many processes train together."""
    if is_main_process():
        print(text)
        if as_json:
            print(json.dumps(summary))


def print_run(record: RunRecord, as_json: bool) -> None:
    cost = record.cost
    lines = [
        f"{record.kind} {record.task}: dev {record.metric} {record.dev:.4f} (epoch {record.best_epoch}),"
        f" {cost.trainable_parameters:,} trainable parameters, {cost.seconds:.0f} s,"
        f" {cost.examples_per_second:.0f} examples/s, {cost.peak_memory_mb:.0f} MB, run {record.run}"
    ]
    if record.anchor and record.anchor != record.task:
        lines.append(f"initialised from the adapter of {record.anchor}")
    if record.artifact:
        lines.append(f"saved in {record.artifact}")
    print_result("\n".join(lines), record.summary(), as_json)


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
    others = "rows that chose nothing" if record.chosen_on == "dev" else "other half of dev"
    lines += [
        f"{rows} ({scores.rows}): {record.metric} {scores.ensemble:.4f}, best single run {scores.best:.4f}"
        f" ({record.best})"
        for rows, scores in (("rows chosen on", record.chosen), (others, record.held_out))
        if scores is not None
    ]
    if record.drop is None:
        lines.append("chosen and scored on the same rows, which flatters it: --choose-on half flatters less")
    else:
        chosen = "half" if record.chosen_on == "half" else "rows"
        lines.append(f"drop from the {chosen} chosen on to the {others.removesuffix(' of dev')}: {record.drop:.4f}")
        if record.chosen_on == "half":
            lines.append(f"the other half is {summary['held_out_is']}")
    print_result("\n".join(lines), summary, as_json)


def print_evaluation(found: Evaluation, as_json: bool) -> None:
    """The score with its interval, and what the rows had to do with the model."""
    low, high = found.interval
    lines = [
        f"run {found.run} on {found.rows} rows of {found.task}: {found.metric} {found.score:.4f}"
        f" (95 % CI {low:.4f} to {high:.4f})"
    ]
    for count, what in ((found.trained_on, "the model was trained on"), (found.chosen_on, "its epoch was chosen on")):
        known = "how many cannot be known" if count is None else f"{count} of {found.rows}"
        lines.append(f"rows with a text that {what}: {known}")
    print_result("\n".join(lines), found.summary(), as_json)


def print_plan(plan: DryRun, as_json: bool) -> None:
    """A table of the rows of a study, and how the time was estimated."""
    table = [("", "runs", "done", "to do", "time")]
    for title, runs, done, left in (*plan.rows, plan.total):
        table.append((title, str(runs), str(done), str(runs - done), str(left) if runs > done else "-"))
    width = max(len(line[0]) for line in table)
    lines = [f"study {plan.study.name}: targets {', '.join(plan.study.targets)}"]
    lines += [f"  {first:<{width}}" + "".join(f"  {cell:>6}" for cell in rest) for first, *rest in table]
    if plan.total.runs > plan.total.done:
        lines.append(f"time: from {plan.learned_from} finished runs with this backbone; unknown where there are none")
    print_result("\n".join(lines), plan.summary(), as_json)
