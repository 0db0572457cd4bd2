"""A resolved recipe says all that determines training and nothing else; a bad one is told all its mistakes at once."""

import math
from typing import Any, get_args

import pytest

from pipeline.data.tasks import Task, built_in_tasks, find_task
from pipeline.records.run_record import SCHEMA
from pipeline.settings.parts import ADAPTER_KINDS, BOTTLENECKS, FusionForm, Pal
from pipeline.settings.recipe import FLAGS, PARTS, Recipe, layered
from pipeline.settings.resolve import keys_without_effect, resolve
from pipeline.system.atomic import canonical_json
from pipeline.system.errors import PipelineError

SST, QUORA, STS = (find_task(name) for name in ("sst", "quora", "sts"))
TRAINABLE = {"head": (4, 1e-3), "adapter": (4, 1e-3), "fusion": (3, 1e-3), "full": (4, 5e-5), "full+adapter": (4, 5e-5)}
SIAMESE = Task.model_validate(
    STS.model_dump() | {"name": "apart", "encoding": "siamese", "pooling": "cls", "head": "difference"}
)


def resolved(task: Task, **values: Any) -> Recipe:
    return resolve(Recipe.parse(values, "test"), task, "fp32")


@pytest.mark.covering(1)
@pytest.mark.parametrize("trainable", TRAINABLE)
@pytest.mark.parametrize("task", built_in_tasks().values(), ids=list(built_in_tasks()))
def test_every_none_is_filled_from_the_task_and_from_what_is_trained(task: Task, trainable: Any) -> None:
    recipe = resolved(task, trainable=trainable)
    assert (recipe.encoding, recipe.pooling, recipe.head, recipe.max_length) == (
        task.encoding,
        task.pooling,
        task.head,
        task.max_length,
    )
    assert (recipe.epochs, recipe.learning_rate) == TRAINABLE[trainable]
    assert recipe.precision == "fp32"


@pytest.mark.parametrize(("longest", "expected"), [(512, STS.max_length), (STS.max_length, STS.max_length), (64, 64)])
def test_a_backbone_that_reads_less_than_the_task_asks_for_bounds_the_length(longest: int, expected: int) -> None:
    assert resolve(Recipe(), STS, "fp32", longest).max_length == expected


def test_resolving_twice_changes_nothing() -> None:
    for trainable in TRAINABLE:
        for task in (SST, STS, SIAMESE):
            recipe = resolved(task, trainable=trainable, bottleneck=8, train_layernorm=True)
            assert resolve(recipe, task, "bf16") == recipe


@pytest.mark.parametrize(
    ("task", "given", "encoding", "head"),
    [
        (STS, {}, "cross", "linear"),
        (STS, {"head": "cosine"}, "siamese", "cosine"),
        (STS, {"head": "difference"}, "siamese", "difference"),
        (STS, {"head": "difference-mlp"}, "siamese", "difference-mlp"),
        (QUORA, {"head": "cosine"}, "siamese", "cosine"),
        (STS, {"encoding": "siamese"}, "siamese", "difference"),
        (STS, {"encoding": "siamese", "head": "linear"}, "siamese", "linear"),
        (STS, {"head": "mlp"}, "cross", "mlp"),
        (SIAMESE, {}, "siamese", "difference"),
        (SIAMESE, {"encoding": "siamese"}, "siamese", "difference"),
        (SIAMESE, {"encoding": "cross"}, "cross", "linear"),
        (SIAMESE, {"head": "linear"}, "siamese", "linear"),
    ],
)
def test_a_head_that_compares_sentences_has_them_apart_and_an_encoding_has_its_head(
    task: Task, given: dict[str, Any], encoding: str, head: str
) -> None:
    recipe = resolved(task, **given)
    assert (recipe.encoding, recipe.head) == (encoding, head)


@pytest.mark.parametrize("encoding", ["cross", "siamese"])
@pytest.mark.parametrize("head", [None, "linear", "mlp"])
def test_the_encoding_of_a_task_with_one_text_has_no_effect(encoding: str, head: str | None) -> None:
    assert resolved(SST, encoding=encoding, head=head) == resolved(SST, head=head)


