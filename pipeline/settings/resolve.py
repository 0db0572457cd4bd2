"""Resolve a recipe for one task: fill every None, and reset settings without effect to their defaults."""

from typing import Any

from pipeline.data.tasks import PAIR_HEADS, Encoding, HeadKind, Task
from pipeline.settings.parts import ADAPTER_KINDS, BOTTLENECKS, FormSettings, check_layers
from pipeline.settings.recipe import FLAGS, OF_PREDICTION, Precision, Recipe, Trainable, check_pairing
from pipeline.system.errors import PipelineError

# Starting points, not the result of a sweep. Published rates on BERT-base: 1e-4..1e-3 for Houlsby adapters, 5e-5 for
# fusion and 1e-5..5e-5 for full fine-tuning; a small backbone and few epochs need the upper end.
LEARNING_RATES: dict[Trainable, float] = {"head": 1e-3, "adapter": 1e-3, "full": 5e-5, "full+adapter": 5e-5}

# Settings that matter to a model without training; then those that also matter to a probe, and to joined adapters.
_SCORING = OF_PREDICTION.union(
    ("trainable", "encoding", "pooling", "max_length", "truncation", "pairs", "batch_size", "precision")
)
_SOLVED = frozenset({"class_weights", "extra", "permute_labels"})
_JOINED = frozenset({"adapter", "bottleneck", "fusion", "merge", "extra", "permute_labels"})


def resolve(
    recipe: Recipe,
    task: Task,
    precision: Precision,
    longest: int | None = None,
    depth: int | None = None,
    joint: bool = False,
) -> Recipe:
    """Fill every ``None`` of ``recipe`` from ``task`` and the method, so that equal training has equal recipes.

    Settings without effect are reset to their defaults, so that they cannot tell runs apart. Raises a
    :class:`PipelineError` for what cannot work for ``task`` or the backbone. Idempotent.

    Args:
        precision: the meaning of ``auto`` on this machine.
        longest: maximum input of the backbone, in tokens.
        depth: its number of layers.
        joint: whether the task trains together with others.
    """
    encoding, head = _reading(recipe, task)
    if task.first_is_similar:
        recipe = recipe.model_copy(update={"cosine_similar": "first"})
    if recipe.trainable == "fusion" and recipe.adapter.kind not in BOTTLENECKS:
        raise PipelineError(
            f"adapter '{recipe.adapter.kind}' cannot be fused: fusion mixes the outputs of bottlenecks"
            f" ({' or '.join(sorted(BOTTLENECKS))})"
        )
    usual = Recipe()
    defaults = usual.flat() | usual.model_dump()
    without = [name for name, effective in _effects(recipe, task, encoding, head, joint).items() if not effective]
    resolved = recipe.changed({name: defaults[name] for name in without}).model_copy(
        update={
            "encoding": encoding,
            "head": head,
            "pooling": recipe.pooling or task.pooling,
            "max_length": length_for(recipe, task, longest),
            "precision": precision if recipe.precision == "auto" else recipe.precision,
        }
    )
    if depth is not None:
        if (layers := resolved.joint.split_layers) > depth:
            raise PipelineError(f"split_layers {layers}: the backbone has {depth} layers; give 0 to {depth}")
        check_layers(resolved.adapter.drop_layers, depth)
    # Only this kind starts from the states of tokens, which have positions; the others draw their vectors.
    if longest is not None and resolved.adapter.kind == "prefix" and (length := resolved.prefix.length) > longest:
        raise PipelineError(
            f"prefix_length {length} is more than the backbone can read ({longest}): use {longest} or less"
        )
    return resolved.model_copy(update=_by_method(resolved, has_weights=head != "cosine" or joint))


def length_for(recipe: Recipe, task: Task, longest: int | None = None) -> int:
    """How many tokens of ``task``'s inputs to read, at most ``longest``; a PipelineError if the recipe wants more."""
    if recipe.max_length is not None and longest is not None and recipe.max_length > longest:
        raise PipelineError(
            f"max_length {recipe.max_length} is more than the backbone can read ({longest}): use --max-length"
            f" {longest} or less"
        )
    return recipe.max_length or min(task.max_length, longest or task.max_length)


