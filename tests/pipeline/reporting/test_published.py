"""Every row of the four reports is a row of a shipped study with the report's settings, or it is said why not."""

from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from pipeline.data.tasks import built_in_tasks
from pipeline.reporting.published import (
    absent_rows,
    all_settings,
    differences,
    published_epochs,
    settings_of,
    statistic_of,
    tables,
)
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import FLAGS, Recipe
from pipeline.settings.resolve import resolve
from pipeline.settings.study import Study
from stages.studies import find_study, study_names

REPORTS = ("Xu", "LiuShen", "Hayes", "Wang")
Place = tuple[str, str, str, str]
"""Report, table, split and row."""


@cache
def studies() -> list[Study]:
    every = (find_study(name) for name in study_names())
    return [study for study in every if study.published is not None and study.published.report in REPORTS]


def recipe_of(study: Study, row: str, task: str) -> Recipe:
    """As it is resolved on a backbone of BERT's size; sequential fine-tuning begins with the recipe of another row."""
    own = study.row(row)
    if own.order is not None and task == own.order[0] and own.of is not None:
        row = own.of
    joint = KINDS[own.method].is_joint
    return resolve(study.recipe_for(row, task), built_in_tasks()[task], "fp32", longest=512, depth=12, joint=joint)


def rows_of(study: Study) -> Iterator[tuple[str, str, str, dict[str, tuple[str, str]]]]:
    """Of each row of a study: table and name in its report, task, and the settings that are not the report's."""
    source = study.published
    tasks = [task for task in dict.fromkeys(source.tasks.values()) if task in study.targets]
    names = {
        (table, value.row)
        for (report, table, split), values in tables().items()
        if report == source.report and table in source.tables and split == source.split
        for value in values
    }
    for row in study.methods:
        own = study.row(row)
        called = (
            own.published.items() if isinstance(own.published, dict) else [("", n) for n in study.published_names(row)]
        )
        for trained, name in called:
            by_task = trained and not KINDS[own.method].is_by_source
            for table in (table for table, known in names if known == name):
                for task in [trained] if by_task else tasks:
                    if task in study.targets_of(row) and (KINDS[own.method].is_by_source <= (task != trained)):
                        theirs = settings_of(source.report, table, name, task)
                        yield table, name, task, differences(theirs, recipe_of(study, row, task), own.method)
    for table, curve in source.curves.items():
        method = study.row(curve.row).method
        for name in published_epochs(source.report, table):
            theirs = settings_of(source.report, table, name, curve.task)
            yield table, name, curve.task, differences(theirs, recipe_of(study, curve.row, curve.task), method)


@cache
def found() -> dict[Place, dict[str, tuple[str, str]]]:
    """The rows that shipped studies have, each with all its differences."""
    places: dict[Place, dict[str, tuple[str, str]]] = {}
    for study in studies():
        source = study.published
        for table, name, _, different in rows_of(study):
            split = "train/dev" if table in source.curves else source.split
            places.setdefault((source.report, table, split, name), {}).update(different)
    return places


def counted(report: str) -> tuple[Counter[str], list[str]]:
    """How many rows of a report are exact, differ with a reason, or are absent with one; and those without either."""
    counts, unexplained = Counter[str](), list[str]()
    for (name, table, split), values in tables().items():
        for row in dict.fromkeys(value.row for value in values) if name == report else ():
            place = (report, table, split, row)
            reason = any((r, t, s) == place[:3] and n in ("", row) for r, t, s, n, _ in absent_rows())
            different = found().get(place)
            kind = "exact" if different == {} else "explained" if reason else "unexplained"
            counts[kind] += 1
            if kind == "unexplained":
                unexplained.append(f"{table}, {row} ({split}): {different}")
    return counts, unexplained


@pytest.mark.parametrize("report", REPORTS)
def test_every_published_row_is_a_studys_or_it_is_said_why_not(report: str) -> None:
    counts, unexplained = counted(report)
    print(report, dict(counts))
    assert not unexplained, "\n".join(unexplained)
    assert counts["exact"] > 0


def test_settings_are_of_tables_rows_and_keys_that_there_are() -> None:
    there = {(report, table, value.row) for (report, table, _), values in tables().items() for value in values}
    keys = {*Recipe().flat(), "method", "optimizer"}
    for report, table, row, task, key, _ in all_settings():
        found = (report == r and table in ("", t) and row in ("", n) for r, t, n in there)
        assert any(found), (report, table, row)
        assert key in keys
        assert task in ("", *built_in_tasks())


def test_joint_training_takes_as_many_steps_as_liu_and_shen_did() -> None:
    study = find_study("liu-shen-2023")
    sizes = {"sst": 8_544, "quora": 141_506, "sts": 6_040}
    found = {}
    for name in study.methods:
        if study.row(name).method == "multitask" and study.row(name).published:
            recipe = recipe_of(study, name, "sst")
            found[name] = recipe.joint_steps({task: recipe.steps_over(rows) for task, rows in sizes.items()})
    assert set(found.values()) == {2400}, found
    assert len(found) > 20


def test_percentages_parameters_and_sizes_are_read_in_their_units() -> None:
    values = {(v.table, v.row, v.metric): v.value for v in tables()["Hayes", "Table 7", "dev"]}
    row = "CerBERTus k=2, lambda 15, decay .95"
    assert values["Table 7", row, "params_M"] == 138
    assert values["Table 7", row, "mean"] == pytest.approx(0.7730)
    assert statistic_of("Hayes", "batch") == "setting"
    assert FLAGS["max_steps_per_epoch"] == ("joint", "max_steps_per_epoch")