@pytest.mark.parametrize("head", ["cosine", "difference", "difference-mlp"])
@pytest.mark.parametrize("encoding", [None, "siamese"])
def test_a_task_with_one_text_cannot_have_a_head_that_compares_two(head: str, encoding: str | None) -> None:
    with pytest.raises(PipelineError, match=f"head '{head}' compares two sentences, but task 'sst' has one"):
        resolved(SST, head=head, encoding=encoding)


def test_a_cosine_alone_has_nothing_to_train_and_is_scored_as_it_is() -> None:
    plain = resolved(STS, head="cosine", trainable="head")
    assert plain.score_start
    settings = {"epochs": 9, "learning_rate": 0.5, "min_steps": 7, "evaluations": 2, "gradient_accumulation_steps": 2}
    assert resolved(STS, head="cosine", trainable="head", **settings) == plain
    assert not resolved(STS, head="cosine", trainable="adapter").score_start


@pytest.mark.covering(1)
@pytest.mark.parametrize("epochs", range(1, 12))
@pytest.mark.parametrize("evaluations", [None, *range(1, 13)])
def test_evaluations_are_spread_evenly_and_the_last_epoch_has_one(evaluations: int | None, epochs: int) -> None:
    recipe = Recipe(evaluations=evaluations)
    scored = [epoch for epoch in range(1, epochs + 1) if recipe.scored(epoch, epochs)]
    assert len(scored) == min(evaluations or epochs, epochs)
    assert scored[-1] == epochs
    gaps = [after - before for before, after in zip([0, *scored], scored, strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_a_cosine_tells_two_classes_apart_and_no_more() -> None:
    three = Task.model_validate(QUORA.model_dump() | {"classes": ("a", "b", "c")})
    with pytest.raises(PipelineError, match=r"needs two classes or a score; task 'quora' has 3"):
        resolved(three, head="cosine")


# Equal training, equal recipes: otherwise the same run would be made twice under two names.

OF_BACKBONE: list[dict[str, Any]] = [
    {"backbone_learning_rate": 1e-6},
    {"layer_decay": 0.9},
    {"embedding_learning_rate": 1e-6},
    {"freeze_embeddings": True},
]


@pytest.mark.parametrize(
    ("trainable", "inert"),
    [
        *((trainable, {"adapter": "pfeiffer"}) for trainable in ("head", "full")),
        *((trainable, {"bottleneck": 8}) for trainable in ("head", "full")),
        *((trainable, {"train_layernorm": True}) for trainable in ("head", "full", "full+adapter")),
        *((trainable, {"fusion_regularization": 0.5}) for trainable in ("head", "full", "adapter", "fusion")),
        *((trainable, {"head_start": False}) for trainable in ("head", "full", "adapter")),
        *((trainable, {"fusion": "standard"}) for trainable in ("head", "adapter", "full")),
        *((trainable, {"fusion_rank": 5}) for trainable in ("head", "adapter", "full")),
        ("fusion", {"fusion": "anchored", "bottleneck": 8}),
        ("fusion", {"fusion": "anchored", "train_layernorm": True}),
        *((trainable, {"pal_size": 24}) for trainable in TRAINABLE),
        *((trainable, {"pal_heads": 6}) for trainable in TRAINABLE),
        *((trainable, {"prefix_length": 5}) for trainable in TRAINABLE),
        *(("adapter", {key: 4}) for key in ("lora_rank", "unipelt_bottleneck", "unipelt_prefix", "unipelt_rank")),
        *(("adapter", {"adapter": kind, "bottleneck": 8}) for kind in ("pal", "prefix", "prefix-tuning")),
        *(("adapter", {"adapter": kind, "train_layernorm": True}) for kind in ("pal", "prefix", "prefix-tuning")),
        *(("adapter", {"adapter": kind, "pal_size": 24}) for kind in ("prefix", "prefix-tuning")),
        ("adapter", {"adapter": "pal", "prefix_length": 5}),
        ("fusion", {"fusion": "standard", "anchor": 1.0}),
        ("fusion", {"fusion": "standard", "fusion_rank": 5}),
        ("adapter", {"encoding": "siamese", "head": "cosine", "head_dropout": 0.4}),
        *(
            (trainable, {"head": head, "cosine_scale": "shifted"})
            for trainable in TRAINABLE
            for head in ("linear", "mlp", "difference", "difference-mlp")
        ),
        ("head", {"head": "cosine", "extra": {"sick": {}}}),
        *((trainable, {"smart_direction": "gradient"}) for trainable in TRAINABLE),
        *((trainable, {"smart_radius": 0.5}) for trainable in TRAINABLE),
        *((trainable, {"truncation": "head-and-tail"}) for trainable in TRAINABLE),
        *(("full", {"encoding": "siamese", **one}) for one in ({"pair_order": "random"}, {"average_orders": True})),
        *(("head", {"head": "cosine", **one}) for one in ({"smart": 1.0}, {"bregman": 1.0})),
        *((trainable, given) for trainable in ("head", "adapter", "fusion") for given in OF_BACKBONE),
        ("full", {"freeze_embeddings": True, "embedding_learning_rate": 1e-6}),
        ("full", {"head": "cosine", "head_learning_rate": 1e-2}),
    ],
    ids=str,
)
def test_a_setting_without_effect_does_not_tell_recipes_apart(trainable: str, inert: dict[str, Any]) -> None:
    without = {key: inert[key] for key in list(inert)[:-1]}
    assert resolved(STS, trainable=trainable, **inert) == resolved(STS, trainable=trainable, **without)
    assert list(inert)[-1] in keys_without_effect(Recipe.parse({"trainable": trainable, **inert}, "test"), STS)


@pytest.mark.parametrize(
    ("trainable", "effective"),
    [
        ("adapter", {"adapter": "pfeiffer"}),
        ("adapter", {"bottleneck": 8}),
        ("adapter", {"train_layernorm": True}),
        ("full+adapter", {"adapter": "pal"}),
        ("full+adapter", {"bottleneck": 8}),
        ("full+adapter", {"drop_layers": [0]}),
        ("adapter", {"adapter": "pal", "pal_size": 24}),
        ("adapter", {"adapter": "pal", "pal_heads": 6}),
        ("adapter", {"adapter": "prefix", "prefix_length": 5}),
        ("adapter", {"adapter": "prefix-tuning", "prefix_length": 5}),
        ("adapter", {"adapter": "lora", "lora_rank": 4}),
        *(("adapter", {"adapter": "unipelt", f"unipelt_{key}": 4}) for key in ("bottleneck", "prefix", "rank")),
        ("fusion", {"adapter": "pfeiffer"}),
        ("fusion", {"fusion": "standard"}),
        ("fusion", {"fusion": "anchored", "fusion_rank": 5}),
        ("fusion", {"fusion": "anchored", "anchor": 1.0}),
        ("fusion", {"fusion": "anchored", "score_start": False}),
        ("fusion", {"fusion": "standard", "fusion_regularization": 0.5}),
        ("fusion", {"fusion": "anchored", "head_start": False}),
        ("full", {"head_dropout": 0.4}),
        ("full", {"batch_size": 8}),
        ("full", {"weight_decay": 0.5}),
        ("full", {"warmup_ratio": 0.5}),
        ("full", {"max_grad_norm": 0.5}),
        ("full", {"min_steps": 10**4}),
        ("full", {"early_stopping_patience": 1}),
        ("full", {"precision": "bf16"}),
        ("full", {"head": "cosine", "cosine_scale": "shifted"}),
        ("full", {"extra": {"sick": {}}}),
        ("head", {"extra": {"sick": {}}}),
        ("full", {"head": "difference-mlp"}),
        *((trainable, {"smart": 1.0}) for trainable in TRAINABLE),
        *((trainable, {"bregman": 1.0}) for trainable in TRAINABLE),
        *((trainable, {"l2_sp": 1.0}) for trainable in TRAINABLE),
        ("full", {"smart": 1.0, "smart_direction": "gradient"}),
        ("full", {"smart": 1.0, "smart_radius": 0.5}),
        ("full", {"pair_order": "random"}),
        ("full", {"average_orders": True}),
        *((trainable, given) for trainable in ("full", "full+adapter") for given in OF_BACKBONE),
    ],
    ids=str,
)
def test_a_setting_with_effect_tells_recipes_apart(trainable: str, effective: dict[str, Any]) -> None:
    without = {key: effective[key] for key in list(effective)[:-1]}
    assert resolved(STS, trainable=trainable, **effective) != resolved(STS, trainable=trainable, **without)
    assert list(effective)[-1] not in keys_without_effect(Recipe.parse({"trainable": trainable, **effective}, "t"), STS)


def test_a_single_text_has_ends_but_no_order() -> None:
    assert resolved(SST, truncation="head-and-tail") != resolved(SST)
    assert resolved(SST, pair_order="random", average_orders=True) == resolved(SST)


def test_a_cosine_over_classes_has_no_scale() -> None:
    assert resolved(QUORA, head="cosine", cosine_scale="shifted") == resolved(QUORA, head="cosine")


def test_class_weights_and_label_smoothing_are_for_classes_and_no_part_of_an_identity_unless_given() -> None:
    weighted = {"class_weights": "balanced", "label_smoothing": 0.1}
    assert weighted.items() <= resolved(SST, **weighted).identity.items()
    assert not weighted.keys() & resolved(SST).identity.keys()
    assert resolved(STS, **weighted) == resolved(STS)
    assert resolved(QUORA, head="cosine", label_smoothing=0.1) == resolved(QUORA, head="cosine")
    assert resolved(QUORA, head="cosine", class_weights="balanced") != resolved(QUORA, head="cosine")


def test_one_logit_is_for_two_classes() -> None:
    assert resolved(QUORA, one_logit=True) != resolved(QUORA)
    for task, what in ((SST, "5 classes"), (STS, "a score")):
        with pytest.raises(PipelineError, match=f"one_logit separates two classes; task '{task.name}' has {what}"):
            resolved(task, one_logit=True)
    with pytest.raises(PipelineError, match="one_logit: the cosine of 'quora' is one number already"):
        resolved(QUORA, one_logit=True, head="cosine")


def test_extra_data_is_the_same_however_it_is_written() -> None:
    written = {"sick": {"scale": [1.25, -1.25]}, "quora": {"labels": {1: 4.0, 0: 1}}}
    again = {"quora": {"labels": {"0": 1.0, "1": 4}}, "sick": {"scale": (1.25, -1.25)}}
    first, second = resolved(STS, extra=written), resolved(STS, extra=again)
    assert first == second
    assert hash(first) == hash(second)
    assert canonical_json(first.model_dump(mode="json")) == canonical_json(second.model_dump(mode="json"))
    assert Recipe.model_validate_json(first.model_dump_json()) == first
    listed = [{"task": name, **source} for name, source in written.items()]
    assert resolved(STS, extra=listed) == resolved(STS, extra=listed[::-1]) == first
    assert [str(source) for source in first.extra] == ["quora (0 as 1, 1 as 4)", "sick (1.25 x -1.25)"]


def test_a_task_is_no_extra_data_of_its_own() -> None:
    for name in ("sts", "stsb"):
        with pytest.raises(PipelineError, match="extra: 'sts' is the task itself"):
            resolved(STS, extra={name: {}})


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"sick": 1}, "'sick': write a table, such as extra = { sick = {} }"),
        ({"sick": {"weight": 2}}, "unknown key"),
        ({"sick": {"labels": {"0": 1}, "scale": [1, 0]}}, "give one of them"),
        ({"sick": {"labels": {"0": "good"}}}, "valid number"),
        ({"sick": {"scale": [1, math.inf]}}, "finite number"),
        ({"Sick!": {}}, "match pattern"),
        ("sick", "valid tuple"),
        ([{"task": "sick"}, {"task": "sick"}], "'sick' is named more than once"),
    ],
)
def test_extra_data_that_is_no_table_of_sources_is_refused(extra: Any, message: str) -> None:
    with pytest.raises(PipelineError, match="extra") as caught:
        Recipe.parse({"extra": extra}, "test")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        *({"mixing": "annealed"}, {"steps_per_epoch": 9}, {"loss_weight": 2.0}, {"gradient_surgery": "pcgrad"}),
        {"trainable": "full+adapter", "train_layernorm": True},  # where all trains, of their own
    ],
    ids=str,
)
def test_what_is_about_several_tasks_has_no_effect_on_one(given: dict[str, Any]) -> None:
    other = Recipe.parse({"trainable": "full", **given}, "test")
    plain = Recipe(trainable=other.trainable)
    assert resolve(other, STS, "fp32") == resolve(plain, STS, "fp32")
    assert resolve(other, STS, "fp32", joint=True) != resolve(plain, STS, "fp32", joint=True)


