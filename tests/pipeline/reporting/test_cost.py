"""What must be stored is added up by hand: shared parts count once."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.records.run_record import Cost, Parameters, RunRecord
from pipeline.records.store import SourceRun
from pipeline.reporting.report import share_cell
from pipeline.reporting.rows import cost_table, main_table, stored, stored_parts
from pipeline.reporting.runs import StudyRuns
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import write_json
from tests.pipeline.reporting.synthetic import BACKBONE as WEIGHTS
from tests.pipeline.reporting.synthetic import BACKBONE_PARAMETERS as BACKBONE
from tests.pipeline.reporting.synthetic import HEAD, Synthetic, make

ADAPTER = 10_000
FUSION = 50_000


@pytest.mark.parametrize(
    ("row", "one", "two"),
    [
        ("frozen", BACKBONE + HEAD, BACKBONE + 2 * HEAD),
        ("full", BACKBONE + HEAD, 2 * (BACKBONE + HEAD)),
        ("sequential", BACKBONE + HEAD, 2 * (BACKBONE + HEAD)),
        ("multitask", BACKBONE + HEAD, BACKBONE + HEAD),
        ("adapter", BACKBONE + ADAPTER, BACKBONE + 2 * ADAPTER),
        ("fusion", BACKBONE + 3 * (ADAPTER - HEAD) + FUSION, BACKBONE + 3 * (ADAPTER - HEAD) + 2 * FUSION),
    ],
)
def test_stored_parameters_of_one_task_and_of_two(row: str, one: int, two: int, runs: StudyRuns) -> None:
    table = cost_table(runs)
    cells = {cells[0].sort: dict(zip(table.columns, cells, strict=True)) for cells in table.rows}[row]
    assert cells["stored, one task"].sort == one
    assert cells["stored, 2 tasks"].sort == two
    assert cells["stored, 2 tasks"].text == f"{two:,}"
    assert cells["stored per task, of the backbone"] == share_cell(two, BACKBONE, 2)


@pytest.mark.parametrize(
    ("recipe", "trained", "started", "expected"),
    [
        ({"trainable": "full"}, BACKBONE + HEAD, False, BACKBONE + HEAD),
        ({"trainable": "full", "freeze_embeddings": True}, BACKBONE + HEAD - 5_000, False, BACKBONE + HEAD),
        ({"trainable": "full+adapter"}, BACKBONE + HEAD + ADAPTER, False, BACKBONE + HEAD + ADAPTER),
        ({"trainable": "full", "second_encoder": "tuned"}, 2 * BACKBONE + HEAD, False, 2 * BACKBONE + HEAD),
        ({"trainable": "full", "second_encoder": "static"}, BACKBONE + HEAD, False, 2 * BACKBONE + HEAD),
        ({"trainable": "adapter"}, ADAPTER + HEAD, False, BACKBONE + ADAPTER + HEAD),
        ({"trainable": "head"}, HEAD, False, BACKBONE + HEAD),
        ({"trainable": "head"}, HEAD, True, BACKBONE + HEAD),
    ],
)
def test_a_joint_model_is_stored_with_its_modules_and_encoders(recipe, trained, started, expected, own) -> None:
    record = own.record("multitask", "sst", 7, recipe=Recipe.parse(recipe, "test"))
    sources = (SourceRun(task="sst", run=record.run, digest="abc"),) if started else ()
    cost = record.cost.model_copy(update={"trainable_parameters": trained})
    sizes = Parameters(backbone=BACKBONE, head=HEAD, model=expected)
    joint = record.model_copy(update={"cost": cost, "sources": sources, "parameters": sizes})
    assert stored([joint], own.ledger) == expected
    # Two such models share the pretrained backbone where neither trained it.
    assert (f"backbone {WEIGHTS}" in (stored_parts(joint, own.ledger) or {})) == (
        not started and (recipe["trainable"] in ("adapter", "head") or recipe.get("second_encoder") == "static")
    )


@pytest.mark.parametrize(
    ("recipe", "modules", "encoders"),
    [
        ({"trainable": "full+adapter", "freeze_embeddings": True}, ADAPTER, 1),
        ({"trainable": "full", "freeze_embeddings": True, "second_encoder": "tuned"}, 0, 2),
        ({"trainable": "full", "freeze_embeddings": True, "second_encoder": "static"}, 0, 2),
        ({"trainable": "full", "freeze_embeddings": True, "split_layers": 6}, BACKBONE // 2, 1),
    ],
    ids=str,
)
def test_frozen_embeddings_hide_no_modules_layers_or_encoders(
    recipe: dict[str, Any], modules: int, encoders: int, own: Synthetic
) -> None:
    record = own.record("multitask", "sst", 7, recipe=Recipe.parse(recipe, "test"))
    whole = encoders * BACKBONE + modules + HEAD
    static = recipe.get("second_encoder") == "static"
    cost = record.cost.model_copy(update={"trainable_parameters": whole - 5_000 - (BACKBONE if static else 0)})
    sizes = Parameters(backbone=BACKBONE, head=HEAD, model=whole)
    assert stored([record.model_copy(update={"cost": cost, "parameters": sizes})], own.ledger) == whole


def test_an_adapter_is_stored_without_those_it_might_have_begun_as(own: Synthetic) -> None:
    fresh = own.record("adapter", "sst", 7)
    fusion = own.record("fusion", "sst", 7)
    begun = fresh.model_copy(update={"sources": fusion.sources})
    assert stored_parts(begun, own.ledger) == stored_parts(fresh, own.ledger)
    assert stored_parts(fusion, own.ledger) != stored_parts(fresh, own.ledger)


def ensemble(study: Synthetic, *members: RunRecord) -> RunRecord:
    """What ``compare`` writes of an ensemble: sums over its members, and nothing measured."""
    sizes = [(member.cost.trainable_parameters, member.parameters) for member in members]
    return study.add(
        "joined", "sst", 1,
        identity={"members": [member.run for member in members], "tasks": {"sst": {"meaning": {}}}},
        sources=tuple(SourceRun(task="sst", run=member.run, digest=member.run) for member in members),
        cost=Cost(
            trainable_parameters=sum(trained for trained, _ in sizes),
            seconds=0.0, examples_per_second=0.0, peak_memory_mb=0.0,
        ),
        parameters=Parameters(
            **{key: sum(getattr(own, key) for _, own in sizes) for key in ("backbone", "head", "model")}
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("backbones", "stored_backbones", "share"),
    [
        ((("a", BACKBONE), ("a", BACKBONE)), BACKBONE, 2 * ADAPTER / BACKBONE),
        ((("a", BACKBONE), ("b", BACKBONE)), 2 * BACKBONE, 2 * ADAPTER / BACKBONE),
        ((("a", BACKBONE), ("b", 3 * BACKBONE)), 4 * BACKBONE, None),  # of which of the two?
    ],
)
def test_an_ensemble_is_measured_against_one_backbone_and_stores_each_once(
    backbones: tuple[tuple[str, int], ...], stored_backbones: int, share: float | None, tmp_path: Path
) -> None:
    rows = {"one": {"method": "adapter"}, "two": {"method": "adapter"}}
    study = make(
        tmp_path,
        methods=["one", "two", "joined"],
        rows=rows | {"joined": {"method": "ensemble", "of": ["one", "two"]}},
        scoring="half",
    )
    members = []
    for row, (weights, size) in zip(rows, backbones, strict=True):
        record = study.record(
            row, "sst", 1, trained=ADAPTER, parameters=Parameters(backbone=size, head=HEAD, model=size + HEAD)
        )
        record = record.model_copy(update={"identity": record.identity | {"backbone": {"weights": weights}}})
        write_json(study.ledger.folder(record.run) / "run.json", record.model_dump(mode="json"))
        study.serve(record, row, "sst")
        members.append(record)
    joined = ensemble(study, *members)
    assert stored([joined], study.ledger) == stored_backbones + 2 * ADAPTER
    runs = StudyRuns(study.result, study.ledger)
    table = cost_table(runs)
    cells = {cells[0].sort: dict(zip(table.columns, cells, strict=True)) for cells in table.rows}["joined"]
    assert cells["of the backbone"].sort == (pytest.approx(share) if share else None)
    main = main_table(runs)
    of_scores = {cells[0].sort: dict(zip(main.columns, cells, strict=True)) for cells in main.rows}["joined"]
    assert [own["peak memory, MB"].text for own in (cells, of_scores)] == ["-", "-"]
