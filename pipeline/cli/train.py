"""Verbs that make models: extract, fuse, prune, pretrain, demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from pipeline.cli import options
from pipeline.cli.printing import print_result, print_run
from pipeline.settings.parts import EXPERTS, MOST_EXPERTS, SUMMARIES, AdapterKind, FusionForm, FusionImplementation
from pipeline.system.errors import PipelineError
from pipeline.system.streams import LIBRARIES, announce

Sources = Annotated[str | None, Parameter(name=("--sources", "--adapters"))]


def extract(
    *,
    task: str,
    adapter: AdapterKind | None = None,
    bottleneck: Annotated[int | None, options.Advanced] = None,
    drop_layers: Annotated[str | None, options.Advanced] = None,
    train_layernorm: Annotated[options.Flag, options.Advanced] = False,
    start_from: str | None = None,
    without_rows_of: Annotated[str | None, options.Advanced] = None,
    soup: Annotated[int, options.between(1, MOST_EXPERTS)] = 1,
    places: options.Places = options.Places(),
    training: options.Training = options.Training(),
    running: options.OneRun = options.OneRun(),
) -> None:
    """Stage one: train an adapter for a task on the frozen backbone.

    Args:
        task: A built-in task (see tasks list), <data>/TASK/task.toml, or a task file.
        adapter: houlsby: bottlenecks after attention and FFN; pfeiffer: after the FFN only; pal: a narrow attention
            layer beside each layer; prefix: vectors in front of each layer's input; prefix-tuning: keys and values in
            front of each layer's own; lora: low-rank terms on query and value; ia3: vectors that rescale keys, values
            and the feed-forward layer; bitfit: biases; unipelt: gated bottlenecks, prefixes and LoRA (houlsby). Only
            bottlenecks can be fused.
        bottleneck: Width of the adapter (64).
        drop_layers: Layers without an adapter, such as 0-4 or 0,1,3: faster; the lowest layers cost least score (none).
        train_layernorm: Train the LayerNorms too; such an adapter cannot be fused.
        start_from: Warm-start from another task's adapter, TASK or TASK@RUN. Of several with commas, or with best of
            all in the store, from the one that a linear probe finds most useful, if any helps. TASK itself: continue
            its last model that was trained on other rows, as after tasks add (a new adapter).
        without_rows_of: Leave out training rows whose text occurs in dev or test of these tasks, such as sts,mrpc: the
            targets that this adapter will be fused for (none).
        soup: Train N adapters that start alike and see the rows in other orders, and keep the mean of their weights.
            It is one adapter, and averages out some of what a few hundred rows leave to chance; N times the time.
    """
    apart = options.names_in(without_rows_of) or ()
    own = {"adapter": adapter, "bottleneck": bottleneck, "drop_layers": drop_layers, "train_layernorm": train_layernorm}
    recipe = training.parse("adapter", **own)
    itself, *others = (task.name for task in places.check(task, *apart, *options.tasks_in(start_from)))
    if itself in others[: len(apart)]:
        named = apart[others.index(itself)]
        raise PipelineError(f"--without-rows-of: {named} is the task itself: --drop-overlap drops its own")
    announce(LIBRARIES)
    from stages import extract as stage

    trained = stage.extract(
        task,
        recipe,
        places.workspace(running),
        seed=running.seed,
        limit=running.limit,
        start_from=start_from,
        without_rows_of=apart,
        soup=soup,
        force=running.force,
        probed=True,
        given=training.given(**own),
    )
    print_run(trained.record, running.json, is_new=trained.is_new, probe=trained.probe)


def fuse(
    *,
    target: str,
    sources: Sources = None,
    adapter: Annotated[Literal["houlsby", "pfeiffer"] | None, options.Advanced] = None,
    drop_layers: Annotated[str | None, options.Advanced] = None,
    fusion: Annotated[FusionForm | None, Parameter(help=f"{SUMMARIES} (gated).")] = None,
    fusion_impl: Annotated[FusionImplementation | None, options.Advanced] = None,
    experts: Annotated[int | None, options.between(2, MOST_EXPERTS)] = None,
    target_limit: Annotated[options.Count, options.Advanced] = None,
    places: options.Places = options.Places(),
    training: options.Training = options.Training(),
    running: options.OneRun = options.OneRun(),
) -> None:
    """Stage two: train fusion layers over the adapters of several tasks for one target.

    Args:
        target: The task that the fusion is for.
        sources: Tasks to fuse for the target, such as sst,quora, or sst@RUN for one of several adapters. Missing
            adapters are trained first, with the training options that apply; so is the target's own adapter, if the
            fusion uses it. best:8 takes the eight adapters in the store that linear probes rank highest; a gated
            fusion then keeps those that help together (every adapter in the store that fits).
        adapter: Kind of the adapters to fuse (houlsby).
        drop_layers: Layers without fusion, such as 0-4 or 0,1,3 (those without adapters).
        fusion_impl: How fusion is computed: fast, or stock for AdapterHub's own code; equal up to rounding (fast).
        experts: Number of adapters in a fusion of experts (3). They are trained on the target, all warm-started from
            the same source, and their mean is taken in every layer.
        target_limit: Use only N training rows of the target; sources that are trained first keep --limit (as --limit).
    """
    own = {"adapter": adapter, "drop_layers": drop_layers, "fusion": fusion, "fusion_impl": fusion_impl}
    recipe = training.parse("fusion", **own)
    if experts is not None and not recipe.form.of_target:
        raise PipelineError(f"--experts {experts}: only --fusion experts has them")
    places.check(target, *options.tasks_in(sources))
    announce(LIBRARIES)
    from stages import fuse as stage

    trained = stage.fuse(
        target,
        recipe,
        places.workspace(running),
        seed=running.seed,
        limit=running.limit,
        target_limit=target_limit,
        sources=sources,
        experts=experts or EXPERTS,
        force=running.force,
        probed=True,
        given=training.given(**own),
    )
    print_run(trained.record, running.json, is_new=trained.is_new, probe=trained.probe)


def prune(
    *,
    target: str,
    keep: int,
    using: str = "fusion",
    dev_limit: options.Count = None,
    force: options.Flag = False,
    json: options.Json = False,
    places: options.Places = options.Places(),
) -> None:
    """Remove the adapters of a trained fusion that get the least attention; nothing is trained.

    Args:
        target: The task that the fusion is for.
        keep: How many adapters to keep: those with the most attention on dev.
        using: A RUN of a fusion, or fusion: the target's best on dev.
        dev_limit: Select and score on only N rows of dev, the same for every run (all).
        force: Prune again even if this run is finished.
    """
    running = options.Running(dev_limit=dev_limit)
    places.check(target)
    announce(LIBRARIES)
    from stages import prune as stage

    workspace = places.workspace(running, usual="")
    made = stage.prune(target, workspace, keep=keep, using=using, force=force)
    print_run(made.record, json, is_new=made.is_new, shares=stage.shares_of(made.record, workspace))


def pretrain(
    *,
    tasks: str,
    output: Path,
    seed: options.Seed = 0,
    places: options.Places = options.Places(),
    training: options.Training = options.Training(),
    running: options.Running = options.Running(),
) -> None:
    """Pretrain the backbone further on the training texts of tasks, as a masked language model.

    The result is a folder for --backbone of every other command. By default the encoder learns at 1e-5, and a new
    head at 1e-3. Training options that describe tasks, such as --head, have no effect.

    Args:
        tasks: The tasks whose texts are read, such as sst,quora.
        output: Folder for the backbone.
        seed: Determines the order of texts, which tokens are masked, and dropout.
    """
    recipe, names = training.parse("full"), options.names_in(tasks) or []
    places.check(*names)
    announce(LIBRARIES)
    from stages import pretrain as stage

    workspace = places.workspace(running)
    made = stage.pretrain(names, output, recipe, workspace, seed=seed, limit=running.limit)
    pretrained = made.record
    accuracy = pretrained.masked_accuracy
    lines = [
        f"pretrain {', '.join(pretrained.rows)}: masked-token accuracy {accuracy.after:.1%}, before"
        f" {accuracy.before:.1%} (epoch {pretrained.best_epoch}), {pretrained.seconds:.0f} s",
        f"saved in {output}: use it with --backbone {output}",
    ]
    if not made.is_new:
        lines.append("It was finished before: nothing was computed. Delete the folder to train it again")
    print_result(lines, pretrained.summary(), running.json)


def demo(*, output: Path = Path("demo"), seed: options.Seed = 0) -> int:
    """The whole pipeline on generated tasks and a nano BERT, with no download: a few minutes on two cores.

    Args:
        output: Folder for everything that it makes.
        seed: Determines the generated tasks and the backbone.
    """
    announce(LIBRARIES)
    from stages import demo as stage

    return stage.demo(output, seed)