@pytest.mark.parametrize(
    ("trainable", "given", "expected"),
    [
        ("full", {}, (5e-5, None, None)),
        (
            "full",
            {"learning_rate": 1e-4, "backbone_learning_rate": 1e-4, "head_learning_rate": 1e-4},
            (1e-4, None, None),
        ),
        ("full", {"backbone_learning_rate": 1e-5}, (1e-5, None, 5e-5)),
        ("full", {"learning_rate": 1e-5, "head_learning_rate": 1e-3}, (1e-5, None, 1e-3)),
        ("full", {"learning_rate": 7, "backbone_learning_rate": 1e-5, "head_learning_rate": 1e-3}, (1e-5, None, 1e-3)),
        ("head", {"learning_rate": 7, "head_learning_rate": 1e-4}, (1e-4, None, None)),
        ("adapter", {"learning_rate": 1e-4, "head_learning_rate": 1e-3}, (1e-4, None, 1e-3)),
    ],
    ids=str,
)
def test_equal_learning_rates_are_equal_however_they_are_written(
    trainable: str, given: dict[str, Any], expected: tuple[float, ...]
) -> None:
    recipe = resolved(STS, trainable=trainable, **given)
    assert (recipe.learning_rate, recipe.pretrained.learning_rate, recipe.head_learning_rate) == expected
    assert resolve(recipe, STS, "fp32") == recipe


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 6e-3),
        ({"gate": "vector", "own_adapter": "none"}, 6e-3),
        ({"learning_rate": 6e-3}, None),
        ({"fusion": "standard"}, None),
        ({"fusion": "anchored"}, None),
        ({"trainable": "adapter"}, None),
    ],
    ids=str,
)
def test_the_rate_of_gates_counts_only_where_there_are_gates_of_another_rate(
    given: dict[str, Any], expected: float | None
) -> None:
    usual = resolved(STS, **{"trainable": "fusion", **given})
    recipe = resolved(STS, **{"trainable": "fusion", "gate_learning_rate": 6e-3, **given})
    assert recipe.gated.learning_rate == expected
    assert (recipe == usual) == (recipe.identity == usual.identity) == (expected is None)
    assert "gate_learning_rate" not in usual.identity