def _reading(recipe: Recipe, task: Task) -> tuple[Encoding, HeadKind]:
    """How to encode inputs of ``task``, and the head that reads them."""
    if task.is_pair:
        usual_head: HeadKind = "difference" if recipe.encoding == "siamese" else "linear"
        if recipe.is_solved:
            usual_head = "linear" if recipe.encoding == "cross" else "comparison"
        is_usual = recipe.encoding in (None, task.encoding) and not recipe.is_solved
        head = recipe.head or (task.head if is_usual else usual_head)
        encoding = recipe.encoding or ("siamese" if head in PAIR_HEADS else task.encoding)
    else:
        # A single text has one encoding; the option may still be given, to select the adapters to fuse with.
        head, encoding = recipe.head or ("linear" if recipe.is_solved else task.head), "cross"
        if head in PAIR_HEADS:
            raise PipelineError(
                f"head '{head}' compares two sentences, but task '{task.name}' has one text column:"
                " use --head linear or mlp"
            )
    try:
        check_pairing(encoding, head)
    except ValueError as error:
        raise PipelineError(f"recipe for {task.name}: head: {error}") from None
    if recipe.is_solved and (head == "cosine" or head.endswith("mlp")):
        raise PipelineError(f"head '{head}': a probe solves one linear layer: leave the head of '{task.name}' out")
    if head == "cosine" and (task.kind == "labels" or (task.kind == "classes" and len(task.classes) != 2)):
        has = "several labels a row" if task.kind == "labels" else task.outputs
        raise PipelineError(f"head 'cosine' needs two classes or a score; task '{task.name}' has {has}")
    if recipe.one_logit and (task.kind != "classes" or len(task.classes) != 2):
        what = {"classes": f"{task.outputs} classes", "score": "a score", "labels": "several labels a row"}[task.kind]
        raise PipelineError(f"one_logit separates two classes; task '{task.name}' has {what}: leave it out there")
    if recipe.one_logit and head == "cosine":
        raise PipelineError(f"one_logit: the cosine of '{task.name}' is one number already: leave it out there")
    if any(source.task in (task.name, *task.aliases) for source in recipe.extra):
        raise PipelineError(f"extra: '{task.name}' is the task itself, whose rows are there: leave it out")
    return encoding, head


def _is_frozen(recipe: Recipe) -> bool:
    """Whether only the head trains."""
    return recipe.freezes_encoder or not recipe.form.trains


def _on_any_task(recipe: Recipe) -> dict[str, bool]:
    """Which parts and flat keys have an effect, as far as the recipe alone decides; later entries win."""
    fuses, full, form = recipe.trainable == "fusion", recipe.trainable == "full", recipe.form
    kind_part = ADAPTER_KINDS[recipe.adapter.kind] if recipe.adds_adapters else ""
    return {
        "adapter": recipe.has_modules or fuses,
        **{part: part == kind_part for part in ADAPTER_KINDS.values() if part},
        "merge": recipe.trainable == "adapter",
        "ties_density": recipe.merge.rule == "ties",
        "ties_scale": recipe.merge.rule == "ties",
        "train_merged": recipe.merge.rule != "none",
        "fusion": fuses,
        **{name: value is form for name, value in recipe if isinstance(value, FormSettings)},
        "gate_rank": recipe.gated.gate == "matrix",
        "head_start": form.fuses_own and not recipe.is_averaged,
        "pretrained": full or recipe.trainable == "full+adapter",
        "second_encoder": full,
        "embedding_learning_rate": not recipe.pretrained.freeze_embeddings,
        "smart_direction": recipe.smart.weight > 0,
        "smart_radius": recipe.smart.weight > 0,
        "contrastive_temperature": recipe.contrastive.weight > 0,
        "hidden_dropout": not _is_frozen(recipe),  # frozen layers run without it
    }


