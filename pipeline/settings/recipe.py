"""Recipe: everything that determines a training run except its task, seed, data and backbone."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_serializer, field_validator, model_validator

from pipeline.data.tasks import PAIR_HEADS, CosineScale, Encoding, HeadKind, Pooling, Task, Truncation
from pipeline.data.tasks.extra import Extra, extra_table, in_order, parse_extra
from pipeline.settings.adapter_kinds import ADAPTER_KINDS, BOTTLENECKS, AdapterSettings, Bottleneck, Lora, Pal, Prefix
from pipeline.settings.layers import check_layers
from pipeline.settings.part import Count, Number, Part, Tokens, table
from pipeline.settings.parts import Anchor, Fusion, Joint, Pairs, Pretrained, Smart, Standard
from pipeline.system.errors import PipelineError, raise_all, validation_problems
from pipeline.system.reading import read_toml

Trainable = Literal["head", "adapter", "fusion", "full", "full+adapter"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Schedule = Literal["linear", "noam"]

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

# All that a model is scored by which has nothing to train.
_SCORING = frozenset(
    {"trainable", "encoding", "pooling", "head", "cosine_scale", "one_logit", "max_length", "truncation", "pairs"}
    | {"batch_size", "precision"}
)


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
    pooling: Pooling | None = Field(None, description="sentence vector: first token, or mean over tokens")
    head: HeadKind | None = Field(None, description="what turns sentence vectors into a prediction")
    cosine_scale: CosineScale = Field("clamped", description="score by a cosine: its positive part, or (cos + 1) / 2")
    one_logit: bool = Field(False, description="two classes by one logit and the Bernoulli loss, not by two")
    max_length: Tokens | None = Field(None, ge=4, description="longest input, tokens")
    truncation: Truncation = Field("head", description="what a single text longer than max_length keeps")
    pairs: Pairs = Pairs()
    extra: tuple[Extra, ...] = Field((), description="tasks whose training rows are added to the target's")

    adapter: AdapterSettings = AdapterSettings()
    bottleneck: Bottleneck = Bottleneck()
    pal: Pal = Pal()
    prefix: Prefix = Prefix()
    lora: Lora = Lora()
    fusion: Fusion = Fusion()
    anchor: Anchor = Anchor()
    standard: Standard = Standard()
    head_dropout: float = Field(0.1, ge=0, lt=1, description="dropout on sentence vectors")
    hidden_dropout: float | None = Field(
        None, ge=0, lt=1, description="in the backbone, if not its own; not of attention"
    )

    epochs: Count | None = Field(None, ge=1, description="passes over the training rows")
    min_steps: Count = Field(0, ge=0, description="few rows: as many epochs more as this many optimiser steps take")
    learning_rate: Number | None = Field(None, gt=0, description="peak learning rate")
    head_learning_rate: Number | None = Field(None, gt=0, description="of heads, if another")
    pretrained: Pretrained = Pretrained()
    batch_size: Count = Field(32, ge=1, description="rows per optimiser step, over all processes")
    gradient_accumulation_steps: Count = Field(1, ge=1, description="pieces a batch is run in, to save memory")
    weight_decay: Number = Field(0.01, ge=0, description="AdamW's, not of biases and LayerNorms")
    schedule: Schedule = Field("linear", description="how rates fall after warm-up; noam: inverse square root of steps")
    warmup_ratio: float = Field(0.1, ge=0, le=1, description="share of steps with rising learning rate")
    max_grad_norm: Number = Field(1.0, gt=0, description="gradient clipping")
    early_stopping_patience: Count | None = Field(None, ge=1, description="stop after so many epochs without gain")
    evaluations: Count | None = Field(None, ge=1, description="score on dev so many times, not after each epoch")
    score_start: bool | None = Field(None, description="score the start too: it may be what is kept (anchored: yes)")
    precision: Precision = Field("auto", description="auto: bf16 if it is clearly faster here, else fp32")

    smart: Smart = Smart()
    bregman: Number = Field(0.0, ge=0, description="mu of the Bregman proximal point, closeness to the mean of weights")
    l2_sp: Number = Field(0.0, ge=0, description="alpha of L2-SP, closeness to the pretrained weights; 0 is off")
    joint: Joint = Joint()

    @model_validator(mode="before")
    @classmethod
    def _compose(cls, values: Any) -> Any:
        return composed(values) if isinstance(values, Mapping) else values

    @field_validator("extra", mode="before")
    @classmethod
    def _parse_extra(cls, value: Any) -> Any:
        return parse_extra(value)

    @field_validator("extra")
    @classmethod
    def _order_extra(cls, value: tuple[Extra, ...]) -> tuple[Extra, ...]:
        return in_order(value)

    @field_serializer("extra")
    def _extra_table(self, value: tuple[Extra, ...]) -> dict[str, Any]:
        return extra_table(value)

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str) -> Self:
        """Validate ``values``; every mistake is reported at once, each with its key.

        Raises:
            PipelineError: naming ``where`` and all mistakes.
        """
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

    @classmethod
    def read(cls, file: Path) -> dict[str, Any]:
        """The raw keys of a recipe file, to be overridden by flags and then parsed."""
        return read_toml(file)

    def resolve(
        self,
        task: Task,
        precision: Precision,
        longest: int | None = None,
        depth: int | None = None,
        joint: bool = False,
    ) -> Self:
        """Fill every ``None`` from ``task`` and the method, so that equal training has equal recipes.

        ``precision`` is what ``auto`` means on this machine, ``longest`` what the backbone can read: it bounds the
        task's length, while a longer ``max_length`` that was asked for is an error. ``depth`` is its number of layers:
        ``drop_layers`` must leave one. ``joint`` says that the task trains together with others. Settings without
        effect are brought to one value (the encoding of a task with one text, adapter settings of full fine-tuning),
        so they cannot tell runs apart.
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
        resolved._check_sizes(longest, depth)
        return resolved.model_copy(update=resolved._by_method(has_weights=head != "cosine" or joint))

    def _reading(self, task: Task) -> tuple[Encoding, HeadKind]:
        """How inputs of ``task`` are encoded, and the head that reads them.

        Raises:
            PipelineError: they do not fit each other or the task.
        """
        if task.is_pair:
            head = self.head or (task.head if self.encoding in (None, task.encoding) else _default_head(self.encoding))
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
        _check_one_logit(self.one_logit, head, task)
        if any(source.task in (task.name, *task.aliases) for source in self.extra):
            raise PipelineError(f"extra: '{task.name}' is the task itself, whose rows are there: leave it out")
        return encoding, head

    def length_for(self, task: Task, longest: int | None = None) -> int:
        """How many tokens of ``task``'s inputs are read, by a backbone that can read ``longest``.

        Raises:
            PipelineError: more were asked for.
        """
        if self.max_length is not None and longest is not None and self.max_length > longest:
            raise PipelineError(
                f"max_length {self.max_length} is more than the backbone can read ({longest}): use --max-length"
                f" {longest} or less"
            )
        return self.max_length or min(task.max_length, longest or task.max_length)

    def _check_sizes(self, longest: int | None, depth: int | None) -> None:
        """Raise a :class:`PipelineError` for what the backbone has no room for."""
        if depth is not None and self.joint.split_layers > depth:
            layers = self.joint.split_layers
            raise PipelineError(f"split_layers {layers}: the backbone has {depth} layers; give 0 to {depth}")
        if depth is not None:
            check_layers(self.adapter.drop_layers, depth)
        if longest is not None and self._kind_part == "prefix" and self.prefix.length > longest:
            raise PipelineError(f"prefix_length {self.prefix.length} is more than the backbone can read ({longest})")

    @property
    def has_modules(self) -> bool:
        """Whether fresh adapters train."""
        return self.trainable in ("adapter", "full+adapter")

    @property
    def _kind_part(self) -> str:
        """The part with the settings of the modules that are trained; empty: it has none."""
        return ADAPTER_KINDS[self.adapter.kind].part if self.has_modules else ""

    def _parts_in_effect(self, task: Task, encoding: Encoding, joint: bool) -> Iterator[str]:
        if self.has_modules or self.trainable == "fusion":
            yield "adapter"
        if self.trainable == "fusion":
            yield from ("fusion", "anchor" if self.fusion.form == "anchored" else "standard")
        if "full" in self.trainable:
            yield "pretrained"
        if task.is_pair and encoding == "cross":
            yield "pairs"
        if self.smart.weight:
            yield "smart"
        if joint:
            yield "joint"
        yield self._kind_part

    def _in_effect(self, task: Task, encoding: Encoding, head: HeadKind, joint: bool) -> Self:
        """The same training of ``task``, with all that has no effect on it at its default.

        Raises:
            PipelineError: fusion over modules that it cannot mix.
        """
        if self.trainable == "fusion" and self.adapter.kind not in BOTTLENECKS:
            raise PipelineError(
                f"adapter '{self.adapter.kind}' cannot be fused: fusion mixes the outputs of bottlenecks"
                f" ({' or '.join(sorted(BOTTLENECKS))})"
            )
        inert = PARTS.keys() - {*self._parts_in_effect(task, encoding, joint)}
        if task.is_pair:
            inert.add("truncation")
        if head == "cosine":
            inert.add("head_dropout")
        if head != "cosine" or task.kind != "score":
            inert.add("cosine_scale")
        if self.trainable == "head":
            inert.add("hidden_dropout")  # what is frozen runs without
            if head == "cosine" and not joint:
                inert |= type(self).model_fields.keys() - _SCORING  # it has no weights, so nothing trains
        within = []
        if self.trainable == "full+adapter" and not joint:
            within.append("train_layernorm")  # all train; only several tasks could each have their own
        if self.trainable != "full":
            within += ["second_encoder", "split_layers"]
        if self.pretrained.freeze_embeddings:
            within.append("embedding_learning_rate")
        if self.joint.mixing != "temperature":
            within.append("temperature")
        usual = type(self)()
        whole = self.model_copy(update={name: getattr(usual, name) for name in inert})
        return whole.changed({name: usual.flat()[name] for name in within})

    def _by_method(self, has_weights: bool) -> dict[str, Any]:
        """What stands for every None that the method decides.

        A learning rate is None where it is that of the modules, ``learning_rate``. Where there are no modules,
        ``learning_rate`` is what does train: the backbone, or the head alone.

        Args:
            has_weights: whether the head has.
        """
        usual = self.learning_rate or self.usual_learning_rate
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
        # Where nothing trains, the start is all there is to score.
        usual_start = anchored or (self.trainable == "head" and not has_weights)
        return {
            "epochs": self.epochs or self.usual_epochs,
            "learning_rate": modules,
            "head_learning_rate": None if head == modules else head,
            "pretrained": self.pretrained.model_copy(update=rates),
            "score_start": usual_start if self.score_start is None else self.score_start,
        }

    def changed(self, values: Mapping[str, Any]) -> Self:
        """The same recipe with ``values``, flat or in their parts, in place of its own."""
        return type(self).model_validate(layered(self.model_dump(), values)) if values else self

    def flat(self) -> dict[str, Any]:
        """Its values, as JSON has them, under their flat names."""
        values = self.model_dump(mode="json")
        parts = {flag: values[part][key] for flag, (part, key) in FLAGS.items()}
        return {key: value for key, value in values.items() if key not in PARTS} | parts

    @property
    def identity(self) -> dict[str, Any]:
        """What of a resolved recipe tells runs apart: all that is not at its default.

        A key that comes in a later version is at its default in the runs of earlier ones, which keep their names. A
        default that changes needs another ``SCHEMA`` of the ledger, or unlike runs would be taken for one.
        """
        usual = type(self)().flat()
        return {flag: value for flag, value in self.flat().items() if value != usual[flag]}

    @property
    def usual_epochs(self) -> int:
        """What ``epochs`` of None means."""
        return STANDARD_FUSION_EPOCHS if self._is_standard_fusion else EPOCHS[self.trainable]

    @property
    def usual_learning_rate(self) -> float:
        """What ``learning_rate`` of None means."""
        return STANDARD_FUSION_LEARNING_RATE if self._is_standard_fusion else LEARNING_RATES[self.trainable]

    @property
    def _is_standard_fusion(self) -> bool:
        return self.trainable == "fusion" and self.fusion.form == "standard"

    def epochs_over(self, rows: int) -> int:
        """Passes over ``rows`` training rows: ``epochs``, or more where those are fewer than ``min_steps`` steps."""
        return self.epochs_of(self.steps_over(rows))

    def epochs_of(self, steps: int) -> int:
        """The same for passes of ``steps`` optimiser steps."""
        epochs = self.usual_epochs if self.epochs is None else self.epochs
        return max(epochs, -(-self.min_steps // steps))

    def scored(self, epoch: int, epochs: int) -> bool:
        """Whether ``epoch`` (from 1) of ``epochs`` ends with a score on dev; ``evaluations`` are spread evenly.

        The last one always does.
        """
        count = min(self.evaluations or epochs, epochs)
        return epoch * count // epochs > (epoch - 1) * count // epochs

    def joint_steps(self, batches: Collection[int]) -> int:
        """Steps of an epoch of joint training, from the batches that a pass over each task has."""
        if self.joint.steps_per_epoch is not None:
            return self.joint.steps_per_epoch
        if self.joint.mixing in ("simultaneous", "round-robin"):
            return min(batches) * (1 if self.joint.mixing == "simultaneous" else len(batches))
        return sum(batches)

    def steps_over(self, rows: int) -> int:
        """Optimiser steps of one pass over ``rows`` training rows; the last may be of fewer rows."""
        return -(-rows // self.batch_size)


def _default_head(encoding: Encoding | None) -> HeadKind:
    return "difference" if encoding == "siamese" else "linear"


def _check_one_logit(one_logit: bool, head: HeadKind, task: Task) -> None:
    if not one_logit:
        return
    if len(task.classes) != 2:
        what = f"{task.outputs} classes" if task.kind == "classes" else "a score"
        raise PipelineError(f"one_logit tells two classes apart; task '{task.name}' has {what}: leave it out there")
    if head == "cosine":
        raise PipelineError(f"one_logit: the cosine of '{task.name}' is one number already: leave it out there")


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
    part.flags.get(key, f"{name}_{key}"): (name, key) for name, part in PARTS.items() for key in part.model_fields
}
"""Where the flat keys of a recipe belong: the part, and the key in it."""


def composed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Raw values of a recipe with every flat key in its part. Of what is written twice, the last counts."""
    whole: dict[str, Any] = {}
    for name, value in values.items():
        if name in PARTS and isinstance(value, Part):
            value = value.model_dump()
        if name in PARTS and isinstance(value, Mapping):
            whole[name] = {**table(whole.get(name)), **value}
        elif name in FLAGS:
            part, key = FLAGS[name]
            whole[part] = {**table(whole.get(part)), key: value}
        else:
            whole[name] = value
    return whole


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Raw values of recipes, the later ones over the former; a part is merged key by key."""
    whole: dict[str, Any] = {}
    for layer in map(composed, layers):
        whole |= {
            key: {**table(whole.get(key)), **value} if key in PARTS and isinstance(value, dict) else value
            for key, value in layer.items()
        }
    return whole


def _with_flat_key(problem: str) -> str:
    key, colon, rest = problem.partition(":")
    return {f"{part}.{key}": flag for flag, (part, key) in FLAGS.items()}.get(key, key) + colon + rest