def test_a_standard_fusion_has_epochs_and_a_learning_rate_of_its_own() -> None:
    standard, anchored = (resolved(STS, trainable="fusion", fusion=form) for form in ("standard", "anchored"))
    assert (standard.epochs, standard.learning_rate, standard.score_start) == (2, 5e-4, False)
    assert (anchored.epochs, anchored.learning_rate) == TRAINABLE["fusion"]
    assert anchored.score_start


def test_automatic_precision_is_what_the_machine_has() -> None:
    assert resolved(STS) == resolved(STS, precision="fp32")
    assert resolve(Recipe(), STS, "bf16").precision == "bf16"
    assert resolve(Recipe(precision="fp16"), STS, "bf16").precision == "fp16"


OUT_OF_BOUNDS: dict[str, Any] = {
    "learning_rate": -0.001,
    "epochs": 0,
    "warmup_ratio": 1.5,
    "head_dropout": 1.0,
    "weight_decay": -1,
    "max_grad_norm": 0,
    "min_steps": -1,
    "early_stopping_patience": 0,
    "max_length": 3,
    "bottleneck": 0,
    "fusion_regularization": -0.1,
    "gradient_accumulation_steps": 0,
    "smart": -1,
    "smart_radius": 0,
    "bregman": -0.5,
    "l2_sp": -0.5,
    "layer_decay": 0.0,
    "loss_weight": 0,
    "steps_per_epoch": 0,
    "label_smoothing": 1.0,
}
BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "one of each kind": (
        {"epoch": 3, "learning_rate": "fast", "batch_size": 0, "encoding": "cross", "head": "cosine"},
        ["epoch:", "learning_rate:", "batch_size:", "head: 'cosine'"],
    ),
    "words that are not offered": (
        {"trainable": "all", "adapter": "none", "precision": "int8", "pooling": "max", "head": "softmax"},
        ["trainable:", "adapter:", "precision:", "pooling:", "head:"],
    ),
    "rules that are not offered": (
        {"mixing": "random", "schedule": "cosine", "gradient_surgery": "cagrad"},
        ["mixing:", "schedule:", "gradient_surgery:"],
    ),
    "numbers out of bounds": (OUT_OF_BOUNDS, [f"{key}:" for key in OUT_OF_BOUNDS]),
    "bounds at the other end": ({"layer_decay": 1.01, "label_smoothing": -0.1}, ["layer_decay:", "label_smoothing:"]),
    "lists where words belong": ({"encoding": "cross", "head": ["cosine"], "epochs": [1]}, ["head:", "epochs:"]),
}


