"""Attention maps of a study's models for one sentence or pair (Liu & Shen 2023, tables 8 and 9)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.ledger import Ledger, RunRecord
from pipeline.models.attention_maps import attention_maps, one_input, shown_layers
from pipeline.models.backbone import Backbone, open_backbone
from pipeline.reporting.entries import StudyResult
from pipeline.reporting.figures.attention_maps import AttentionMap
from pipeline.store import Store
from stages.kept import kept_model, task_of

SEPARATOR = "|||"
MOST_TOKENS = 64
"""More could not be read in a picture."""


def maps_of(text: str, runs: Sequence[str] | None, result: StudyResult, ledger: Ledger) -> list[AttentionMap]:
    """The maps of ``text`` in the models of ``runs``; by itself each row's run of the first seed on the first target.

    Two sentences are read as the run reads pairs: as one input, or apart, and then each has a map. Runs that kept no
    model are told on stderr and left out.

    Args:
        text: a sentence, or two as ``"a ||| b"``.

    Raises:
        PipelineError: there is nothing to read, too much, or no model to read it.
    """
    sentences = parse_sentences(text)
    backbones: dict[str, Backbone] = {}
    found = []
    for name, title in (_named(runs, ledger) if runs is not None else _chosen(result)).items():
        record = ledger.find(name)
        if record is None:
            raise PipelineError(f"--runs {name}: no such run in {ledger.root}")
        try:
            found += _maps(title, record, sentences, ledger, backbones)
        except _TooLong:
            raise
        except PipelineError as error:
            print(f"note: no attention map of run {name} ({title}): {error}", file=sys.stderr)
    if not found:
        raise PipelineError("--attention: no run here kept its model: name others with --runs")
    return found


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


def _chosen(result: StudyResult) -> dict[str, str]:
    """Run and title of each row: its first seed on the first target of the study that it has."""
    study, found = result.study, dict[str, str]()
    main = [entry for entry in result.entries if entry.run is not None and entry.rows is None]
    for row in study.methods:
        own = [entry for entry in main if entry.method.partition(":")[0] == row]
        own.sort(key=lambda entry: (study.targets.index(entry.target), study.seeds.index(entry.seed)))
        for entry in own[:1]:
            assert entry.run is not None
            found.setdefault(entry.run, f"{study.title(entry.method)} for {entry.target}")
    return found


def _named(runs: Sequence[str], ledger: Ledger) -> dict[str, str]:
    records = {name: ledger.find(name) for name in runs}
    return {
        name: f"{record.kind} for {record.task}, seed {record.seed}" if record is not None else name
        for name, record in records.items()
    }


def _maps(
    title: str, record: RunRecord, sentences: Sequence[str], ledger: Ledger, backbones: dict[str, Backbone]
) -> list[AttentionMap]:
    store = Store(Path(record.artifact).parents[2] if record.artifact else ledger.root)
    if record.backbone not in backbones:
        backbones[record.backbone] = open_backbone(record.backbone)
    backbone = backbones[record.backbone]
    model = kept_model(record, task_of(record, store), backbone, store, ledger)
    assert record.recipe.max_length is not None
    inputs = [(sentence,) for sentence in sentences] if record.recipe.encoding == "siamese" else [tuple(sentences)]
    found = []
    for texts in inputs:
        tensors, tokens = one_input(backbone.tokenizer, *texts, max_length=record.recipe.max_length)
        if len(tokens) > MOST_TOKENS:
            raise _TooLong(
                f"--attention: {len(tokens)} tokens are more than a picture can show ({MOST_TOKENS}): give less"
            )
        maps = attention_maps(model.backbone, tensors, shown_layers(backbone.layers))
        found.append(AttentionMap(record.run, title, f" {SEPARATOR} ".join(texts), tuple(tokens), maps))
    return found
