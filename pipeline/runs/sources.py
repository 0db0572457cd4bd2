"""Which adapters of the store a fusion mixes, and from which ones a new adapter may be warm-started."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.data.tasks import BEST, Task, task_and_run
from pipeline.records.store import DEFAULT_STORE, Artifact, Manifest, by_age
from pipeline.runs.build import same_head
from pipeline.runs.workspace import RunRequest, Workspace
from pipeline.settings.parts import BOTTLENECKS, layers_text
from pipeline.settings.recipe import OF_PREDICTION, Recipe
from pipeline.system.errors import PipelineError, few, raise_all
from pipeline.system.streams import notice

# Settings of the target's predictions and rows, which adapters of other tasks do not take over.
_TARGETS = OF_PREDICTION.union(("extra", "permute_labels"))

Verdict = tuple[Artifact, str | None]
"""An adapter, and why it cannot be used; None if it can."""


@dataclass(frozen=True)
class SourceName:
    """``sst``, or ``sst@RUN`` for one adapter among several of a task."""

    task: str
    run: str | None = None

    def __str__(self) -> str:
        return self.task if self.run is None else f"{self.task}@{self.run}"

    def means(self, adapter: Manifest) -> bool:
        """Whether ``adapter`` is the named one, or one that the name may stand for."""
        return adapter.task == self.task and self.run in (None, adapter.run)

    def missing_in(self, workspace: Workspace) -> str:
        """The problem that the store lacks this adapter."""
        return f"no adapter {f'{self.run} ' if self.run else ''}in {workspace.store_root}"


def parse_sources(text: str, workspace: Workspace, option: str = "--sources") -> list[SourceName]:
    """The names in ``sst,quora@3f2a...,sts``, aliases resolved.

    Raises:
        PipelineError: an unknown task, one named twice, or an ``@`` without a run.
    """
    parts = [task_and_run(part.strip()) for part in text.split(",") if part.strip()]
    names = [SourceName(workspace.task(task).name, run or None) for task, run in parts]
    if not names:
        raise PipelineError(f"{option} names no task: write for example {option} sst,quora,sts")
    tasks = [name.task for name in names]
    twice = sorted({task for task in tasks if tasks.count(task) > 1})
    if twice:
        raise PipelineError(f"{option} names {', '.join(twice)} more than once: one adapter a task can be used")
    return names


def best_count(text: str) -> int | None:
    """N of ``best:N``, which selects the N adapters that fit a target best; None if ``text`` names tasks.

    Raises:
        PipelineError: N is not a valid number of adapters.
    """
    word, colon, number = text.strip().partition(":")
    if word != BEST:
        return None
    if not colon or not number.isdecimal() or int(number) < 1:
        raise PipelineError(f"--sources {text}: say how many to choose, such as --sources {BEST}:8")
    return int(number)


class Fusion:
    """A fusion for ``task`` whose adapters are yet to be chosen.

    ``encoding`` is how its adapters must encode pairs: the same way as the target. If the target has one text, the
    recipe decides, by default cross.
    """

    def __init__(self, task: Task, recipe: Recipe, workspace: Workspace) -> None:
        self.task, self.recipe, self.workspace = task, recipe, workspace
        resolved = workspace.resolve(recipe, task) if task.is_pair else recipe
        self.encoding = resolved.encoding or "cross"
        # Experts are trained for the fusion; some other forms take the target's adapter from the store.
        self._takes_own = recipe.form.fuses_own and not recipe.form.of_target

    def choose(self, names: Sequence[SourceName] | None, seed: int) -> tuple[Artifact, ...]:
        """The adapters to fuse, in order of task name: equal sources are one run however they were listed.

        If a task has several adapters: the named one, else one that leaves out exactly the recipe's layers, then the
        same seed, then the best dev score. Without ``names``, every task with a suitable adapter takes part.

        Raises:
            PipelineError: one is missing or does not fit; the message gives the command that trains it.
        """
        verdicts = self._verdicts()
        fitting = {adapter.manifest.task for adapter, why in verdicts if why is None}
        names = names or [SourceName(task) for task in sorted({*fitting, self.task.name})]
        if not self._takes_own:
            names = [name for name in names if name.task != self.task.name]
        chosen = self._chosen(names, verdicts, seed)
        self._check_count([artifact.manifest.task for artifact in chosen], verdicts)
        own = self.task.name if self.recipe.permute_labels else None  # then its own adapter is meant to be a control
        _tell_controls([artifact for artifact in chosen if artifact.manifest.task != own], names)
        return tuple(chosen)

    def named(self, sources: Sequence[SourceName]) -> list[SourceName]:
        """The adapters to fuse: ``sources``, and the target's own adapter if the recipe takes it.

        Raises:
            PipelineError: ``sources`` names only the target.
        """
        others = [name for name in sources if name.task != self.task.name]
        if not others:
            raise PipelineError(f"--sources {self.task.name}: that is the target itself: name other tasks")
        own = [name for name in sources if name.task == self.task.name] or [SourceName(self.task.name)]
        return [*others, *own] if self._takes_own else others

    def missing(self, names: Sequence[SourceName]) -> dict[str, str | None]:
        """The tasks of ``names`` without a suitable adapter in the store; with the reason if there is an unsuitable
        one.

        An adapter that is named with its run never counts as missing, because it cannot be trained again.
        """
        verdicts, reasons = _by_task(self._verdicts()), dict[str, str | None]()
        for name in names:
            unfit = [f"adapter {artifact.manifest.run} {why}" for artifact, why in verdicts.get(name.task, ()) if why]
            if name.run is None and len(unfit) == len(verdicts.get(name.task, ())):
                reasons[name.task] = unfit[0] if unfit else None
        return reasons

    def adapter_recipe(self, task: Task) -> Recipe:
        """The recipe for a missing adapter of ``task``: the fusion's settings that affect an adapter.

        Settings of the target's predictions are left out.
        """
        others = {} if task.name == self.task.name else {key: Recipe().flat()[key] for key in _TARGETS}
        return self.recipe.changed({"trainable": "adapter", "encoding": self.encoding, **others})

    def check(self, names: Sequence[SourceName], planned: Mapping[str, Recipe], seed: int) -> None:
        """Raise every mistake in a fusion of ``names`` that can be found before the missing adapters are trained.

        Args:
            planned: resolved recipes of the missing adapters, by task.
        """
        self.workspace.resolve(self.recipe, self.task)
        verdicts = self._verdicts()
        there = self._chosen([name for name in names if name.task not in planned], verdicts, seed)
        recipes = {artifact.manifest.task: artifact.manifest.recipe for artifact in there} | dict(planned)
        self._check_count(sorted(recipes), verdicts)
        problems = []
        for name, recipe in planned.items():
            pair, kind = self.workspace.task(name).is_pair, self.recipe.adapter.kind
            if why := why_recipe_not_fused(recipe, pair, self.encoding, kind):
                problems.append(f"{name}: an adapter of this recipe {why}")
        raise_all("fuse", problems)
        dropped_layers(self.recipe, recipes)

    def _verdicts(self) -> list[Verdict]:
        weights, verdicts = self.workspace.backbone.weights_hash, list[Verdict]()
        for artifact in self.workspace.store.artifacts():
            if (made := artifact.manifest).kind == "adapter":
                why = why_recipe_not_fused(made.recipe, made.pair, self.encoding, self.recipe.adapter.kind)
                verdicts.append((artifact, why_other_backbone(made, weights) or why))
        return verdicts

    def _chosen(self, names: Sequence[SourceName], verdicts: Sequence[Verdict], seed: int) -> list[Artifact]:
        def preference(made: Manifest) -> tuple[Any, ...]:
            own, wanted = {*made.recipe.adapter.drop_layers}, {*self.recipe.adapter.drop_layers}
            # An adapter with more layers than the fusion fits; one that lacks a layer of the others does not.
            return _preference(made, seed, own == wanted, own <= wanted)

        return _choose("fuse", names, verdicts, preference, self._problem)

    def _check_count(self, tasks: Sequence[str], verdicts: Sequence[Verdict]) -> None:
        if len(tasks) < 1 + self._takes_own:
            others = [(artifact.manifest, why) for artifact, why in verdicts if why is not None]
            unfit = [f"adapter {one.run} of {one.task} {why}" for one, why in others if one.task != self.task.name]
            missing = f"at least two tasks, but only '{tasks[0]}'" if tasks else "another task, but none"
            fits = f" that fits is here ({'; '.join(few(unfit, 3))})" if unfit else " is here"
            raise PipelineError(
                f"fuse needs adapters of {missing}{fits}: name tasks to train them on, such as --sources sst,quora,"
                f" or train another, for example {self._extract_command('TASK', 'cross')}"
            )

    def request(self, chosen: Sequence[Artifact], *, seed: int, limit: int | None) -> RunRequest:
        """The request to fuse ``chosen``, which all fit; layers that they leave out get no fusion.

        Raises:
            PipelineError: they leave out different layers.
        """
        if not self.recipe.form.fuses_own:
            chosen = [artifact for artifact in chosen if artifact.manifest.task != self.task.name]
        adapters = {artifact.manifest.task: artifact.manifest.recipe for artifact in chosen}
        recipe = self.recipe.changed({"drop_layers": dropped_layers(self.recipe, adapters)})
        return RunRequest.single("fusion", self.task, recipe, seed, limit, adapters=tuple(chosen))

    def _problem(self, name: SourceName, meant: Sequence[Verdict]) -> str:
        command, kind = self._extract_command(name.task), self.recipe.adapter.kind
        if not meant:
            return f"{name.missing_in(self.workspace)}: {'see python -m pipeline store list' if name.run else command}"
        manifest, why = meant[0][0].manifest, meant[0][1]
        other = f" --adapter {kind}" if manifest.recipe.adapter.kind != kind else ""
        return f"adapter {manifest.run} {why}: {command}{other}"

    def _extract_command(self, task: str, encoding: str | None = None) -> str:
        place = self.workspace
        data = "".join(f" --data {folder}" for folder in place.splits.folders)
        store = f" --store {place.store_root}" if str(place.store_root) != DEFAULT_STORE else ""
        siamese = " --encoding siamese" if (encoding or self.encoding) == "siamese" else ""
        return f"python -m pipeline extract --task {task} --backbone {place.backbone_name}{data}{store}{siamese}"


def starting_adapters(
    text: str, task: Task, recipe: Recipe, workspace: Workspace, seed: int, limit: int | None = None
) -> tuple[Artifact, ...]:
    """The adapters that ``text`` names: ``sick``, ``sick,quora@RUN``, or ``best`` for those of all tasks that fit.

    If a task has several, the one with the same seed, then the best dev score; one with permuted labels comes last,
    with a note unless it is named. Of ``task`` itself it is the last one that was trained on other rows than this run
    will be, with the same head: then the same command, given again, finds its own run finished.

    Raises:
        PipelineError: none fits, or a named one does not; the message says why.
    """
    recipe = workspace.resolve(recipe, task)
    if recipe.adapter.kind not in BOTTLENECKS:
        raise PipelineError(
            f"--start-from: an adapter of kind {recipe.adapter.kind} cannot be warm-started (--adapter houlsby can)"
        )
    names = [] if text == BEST else parse_sources(text, workspace, "--start-from")
    is_own = any(name.task == task.name for name in names)
    if is_own and len(names) > 1:
        raise PipelineError(f"--start-from {text}: name {task.name}, the task itself, alone: its model is continued")
    rows = workspace.splits.of(task, limit, seed, recipe.extra).fingerprint["train"] if is_own else ""
    weights, verdicts = workspace.backbone.weights_hash, list[Verdict]()
    for artifact in workspace.store.artifacts():
        made = artifact.manifest
        if made.kind == "adapter" and (made.task == task.name) == is_own:
            why = why_other_backbone(made, weights) or why_not_started_from(made.recipe, made.pair, recipe)
            if is_own and why is None:
                why = _why_not_continued(made, task, recipe, None if names[0].run else rows)
            verdicts.append((artifact, why))

    def problem(name: SourceName, meant: Sequence[Verdict]) -> str:
        return f"adapter {meant[-1][0].manifest.run} {meant[-1][1]}" if meant else name.missing_in(workspace)

    def preference(made: Manifest) -> tuple[Any, ...]:
        return (not made.recipe.permute_labels, made.finished_at) if is_own else _preference(made, seed)

    fitting = {adapter.manifest.task for adapter, why in verdicts if why is None}
    chosen = _choose("--start-from", names or [*map(SourceName, fitting)], verdicts, preference, problem)
    if not chosen:
        raise PipelineError(
            f"no other task's adapter in {workspace.store_root} fits to start from: train one first"
            " (python -m pipeline extract --task TASK), or fuse with --sources TASK"
        )
    _tell_controls(chosen, names)
    return tuple(chosen)


def _why_not_continued(made: Manifest, task: Task, recipe: Recipe, rows: str | None) -> str | None:
    """Why an adapter of ``task`` itself, with its head, cannot be trained further; None if it can.

    Args:
        recipe: of the run to be trained, resolved.
        rows: the fingerprint of its training rows, which must be other ones; None: they may be the same.
    """
    if (made.meaning, made.pair) != (task.meaning, task.is_pair):
        return "was trained when the task had other classes, another range or another metric"
    if not same_head(made.recipe, recipe):
        return "has another head, or reads texts otherwise (--head, --encoding, --pooling)"
    if made.train_rows == rows:
        return f"was trained on the present rows: add new ones (tasks add), or name it, {task.name}@{made.run}"
    return None


def _tell_controls(chosen: Iterable[Artifact], names: Iterable[SourceName]) -> None:
    """Name the ``chosen`` adapters with permuted labels, except those that ``names`` lists with their run."""
    named = {name.run for name in names}
    for made in (artifact.manifest for artifact in chosen):
        if made.recipe.permute_labels and made.run not in named:
            notice(
                f"note: adapter {made.run} of {made.task} was trained on permuted labels, as a control, and none on"
                f" real ones fits: extract --task {made.task} trains one"
            )


def _preference(manifest: Manifest, seed: int, *fits: bool) -> tuple[Any, ...]:
    """A sort key for the adapters of a task; the best one has the largest.

    Args:
        seed: of the run that takes it.
        fits: how well it fits that run, which counts more than its seed and score.
    """
    is_real = not manifest.recipe.permute_labels  # a control is taken only if it is named or the only one
    return is_real, *fits, manifest.seed == seed, *manifest.rank


def _choose(
    what: str,
    names: Iterable[SourceName],
    verdicts: Sequence[Verdict],
    preference: Callable[[Manifest], tuple[Any, ...]],
    problem: Callable[[SourceName, Sequence[Verdict]], str],
) -> list[Artifact]:
    """For each name the preferred usable adapter, by task; raises if there is none.

    ``problem`` explains a name's failure from the adapters that it may stand for.
    """
    chosen, problems, by_task = [], [], _by_task(verdicts)
    for name in names:
        meant = [verdict for verdict in by_task.get(name.task, ()) if name.means(verdict[0].manifest)]
        if usable := [artifact for artifact, why in meant if why is None]:
            chosen.append(max(by_age(usable), key=lambda artifact: preference(artifact.manifest)))
        else:
            problems.append(f"{name.task}: {problem(name, meant)}")
    raise_all(what, problems)
    return sorted(chosen, key=lambda artifact: artifact.manifest.task)


def _by_task(verdicts: Iterable[Verdict]) -> Mapping[str, Sequence[Verdict]]:
    """The verdicts on the adapters of each task; none for a task without adapters."""
    verdicts_of = defaultdict[str, list[Verdict]](list)
    for verdict in verdicts:
        verdicts_of[verdict[0].manifest.task].append(verdict)
    return verdicts_of


def why_other_backbone(manifest: Manifest, backbone_weights: str) -> str | None:
    """Why an artifact does not belong to the backbone with these weights; None if it does. Names are not compared."""
    if manifest.backbone_weights == backbone_weights:
        return None
    return f"was trained on another backbone ('{manifest.backbone}', {manifest.backbone_weights[:8]})"


def why_recipe_not_fused(recipe: Recipe, pair: bool, encoding: str, sites: str) -> str | None:
    """Why an adapter that ``recipe`` trains cannot be fused at ``sites``; None if it can.

    Args:
        pair: whether its task has two texts. A single text is encoded the same either way and fits any encoding.
    """
    if recipe.adapter.kind not in BOTTLENECKS:
        return f"is of kind {recipe.adapter.kind}: fusion mixes bottlenecks only ({' or '.join(sorted(BOTTLENECKS))})"
    if recipe.bottleneck.train_layernorm:
        return "trained its own LayerNorms, which fusion cannot share"
    if recipe.adapter.kind != sites:
        return f"is of kind {recipe.adapter.kind}, not {sites} (--adapter)"
    if pair and recipe.encoding != encoding:
        return f"encodes pairs as {recipe.encoding}, not {encoding} (--encoding)"
    return None


def why_not_started_from(source: Recipe, pair: bool, recipe: Recipe) -> str | None:
    """Why an adapter of ``recipe`` cannot be initialised from one of ``source``; None if it can; both resolved.

    Args:
        pair: whether the source's task has two texts.
    """
    assert recipe.encoding is not None
    if why := why_recipe_not_fused(source, pair, recipe.encoding, recipe.adapter.kind):
        return why
    if source.bottleneck.width != recipe.bottleneck.width:
        return f"is {source.bottleneck.width} wide, not {recipe.bottleneck.width} (--bottleneck)"
    if missing := layers_text(tuple(sorted({*source.adapter.drop_layers} - {*recipe.adapter.drop_layers}))):
        return f"leaves out layers {missing} (--drop-layers)"
    return None


def dropped_layers(recipe: Recipe, adapters: Mapping[str, Recipe]) -> tuple[int, ...]:
    """The layers without fusion: those of the recipe and of the adapters (by task), which must otherwise agree.

    AdapterHub takes the order of residual and LayerNorm from the last adapter of a fusion, and fails if that adapter
    leaves out the layer.
    """
    dropped = {*recipe.adapter.drop_layers}
    dropped_of = {task: tuple(sorted(dropped.union(own.adapter.drop_layers))) for task, own in adapters.items()}
    if len(set(dropped_of.values())) > 1:
        listed = ", ".join(f"{task}: {layers_text(layers) or 'none'}" for task, layers in dropped_of.items())
        every = layers_text(tuple({layer for layers in dropped_of.values() for layer in layers}))
        raise PipelineError(
            f"fuse: the adapters leave out different layers ({listed}): give --drop-layers {every}, or name adapters"
            " that agree (--sources TASK@RUN)"
        )
    return next(iter(dropped_of.values()))
