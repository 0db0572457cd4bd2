"""Finished runs as text: a list, one run, and how two differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.cli.printing import columns, dev_rows, print_result, size_text
from pipeline.system.atomic import canonical_json, sha256_text
from pipeline.system.backbone_name import backbone_text
from pipeline.system.errors import few

if TYPE_CHECKING:  # it loads pandas
    from pipeline.records.run_record import RunRecord
    from stages.runs import ListedRun, RunDescription


def print_runs(rows: Sequence[ListedRun], unfinished: int, none: str, as_json: bool) -> None:
    """A line per run, which ends with what distinguishes it from the others of its kind and task; ``none`` if empty."""
    head = ("run", "finished", "kind", "task", "seed", "metric", "dev", "rows", "test", "on disk", "differs in")
    records = [row.record for row in rows]
    table = [
        (
            record.run,
            record.finished_at[:16].replace("T", " "),
            record.kind,
            record.task,
            str(record.seed),
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
    """For each run what was chosen for it, and not for all listed runs of its kind and task."""
    settings = [_chosen(record, sources) for record, sources in zip(records, _sources(records), strict=True)]
    groups = [(record.kind, record.task) for record in records]
    sizes, known = Counter(groups), Counter[tuple[Any, ...]]()
    for group, own in zip(groups, settings, strict=True):
        known.update((group, setting) for setting in own.items())
    return [
        ", ".join(f"{key} {value}" for key, value in own.items() if known[group, (key, value)] < sizes[group])
        for group, own in zip(groups, settings, strict=True)
    ]


def _sources(records: Sequence[RunRecord]) -> list[str]:
    """The tasks of each run's sources; as TASK@RUN where runs of one kind, task and seed have different runs."""
    keys = [
        (record.kind, record.task, record.seed, tuple(source.task for source in record.sources)) for record in records
    ]
    taken = defaultdict[Any, set[tuple[str, ...]]](set)
    runs = [tuple(f"{source.task}@{source.run}" for source in record.sources) for record in records]
    for key, own in zip(keys, runs, strict=True):
        taken[key].add(own)
    return ["+".join(own if len(taken[key]) > 1 else key[-1]) for key, own in zip(keys, runs, strict=True)]


def _chosen(record: RunRecord, sources: str) -> dict[str, str]:
    """What was chosen for a run: backbone, rows, what it is built on, and what of its recipe is not at its default."""
    recipe = record.described(record.trained_on[0]).get("recipe", {})
    meanings = [record.described(task)["meaning"] for task in record.trained_on]
    settings = {
        "backbone": f"{backbone_text(record.backbone)} ({(record.backbone_weights or '')[:8]})",
        "classes": "+".join(filter(None, map(_classes, meanings))),
        "range": "+".join(str(meaning["range"]) for meaning in meanings if meaning.get("range")),
        "limit": record.own.limit,
        "training rows": "+".join(_train_rows(record, task) for task in record.trained_on),
        "start candidates" if record.start_candidates else "sources": sources,
        "started as": record.anchor if record.anchor != record.trained_on[0] else None,
        **recipe,
    }
    return {key.replace("_", " "): str(value) for key, value in settings.items() if value not in (None, "", ())}


def _classes(meaning: Mapping[str, Any]) -> str:
    """How many classes a task had, and which: a mark of their names; empty for scores."""
    names = meaning.get("classes")
    if not isinstance(names, list) or not names:  # a record may come from anybody
        return ""
    return f"{len(names)} ({sha256_text(canonical_json(names))[:8]})"


def _train_rows(record: RunRecord, task: str) -> str:
    """How many, and of a whole split which: a sample differs from seed to seed."""
    score, marks = record.score(task), record.fingerprints(task)
    which = f" ({str(marks['train'])[:8]})" if score.limit is None and "train" in marks else ""
    return f"{score.train_rows:,}{which}"


def print_described_run(description: RunDescription, as_json: bool) -> None:
    """All that is known of a run, with some points of its curve."""
    lines = list(_described_run(description))
    width = max(len(name) for name, _ in lines)
    print_result((f"{name:<{width}}  {text}" for name, text in lines), description.summary(), as_json)


def _described_run(description: RunDescription) -> Iterator[tuple[str, str]]:
    run = description.record
    yield "run", f"{run.run}, {run.kind} of {run.task}, seed {run.seed}, finished {run.finished_at}"
    yield "backbone", run.backbone
    for task, score in run.scores.items():
        yield f"score {task}", f"{score.metric} {score.value:.4f} on {score.scored_rows} rows"
    yield "chosen", f"epoch {run.best_epoch}, {run.metric} {run.dev:.4f} on dev"
    for task in run.trained_on:
        recipe = ", ".join(f"{key} {value}" for key, value in run.recipe_of(task).identity.items())
        yield f"recipe {task}", recipe or "all at their defaults"
    for task in run.trained_on:
        score = run.scores[task]
        limit = f" (--limit {score.limit})" if score.limit is not None else ""
        marks = ", ".join(f"{split} {str(mark)[:12]}" for split, mark in description.record.fingerprints(task).items())
        yield f"data {task}", f"{score.train_rows} training rows{limit}; fingerprints: {marks}"
    for source in run.sources:
        if not run.start_candidates:
            yield "built on", f"{source.task}@{source.run}"
        else:
            taken = ", and did" if source == run.started_from else ""
            yield "could start as", f"{source.task}@{source.run}{taken}"
    cost = run.cost
    yield (
        "cost",
        f"{cost.trainable_parameters:,} trainable parameters, {cost.seconds:.0f} s,"
        f" {cost.examples_per_second:.0f} examples/s, {cost.peak_memory_mb:.0f} MB;"
        f" {size_text(description.size)} on disk",
    )
    for point in description.points:
        loss = "" if point.loss is None else f"loss {point.loss:.4f}, "
        yield "curve", f"epoch {point.epoch:g}: {loss}dev {point.dev:.4f}"
    made = run.provenance
    changed = " with changes" if made.get("dirty") else ""
    keys = ("python", "torch", "adapters", "hardware", "processor")
    named = ", ".join(f"{key} {made[key]}" for key in keys if key in made)
    yield "made with", f"commit {str(made.get('commit'))[:12]}{changed}, {named}"
    for use in few([str(use) for use in description.uses]) or ["nothing"]:
        yield "used by", use
    for problem in description.problems:
        for line in problem.split("\n"):
            yield "problem", line
