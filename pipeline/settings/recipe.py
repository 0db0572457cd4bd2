"""Recipe: everything that determines a training run except its task, seed, data and backbone."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, field_serializer, field_validator

from pipeline.data.tasks import PAIR_HEADS, CosineScale, Encoding, HeadKind, Pooling, Task, Truncation
from pipeline.data.tasks.extra import Extra, extra_table, in_order, parse_extra
from pipeline.settings.adapter_kinds import ADAPTER_KINDS, BOTTLENECKS, AdapterKind, AdapterSettings, Tokens, Width
from pipeline.settings.layers import check_layers, parse_layers
from pipeline.system.errors import PipelineError, raise_all, validation_problems
from pipeline.system.reading import read_toml

# No use comes near these bounds, and nothing computed from numbers within them overflows.
Count = Annotated[int, Field(le=10**6)]
Number = Annotated[float, Field(le=1e38)]  # what fp32 can hold

Trainable = Literal["head", "adapter", "fusion", "full", "full+adapter"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
FusionForm = Literal["anchored", "standard"]
FusionImplementation = Literal["fast", "stock"]
Schedule = Literal["linear", "noam"]
Mixing = Literal["simultaneous", "round-robin", "proportional", "square-root", "annealed", "shuffled", "temperature"]
GradientSurgery = Literal["none", "pcgrad", "upgrad"]
SmartDirection = Literal["reference", "gradient"]
PairOrder = Literal["given", "random"]
SecondEncoder = Literal["none", "static", "tuned"]

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

# What of a recipe says how training goes, and has no effect where nothing trains.
_TRAINING = (
    "epochs",
    "min_steps",
    "learning_rate",
    "gradient_accumulation_steps",
    "weight_decay",
    "schedule",
    "warmup_ratio",
    "max_grad_norm",
    "early_stopping_patience",
    "evaluations",
    "pair_order",
    "smart",
    "smart_direction",
    "smart_radius",
    "bregman",
    "l2_sp",
    "extra",
)


# What of a recipe belongs to one form of fusion.
_ANCHORED, _STANDARD = ("anchor", "fusion_rank"), ("fusion_regularization",)

# What of a recipe says how the pretrained weights themselves train, and how several tasks train together.
_BACKBONE = ("backbone_learning_rate", "layer_decay", "embedding_learning_rate", "freeze_embeddings")
_JOINT = ("mixing", "temperature", "steps_per_epoch", "loss_weight", "gradient_surgery", "split_layers")


def check_seed(seed: int) -> None:
    """Raise a :class:`PipelineError` for a seed that numpy or torch would refuse."""
    if not 0 <= seed < 2**32:
        raise PipelineError(f"seed {seed}: give a whole number from 0 to 2**32 - 1")


class Recipe(AdapterSettings):
    """How a model is built and trained. ``None`` means "from the task" or "from ``trainable``" until resolved."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    trainable: Trainable = Field("adapter", description="what is trained")
    encoding: Encoding | None = Field(None, description="pairs as one input (cross) or two (siamese)")
    pooling: Pooling | None = Field(None, description="sentence vector: first token, or mean over tokens")
    head: HeadKind | None = Field(None, description="what turns sentence vectors into a prediction")
    cosine_scale: CosineScale = Field("clamped", description="score by a cosine: its positive part, or (cos + 1) / 2")
    one_logit: bool = Field(False, description="two classes by one logit and the Bernoulli loss, not by two")
    max_length: Tokens | None = Field(None, ge=4, description="longest input, tokens")
    extra: tuple[Extra, ...] = Field((), description="tasks whose training rows are added to the target's")

    adapter: AdapterKind = Field("houlsby", description="a task's modules: bottlenecks, PAL, prefixes of two kinds")
    drop_layers: tuple[int, ...] = Field((), description="layers without adapters or fusion, such as 0-4 (AdapterDrop)")
    fusion: FusionForm = Field("anchored", description="begins as one adapter; standard: Pfeiffer et al. 2021")
    anchor: Number = Field(5.0, ge=0, description="anchored: score of that adapter at the start, the others' are 0")
    fusion_rank: Width = Field(16, ge=1, description="anchored: rank of Q, K and V - I")
    fusion_regularization: Number = Field(0.01, ge=0, description="standard: weight of ||V - I||^2 a fusion site")
    fusion_impl: FusionImplementation = Field("fast", description="stock computes fusion by AdapterHub's own code")
    head_start: bool = Field(True, description="start the fusion's head from the target's own adapter")
    head_dropout: float = Field(0.1, ge=0, lt=1, description="dropout on sentence vectors")
    hidden_dropout: float | None = Field(
        None, ge=0, lt=1, description="in the backbone, if not its own; not of attention"
    )

    epochs: Count | None = Field(None, ge=1, description="passes over the training rows")
    min_steps: Count = Field(0, ge=0, description="few rows: as many epochs more as this many optimiser steps take")
    learning_rate: Number | None = Field(None, gt=0, description="peak learning rate")
    backbone_learning_rate: Number | None = Field(None, gt=0, description="of pretrained weights, if another")
    head_learning_rate: Number | None = Field(None, gt=0, description="of heads, if another")
    layer_decay: float = Field(1.0, gt=0, le=1, description="rate of a pretrained layer over that of the one above")
    embedding_learning_rate: Number | None = Field(None, gt=0, description="if not that of a layer below the lowest")
    second_encoder: SecondEncoder = Field("none", description="full training: another beside it, frozen or tuned too")
    freeze_embeddings: bool = Field(False, description="full training leaves the embeddings as they were pretrained")
    batch_size: Count = Field(32, ge=1, description="rows per optimiser step, over all processes")
    gradient_accumulation_steps: Count = Field(1, ge=1, description="pieces a batch is run in, to save memory")
    weight_decay: Number = Field(0.01, ge=0)
    schedule: Schedule = Field("linear", description="how rates fall after warm-up; noam: inverse square root of steps")
    warmup_ratio: float = Field(0.1, ge=0, le=1, description="share of steps with rising learning rate")
    max_grad_norm: Number = Field(1.0, gt=0, description="gradient clipping")
    early_stopping_patience: Count | None = Field(None, ge=1, description="stop after so many epochs without gain")
    evaluations: Count | None = Field(None, ge=1, description="score on dev so many times, not after each epoch")
    score_start: bool | None = Field(None, description="score the start too: it may be what is kept (anchored: yes)")
    precision: Precision = "auto"

    pair_order: PairOrder = Field("given", description="random: cross-encoded pairs train in a random order each epoch")
    average_orders: bool = Field(False, description="cross-encoded pairs are scored as the mean of both orders")
    truncation: Truncation = Field("head", description="what a single text longer than max_length keeps")
    smart: Number = Field(0.0, ge=0, description="lambda of SMART, smoothness against perturbed embeddings; 0 is off")
    smart_direction: SmartDirection = Field("reference", description="as its authors' code, or along the gradient")
    smart_radius: Number = Field(1.0, gt=0, description="largest entry of a token's perturbation")
    bregman: Number = Field(0.0, ge=0, description="mu of the Bregman proximal point, closeness to the mean of weights")
    l2_sp: Number = Field(0.0, ge=0, description="alpha of L2-SP, closeness to the pretrained weights; 0 is off")

    mixing: Mixing = Field("simultaneous", description="joint training: which tasks' batches make up a step")
    temperature: Number = Field(1.0, ge=0.1, description="mixing by temperature: 1 proportional, large even")
    steps_per_epoch: Count | None = Field(None, ge=1, description="joint training: if not what the mixing rule implies")
    loss_weight: Number = Field(1.0, gt=0, description="joint training: weight of this task's loss")
    split_layers: Count = Field(0, ge=0, description="joint training: top layers that each task has for itself")
    gradient_surgery: GradientSurgery = Field("none", description="joint training: how tasks' gradients are combined")

    @field_validator("drop_layers", mode="before")
    @classmethod
    def _parse_layers(cls, value: Any) -> tuple[int, ...]:
        return parse_layers(value)

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
        return cls.model_validate(dict(values))

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        """Every mistake in ``values``, each with its key."""
        problems = (
            _pairing_problems(values.get("encoding"), values.get("head"))
            + _mixing_problems(values)
            + _pal_problems(values)
        )
        try:
            cls.model_validate(dict(values))
        except ValidationError as error:
            problems = validation_problems(error) + problems
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
        inert = self._without_effect(task, encoding, head, joint)
        self._check_sizes(inert, longest, depth)
        defaults = type(self)()
        resolved = self.model_copy(
            update={
                **{name: getattr(defaults, name) for name in inert},
                "encoding": encoding,
                "head": head,
                "pooling": self.pooling or task.pooling,
                "max_length": self.length_for(task, longest),
                "precision": precision if self.precision == "auto" else self.precision,
            }
        )
        has_weights = head != "cosine" or joint
        anchored = self.trainable == "fusion" and self.fusion == "anchored"
        # Where nothing trains, the start is all there is to score.
        usual_start = anchored or (self.trainable == "head" and not has_weights)
        by_method = {
            "epochs": resolved.epochs or self.usual_epochs,
            **resolved._rates(has_weights),
            "score_start": usual_start if resolved.score_start is None else resolved.score_start,
        }
        return resolved.model_copy(update=by_method)

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
        raise_all(f"recipe for {task.name}", _pairing_problems(encoding, head))
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

    def _check_sizes(self, inert: Collection[str], longest: int | None, depth: int | None) -> None:
        """Raise a :class:`PipelineError` for what the backbone has no room for; what has no effect may be anything."""
        if "split_layers" not in inert and depth is not None and self.split_layers > depth:
            raise PipelineError(f"split_layers {self.split_layers}: the backbone has {depth} layers; give 0 to {depth}")
        if "drop_layers" not in inert and depth is not None:
            check_layers(self.drop_layers, depth)
        if "prefix_length" not in inert and longest is not None and self.prefix_length > longest:
            raise PipelineError(f"prefix_length {self.prefix_length} is more than the backbone can read ({longest})")

    def _without_effect(self, task: Task, encoding: Encoding, head: HeadKind, joint: bool) -> set[str]:
        """The keys that change nothing about training ``task`` so.

        Raises:
            PipelineError: fusion over modules that it cannot mix.
        """
        found = self._without_effect_on_modules(joint)
        if not (task.is_pair and encoding == "cross"):
            found |= {"pair_order", "average_orders"}
        if task.is_pair:
            found.add("truncation")
        if not self.smart:
            found |= {"smart_direction", "smart_radius"}
        if head == "cosine":
            found.add("head_dropout")
        if head != "cosine" or task.kind != "score":
            found.add("cosine_scale")
        if not joint:
            found |= {*_JOINT}
        elif self.mixing != "temperature":
            found.add("temperature")
        if self.trainable == "head":
            found.add("hidden_dropout")  # what is frozen runs without
        if self.trainable != "full":
            found |= {"second_encoder", "split_layers"}
        if "full" not in self.trainable:
            found |= {*_BACKBONE}
        elif self.freeze_embeddings:
            found.add("embedding_learning_rate")
        if head == "cosine" and self.trainable == "head" and not joint:
            # A cosine has no weights: the model is scored as it was pretrained, and nothing of training has an effect.
            found |= {*_TRAINING, "score_start"}
        if self.trainable != "fusion":
            found |= {*_ANCHORED, *_STANDARD, "fusion", "fusion_impl", "head_start"}
        else:
            found |= {*(_STANDARD if self.fusion == "anchored" else _ANCHORED)}
        return found

    def _without_effect_on_modules(self, joint: bool) -> set[str]:
        """Of those, the keys about modules that this recipe does not put into the backbone.

        Raises:
            PipelineError: fusion over modules that it cannot mix.
        """
        has_modules, is_fusion = self.trainable in ("adapter", "full+adapter"), self.trainable == "fusion"
        if is_fusion and self.adapter not in BOTTLENECKS:
            raise PipelineError(
                f"adapter '{self.adapter}' cannot be fused: fusion mixes the outputs of bottlenecks"
                f" ({' or '.join(sorted(BOTTLENECKS))})"
            )
        found = set(AdapterSettings.model_fields)
        if has_modules:
            found -= set(ADAPTER_KINDS[self.adapter].keys)
        if self.trainable == "full+adapter" and not joint:
            found.add("train_layernorm")  # all train; only several tasks could each have their own
        if not has_modules and not is_fusion:
            found |= {"adapter", "drop_layers"}
        return found

    def _rates(self, has_weights: bool) -> dict[str, float | None]:
        """The learning rates of a resolved recipe: None where one is that of the modules, ``learning_rate``.

        Where there are no modules, ``learning_rate`` is what does train: the backbone, or the head alone.

        Args:
            has_weights: whether the head has.
        """
        usual = self.learning_rate or self.usual_learning_rate
        head = (self.head_learning_rate or usual) if has_weights else usual
        backbone = self.backbone_learning_rate or usual
        modules = {"full": backbone, "head": head}.get(self.trainable, usual)
        if not has_weights:
            head = modules
        embeddings = self.embedding_learning_rate
        if embeddings == backbone and self.layer_decay == 1:
            embeddings = None
        return {
            "learning_rate": modules,
            "backbone_learning_rate": backbone if "full" in self.trainable and backbone != modules else None,
            "head_learning_rate": None if head == modules else head,
            "embedding_learning_rate": embeddings,
        }

    @property
    def identity(self) -> dict[str, Any]:
        """What of a resolved recipe tells runs apart: all that is not at its default.

        A key that comes in a later version is at its default in the runs of earlier ones, which keep their names. A
        default that changes needs another ``SCHEMA`` of the ledger, or unlike runs would be taken for one.
        """
        usual = type(self)()
        dumped = self.model_dump(mode="json")
        return {key: value for key, value in dumped.items() if getattr(self, key) != getattr(usual, key)}

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
        return self.trainable == "fusion" and self.fusion == "standard"

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
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        if self.mixing in ("simultaneous", "round-robin"):
            return min(batches) * (1 if self.mixing == "simultaneous" else len(batches))
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


def _mixing_problems(values: Mapping[str, Any]) -> list[str]:
    surgery, mixing = values.get("gradient_surgery", "none"), values.get("mixing", "simultaneous")
    if surgery != "none" and mixing != "simultaneous":
        return [
            f"gradient_surgery: '{surgery}' combines the gradients of several tasks, but with mixing = '{mixing}' a"
            " step has one: use mixing = 'simultaneous'"
        ]
    return []


def _pal_problems(values: Mapping[str, Any]) -> list[str]:
    fields = Recipe.model_fields
    size, heads = (values.get(name, fields[name].default) for name in ("pal_size", "pal_heads"))
    if isinstance(size, int) and isinstance(heads, int) and heads > 0 and size % heads:
        return [f"pal_size: {size} does not divide by pal_heads ({heads}): each head has as many numbers"]
    return []


def _pairing_problems(encoding: Any, head: Any) -> list[str]:
    if encoding == "cross" and isinstance(head, str) and head in PAIR_HEADS:
        return [f"head: '{head}' compares two sentence vectors, so it needs encoding = 'siamese' (got 'cross')"]
    return []