@pytest.mark.parametrize(("values", "expected"), BAD.values(), ids=list(BAD))
def test_a_bad_recipe_is_told_all_its_mistakes_at_once(values: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(PipelineError) as caught:
        Recipe.parse(values, "mine.toml")
    heading, *lines = (line.strip() for line in str(caught.value).splitlines())
    assert heading == f"mine.toml: {len(expected)} problems"
    assert not [start for start in expected if not any(line.startswith(start) for line in lines)], lines
    assert len(lines) == len(expected)


NUMBERS = ("learning_rate", "weight_decay", "max_grad_norm", "fusion_regularization", "head_dropout", "warmup_ratio")


@pytest.mark.parametrize("key", [*NUMBERS, "label_smoothing"])
@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_no_number_of_a_recipe_is_endless_because_a_run_is_named_by_them_all(key: str, number: float) -> None:
    with pytest.raises(PipelineError, match=f"{key}: "):
        canonical_json(Recipe.parse({key: number}, "test").model_dump())


@pytest.mark.covering(1)
@pytest.mark.parametrize("rows", [1, 31, 200, 300, 1_000, 3_200, 10_000, 100_000])
@pytest.mark.parametrize("epochs", [1, 4, 12, 50])
def test_enough_steps_and_few_evaluations_go_together(rows: int, epochs: int) -> None:
    """Few rows: at least so many steps. Many: the epochs, whatever steps they take. Ten scores at most."""
    recipe = resolved(STS, epochs=epochs, min_steps=400, evaluations=10, batch_size=32)
    passes, steps = recipe.epochs_over(rows), recipe.steps_over(rows)
    assert passes * steps >= 400
    assert passes == epochs or (passes - 1) * steps < 400
    scored = [epoch for epoch in range(1, passes + 1) if recipe.scored(epoch, passes)]
    assert len(scored) == min(10, passes) and scored[-1] == passes


def test_sizes_of_modules_that_cannot_be_are_refused() -> None:
    with pytest.raises(PipelineError) as told:
        Recipe.parse({"pal_size": 10, "pal_heads": 4, "prefix_length": 0}, "test")
    assert "pal_heads: all heads have the same width, so give a divisor of pal_size (10) (got 4)" in str(told.value)
    assert "prefix_length: Input should be greater than or equal to 1 (got 0)" in str(told.value)
    with pytest.raises(PipelineError, match=r"pal_heads: .* divisor of pal_size \(204\)"):
        Recipe.parse({"pal_heads": 5}, "test")
    recipe = Recipe(adapter="prefix", prefix_length=64)
    assert resolve(recipe, STS, "fp32", 64).prefix.length == 64
    with pytest.raises(
        PipelineError, match=r"prefix_length 64 is more than the backbone can read \(63\): use 63 or less"
    ):
        resolve(recipe, STS, "fp32", 63)
    assert resolve(Recipe(adapter="pal", prefix_length=64), STS, "fp32", 63).prefix.length == 10


def test_prefixes_that_need_no_positions_may_be_longer_than_what_the_backbone_reads() -> None:
    assert resolve(Recipe(adapter="prefix-tuning", prefix_length=64), STS, "fp32", 63).prefix.length == 64
    assert resolve(Recipe(adapter="unipelt", unipelt_prefix=64), STS, "fp32", 63).unipelt.prefix == 64


@pytest.mark.parametrize("kind", sorted(ADAPTER_KINDS.keys() - BOTTLENECKS))
def test_fusion_is_over_bottlenecks(kind: str) -> None:
    with pytest.raises(PipelineError, match=f"adapter '{kind}' cannot be fused"):
        resolved(STS, trainable="fusion", adapter=kind)


# Defaults are no part of a run's name. Whoever changes one raises SCHEMA in pipeline/records/run_record.py.
WITHOUT_A_DEFAULT = (
    "encoding pooling head max_length best_sources hidden_dropout epochs min_steps learning_rate "
    "backbone_learning_rate head_learning_rate embedding_learning_rate early_stopping_patience evaluations "
    "score_start steps_per_epoch epoch_of max_steps_per_epoch"
)
OFF = "one_logit train_layernorm freeze_embeddings average_orders train_merged score_train permute_labels"
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(WITHOUT_A_DEFAULT.split()),
    **dict.fromkeys(OFF.split(), False),
    "reshuffle": 0,
    "trainable": "adapter",
    "cosine_scale": "clamped",
    "class_weights": "none",
    "label_smoothing": 0.0,
    "extra": {},
    "adapter": "houlsby",
    "bottleneck": 64,
    "drop_layers": [],
    "pal_size": 204,
    "pal_heads": 12,
    "prefix_length": 10,
    "lora_rank": 8,
    "unipelt_bottleneck": 48,
    "unipelt_prefix": 10,
    "unipelt_rank": 8,
    "anchor": 5.0,
    "fusion_rank": 16,
    "fusion_regularization": 0.01,
    "fusion_impl": "fast",
    "head_start": True,
    "head_dropout": 0.1,
    "layer_decay": 1.0,
    "second_encoder": "none",
    "batch_size": 32,
    "gradient_accumulation_steps": 1,
    "weight_decay": 0.01,
    "schedule": "linear",
    "warmup_ratio": 0.1,
    "max_grad_norm": 1.0,
    "precision": "auto",
    "pair_order": "given",
    "truncation": "head",
    "smart": 0.0,
    "smart_direction": "reference",
    "smart_radius": 1.0,
    "contrastive": 0.0,
    "contrastive_temperature": 0.3,
    "bregman": 0.0,
    "l2_sp": 0.0,
    "mixing": "simultaneous",
    "temperature": 1.0,
    "loss_weight": 1.0,
    "split_layers": 0,
    "gradient_surgery": "none",
    "merge": "none",
    "ties_density": 0.2,
    "ties_scale": 1.0,
    "score_loss": "normalised",
    "cosine_threshold": "zero",
    "cosine_similar": "second",
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "adam_correction": "moments",
    "vector_dropout": 0.0,
}


