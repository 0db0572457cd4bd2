"""A run's identity, result, cost and provenance as the page shows them."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.records.run_record import RunRecord
from pipeline.settings.kinds import KINDS

Pairs = list[tuple[str, str]]
_SHARED = ("Rows", "Made with", "Recipe", "Identity")
_PLANNED = ["learning_rate", "examples"]
_HASH = re.compile(r"[0-9a-f]{40,}")


def run_view(record: RunRecord, curve: pd.DataFrame | None, method: str) -> dict[str, Any]:
    """The values that ``run.html`` shows for a run in the row ``method``."""
    named = ("tasks", "sources", "kind", "seed")  # shown elsewhere on the page
    identity = {name: value for name, value in record.identity.items() if name not in named}
    for task in record.trained_on:
        identity[task] = {key: value for key, value in record.described(task).items() if key != "recipe"}
    # The sources of a warm start are candidates: the run may have started from none of them.
    are_candidates = KINDS[record.kind].is_one_adapter and not record.is_continued_adapter
    taken = "start candidate" if are_candidates else "source"
    identity |= {f"{taken}, run {source.run}": source.digest for source in record.sources}
    made_with = dict(record.provenance)
    if made_with.pop("dirty", False):
        # The commit alone does not identify the code that ran.
        made_with["commit"] = f"{made_with.get('commit')}, with changes that were not committed"
    made_with |= {"finished": record.finished_at} | ({"artifact": record.artifact} if record.artifact else {})
    return {
        "record": record,
        "row": method,
        "sources": "Start selected among" if are_candidates else "Built on",
        "label": f"{method}, {' + '.join(record.trained_on)}, {record.own.train_rows:,} rows, seed {record.seed}",
        "groups": {
            "Result": _result(record),
            "Cost": _pairs(record.cost.model_dump()),
            "Unchanged, sha256 after training": _pairs(record.unchanged),
            "Rows": _rows(record),
            "Made with": _pairs(made_with),
            "Recipe": _pairs(record.recipe.flat()),
            "Identity": _pairs(identity),
        },
        # The dropped columns follow from the recipe.
        "curve": pd.DataFrame() if curve is None else curve.drop(columns=_PLANNED, errors="ignore"),
        "scores": [] if curve is None else _scores(curve),
    }


def usual(views: Sequence[Mapping[str, Any]]) -> dict[str, Pairs]:
    """By group, the values that most runs with such a value share; removes them from the ``views``."""
    shared: dict[str, Pairs] = {}
    for title in _SHARED:
        values: dict[str, Counter[str]] = {}
        for view in views:
            for name, value in view["groups"][title]:
                values.setdefault(name, Counter())[value] += 1
        most = {name: counts.most_common(1)[0] for name, counts in values.items()}
        common = {name: value for name, (value, n) in most.items() if n > 1 and 2 * n > values[name].total()}
        for view in views:
            view["groups"][title] = [
                (name, value) for name, value in view["groups"][title] if common.get(name) != value
            ]
        shared |= {title: [*common.items()]} if common else {}
    return shared


def value_text(value: Any, digits: int | None = None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or "-"
    if isinstance(value, int | float):
        return number_text(value, digits)
    # run.json has the whole hash.
    return value[:12] if isinstance(value, str) and _HASH.fullmatch(value) else str(value)


def number_text(value: float, digits: int | None = None) -> str:
    """A number with as many digits as a reader needs: ``1,234``, ``12.3``, ``0.0123``; ``-`` for none."""
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "-"
    if digits is not None:
        return f"{value:.{digits}f}"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.4g}"


def _result(record: RunRecord) -> Pairs:
    start = [] if record.anchor is None else [("started from the adapter of", record.anchor)]
    pairs = [("kept epoch", str(record.best_epoch)), *start]
    for task, score in record.scores.items():
        before = "" if score.before is None else f", before training {score.before:.4f}"
        pairs.append((f"{task}, dev {score.metric}", f"{score.dev:.4f}{before if score.test is None else ''}"))
        if score.test is not None:
            pairs.append((f"{task}, test {score.metric}", f"{score.test:.4f}{before}"))
    return pairs


def _rows(record: RunRecord) -> Pairs:
    pairs = Pairs()
    for task in record.trained_on:
        rows = record.scores[task].model_dump(include={"train_rows", "rows", "dev_in_train"})
        if record.scores[task].test is not None:
            rows |= record.scores[task].model_dump(include={"test_rows", "test_in_train"})
        pairs += [(f"{task}, {name.replace('_', ' ')}", f"{count:,}") for name, count in rows.items()]
    return pairs


def _pairs(values: Mapping[str, Any], before: str = "") -> Pairs:
    pairs = []
    for key, value in values.items():
        name = f"{before}{key}".replace("_", " ")
        pairs += _pairs(value, f"{name}, ") if isinstance(value, Mapping) else [(name, value_text(value))]
    return pairs


def _scores(curve: pd.DataFrame) -> list[tuple[float, float]]:
    """Epoch and dev score at each point of a curve; empty with fewer than two points."""
    if not {"epoch", "dev"} <= set(curve.columns):
        return []
    scores = curve[["epoch", "dev"]].dropna().astype(float)
    return list(scores.itertuples(index=False, name=None)) if len(scores) > 1 else []