def keys_without_effect(recipe: Recipe, task: Task | None = None) -> set[str]:
    """The flat keys of ``recipe``, or of its parts, without effect when it trains ``task`` alone; None: on any task.

    Raises:
        PipelineError: as :func:`resolve`.
    """
    on_task = None if task is None else _effects(recipe, task, *_reading(recipe, task), joint=False)
    without = {name for name, effective in (on_task or _on_any_task(recipe)).items() if not effective}
    return {key for key in recipe.flat() if key in without or FLAGS.get(key, ("",))[0] in without}


def _effects(recipe: Recipe, task: Task, encoding: Encoding, head: HeadKind, joint: bool) -> dict[str, bool]:
    """Which parts and flat keys have an effect on ``task``; those that are missing have one."""
    has_effect = {
        **_on_any_task(recipe),
        "pairs": task.is_pair and encoding == "cross",
        "joint": joint,
        "truncation": not task.is_pair,
        # Frozen vectors do not move; joint training may have other tasks that it reads.
        "contrastive": (joint or (task.kind == "classes" and head != "cosine")) and not _is_frozen(recipe),
        "head_dropout": head != "cosine",
        "head_learning_rate": head != "cosine" or joint,
        "cosine_scale": head == "cosine" and task.kind == "score",
        "cosine_threshold": head == "cosine" and task.kind == "classes",
        "cosine_similar": head == "cosine" and task.kind == "classes",
        "score_loss": task.kind == "score" and not (_is_frozen(recipe) and head == "cosine" and not joint),
        "class_weights": task.kind == "classes",
        "label_smoothing": task.kind == "classes" and head != "cosine",  # a cosine has no probabilities to smooth
        # A trained backbone trains its LayerNorms: copies of them only make sense for several tasks.
        "train_layernorm": recipe.trainable != "full+adapter" or joint,
        "split_layers": recipe.trainable == "full",
        "temperature": recipe.joint.mixing == "temperature",
    }
    if _is_frozen(recipe) and head == "cosine" and not joint:  # a cosine has no weights, so nothing trains
        adapted = _JOINED if recipe.trainable == "fusion" else frozenset()
        has_effect |= dict.fromkeys(Recipe.model_fields.keys() - _SCORING - adapted, False)
    elif recipe.is_solved:
        has_effect |= dict.fromkeys(Recipe.model_fields.keys() - _SCORING - _SOLVED, False)
    elif recipe.is_averaged:
        has_effect |= dict.fromkeys(Recipe.model_fields.keys() - _SCORING - _JOINED, False)
    return has_effect


def _by_method(recipe: Recipe, has_weights: bool) -> dict[str, Any]:
    """The values for every None that depends on the method.

    ``learning_rate`` is that of the modules, or without modules, of the backbone or the head alone. Any other rate is
    None if it equals this one.

    Args:
        has_weights: whether the head has any.
    """
    usual = recipe.learning_rate or LEARNING_RATES.get(recipe.trainable, recipe.form.learning_rate_default)
    head = (recipe.head_learning_rate or usual) if has_weights else usual
    backbone = recipe.pretrained.learning_rate or usual
    modules = head if _is_frozen(recipe) else {"full": backbone}.get(recipe.trainable, usual)
    if not has_weights:
        head = modules
    embeddings = recipe.pretrained.embedding_learning_rate
    if embeddings == backbone and recipe.pretrained.layer_decay == 1:
        embeddings = None
    own_backbone = backbone if "full" in recipe.trainable and backbone != modules else None
    rates = {"learning_rate": own_backbone, "embedding_learning_rate": embeddings}
    merges = recipe.trainable == "adapter" and recipe.merge.rule != "none"
    # These start as a model of the target, whose score may be the best; if nothing trains, there is only the start.
    usual_start = recipe.form.anchored or recipe.form.of_target or merges or (_is_frozen(recipe) and not has_weights)
    return {
        **recipe.budget,
        "learning_rate": modules,
        "head_learning_rate": None if head == modules else head,
        "pretrained": recipe.pretrained.model_copy(update=rates),
        "score_start": usual_start if recipe.score_start is None else recipe.score_start,
        **{name: recipe.form.resolved(modules) for name, value in recipe if value is recipe.form},
    }
