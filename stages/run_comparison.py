"""How two finished runs differ: their settings, and a paired test on each task that both were scored on."""

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.reporting.runs import difference_of_tables
from pipeline.system.errors import PipelineError
from stages.runs import Runs


@dataclass(frozen=True)
class RunComparison:
    """Two runs: the settings that differ, and the scores on the tasks that both were scored on."""

    first: RunRecord
    second: RunRecord
    settings: dict[str, tuple[Any, Any]]
    scores: list[dict[str, Any]]
    """The scores on each task; without a ``test``, its predictions cannot be paired."""

    def summary(self) -> dict[str, Any]:
        return {"runs": [self.first.run, self.second.run], "settings": self.settings, "scores": self.scores}


def compare_runs(runs: Runs, run: str, reference: str) -> RunComparison:
    """How two runs differ in settings and scores, with a paired test on each task that both were scored on."""
    ours, theirs = runs.named(run), runs.named(reference)
    if ours.run == theirs.run:
        raise PipelineError(f"runs compare: {run} twice: name two runs")
    made = ("pipeline", "commit", "python", "torch", "transformers", "adapters", "hardware", "processor")
    first, second = (
        settings_of(record) | {key: record.provenance.get(key) for key in made} for record in (ours, theirs)
    )
    keys = dict.fromkeys((*first, *second))
    differing = {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}
    shared = [task for task in ours.scores if task in theirs.scores]
    scores = [_compare_scores(task, ours, theirs, len(shared), runs.ledger) for task in shared]
    return RunComparison(ours, theirs, differing, scores)


def _compare_scores(task: str, ours: RunRecord, theirs: RunRecord, family: int, ledger: Ledger) -> dict[str, Any]:
    """Their scores on a task, tested as one of ``family`` comparisons where their predictions can be paired."""
    first, second = ours.score(task), theirs.score(task)
    both = {"task": task, "first": first.value, "second": second.value, "metric": first.metric}
    scores: dict[str, Any] = {**both, "why_untested": "", "test": None}
    if first.metric != second.metric:
        return scores | {"metric": "different metrics", "why_untested": "their metrics differ"}
    try:
        tables = [ledger.predictions(each.run, task) for each in (ours, theirs)]
    except PipelineError as error:
        return scores | {"why_untested": str(error)}
    difference = difference_of_tables(first.metric, tables[:1], tables[1:], [ours.seed])
    if difference is None:
        command = f"evaluate --target {task} --split test --using {ours.run} --against {theirs.run}"
        return scores | {"why_untested": f"they were scored on different rows: {command} takes rows new to both"}
    test = difference.comparison(family)
    return scores | {"test": asdict(test) | {"verdict": test.verdict}}


def settings_of(record: RunRecord) -> dict[str, Any]:
    """All that may tell two runs apart, flat, as JSON has it; keys of several tasks begin with the task."""
    settings: dict[str, Any] = {
        "kind": record.kind,
        "task": record.task,
        "seed": record.seed,
        "backbone": f"{record.backbone} ({(record.backbone_weights or '')[:8]})",
        "start candidates" if record.start_candidates else "sources": ", ".join(
            f"{source.task}@{source.run}" for source in record.sources
        )
        or None,
        "started as": record.anchor,
        "start": record.identity.get("start"),
    }
    for task in record.trained_on:
        start = f"{task}." if len(record.trained_on) > 1 else ""
        score, rows = record.scores[task], record.fingerprints(task)
        meaning = record.described(task)["meaning"]
        settings |= {f"{start}{key}": meaning.get(key) for key in ("classes", "range", "metric")}
        settings |= {f"{start}{key}": value for key, value in record.recipe_of(task).flat().items()}
        settings |= {f"{start}limit": score.limit, f"{start}train_rows": score.train_rows}
        settings |= {f"{start}{split} (fingerprint)": str(mark)[:12] for split, mark in rows.items()}
    return settings
