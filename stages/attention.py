"""Attention maps of a study's models for one sentence or pair (Liu & Shen 2023, tables 8 and 9)."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.models.attention_maps import attention_maps, one_input, shown_layers
from pipeline.records.ledger import Ledger, RunRecord
from pipeline.reporting.entries import StudyResult
from pipeline.reporting.runs import AttentionMap
from pipeline.runs.restore import restore_run, task_of
from pipeline.runs.scoring import lineage
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError

SEPARATOR = "|||"
MOST_TOKENS = 64
"""More could not be read in a picture."""


def maps_of(text: str, runs: Sequence[str] | None, result: StudyResult, ledger: Ledger) -> list[AttentionMap]:
    """The maps of ``text`` in the models of ``runs``, one a task that each was trained on at once.

    Without ``runs``, each row of the study shows its run of the first seed on its first target. A model reads the text
    as it reads that task: with its modules, in its layers, and a pair as one input, or apart with a map each. Runs
    that kept no model are named on stderr and left out.

    Args:
        text: a sentence, or two as ``"a ||| b"``.

    Raises:
        PipelineError: there is nothing to read, too much, or no model to read it.
    """
    sentences = parse_sentences(text)
    workspaces: dict[tuple[str, Path], Workspace] = {}
    maps = []
    for view in _named(runs, ledger) if runs is not None else _chosen(result):
        record = ledger.find(view.run)
        if record is None:
            raise PipelineError(f"run {view.run} ({view.title}) is no longer in {ledger.root}: run compare again")
        try:
            maps += _maps(view, record, sentences, ledger, workspaces)
        except _TooLong:
            raise
        except PipelineError as error:
            print(f"note: no attention map of run {view.run} ({view.title}): {error}", file=sys.stderr)
    if not maps:
        raise PipelineError("--attention: no run here kept its model: name others with --runs")
    return maps


def parse_sentences(text: str) -> list[str]:
    """One sentence, or the two of ``"a ||| b"``.

    Raises:
        PipelineError: more than two, or an empty one.
    """
    sentences = [part.strip() for part in text.split(SEPARATOR)]
    if len(sentences) > 2 or not all(sentences):
        raise PipelineError(f"--attention {text!r}: give a sentence, or two as 'a {SEPARATOR} b'")
    return sentences


class _TooLong(PipelineError):
    """A text of which no map can be read."""


@dataclass(frozen=True)
class _View:
    """A model as it reads one of its tasks."""

    run: str
    task: str
    title: str


def _chosen(result: StudyResult) -> list[_View]:
    """Of each row its first seed on the first target of the study that it has; what rows share is shown once."""
    study, views = result.study, dict[tuple[str, str], _View]()
    main = [entry for entry in result.entries if entry.run is not None and entry.rows is None]
    for row in study.methods:
        own = [entry for entry in main if entry.line.row == row]
        own.sort(key=lambda entry: (study.targets.index(entry.target), study.seeds.index(entry.seed)))
        for entry in own[:1]:
            assert entry.run is not None
            title = study.title(entry.line.row, entry.line.source)
            view = _View(entry.run, entry.target, f"{title} for {entry.target}")
            views.setdefault((view.run, view.task), view)
    return list(views.values())


def _named(runs: Sequence[str], ledger: Ledger) -> list[_View]:
    views = []
    for run in dict.fromkeys(runs):
        record = ledger.find(run)
        if record is None:
            raise PipelineError(f"--runs {run}: no such run in {ledger.root}")
        views += [
            _View(run, task, f"{record.kind} for {task}, seed {record.seed}") for task in sorted(record.trained_on)
        ]
    return views


def _maps(
    view: _View,
    record: RunRecord,
    sentences: Sequence[str],
    ledger: Ledger,
    workspaces: dict[tuple[str, Path], Workspace],
) -> list[AttentionMap]:
    store = Path(record.artifact).parents[2] if record.artifact else ledger.root
    place = record.backbone, store
    workspace = workspaces.setdefault(place, Workspace(record.backbone, None, store, ledger.root.parent))
    backbone, recipe = workspace.backbone, _recipe_of(view.task, record, ledger)
    # What was tuned in turn has one encoder for all its tasks, and is kept with the head of the last.
    task = task_of(record, view.task if view.task in record.trained_on else record.task, workspace.store)
    model = restore_run(record, task, workspace)
    assert recipe.max_length is not None
    inputs = [(sentence,) for sentence in sentences] if recipe.encoding == "siamese" else [tuple(sentences)]
    maps = []
    for texts in inputs:
        tensors, tokens = one_input(backbone.tokenizer, *texts, max_length=recipe.max_length)
        if len(tokens) > MOST_TOKENS:
            raise _TooLong(
                f"--attention: {len(tokens)} tokens are more than a picture can show ({MOST_TOKENS}): give less"
            )
        layers = attention_maps(model.backbone, tensors, shown_layers(backbone.layers))
        maps.append(AttentionMap(record.run, view.title, f" {SEPARATOR} ".join(texts), tuple(tokens), layers))
    return maps


def _recipe_of(task: str, record: RunRecord, ledger: Ledger) -> Recipe:
    """How a model reads ``task``; one that was tuned in turn, as it read it when it was trained on it."""
    if task in record.trained_on:
        return record.recipe_of(task)
    return next(source.recipe for source in lineage(record, ledger) if source.task == task)