def test_defaults_are_what_runs_of_this_schema_were_named_by() -> None:
    assert SCHEMA == 6
    flat = Recipe().flat()
    assert {key: flat[key] for key in DEFAULTS} == DEFAULTS
    # An adapter kind or a form of fusion that comes later brings settings of its own, whose defaults its tests know.
    later = {FLAGS[key][0] for key in flat.keys() - DEFAULTS.keys() - {"fusion"}}
    assert later <= {*ADAPTER_KINDS.values(), *get_args(FusionForm)}


@pytest.mark.parametrize(
    ("given", "least", "evaluations", "named"),
    [
        ({}, 400, 10, {"min_steps": 400, "evaluations": 10}),
        ({"evaluations": 3}, 400, 3, {"min_steps": 400, "evaluations": 3}),
        ({"epochs": 4}, 0, None, {"min_steps": 0}),
        ({"min_steps": 0}, 0, None, {"min_steps": 0}),
        ({"min_steps": 70}, 70, None, {"min_steps": 70}),
        ({"epochs": 4, "min_steps": 70}, 70, None, {"min_steps": 70}),
    ],
)
def test_few_rows_get_enough_steps_unless_their_epochs_are_said(
    given: dict[str, int], least: int, evaluations: int | None, named: dict[str, int]
) -> None:
    recipe = resolved(STS, trainable="adapter", **given)
    assert (recipe.min_steps, recipe.evaluations, recipe.epochs) == (least, evaluations, 4)
    assert {key: recipe.identity[key] for key in ("min_steps", "evaluations") if key in recipe.identity} == named
    assert recipe.epochs_over(320) == max(4, least // 10)
    unresolved = Recipe(trainable="adapter", **given)
    assert unresolved.epochs_over(320) == recipe.epochs_over(320)


@pytest.mark.parametrize("form", get_args(FusionForm))
def test_the_form_of_a_fusion_is_always_part_of_its_identity(form: str) -> None:
    assert resolved(STS, trainable="fusion", fusion=form).identity["fusion"] == form
    assert "fusion" not in resolved(STS, trainable="adapter", fusion=form).identity


@pytest.mark.parametrize(
    ("given", "start", "named"),
    [
        ({}, "probe", True),
        ({"gate_start": "probe"}, "probe", True),
        ({"gate_start": 0.5}, 0.5, True),
        ({"gate_start": "even"}, "even", True),
        *(({"own_adapter": own}, "even", True) for own in ("warm", "trained", "frozen", "none")),
        ({"fusion": "standard", "gate_start": "even"}, None, False),
    ],
)
def test_the_start_of_gates_is_part_of_a_gated_fusions_identity(given: dict[str, Any], start: Any, named: bool) -> None:
    recipe = resolved(STS, trainable="fusion", **given)
    assert recipe.gated.start == start
    assert ("gate_start" in recipe.identity) == named


def test_a_key_may_be_written_flat_or_in_its_part() -> None:
    flat = {
        "adapter": "pal",
        "pal_size": 24,
        "smart": 1.0,
        "smart_radius": 0.5,
        "backbone_learning_rate": 1e-5,
        "anchor": 2,
    }
    parts = {
        "adapter": {"kind": "pal"}, "pal": {"size": 24}, "smart": {"weight": 1.0, "radius": 0.5},
        "pretrained": {"learning_rate": 1e-5}, "anchor": {"score": 2},
    }  # fmt: skip
    mixed = {"pal": {"heads": 6}, "pal_size": 24}
    assert Recipe.parse(flat, "test") == Recipe.parse(parts, "test")
    assert Recipe.parse(mixed, "test").pal == Pal(size=24, heads=6)
    assert Recipe(pal=Pal(size=24)) == Recipe(pal_size=24)
    assert Recipe.model_validate_json(Recipe.parse(flat, "test").model_dump_json()) == Recipe.parse(parts, "test")


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flat_key_is_a_key_of_its_part(flag: str) -> None:
    value = Recipe().flat()[flag]
    part, key = FLAGS[flag]
    assert layered({flag: value}) == {part: {key: value}}
    assert Recipe.parse({flag: value}, "test") == Recipe.parse({part: {key: value}}, "test") == Recipe()
    assert flag not in PARTS or next(iter(PARTS[flag].model_fields)) == key


def test_a_later_layer_changes_the_keys_that_it_names() -> None:
    below = {"smart": 1.0, "epochs": 3, "pal": {"size": 24, "heads": 6}}
    assert layered(below, {"smart_radius": 0.5, "pal_size": 12}, {"epochs": 4}) == {
        "smart": {"weight": 1.0, "radius": 0.5},
        "pal": {"size": 12, "heads": 6},
        "epochs": 4,
    }
    changed = resolved(STS, trainable="full", smart=1.0).changed({"smart_radius": 0.5})
    assert (changed.smart.weight, changed.smart.radius) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pal": {"width": 3}}, "pal.width: unknown key"),
        ({"pal": 3}, "pal: Input should be"),
        ({"lora": {"rank": 0}}, "lora_rank: Input should be greater"),
        ({"smart": {"weight": -1}}, "smart: Input should be greater"),
        ({"adapter": ["pal"]}, "adapter: Input should be"),
        ({"joint": {"mixing": "shuffled", "gradient_surgery": "pcgrad"}}, "gradient_surgery: 'pcgrad' combines"),
    ],
    ids=str,
)
def test_a_bad_part_is_told_with_its_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=r"^test: 1 problem\n") as caught:
        Recipe.parse(values, "test")
    assert f"  {message}" in str(caught.value)


def test_a_recipe_is_told_apart_by_what_is_not_at_its_default() -> None:
    assert Recipe().identity == {}
    assert Recipe(epochs=3, smart=0.0, bottleneck=64).identity == {"epochs": 3}
    assert Recipe(extra={"sick": {}}, drop_layers="0-1").identity.keys() == {"extra", "drop_layers"}
    for key, value in {"smart": 1.0, "adapter": "pal", "trainable": "full", "precision": "fp32"}.items():
        assert Recipe(**{key: value}).identity == {key: value}
