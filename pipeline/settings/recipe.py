"""Recipe: everything that determines a training run except its task, seed, data and backbone."""

import json
from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from pipeline.data.tasks import PAIR_HEADS, CosineScale, Encoding, HeadKind, Pooling, Task, Truncation
from pipeline.data.tasks.extra import Extra, extra_table, in_order, parse_extra
from pipeline.settings import parts
from pipeline.settings.layers import check_layers
from pipeline.settings.parts import ADAPTER_KINDS, BOTTLENECKS, Count, Number, Part, Tokens
from pipeline.system.errors import PipelineError, raise_all, validation_problems

Trainable = Literal["head", "adapter", "fusion", "full", "full+adapter"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Schedule = Literal["linear", "noam", "constant"]
AdamCorrection = Literal["moments", "step"]
ScoreLoss = Literal["normalised", "raw"]
CosineThreshold = Literal["zero", "tuned"]
ClassWeights = Literal["none", "balanced"]
Extras = Annotated[
    tuple[Extra, ...], BeforeValidator(parse_extra), AfterValidator(in_order), PlainSerializer(extra_table)
]

# Starting points, not the result of a sweep. Published: 1e-4..1e-3 for Houlsby adapters, 5e-5 for fusion and 1e-5..5e-5
# for full fine-tuning, all on BERT-base; a small backbone and few epochs want the upper end.
LEARNING_RATES: dict[Trainable, float] = {
    "head": 1e-3,
    "adapter": 1e-3,
    "fusion": 1e-3,
    "full": 5e-5,
    "full+adapter": 5e-5,
}
EPOCHS: dict[Trainable, int] = {"head": 4, "adapter": 4, "fusion": 3, "full": 4, "full+adapter": 4}
STANDARD_FUSION_LEARNING_RATE, STANDARD_FUSION_EPOCHS = 5e-4, 2  # many weights, each with little to do
MIN_STEPS, EVALUATIONS = 400, 10
"""Unless epochs are given. A few hundred rows need hundreds of steps (Mosbach et al. 2021, Zhang et al. 2021)."""
_AT_FIRST = (("gate_start", "even"), ("min_steps", 0))

# All that a model is scored by which has nothing to train; a merged adapter also by what it is merged from and how.
_SCORING = frozenset(
    {"trainable", "encoding", "pooling", "head", "cosine_scale", "cosine_threshold", "score_loss", "one_logit"}
    | {"max_length", "truncation", "pairs", "batch_size", "precision"}
)
_MERGED = frozenset({"adapter", "bottleneck", "merge"})


def check_seed(seed: int) -> None:
    """Raise a :class:`PipelineError` for a seed that numpy or torch would refuse."""
    if not 0 <= seed < 2**32:
        raise PipelineError(f"seed {seed}: give a whole number from 0 to 2**32 - 1")


class Recipe(Part):
    """How a model is built and trained. ``None`` means "from the task" or "from ``trainable``" until resolved.

    Each part holds what has an effect together. Its keys may also be written flat, named as the flags of the command
    line are: ``pal_size = 24`` is ``pal = { size = 24 }``.
    """

    trainable: Trainable = Field("adapter", description="what is trained")
    encoding: Encoding | None = Field(None, description="pairs as one input (cross) or two (siamese)")
    pooling: Pooling | None = Field(
        None, description="sentence vector: first token, mean over tokens, or BERT's pretrained pooler"
    )
    head: HeadKind | None = Field(None, description="what turns sentence vectors into a prediction")
    cosine_scale: CosineScale = Field("clamped", description="score by a cosine: its positive part, or (cos + 1) / 2")
    cosine_threshold: CosineThreshold = Field(
        "zero", description="classes by a cosine: the second above 0, or above what does best on the rows that choose"
    )
    score_loss: ScoreLoss = Field(
        "normalised", description="squared error of a score brought to -1..1 (clamped cosine: 0..1), or as it is"
    )
    one_logit: bool = Field(False, description="two classes by one logit and the Bernoulli loss, not by two")
    class_weights: ClassWeights = Field(
        "none", description="balanced: all classes count alike in the loss, however many training rows each has"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of a label that is spread over all classes")
    max_length: Tokens | None = Field(None, ge=4, description="longest input, tokens")
    truncation: Truncation = Field("head", description="what a single text longer than max_length keeps")
    pairs: parts.Pairs = parts.Pairs()
    extra: Extras = Field((), description="tasks whose training rows are added to the target's")
    permute_labels: bool = Field(False, description="a control: training rows get each other's labels, by the seed")

    adapter: parts.AdapterSettings = parts.AdapterSettings()
    bottleneck: parts.Bottleneck = parts.Bottleneck()
    pal: parts.Pal = parts.Pal()
    prefix: parts.Prefix = parts.Prefix()
    lora: parts.Lora = parts.Lora()
    unipelt: parts.Unipelt = parts.Unipelt()
    merge: parts.Merge = parts.Merge()
    fusion: parts.Fusion = parts.Fusion()
    gated: parts.Gated = parts.Gated()
    anchor: parts.Anchor = parts.Anchor()
    standard: parts.Standard = parts.Standard()
    head_dropout: float = Field(0.1, ge=0, lt=1, description="dropout on what the head reads; not of a cosine")
    vector_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on each sentence vector, also below a cosine")
    hidden_dropout: float | None = Field(
        None, ge=0, lt=1, description="in the backbone, if not its own; not of attention"
    )

    epochs: Count | None = Field(None, ge=1, description="passes over the training rows")
    min_steps: Count | None = Field(
        None,
        ge=0,
        description="few rows: as many epochs more as this many optimiser steps take; unset: 400, or 0 with epochs",
    )
    learning_rate: Number | None = Field(None, gt=0, description="peak learning rate")
    head_learning_rate: Number | None = Field(None, gt=0, description="of heads, if another")
    pretrained: parts.Pretrained = parts.Pretrained()
    batch_size: Count = Field(32, ge=1, description="rows per optimiser step, over all processes")
    gradient_accumulation_steps: Count = Field(1, ge=1, description="pieces a batch is run in, to save memory")
    weight_decay: Number = Field(0.01, ge=0, description="AdamW's, not of biases and LayerNorms")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's decay of the mean gradient")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="AdamW's decay of the mean squared gradient")
    adam_epsilon: Number = Field(1e-8, gt=0, description="AdamW's, added to the root of the mean squared gradient")
    adam_correction: AdamCorrection = Field(
        "moments",
        description="AdamW's correction of bias: of both moments, before epsilon (PyTorch), or of the step size (step)",
    )
    schedule: Schedule = Field(
        "linear", description="rates after warm-up: linear to zero; noam: inverse square root of steps; constant"
    )
    warmup_ratio: float = Field(0.1, ge=0, le=1, description="share of steps with rising learning rate")
    max_grad_norm: Number = Field(1.0, gt=0, description="gradient clipping")
    early_stopping_patience: Count | None = Field(None, ge=1, description="stop after so many epochs without gain")
    evaluations: Count | None = Field(
        None,
        ge=1,
        description="score on dev so often; unset: after each epoch, or ten times if min_steps adds epochs unasked",
    )
    score_start: bool | None = Field(None, description="score the start too: it may be kept (anchored, merged: yes)")
    score_train: bool = Field(False, description="score training rows too where dev is scored, at most 1,000 of a task")
    precision: Precision = Field("auto", description="auto: bf16 if it is clearly faster here, else fp32")

    smart: parts.Smart = parts.Smart()
    bregman: Number = Field(0.0, ge=0, description="mu of the Bregman proximal point, closeness to the mean of weights")
    l2_sp: Number = Field(0.0, ge=0, description="alpha of L2-SP, closeness to the pretrained weights; 0 is off")
    joint: parts.Joint = parts.Joint()

    @model_validator(mode="before")
    @classmethod
    def _compose(cls, values: Any) -> Any:
        return layered(values) if isinstance(values, Mapping) else values

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str) -> Self:
        """Validate ``values``; a :class:`PipelineError` names ``where`` and every mistake with its key."""
        raise_all(where, cls.problems(values))
        return cls.model_validate(values)

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        """Every mistake in ``values``, each with its key."""
        problems = _pairing_problems(values.get("encoding"), values.get("head"))
        try:
            cls.model_validate(values)
        except ValidationError as error:
            problems = [*map(_with_flat_key, validation_problems(error)), *problems]
        return problems

    def resolve(
        self,
        task: Task,
        precision: Precision,
        longest: int | None = None,
        depth: int | None = None,
        joint: bool = False,
    ) -> Self:
        """Fill every ``None`` from ``task`` and the method, so that equal training has equal recipes.

        Settings without effect are brought to their defaults, so that they cannot tell runs apart.

        Args:
            precision: what ``auto`` means on this machine.
            longest: what the backbone can read, in tokens.
            depth: its number of layers.
            joint: the task trains together with others.
        """
        encoding, head = self._reading(task)
        resolved = self._in_effect(task, encoding, head, joint).model_copy(
            update={
                "encoding": encoding,
                "head": head,
                "pooling": self.pooling or task.pooling,
                "max_length": self.length_for(task, longest),
                "precision": precision if self.precision == "auto" else self.precision,
            }
        )
        if depth is not None:
            if (layers := resolved.joint.split_layers) > depth:
                raise PipelineError(f"split_layers {layers}: the backbone has {depth} layers; give 0 to {depth}")
            check_layers(resolved.adapter.drop_layers, depth)
        if longest is not None and resolved._kind_part == "prefix" and (length := resolved.prefix.length) > longest:
            raise PipelineError(f"prefix_length {length} is more than the backbone can read ({longest})")
        return resolved.model_copy(update=resolved._by_method(has_weights=head != "cosine" or joint))

    def _reading(self, task: Task) -> tuple[Encoding, HeadKind]:
        """How inputs of ``task`` are encoded, and the head that reads them."""
        if task.is_pair:
            usual_head: HeadKind = "difference" if self.encoding == "siamese" else "linear"
            head = self.head or (task.head if self.encoding in (None, task.encoding) else usual_head)
            encoding = self.encoding or ("siamese" if head in PAIR_HEADS else task.encoding)
        else:
            # One text is encoded alike either way; the option may still be given, to choose what it is fused with.
            head, encoding = self.head or task.head, "cross"
            if head in PAIR_HEADS:
                raise PipelineError(
                    f"head '{head}' compares two sentences, but task '{task.name}' has one text column:"
                    " use --head linear or mlp"
                )
        if problems := _pairing_problems(encoding, head):
            raise PipelineError(f"recipe for {task.name}: 1 mistake\n  {problems[0]}")
        if head == "cosine" and task.kind == "classes" and len(task.classes) != 2:
            raise PipelineError(f"head 'cosine' needs two classes or a score; task '{task.name}' has {task.outputs}")
        if self.one_logit and len(task.classes) != 2:
            what = f"{task.outputs} classes" if task.kind == "classes" else "a score"
            raise PipelineError(f"one_logit tells two classes apart; task '{task.name}' has {what}: leave it out there")
        if self.one_logit and head == "cosine":
            raise PipelineError(f"one_logit: the cosine of '{task.name}' is one number already: leave it out there")
        if any(source.task in (task.name, *task.aliases) for source in self.extra):
            raise PipelineError(f"extra: '{task.name}' is the task itself, whose rows are there: leave it out")
        return encoding, head

    def length_for(self, task: Task, longest: int | None = None) -> int:
        """How many tokens of ``task``'s inputs are read, at most ``longest``; to ask for more is a PipelineError."""
        if self.max_length is not None and longest is not None and self.max_length > longest:
            raise PipelineError(
                f"max_length {self.max_length} is more than the backbone can read ({longest}): use --max-length"
                f" {longest} or less"
            )
        return self.max_length or min(task.max_length, longest or task.max_length)

    @property
    def has_modules(self) -> bool:
        """Whether fresh adapters train."""
        return self.trainable in ("adapter", "full+adapter")

    @property
    def is_merged_only(self) -> bool:
        """Whether it makes an adapter from others and trains nothing."""
        return self.trainable == "adapter" and self.merge.rule != "none" and not self.merge.train

    @property
    def trains_own(self) -> bool:
        """Whether a fusion trains an adapter of the target's with it."""
        gated = self.trainable == "fusion" and self.fusion.form == "gated"
        return gated and self.gated.own in ("fresh", "warm", "trained")

    @property
    def fuses_own(self) -> bool:
        """Whether a fusion takes the target's adapter of stage one."""
        return not (self.trains_own and self.gated.own != "trained")

    @property
    def probes_sources(self) -> bool:
        """Whether probes choose what a fusion starts with."""
        gated = self.fusion.form == "gated" and (self.gated.start == "probe" or self.gated.own == "warm")
        return self.trainable == "fusion" and (gated or self.fusion.best is not None)

    @property
    def _kind_part(self) -> str:
        """The part with the settings of the modules that are trained; empty: it has none."""
        return ADAPTER_KINDS[self.adapter.kind] if self.has_modules or not self.fuses_own else ""

    def _in_effect(self, task: Task, encoding: Encoding, head: HeadKind, joint: bool) -> Self:
        """The same training of ``task``, with all that has no effect on it at its default."""
        if self.trainable == "fusion" and self.adapter.kind not in BOTTLENECKS:
            raise PipelineError(
                f"adapter '{self.adapter.kind}' cannot be fused: fusion mixes the outputs of bottlenecks"
                f" ({' or '.join(sorted(BOTTLENECKS))})"
            )
        fuses, full, kind_part = self.trainable == "fusion", self.trainable == "full", self._kind_part
        has_effect = {
            "adapter": self.has_modules or fuses,
            **{part: part == kind_part for part in ADAPTER_KINDS.values() if part},
            "merge": self.trainable == "adapter",
            "ties_density": self.merge.rule == "ties",
            "ties_scale": self.merge.rule == "ties",
            "train_merged": self.merge.rule != "none",
            "fusion": fuses,
            "gated": fuses and self.fusion.form == "gated",
            "head_start": self.fuses_own,
            "anchor": fuses and self.fusion.form == "anchored",
            "standard": self._is_standard_fusion,
            "pretrained": full or self.trainable == "full+adapter",
            "pairs": task.is_pair and encoding == "cross",
            "smart": self.smart.weight > 0,
            "joint": joint,
            "truncation": not task.is_pair,
            "head_dropout": head != "cosine",
            "cosine_scale": head == "cosine" and task.kind == "score",
            "cosine_threshold": head == "cosine" and task.kind == "classes",
            "score_loss": task.kind == "score" and not (self.trainable == "head" and head == "cosine" and not joint),
            "class_weights": task.kind == "classes",
            "label_smoothing": task.kind == "classes" and head != "cosine",  # a cosine has no probabilities to smooth
            "hidden_dropout": self.trainable != "head",  # what is frozen runs without
            # Where all train, only several tasks could each have their own.
            "train_layernorm": self.trainable != "full+adapter" or joint,
            "second_encoder": full,
            "split_layers": full,
            "embedding_learning_rate": not self.pretrained.freeze_embeddings,
            "temperature": self.joint.mixing == "temperature",
        }
        if self.trainable == "head" and head == "cosine" and not joint:  # it has no weights, so nothing trains
            has_effect |= dict.fromkeys(type(self).model_fields.keys() - _SCORING, False)
        elif self.is_merged_only:
            has_effect |= dict.fromkeys(type(self).model_fields.keys() - _SCORING - _MERGED, False)
        usual = type(self)()
        defaults = usual.flat() | usual.model_dump()
        return self.changed({name: defaults[name] for name, effective in has_effect.items() if not effective})

    def _by_method(self, has_weights: bool) -> dict[str, Any]:
        """What stands for every None that the method decides.

        ``learning_rate`` is that of the modules, or where there are none, of the backbone or the head alone. Another
        rate is None where it equals this one.

        Args:
            has_weights: whether the head has any.
        """
        usual = STANDARD_FUSION_LEARNING_RATE if self._is_standard_fusion else LEARNING_RATES[self.trainable]
        usual = self.learning_rate or usual
        head = (self.head_learning_rate or usual) if has_weights else usual
        backbone = self.pretrained.learning_rate or usual
        modules = {"full": backbone, "head": head}.get(self.trainable, usual)
        if not has_weights:
            head = modules
        embeddings = self.pretrained.embedding_learning_rate
        if embeddings == backbone and self.pretrained.layer_decay == 1:
            embeddings = None
        own_backbone = backbone if "full" in self.trainable and backbone != modules else None
        rates = {"learning_rate": own_backbone, "embedding_learning_rate": embeddings}
        anchored = self.trainable == "fusion" and self.fusion.form == "anchored"
        merges = self.trainable == "adapter" and self.merge.rule != "none"
        usual_budget = self.epochs is None and self.min_steps is None
        # Where nothing trains, the start is all there is to score.
        usual_start = anchored or merges or (self.trainable == "head" and not has_weights)
        return {
            "epochs": self.epochs or self.usual_epochs,
            "min_steps": self.least_steps,
            "evaluations": EVALUATIONS if usual_budget and self.evaluations is None else self.evaluations,
            "learning_rate": modules,
            "head_learning_rate": None if head == modules else head,
            "pretrained": self.pretrained.model_copy(update=rates),
            "score_start": usual_start if self.score_start is None else self.score_start,
            "gated": self.gated.model_copy(update={"start": self._gate_start}),
        }

    @property
    def _gate_start(self) -> float | str | None:
        """How the gates of a gated fusion start; None of what has no gates."""
        if self.trainable != "fusion" or self.fusion.form != "gated" or self.gated.start is not None:
            return self.gated.start
        return "probe" if self.gated.own == "fresh" else "even"

    def changed(self, values: Mapping[str, Any]) -> Self:
        """The same recipe with ``values``, flat or in their parts, in place of its own."""
        return type(self).model_validate(layered(self.model_dump(), values)) if values else self

    def flat(self) -> dict[str, Any]:
        """Its values, as JSON has them, under their flat names."""
        values = self.model_dump(mode="json")
        in_parts = {flag: values[part][key] for flag, (part, key) in FLAGS.items()}
        return {key: value for key, value in values.items() if key not in PARTS} | in_parts

    @property
    def identity(self) -> dict[str, Any]:
        """The part of a resolved recipe that identifies a run: a fusion's form, and all that is not at its default.

        A key that comes in a later version is at its default in the runs of earlier ones, which keep their names. A
        default that changes needs another ``SCHEMA`` of the ledger, or unlike runs would be taken for one. The form of
        a fusion is always named, since its default has changed; even gates and no least steps never are, since all runs
        had these at first.
        """
        usual, always = type(self)().flat(), {"fusion"} if self.trainable == "fusion" else set[str]()
        differing = {flag: value for flag, value in self.flat().items() if flag in always or value != usual[flag]}
        return {flag: value for flag, value in differing.items() if (flag, value) not in _AT_FIRST}

    @property
    def usual_epochs(self) -> int:
        """What ``epochs`` of None means."""
        return STANDARD_FUSION_EPOCHS if self._is_standard_fusion else EPOCHS[self.trainable]

    @property
    def _is_standard_fusion(self) -> bool:
        return self.trainable == "fusion" and self.fusion.form == "standard"

    def epochs_over(self, rows: int) -> int:
        """Passes over ``rows`` training rows: ``epochs``, or more where those are fewer than ``min_steps`` steps."""
        return self.epochs_of(self.steps_over(rows))

    def epochs_of(self, steps: int) -> int:
        """The same for passes of ``steps`` optimiser steps."""
        epochs = self.usual_epochs if self.epochs is None else self.epochs
        return max(epochs, -(-self.least_steps // steps))

    @property
    def least_steps(self) -> int:
        """What ``min_steps`` of None means: whoever says how many epochs has said how long to train."""
        if self.min_steps is not None:
            return self.min_steps
        return MIN_STEPS if self.epochs is None else 0

    def scored(self, epoch: int, epochs: int) -> bool:
        """Whether ``epoch`` (from 1) of ``epochs`` ends with a score on dev; ``evaluations`` are spread evenly.

        The last one always does.
        """
        count = min(self.evaluations or epochs, epochs)
        return epoch * count // epochs > (epoch - 1) * count // epochs

    def joint_steps(self, batches: Mapping[str, int]) -> int:
        """Steps of an epoch of joint training, from the batches that a pass over each task has."""
        if self.joint.steps_per_epoch is not None:
            return self.joint.steps_per_epoch
        most = self.joint.max_steps_per_epoch or sum(batches.values()) * len(batches)
        if self.joint.mixing in ("simultaneous", "round-robin"):
            passed = batches.get(self.joint.epoch_of or "", min(batches.values()))
            return min(passed * (1 if self.joint.mixing == "simultaneous" else len(batches)), most)
        return min(sum(batches.values()), most)

    def steps_over(self, rows: int) -> int:
        """Optimiser steps of one pass over ``rows`` training rows; the last may be of fewer rows."""
        return -(-rows // self.batch_size)


def _pairing_problems(encoding: Any, head: Any) -> list[str]:
    if encoding == "cross" and isinstance(head, str) and head in PAIR_HEADS:
        return [f"head: '{head}' compares two sentence vectors, so it needs encoding = 'siamese' (got 'cross')"]
    return []


PARTS: dict[str, type[Part]] = {
    name: field.annotation
    for name, field in Recipe.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Part)
}
FLAGS: dict[str, tuple[str, str]] = {
    f"{name}_{key}" if part.flags is None else part.flags.get(key, key): (name, key)
    for name, part in PARTS.items()
    for key in part.model_fields
}
"""Where the flat keys of a recipe belong: the part, and the key in it."""


def table(value: Any) -> dict[str, Any]:
    """``value`` where it is a table; else nothing, since validation reports it."""
    return value if isinstance(value, dict) else {}


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Raw values of recipes, the later ones over the former; flat keys go into their parts, which merge key by key."""
    whole: dict[str, Any] = {}
    for name, value in chain.from_iterable(layer.items() for layer in layers):
        if isinstance(value, Part):
            value = value.model_dump()
        if name in FLAGS and not (name in PARTS and isinstance(value, Mapping)):
            name, key = FLAGS[name]
            value = {key: value}
        whole[name] = {**table(whole.get(name)), **value} if name in PARTS and isinstance(value, Mapping) else value
    return whole


def has_key(values: Mapping[str, Any], key: str) -> bool:
    """Whether ``values``, which are :func:`layered`, have a value for the flat key."""
    part, inner = FLAGS.get(key, ("", key))
    return inner in (table(values.get(part)) if part else values)


def _with_flat_key(problem: str) -> str:
    key, colon, rest = problem.partition(":")
    return {f"{part}.{key}": flag for flag, (part, key) in FLAGS.items()}.get(key, key) + colon + rest


_read: dict[str, Recipe] = {}
_MOST_READ = 4096


def _read_before(values: Any, validate: ValidatorFunctionWrapHandler) -> Recipe:
    if not isinstance(values, dict):
        return validate(values)
    key = json.dumps(values, sort_keys=True, default=repr)
    if key not in _read:
        if len(_read) >= _MOST_READ:
            _read.clear()
        _read[key] = validate(values)
    return _read[key]


SharedRecipe = Annotated[Recipe, WrapValidator(_read_before)]
"""A recipe in a file: many files hold the same, which is validated once and is one object in memory."""
