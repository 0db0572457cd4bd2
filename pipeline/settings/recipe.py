"""Recipe: everything that determines a training run except its task, seed, data and backbone.

:mod:`pipeline.settings.resolve` fills it in for a task.
"""

import hashlib
from collections.abc import Mapping
from itertools import chain
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from pipeline.data.tasks import PAIR_HEADS, CosineScale, Encoding, Extras, HeadKind, Pooling, Truncation
from pipeline.settings import parts
from pipeline.settings.parts import Count, Number, Real, RecipePart, Tokens
from pipeline.system.errors import raise_all, validation_problems

Trainable = Literal["head", "probe", "adapter", "fusion", "full", "full+adapter"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Schedule = Literal["linear", "noam", "constant"]
AdamCorrection = Literal["moments", "step"]
ClassWeights = Literal["none", "balanced"]

USUAL_EPOCHS = 4
MIN_STEPS = 400
"""Default without epochs. A few hundred rows need hundreds of steps (Mosbach et al. 2021, Zhang et al. 2021)."""
WARM_STEPS = 200
"""The same for an adapter that starts from a trained one: more steps gained nothing (docs/fusion.md)."""
EVALUATIONS = 10
"""Number of scorings on dev if neither epochs nor min_steps are given."""
OF_PREDICTION = frozenset({"head", "one_logit", "cosine_scale", "cosine_threshold", "cosine_similar", "score_loss"})
"""The keys that decide how a model's output becomes a prediction and a loss."""


class Recipe(RecipePart):
    """How a model is built and trained. ``None`` means "from the task" or "from ``trainable``" until resolved.

    Each part groups settings that take effect together. Its keys may also be written flat, named like the command-line
    flags: ``pal_size = 24`` is ``pal = { size = 24 }``.
    """

    trainable: Trainable = Field(
        "adapter", description="what is trained; probe: the head, solved by regression on the frozen vectors"
    )
    encoding: Encoding | None = Field(None, description="read pairs as one input (cross) or two (siamese)")
    pooling: Pooling | None = Field(
        None, description="sentence vector: first token, mean over tokens, or BERT's pretrained pooler"
    )
    head: HeadKind | None = Field(None, description="the head that turns sentence vectors into a prediction")
    cosine_scale: CosineScale = Field(
        "clamped", description="how a cosine becomes a score: its positive part (clamped), or (cos + 1) / 2 (shifted)"
    )
    cosine_threshold: Literal["zero", "tuned"] = Field(
        "zero",
        description="with a cosine head, pairs above this cosine are similar: 0 (zero), or the best on the validation"
        " rows (tuned)",
    )
    cosine_similar: Literal["first", "second"] = Field(
        "second", description="the class above that cosine; the task's key `similar` sets it to the first"
    )
    score_loss: Literal["normalised", "raw"] = Field(
        "normalised",
        description="squared error of a score on its own range (raw), or rescaled to -1..1 (normalised; clamped cosine:"
        " 0..1)",
    )
    one_logit: bool = Field(False, description="predict two classes from one logit with the Bernoulli loss")
    class_weights: ClassWeights = Field(
        "none", description="balanced: all classes count equally in the loss, whatever their number of training rows"
    )
    label_smoothing: Real = Field(0.0, ge=0, lt=1, description="share of a label that is spread over all classes")
    max_length: Tokens | None = Field(None, ge=4, description="longest input in tokens")
    truncation: Truncation = Field("head", description="which part of a single text longer than max_length is kept")
    pairs: parts.Pairs = parts.Pairs()
    extra: Extras = Field((), description="tasks whose training rows are added to the target's")
    permute_labels: bool = Field(False, description="for a control: shuffle the training labels, drawn with the seed")

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
    experts: parts.Experts = parts.Experts()
    head_dropout: Real = Field(0.1, ge=0, lt=1, description="dropout on the head's input; a cosine has none")
    vector_dropout: Real = Field(0.0, ge=0, lt=1, description="dropout on each sentence vector, also of a cosine")
    hidden_dropout: Real | None = Field(
        None, ge=0, lt=1, description="dropout in the backbone, except on attention; unset: the backbone's own"
    )

    epochs: Count | None = Field(None, ge=1, description="passes over the training rows")
    min_steps: Count | None = Field(
        None,
        ge=0,
        description="minimum number of optimiser steps, by more epochs; unset: 400, warm start 200, 0 with epochs",
    )
    learning_rate: Number | None = Field(None, gt=0, description="peak learning rate")
    head_learning_rate: Number | None = Field(
        None, gt=0, description="peak learning rate of heads; unset: learning_rate"
    )
    pretrained: parts.Pretrained = parts.Pretrained()
    batch_size: Count = Field(32, ge=1, description="rows per optimiser step, over all processes")
    gradient_accumulation_steps: Count = Field(
        1, ge=1, description="number of pieces that a batch is split into, to save memory"
    )
    weight_decay: Number = Field(0.01, ge=0, description="AdamW's weight decay; biases and LayerNorms have none")
    adam_beta1: Real = Field(0.9, ge=0, lt=1, description="AdamW's decay of the mean gradient")
    adam_beta2: Real = Field(0.999, ge=0, lt=1, description="AdamW's decay of the mean squared gradient")
    adam_epsilon: Number = Field(
        1e-8, gt=0, description="AdamW's epsilon, added to the root of the mean squared gradient"
    )
    adam_correction: AdamCorrection = Field(
        "moments",
        description="AdamW's bias correction: of both moments, before epsilon, as in PyTorch (moments); or of the step"
        " size (step)",
    )
    schedule: Schedule = Field(
        "linear",
        description="learning rate after warm-up: linear decay to zero; noam: inverse square root of steps; constant",
    )
    warmup_ratio: Real = Field(0.1, ge=0, le=1, description="share of the steps in which the learning rate rises")
    max_grad_norm: Number = Field(1.0, gt=0, description="norm at which gradients are clipped")
    early_stopping_patience: Count | None = Field(
        None, ge=1, description="stop after this many epochs without a better score"
    )
    evaluations: Count | None = Field(
        None,
        ge=1,
        description="number of scorings on dev; unset: each epoch, or ten if the default min_steps adds epochs",
    )
    score_start: bool | None = Field(
        None, description="also score the initial model, which may then be kept; unset: if anchored or merged"
    )
    score_train: bool = Field(
        False, description="also score training rows, at most 1,000 per task, whenever dev is scored"
    )
    reshuffle: Count = Field(
        0, description="draw another order of batches and other dropout with this number: for the experts of a soup"
    )
    precision: Precision = Field("auto", description="auto: bf16 where GPU or CPU have instructions for it, else fp32")

    smart: parts.Smart = parts.Smart()
    contrastive: parts.Contrastive = parts.Contrastive()
    bregman: Number = Field(
        0.0, ge=0, description="mu of the Bregman proximal point, closeness to a running mean of the weights"
    )
    l2_sp: Number = Field(0.0, ge=0, description="alpha of L2-SP, closeness to the pretrained weights; 0 is off")
    joint: parts.Joint = parts.Joint()

    @model_validator(mode="before")
    @classmethod
    def _compose(cls, values: Any) -> Any:
        return layered(values) if isinstance(values, Mapping) else values

    @field_validator("head")
    @classmethod
    def _fits_the_encoding(cls, head: HeadKind | None, info: ValidationInfo) -> HeadKind | None:
        check_pairing(info.data.get("encoding"), head)
        return head

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str) -> Self:
        """Validate ``values``; a :class:`PipelineError` names ``where`` and every mistake with its key."""
        try:
            return cls.model_validate(values)
        except ValidationError:
            raise_all(where, cls.problems(values))
            raise

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        """Every mistake in ``values``, each with its flat key."""
        try:
            cls.model_validate(values)
        except ValidationError as error:
            flat = {f"{part}.{key}": flag for flag, (part, key) in FLAGS.items()}
            told = (problem.partition(":") for problem in validation_problems(error))
            return [flat.get(key, key) + colon + rest for key, colon, rest in told]
        return []

    @property
    def is_solved(self) -> bool:
        """Whether regression solves the head, so that there are no steps."""
        return self.trainable == "probe"

    @property
    def freezes_encoder(self) -> bool:
        """Whether only the head trains."""
        return self.trainable == "head" or self.is_solved

    @property
    def has_modules(self) -> bool:
        """Whether fresh adapters train."""
        return self.trainable in ("adapter", "full+adapter")

    @property
    def is_averaged(self) -> bool:
        """Whether it only joins trained adapters, merged or as experts, so that nothing trains."""
        if self.trainable == "adapter":
            return self.merge.rule != "none" and not self.merge.train
        return self.form.of_target and not self.experts.train

    @property
    def fuses_as(self) -> parts.FusionForm | None:
        """The form of the fusion that it trains; None if it trains none."""
        return self.fusion.form if self.trainable == "fusion" else None

    @property
    def form(self) -> parts.FormSettings:
        """The settings of that form; the defaults if it trains no fusion, or one without settings."""
        kind = parts.FormSettings if self.fuses_as is None else parts.FORMS[self.fuses_as]
        return next((value for _, value in self if type(value) is kind), kind())

    @property
    def adds_adapters(self) -> bool:
        """Whether it adds fresh adapters to the backbone: alone, or the target's adapter in a fusion."""
        return self.has_modules or not self.form.fuses_own

    @property
    def as_probe(self) -> "Recipe":
        """A linear probe on the frozen backbone, which reads the same inputs."""
        return Recipe(trainable="probe", max_length=self.max_length, precision=self.precision)

    def changed(self, values: Mapping[str, Any]) -> Self:
        """A copy of the recipe with ``values``, flat or in their parts."""
        return type(self).model_validate(layered(self.model_dump(), values)) if values else self

    def flat(self) -> dict[str, Any]:
        """Its values as JSON has them, by flat name."""
        values = self.model_dump(mode="json")
        in_parts = {flag: values[part][key] for flag, (part, key) in FLAGS.items()}
        return {key: value for key, value in values.items() if key not in PARTS} | in_parts

    @property
    def identity(self) -> dict[str, Any]:
        """The part of a resolved recipe that identifies a run: a fusion's form, and every setting that differs from its
        default.

        A key that a later version adds has its default in earlier runs, so these keep their names. If you change a
        default, change the ledger's ``SCHEMA``, or different runs will be taken for one.
        """
        usual, always = type(self)().flat(), {"fusion"} if self.trainable == "fusion" else set[str]()
        return {flag: value for flag, value in self.flat().items() if flag in always or value != usual[flag]}

    @property
    def usual_epochs(self) -> int:
        """The number of epochs if ``epochs`` is not set."""
        return USUAL_EPOCHS if self.fuses_as is None else self.form.epochs

    def epochs_over(self, rows: int) -> int:
        """Passes over ``rows`` training rows: ``epochs``, or more if they give fewer than ``min_steps`` steps."""
        return self.epochs_of(self.steps_over(rows))

    def epochs_of(self, steps: int) -> int:
        """As :meth:`epochs_over`, for passes of ``steps`` optimiser steps."""
        epochs = self.usual_epochs if self.epochs is None else self.epochs
        return max(epochs, -(-self.least_steps // steps))

    def planned_epochs(self, batches: Mapping[str, int]) -> int:
        """Epochs of a run, from the number of batches in a pass over each task; 0 if it takes no steps."""
        takes_steps = not self.is_averaged and not self.is_solved and all(batches.values())
        return self.epochs_of(self.joint_steps(batches)) if takes_steps else 0

    @property
    def least_steps(self) -> int:
        """``min_steps``; if not set, the default, or none if ``epochs`` is given."""
        if self.min_steps is not None:
            return self.min_steps
        return MIN_STEPS if self.epochs is None else 0

    @property
    def warm_started(self) -> "Recipe":
        """The same with the default number of steps of an adapter that starts from a trained one."""
        if self.epochs is not None or self.min_steps is not None:
            return self
        return self.changed({"min_steps": WARM_STEPS, "evaluations": self.evaluations or EVALUATIONS})

    @property
    def budget(self) -> dict[str, int | None]:
        """How long to train and how often to score, with every None filled."""
        is_usual = self.epochs is None and self.min_steps is None and self.evaluations is None
        return {
            "epochs": self.epochs or self.usual_epochs,
            "min_steps": self.least_steps,
            "evaluations": EVALUATIONS if is_usual else self.evaluations,
        }

    def scored(self, epoch: int, epochs: int) -> bool:
        """Whether to score dev after ``epoch`` (from 1) of ``epochs``; ``evaluations`` are spread evenly.

        The last epoch is always scored.
        """
        count = min(self.evaluations or epochs, epochs)
        return epoch * count // epochs > (epoch - 1) * count // epochs

    def joint_steps(self, batches: Mapping[str, int]) -> int:
        """Steps in an epoch of joint training, from the number of batches in a pass over each task."""
        if self.joint.steps_per_epoch is not None:
            return self.joint.steps_per_epoch
        most = self.joint.max_steps_per_epoch or sum(batches.values()) * len(batches)
        if self.joint.mixing in ("simultaneous", "round-robin"):
            passed = batches.get(self.joint.epoch_of or "", min(batches.values()))
            return min(passed * (1 if self.joint.mixing == "simultaneous" else len(batches)), most)
        return min(sum(batches.values()), most)

    def shuffle_seed(self, seed: int) -> int:
        """The seed for batch order and dropout, in a run of ``seed``."""
        if not self.reshuffle:
            return seed
        return int.from_bytes(hashlib.sha256(f"{seed} {self.reshuffle}".encode()).digest()[:4], "big")

    def steps_over(self, rows: int) -> int:
        """Optimiser steps in one pass over ``rows`` training rows; the last may have fewer rows."""
        return -(-rows // self.batch_size)


def check_pairing(encoding: Encoding | None, head: HeadKind | None) -> None:
    """Raise a ValueError if a head does not fit an encoding of inputs; either may be unknown."""
    if encoding == "cross" and head in PAIR_HEADS:
        raise ValueError(f"'{head}' compares two sentence vectors, so it needs encoding = 'siamese' (got 'cross')")


PARTS: dict[str, type[RecipePart]] = {
    name: field.annotation
    for name, field in Recipe.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, RecipePart)
}
FLAGS: dict[str, tuple[str, str]] = {
    f"{name}_{key}" if part.flags is None else part.flags.get(key, key): (name, key)
    for name, part in PARTS.items()
    for key in part.model_fields
}
"""Maps each flat key of a recipe to its part and the key in it."""


def table(value: Any) -> dict[str, Any]:
    """``value`` if it is a table; else nothing, since validation reports it."""
    return value if isinstance(value, dict) else {}


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge raw recipes, later ones over earlier ones; flat keys go into their parts, which merge key by key."""
    whole: dict[str, Any] = {}
    for name, value in chain.from_iterable(layer.items() for layer in layers):
        if isinstance(value, RecipePart):
            value = value.model_dump()
        if name in FLAGS and not (name in PARTS and isinstance(value, Mapping)):
            name, key = FLAGS[name]
            value = {key: value}
        whole[name] = {**table(whole.get(name)), **value} if name in PARTS and isinstance(value, Mapping) else value
    return whole


def has_key(values: Mapping[str, Any], key: str) -> bool:
    """Whether ``values`` (:func:`layered`) set the flat key."""
    part, inner = FLAGS.get(key, ("", key))
    return inner in (table(values.get(part)) if part else values)


def without(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``values``, flat or in their parts, without the keys of ``given`` (:func:`layered`)."""
    kept = {}
    for name, value in values.items():
        if name in PARTS and isinstance(value, Mapping):
            kept[name] = {key: inner for key, inner in value.items() if key not in table(given.get(name))}
        elif not has_key(given, name):
            kept[name] = value
    return kept
