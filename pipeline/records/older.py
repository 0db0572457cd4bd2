"""Run records of earlier versions.

One task of a run was described apart from its ``others``; the adapter that a run started as was not named.
"""

from collections.abc import Iterator
from typing import Any

_OF_A_TASK = ("metric", "dev", "recipe", "limit", "added")
_OF_A_DESCRIPTION = ("task", "recipe", "data", "others")


def upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """A record's keys as they are today; values that are no record come back as they are."""
    values = values if "scores" in values else _with_scores(values)
    if "started_from" in values or values.get("anchor") is None:
        return values
    sources = values.get("sources")
    named = [each for each in sources if isinstance(each, dict)] if isinstance(sources, list) else []
    start = next((each for each in named if each.get("task") == values["anchor"]), None)
    return values if start is None else {**values, "started_from": start}


def _with_scores(values: dict[str, Any]) -> dict[str, Any]:
    """The keys of a record of version 1 or 2 as those of version 3."""
    if not {"task", "rows", "identity"} <= values.keys():
        return values
    rows, identity, others = (_table(values, key) for key in ("rows", "identity", "others"))
    described = dict(_described(identity))
    own = {key: values[key] for key in _OF_A_TASK if key in values}
    own |= {"rows": rows.get("dev"), "train_rows": rows.get("train"), "dev_in_train": rows.get("dev_in_train", 0)}
    scores = {str(values["task"]): own}
    for task in others:
        score = dict(_table(others, task))
        if score.get("train_rows") is None:
            score["train_rows"] = 0
        else:  # version 1 kept the recipes of the other tasks in the identity alone
            score["recipe"] = score.get("recipe") or described.get(task, {}).get("recipe")
        scores[task] = score
    kept = {key: value for key, value in values.items() if key not in ("task", "rows", "others", *_OF_A_TASK)}
    shared = {key: value for key, value in identity.items() if key not in _OF_A_DESCRIPTION}
    return {**kept, "identity": {**shared, "tasks": described}, "scores": scores}


def _described(identity: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    others = identity.get("others") or []
    if not isinstance(others, list) or not all(isinstance(part, dict) for part in others):
        raise ValueError("identity.others: no list of tables")
    for part in (identity, *others):
        task = _table(part, "task")
        meaning = {key: value for key, value in task.items() if key != "name"}
        yield str(task.get("name")), {"meaning": meaning, "recipe": part.get("recipe"), "data": part.get("data")}


def _table(values: dict[str, Any], key: str) -> dict[str, Any]:
    table = values.get(key) or {}
    if not isinstance(table, dict):
        raise ValueError(f"{key}: no table")
    return table
