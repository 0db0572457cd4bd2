"""What rows cost, how they were trained, and what they selected on the rows that score them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Any

from pipeline.data.tasks import read_extras
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import Line
from pipeline.reporting.report import MISSING, Cell, Table, count_cell, effort_cells, line_cell, share_cell
from pipeline.reporting.runs import Scored, StudyRuns, joint_titles, mean_of, peak_memory_of, records_of, runs_of
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import keys_without_effect
from pipeline.stats.metrics import THRESHOLDS
from pipeline.system.reading import backbone_text

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
        return _parts_together((ledger.find(source.run) for source in record.sources), ledger)
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


def _parts_together(records: Iterable[RunRecord | None], ledger: Ledger) -> StoredParts | None:
    """The parts of several models; None if one is unknown."""
    parts = [stored_parts(record, ledger) if record is not None else None for record in records]
    known = [own for own in parts if own is not None]
    return reduce(or_, known, StoredParts()) if len(known) == len(parts) else None


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
    parts = _parts_together(records, ledger)
    return sum(parts.values()) if parts is not None else None


def cost_table(runs: StudyRuns) -> Table:
    rows, tasks = list[dict[str, Cell]](), len(runs.study.targets)
    for row in runs.rows:
        group, groups = runs.all(row), [runs.cell(row, target) for target in runs.study.targets]
        records = records_of(group)
        trained = mean_of(record.cost.trainable_parameters for record in records)
        backbone = next((size for record in records if (size := backbone_size(record, runs.ledger)) is not None), None)
        seeds = set.intersection(*({scored.entry.seed for scored in own} for own in groups))
        chosen = [next(scored for scored in own if scored.entry.seed == min(seeds)) for own in groups] if seeds else []
        every = stored(records_of(chosen), runs.ledger) if chosen else None
        together = {
            f"stored, {tasks} tasks": count_cell(every, runs_of(chosen)),
            "stored per task, of the backbone": share_cell(every, backbone, tasks),
        }
        cells = {
            "method": line_cell(runs, Line(row)),
            "trainable parameters": count_cell(trained, runs_of(group)),
            "of the backbone": share_cell(trained, backbone),
            "stored, one task": count_cell(mean_of(stored([record], runs.ledger) for record in records)),
            **(together if tasks > 1 else {}),
            **effort_cells(runs, row, group),
            "examples/s": count_cell(mean_of(record.cost.examples_per_second or None for record in records)),
            "peak memory, MB": count_cell(peak_memory_of(records)),
        }
        rows.append(cells)
    shown = (tuple(cells.values()) for row, cells in zip(runs.rows, rows, strict=True) if runs.all(row))
    return Table.named("cost", next(iter(rows), {}), shown, joint=joint_titles(runs))


# The row's name or the main table already shows these.
_LEFT_OUT = {"trainable", "epochs", "min_steps"}


def settings_table(runs: StudyRuns) -> Table | None:
    """A column per setting in which the main table's runs differ; None if all agree."""
    groups = defaultdict[str, list[tuple[str, dict[str, Any]]]](list)
    for row in runs.rows:
        for scored in runs.all(row) if not runs.study.row(row).kind.is_ensemble else ():
            recipe = runs.recipe_of(scored)
            without = keys_without_effect(recipe)
            values = {key: value for key, value in recipe.flat().items() if key not in without}
            groups[row].append((scored.entry.target, values))
    recipes = [values for group in groups.values() for _, values in group]
    usual = {key: value for key, value in Recipe().flat().items() if key not in _LEFT_OUT}
    # A key without effect counts as one at its default.
    keys = [key for key, value in usual.items() if len({str(recipe.get(key, value)) for recipe in recipes}) > 1]
    backbones = {row: runs.study.row(row).backbone or runs.result.backbone for row in groups}
    differ = len(set(backbones.values())) > 1
    if not keys and not differ:
        return None
    rows = [
        {
            "method": line_cell(runs, Line(row), runs_of(runs.all(row))),
            **({"backbone": Cell(backbone_text(backbones[row]))} if differ else {}),
            **{key.replace("_", " "): Cell(_value(group, key)) for key in keys},
        }
        for row, group in groups.items()
    ]
    return Table.of("settings", rows)


def _value(group: list[tuple[str, dict[str, Any]]], key: str) -> str:
    """One value, or several with their tasks."""
    tasks = defaultdict[str, dict[str, None]](dict)
    for target, recipe in group:
        value = recipe.get(key)
        if isinstance(value, Mapping):  # only extra data is a table
            value = ", ".join(map(str, read_extras(value))) or None
        tasks[MISSING if value is None else str(value)][target] = None
    return "; ".join(f"{value} ({', '.join(names)})" if len(tasks) > 1 else value for value, names in tasks.items())


def choices_table(runs: StudyRuns) -> Table | None:
    """One line per line of the main table; None if every target has test rows separate from its validation rows.

    ``epoch (4), anchor (sts 2)``: tasks are named only if they differ in having the choice or in its options.
    """
    if runs.scored and all(scored.score.test is not None for scored in runs.scored):
        return None
    rows = []
    for line in runs.lines:
        by_target = {  # each choice with the most options that a seed had
            target: reduce(or_, (_choices(runs, line.row, scored) for scored in group))
            for target, group in runs.groups(line).items()
            if group[0].score.test is None
        }
        parts = []
        for kind in dict.fromkeys(kind for choices in by_target.values() for kind in choices):
            sizes = {target: choices[kind] for target, choices in by_target.items()}
            apart = ", ".join(f"{target} {size}" for target, size in sizes.items() if size)
            parts.append(f"{kind} ({apart if len({*sizes.values()}) > 1 else max(sizes.values())})")
        rows.append((line_cell(runs, line), Cell(", ".join(parts) or ("nothing" if by_target else MISSING))))
    return Table.named("choices", ("method", "choices, and from how many"), rows)


def _choices(runs: StudyRuns, row: str, scored: Scored) -> Counter[str]:
    """What was selected for one run, in order, with the number of options."""
    record, target = scored.record, scored.entry.target
    sizes = dict(_earlier_epochs(runs, record, target))
    sizes["settings"] = len(scored.trials)
    bases = [runs.study.row(base) for base in runs.study.bases_on(row, target)]
    what = "linear probe" if any(base.kind.keeps_weights for base in bases) else "own adapter"
    sizes[f"{what}'s settings"] = max((len(base.trials) for base in bases), default=0)
    sizes[what] = len(bases)
    sizes["anchor"] = len(record.anchor_candidates)
    if KINDS[record.kind].is_ensemble:
        sizes["members"] = len(record.identity["members"])
    elif target in record.trained_on:
        if record.recipe_of(target).cosine_threshold == "tuned":
            sizes["threshold"] = min(record.score(target).rows, THRESHOLDS)
        epochs = runs.curve(record.run)["epoch"]
        what = "epoch for all its tasks" if KINDS[record.kind].is_joint else "epoch"
        sizes[f"{what} or start" if (epochs == 0).any() else what] = len(epochs)
    return Counter({kind: size for kind, size in sizes.items() if size > 1})


def _earlier_epochs(runs: StudyRuns, record: RunRecord, target: str) -> Iterator[tuple[str, int]]:
    """The ancestors of a run whose epoch was selected on the target's rows, with their number of epochs."""
    for source in record.continued:
        before = runs.ledger.find(source.run)
        if before is None:
            continue
        if target in before.trained_on:
            what = "own adapter's epoch" if KINDS[before.kind].is_one_adapter else "earlier epoch"
            yield what, len(runs.curve(before.run))
        yield from _earlier_epochs(runs, before, target)
