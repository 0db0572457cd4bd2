"""The model of a run before its first step, and the choices that made it: a warm start, sources, their gates."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, Field
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.data.batches import BACKBONE_INPUTS, collate, sentences_of
from pipeline.data.split import at_most
from pipeline.methods.bank import UnitReader
from pipeline.methods.gated import own_member, set_gates
from pipeline.methods.houlsby import load_adapter
from pipeline.methods.registry import members_of
from pipeline.models.transfer_model import pair_features
from pipeline.records.store import Artifact
from pipeline.runs.build import Built, build_for_training, modules_of, restore, same_head, task_of
from pipeline.runs.planned import PlannedRun
from pipeline.runs.scoring import Scoring, features_of, probe, splits_of
from pipeline.settings.parts import even_gate, gates_text
from pipeline.stats.probe import LEAST_ROWS, most_explaining
from pipeline.system.atomic import make_folder, write_json
from pipeline.system.errors import PipelineError, few
from pipeline.system.process import is_main_process
from pipeline.system.reading import present, read_model
from pipeline.system.streams import notice

TESTED_ROWS = 2000
"""Training rows on which a source is tested, as a warm start or as the first of a fusion. If there are more, a seeded
sample. With 1,000 rows, a test on half of them misses sources that a test with 2,000 finds."""
RANKED_ROWS = 256
"""Training rows for a probe that ranks sources. If there are more, it reads a seeded sample."""
WHOLE = 16
"""Minimum number of adapters that run as whole models to be ranked; twice as many as are wanted, if that is more."""
MOST_SOURCES = 16
"""Sources that gates are tried for. If there are more, those on which a linear probe scores best by themselves."""
ADDED_ROWS = 512
"""Training rows for choosing further sources, without a significance test but in many more passes than the first."""
GATES = (1.0, 0.5)
"""Gates to try for a further source. The first source is tried at 1 only."""
CANDIDATES = 4
"""Number of sources to try as further ones: those that score best by themselves."""
LEAST_GAIN = 0.005
"""Share of the labels' variance that a further source must explain. It is about the noise of 300 rows, but a linear
probe sees little of a source that helps only together with another."""
_BATCH = 16


class Choice(BaseModel, frozen=True):
    """The choices made before the first step. They are kept with the checkpoint, so that a run resumes with them even
    on a machine that would choose otherwise."""

    fused: tuple[str, ...] = Field(description="the runs of the adapters that the model is built on")
    initial: str | None = Field(description="the run of the adapter that it starts as, if any")
    anchor_candidates: dict[str, float] = {}
    anchor_scores: dict[str, float] = {}
    gates: dict[str, float] | None = Field(None, description="where the gates of these tasks start, if probes chose")
    seconds: float = Field(description="what choosing took, without building the model")


@dataclass(frozen=True)
class InitialModel:
    """A model before its first step, and how it was chosen."""

    built: Built
    adapters: tuple[Artifact, ...]
    """The adapters that it is built on."""
    initial: Artifact | None
    """The adapter that it is initialised from, if any."""
    choice: Choice


class Chooser:
    """Makes the choices that the recipe of ``run`` leaves open: which adapters, their gates, and which one to start as.

    Probes read the training rows of the run's first task, which ``scoring`` scores.
    """

    def __init__(self, run: PlannedRun, scoring: Scoring) -> None:
        self.run, self.request, self.task, self.recipe = run, run.request, run.task, run.recipe
        self.backbone, self.workspace, self.rows = run.backbone, run.workspace, run.data[run.task.name].train
        self.scoring, self.accelerator = scoring, scoring.accelerator

    def initial_model(self) -> InitialModel:
        """Build the run's model from the choice kept with its checkpoint, or else from a new one.

        A kept choice that is damaged or concerns other adapters is made again.
        """
        by_run, choice = {adapter.manifest.run: adapter for adapter in self.request.adapters}, None
        file = self.workspace.ledger.checkpoint_file(self.run.name).parent / "choice.json"
        if present(file):
            with suppress(PipelineError):
                kept = read_model(Choice, file, "delete it")
                if {*kept.fused, *(() if kept.initial is None else (kept.initial,))} <= by_run.keys():
                    choice = kept
        if choice is None:
            choice = self.choose()
            if self.request.adapters and is_main_process():
                make_folder(file.parent)
                write_json(file, choice.model_dump(mode="json"))
        fused = tuple(by_run[name] for name in choice.fused)
        initial = None if choice.initial is None else by_run[choice.initial]
        built = self._built(fused, initial)
        if choice.gates is not None:
            set_gates(built.model.of(self.task.name).backbone, self._members(fused), choice.gates)
        return InitialModel(built, fused, initial, choice)

    def _built(self, fused: tuple[Artifact, ...], initial: Artifact | None) -> Built:
        request = replace(self.request, adapters=fused)
        return build_for_training(request, self.run.parts, self.backbone, self.workspace.ledger, initial)

    def _members(self, fused: Sequence[Artifact]) -> list[str]:
        return members_of(self.recipe, self.task.name, [each.manifest.task for each in fused])

    def choose(self) -> Choice:
        """Choose anew; a line on stderr reports what probes found."""
        request, recipe = self.request, self.recipe
        initial: Artifact | None = None
        started, scores = time.perf_counter(), dict[str, dict[str, float]]()
        if request.in_turn:
            (initial,) = request.adapters
        elif recipe.form.anchored:
            initial, scores = self.choose_anchor()
        elif request.adapters and (request.kind == "adapter" or recipe.form.own_adapter == "warm"):
            initial = self.choose_start()
        fused = self._fused(initial)
        seconds, gates = time.perf_counter() - started, None
        if recipe.form.probes_gates:
            # The fusion's encoder before its gates are chosen.
            encoder, members = self._built(fused, initial).model.of(self.task.name).backbone, self._members(fused)
            own = own_member(recipe, self.task.name, members)
            started = time.perf_counter()  # building the model is no part of the choice
            gates = self.choose_gates(encoder, members, [name for name in members if name != own], initial is not None)
            fused = tuple(each for each in fused if each.manifest.task in {*gates, own})  # the own one may have no gate
            seconds += time.perf_counter() - started
        return Choice(
            fused=tuple(each.manifest.run for each in fused),
            initial=None if initial is None else initial.manifest.run,
            gates=gates,
            seconds=seconds,
            **scores,
        )

    def choose_anchor(self) -> tuple[Artifact | None, dict[str, dict[str, float]]]:
        """The adapter with the best dev score among the target's own and those of tasks with the same labels.

        With few target rows, a related task with many may have the better adapter. Its labels mean the same, so its
        head works for the target unchanged. Without a choice it is the target's own adapter; None if it has none.

        Returns:
            The adapter; and the scores on dev and on the test rows that it was chosen by, by record field and task;
            empty if there was no choice.
        """
        task, recipe, scoring = self.task, self.recipe, self.scoring
        own = next((adapter for adapter in self.request.adapters if adapter.manifest.task == task.name), None)
        able = [
            adapter
            for adapter in self.request.adapters
            if (adapter.manifest.meaning, adapter.manifest.pair) == (task.meaning, task.is_pair)
            and same_head(adapter.manifest.recipe, recipe)
        ]
        if not recipe.fusion.head_start or not able:
            return own, {}
        if len(able) == 1:
            return able[0], {}
        candidates, scores = dict[str, float](), dict[str, float]()
        for adapter in able:
            name = adapter.manifest.task
            its_task = task_of(adapter, name)
            model = restore(adapter, its_task, self.workspace, recipe.adapter.drop_layers).to(self.accelerator.device)
            candidates[name] = scoring.value(scoring.predict(model))
            if scoring.test is not None:
                scores[name] = scoring.test.value(scoring.test.predict(model))
        # On a tie the target's own, then the first by name.
        best = max(able, key=lambda adapter: (candidates[adapter.manifest.task], adapter is own))
        return best, {"anchor_candidates": candidates, "anchor_scores": scores}

    def choose_start(self) -> Artifact | None:
        """The adapter of another task from whose sentence vectors a linear probe explains most of the target's labels.

        This is intermediate-task transfer (Poth et al. 2021). None unless the best adapter explains more than the bare
        backbone, which is what a fresh adapter starts as; if the request is ``tested``, significantly more, as for the
        first source of a gated fusion.
        """
        task, title, tested = self.task, self.run.title, self.request.tested
        fresh = (
            "starts from a new adapter: {}, and this equals a run without a warm start (extract without --start-from)"
        )
        if len(self.rows) < LEAST_ROWS:
            notice(f"{title} {fresh.format(f'{len(self.rows)} rows are too few to select a source')}")
            return None
        rows = at_most(self.rows, TESTED_ROWS)
        by_task = {artifact.manifest.task: artifact for artifact in self.request.adapters}
        bare, *others = (probe(self._vectors(each, rows), task, rows) for each in (None, *self.request.adapters))
        probes = dict(zip(by_task, others, strict=True))
        best = most_explaining(probes, bare, tested)
        listed = ", ".join(f"{name} {each.mean():.3f}" for name, each in {"no adapter": bare, **probes}.items())
        significantly = " significantly" if tested else ""
        gain = probes[best] - bare if best else np.zeros(1)
        # A difference below its standard error may be chance; taking the source costs nothing, so it is taken.
        unclear = best and gain.mean() < gain.std(ddof=1) / np.sqrt(len(gain))
        start = (
            f"is warm-started from {best}{', though no source clearly helps' if unclear else ''}"
            if best
            else fresh.format(f"no source helps{significantly} with {len(rows)} rows")
        )
        notice(f"{title} {start}; variance of train explained: {listed}")
        return by_task[best] if best else None

    def _vectors(self, candidate: Artifact | None, rows: pd.DataFrame) -> np.ndarray:
        """The head's inputs for ``rows`` (:func:`features_of`) with the adapter ``candidate``, or with none."""
        encoder = self.backbone.load()
        if candidate is not None:
            candidate.verify()
            layers = self.recipe.adapter.drop_layers
            load_adapter(encoder, candidate.manifest.task, modules_of(candidate), layers)
        return features_of(encoder.requires_grad_(False), self.recipe, rows, self.backbone, self.accelerator)

    def _fused(self, initial: Artifact | None) -> tuple[Artifact, ...]:
        """The adapters that the model is built on, before probes choose among them: for a fusion the target's own, if
        it exists, and the best of the others."""
        adapters, recipe, most = self.request.adapters, self.recipe, self.recipe.fusion.best
        if recipe.form.probes_gates and len(self.rows) >= LEAST_ROWS:
            most = min(most or MOST_SOURCES, MOST_SOURCES)
        if recipe.fuses_as is None or most is None:
            return adapters
        others = [each for each in adapters if each.manifest.task != self.task.name]
        taken = self.best_sources(most, others)
        if initial is not None and recipe.form.anchored:  # it starts as this one
            taken = [*taken, initial]
        return tuple(each for each in adapters if each in taken or each not in others)

    def best_sources(self, count: int, candidates: Sequence[Artifact]) -> list[Artifact]:
        """The ``count`` adapters of other tasks on which linear probes of the task do best, in the given order.

        Probing the target's rows through an adapter ranks sources nearly as well as training with each of them (Poth,
        Pfeiffer, Rücklé, Gurevych 2021). In a large store, all adapters are first probed at their bottlenecks only
        (:mod:`pipeline.methods.bank`); the best of these then run as whole models.

        Args:
            candidates: intact adapters of this backbone, one per task.

        Raises:
            PipelineError: too few rows to choose by.
        """
        if len(candidates) <= count:
            return list(candidates)
        if len(self.rows) < LEAST_ROWS:
            raise PipelineError(
                f"best_sources {count} (--sources best:{count}): {len(self.rows)} training rows of {self.task.name} are"
                f" too few to rank sources by (at least {LEAST_ROWS}): name the sources"
            )
        rows = at_most(self.rows, RANKED_ROWS)

        def explained(features: np.ndarray) -> float:
            return float(probe(features, self.task, rows).mean())

        for candidate in candidates:
            candidate.verify()

        def highest(fits: Sequence[float], number: int) -> list[Artifact]:
            """The adapters that fit best; on a tie the first."""
            return [kept[place] for place in sorted(np.argsort(-np.array(fits), kind="stable")[:number])]

        kept, most = list(candidates), max(WHOLE, 2 * count)
        if len(kept) > most:
            kept = highest([explained(each) for each in self._units(kept, rows)], most)
        fits = [explained(self._vectors(each, rows)) for each in kept]
        chosen = highest(fits, count)
        if self.accelerator.is_main_process:
            order = np.argsort(fits, kind="stable")[::-1]
            listed = few([f"{kept[place].manifest.task} {fits[place]:.3f}" for place in order], 2 * count)
            before = f", of {len(candidates):,} probed at their bottlenecks," if len(kept) < len(candidates) else ""
            notice(
                f"{self.task.name}: variance of the labels that linear probes explain, by source{before} on {len(rows)}"
                f" training rows: {', '.join(listed)}; chosen: {', '.join(each.manifest.task for each in chosen)}"
            )
        return chosen

    def _units(self, candidates: Sequence[Artifact], rows: pd.DataFrame) -> Iterator[np.ndarray]:
        """Each candidate's units on ``rows`` beside the bare backbone's sentence vectors, (rows, features).

        With these vectors, the ranking is closer to that of the whole models than with the units alone.
        """
        backbone, accelerator, recipe = self.backbone, self.accelerator, self.recipe
        assert recipe.pooling is not None
        reader = UnitReader(backbone.load().to(accelerator.device), [modules_of(each) for each in candidates])
        (split,) = splits_of(rows, recipe, backbone.tokenizer, both_orders=False)
        inputs, pairs = (split, None) if split.b is None else sentences_of(split, np.arange(len(split)))
        order = np.argsort(inputs.lengths, kind="stable")  # inputs of similar length share a batch
        vectors, units = list[Tensor](), list[list[Tensor]]()
        for first in range(0, len(order), _BATCH):
            batch = collate(inputs, order[first : first + _BATCH], backbone.tokenizer.pad_token_id)
            tensors = {key: batch[key].to(accelerator.device) for key in BACKBONE_INPUTS if key in batch}
            with accelerator.autocast():
                bare, read = reader.read(tensors, recipe.pooling)
            vectors.append(bare.float().cpu())
            units.append([each.float().cpu() for each in read])
        back = torch.from_numpy(np.argsort(order, kind="stable"))
        for each in zip(*units, strict=True):
            features = torch.cat([torch.cat(vectors), torch.cat(each)], dim=1)[back]
            if pairs is not None:
                one, other = torch.from_numpy(pairs).view(2, -1)
                features = pair_features(features[one], features[other])
            yield features.numpy()

    def choose_gates(
        self, encoder: PreTrainedModel, members: Sequence[str], sources: Sequence[str], warm: bool = False
    ) -> dict[str, float]:
        """The sources to fuse, each with the gate that it starts with at all sites.

        If no source is shown to help, the best one with a gate of 0; with too few rows to tell, all with even gates.

        What a source adds in one layer is read by all layers above it, so sources interfere: two adapters at full
        strength are often worth less than one of them. Forward selection, as for ensembles (Caruana et al. 2004), finds
        the few that help together: each step adds the source and gate with which ridge regression on the head's inputs
        explains most of the variance of held-out labels, until no step is worth it. The first source must explain
        significantly more than no source: a useless one at full strength does harm.

        Args:
            encoder: with a freshly initialised gated fusion over ``members``; its gates are overwritten.
            sources: the ``members`` that have a gate.
            warm: whether the target's own adapter is warm-started. All sources then join one that is already there.
        """
        if len(self.rows) < LEAST_ROWS:
            return dict.fromkeys(sources, even_gate(len(sources)))
        whole, sample = at_most(self.rows, TESTED_ROWS), at_most(self.rows, ADDED_ROWS)
        encoder.to(self.accelerator.device)

        def fit(gates: Mapping[str, float], rows: pd.DataFrame) -> np.ndarray:
            set_gates(encoder, members, gates)
            return probe(features_of(encoder, self.recipe, rows, self.backbone, self.accelerator), self.task, rows)

        def announced(gates: dict[str, float]) -> dict[str, float]:
            told = f"gates start at {gates_text(gates)}; variance explained: {', '.join(steps)}"
            notice(f"{self.task.name}: {told}")
            return gates

        none, alone = fit({}, whole), {name: fit({name: 1.0}, whole) for name in sources}
        order = sorted(sources, key=lambda name: -alone[name].mean())
        first, reached, gates = order[0], none.mean(), dict[str, float]()
        steps = [f"{'the warm start' if warm else 'none'} {reached:.3f}"]
        if not warm:
            steps.append(f"{first} {alone[first].mean():.3f}")
            if most_explaining(alone, none) is None:
                steps.append(f"not significantly more, with {len(whole)} rows")
                return announced({first: 0.0})
            gates, reached = {first: 1.0}, alone[first].mean()
        if len(sample) < len(whole):
            reached = fit(gates, sample).mean()
            steps.append(f"on {len(sample)} rows {reached:.3f}")
        while True:
            tried = {
                (name, gate): fit({**gates, name: gate}, sample).mean()
                for name in order[: CANDIDATES + len(gates)]
                for gate in GATES
                if name not in gates
            }
            helpful = {each: best for each, best in tried.items() if best >= reached + LEAST_GAIN}
            if not helpful:
                break
            # On a tie prefer full strength: it passes more of the source on to the layers above.
            name, gate = max(helpful, key=lambda each: helpful[each] - (LEAST_GAIN if each[1] < 1 else 0.0))
            gates[name], reached = gate, helpful[name, gate]
            steps.append(f"with {name} {reached:.3f}")
        return announced(gates or {first: 0.0})
