"""The cost of every row: trained parameters, parameters to store for one task and for all, time and memory."""

from collections.abc import Iterable

from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import Line
from pipeline.reporting.cells import count_cell, effort_cells, line_cell, share_cell
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import (
    StudyRuns,
    joint_titles,
    mean_of,
    peak_memory_of,
    records_of,
    runs_of,
)
from pipeline.settings.kinds import KINDS

StoredParts = dict[str, int]
"""Parameter count of every part that a model needs, by the part's identity, so that shared parts count once."""


def stored_parts(record: RunRecord, ledger: Ledger) -> StoredParts | None:
    """The parts of a run's model; None if they do not follow from its record and those that it builds on.

    A run that trains or continues a trained backbone stores a whole model. Other runs and static second encoders share
    the pretrained backbone, and fusions share adapters. An ensemble consists of its members, which may have different
    pretrained backbones.
    """
    kind = KINDS[record.kind]
    if kind.is_ensemble:
        whole = StoredParts()
        for source in record.sources:
            member = ledger.find(source.run)
            own_parts = stored_parts(member, ledger) if member is not None else None
            if own_parts is None:
                return None
            whole |= own_parts
        return whole
    backbone, trained, recipe = record.parameters.backbone, record.cost.trainable_parameters, record.recipe
    own, parts = f"run {record.run}", StoredParts()
    pretrained = f"backbone {record.backbone_weights}"
    if recipe.trainable in ("full", "full+adapter"):
        # The model includes frozen embeddings, and the modules and layers of several tasks on top of the backbone.
        parts[own] = record.parameters.model - (backbone if recipe.pretrained.second_encoder == "static" else 0)
    elif kind.combines and kind.artifact == "adapter" and not trained:
        # A merged adapter is as large as its sources, and has the head of the target's adapter.
        adapter = next((ledger.find(source.run) for source in record.sources if source.task == record.task), None)
        if adapter is None:
            return None
        parts |= {pretrained: backbone, own: adapter.cost.trainable_parameters}
    elif record.sources and kind.artifact is None:
        parts[own] = backbone + trained
    else:
        parts |= {pretrained: backbone, own: trained}
    if recipe.pretrained.second_encoder == "static":
        parts[pretrained] = backbone
    for source in record.sources if kind.takes == "fusion" else ():
        adapter = ledger.find(source.run)
        if adapter is None:
            return None
        # A fusion does not use the heads of its adapters.
        parts[f"adapter {source.run}"] = adapter.cost.trainable_parameters - adapter.parameters.head
    return parts


def backbone_size(record: RunRecord, ledger: Ledger) -> int | None:
    """Parameters of the pretrained encoder of a run's model; None if unknown.

    The record of an ensemble sums over members; here it is the size of one member, if all members agree.
    """
    if not KINDS[record.kind].is_ensemble:
        return record.parameters.backbone
    members = [ledger.find(source.run) for source in record.sources]
    sizes = {backbone_size(member, ledger) if member is not None else None for member in members}
    return sizes.pop() if len(sizes) == 1 else None


def stored(records: Iterable[RunRecord], ledger: Ledger) -> int | None:
    """Parameters to store for the models of all ``records`` together."""
    parts = [stored_parts(record, ledger) for record in records]
    known = [part for part in parts if part is not None]
    together = {name: size for part in known for name, size in part.items()}
    return sum(together.values()) if len(known) == len(parts) else None


def cost_table(runs: StudyRuns) -> Table:
    rows = {row: _row(runs, row) for row in runs.rows}
    columns = next(iter(rows.values()), {})
    shown = (tuple(cells.values()) for row, cells in rows.items() if runs.all(row))
    return Table.named("cost", columns, shown, joint=joint_titles(runs))


def _row(runs: StudyRuns, row: str) -> dict[str, Cell]:
    group, tasks = runs.all(row), len(runs.study.targets)
    records = records_of(group)
    costs = [record.cost for record in records]
    trained = mean_of(cost.trainable_parameters for cost in costs)
    backbone = next((size for record in records if (size := backbone_size(record, runs.ledger)) is not None), None)
    chosen = _one_run_a_target(runs, row)
    every = stored(chosen, runs.ledger) if chosen else None
    together = {
        f"stored, {tasks} tasks": count_cell(every, tuple(dict.fromkeys(record.run for record in chosen))),
        "stored per task, of the backbone": share_cell(every, backbone, tasks),
    }
    return {
        "method": line_cell(runs, Line(row)),
        "trainable parameters": count_cell(trained, runs_of(group)),
        "of the backbone": share_cell(trained, backbone),
        "stored, one task": count_cell(mean_of(stored([record], runs.ledger) for record in records)),
        **(together if tasks > 1 else {}),
        **effort_cells(runs, row, group),
        "examples/s": count_cell(mean_of(cost.examples_per_second or None for cost in costs)),
        "peak memory, MB": count_cell(peak_memory_of(records)),
    }


def _one_run_a_target(runs: StudyRuns, row: str) -> list[RunRecord]:
    """The runs of the first seed that all targets have; empty if there is no such seed."""
    groups = [runs.cell(row, target) for target in runs.study.targets]
    for scored in groups[0]:
        same = [[other for other in group if other.entry.seed == scored.entry.seed] for group in groups]
        if all(same):
            return [group[0].record for group in same]
    return []
