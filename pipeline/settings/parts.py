"""The parts of a recipe: adapters of each kind, forms of fusion, SMART, pretrained weights, pairs, joint training.

And the types of their values, which studies share: numbers, counts, lists of layers. No torch modules, since importing
torch is slow: those of a form of fusion are in ``pipeline/methods/FORM.py``.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from pipeline.data.tasks import Name
from pipeline.system.errors import PipelineError


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("write a number, not true or false")
    return value


# pydantic accepts true as 1
Whole = Annotated[int, BeforeValidator(_no_bool)]
Real = Annotated[float, BeforeValidator(_no_bool)]
# Far beyond any useful value; nothing computed from numbers within these bounds overflows.
Count = Annotated[Whole, Field(le=10**6)]
Number = Annotated[Real, Field(le=1e38)]  # the range of fp32
Width = Annotated[Whole, Field(le=2**16)]
Tokens = Annotated[Whole, Field(le=8192)]

SmartDirection = Literal["reference", "gradient"]
PairOrder = Literal["given", "random"]
Mixing = Literal["simultaneous", "round-robin", "proportional", "square-root", "annealed", "shuffled", "temperature"]
GradientSurgery = Literal["none", "pcgrad", "upgrad"]
FusionForm = Literal["gated", "anchored", "standard", "mean", "experts"]
FusionImplementation = Literal["fast", "stock"]
Gate = Literal["token", "scalar", "vector", "matrix"]
Own = Literal["fresh", "warm", "trained", "frozen", "none"]
AdapterKind = Literal["houlsby", "pfeiffer", "pal", "prefix", "prefix-tuning", "lora", "ia3", "bitfit", "unipelt"]

_LAYERS = re.compile(r"(-?\d{1,3})(?:-(\d{1,3}))?")


def parse_layers(value: Any) -> tuple[int, ...]:
    """Sorted layer numbers, from 0 at the bottom, of a text such as ``0-2,5`` or a list of integers."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        raise ValueError("write layers as 0-4 or 0,1,3, or as a list of whole numbers")
    layers: set[int] = set()
    for part in parts:
        matched = _LAYERS.fullmatch("" if isinstance(part, bool) else str(part))
        first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (0, -1)
        if first < 0 or last < first:
            raise ValueError(f"'{part}' is not a layer: write layers as 0-4 or 0,1,3, counted from 0")
        layers.update(range(first, last + 1))
    return tuple(sorted(layers))


def layers_text(layers: tuple[int, ...]) -> str:
    """The shortest text that :func:`parse_layers` reads as ``layers``: (0, 1, 2, 5) is ``0-2,5``."""
    ordered = sorted(layers)
    firsts = [layer for layer in ordered if layer - 1 not in layers]
    lasts = [layer for layer in ordered if layer + 1 not in layers]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))


def check_layers(layers: tuple[int, ...], depth: int) -> None:
    """Raise a :class:`PipelineError` unless ``layers`` can be dropped from a backbone of ``depth`` layers."""
    where = f"drop_layers {layers_text(layers)}"
    if beyond := tuple(layer for layer in layers if layer >= depth):
        raise PipelineError(f"{where}: the backbone has no layer {layers_text(beyond)}; its {depth} are 0-{depth - 1}")
    if len(layers) == depth:
        raise PipelineError(f"{where}: these are all layers of the backbone: keep at least one")


class RecipePart(BaseModel):
    """Settings that take effect together. If the part has no effect, it is reset to its defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    flags: ClassVar[Mapping[str, str] | None] = None
    """Flat names of keys that differ from the keys; None: every one is ``<part>_<key>``."""


class AdapterSettings(RecipePart):
    flags = {"kind": "adapter"}

    kind: AdapterKind = Field("houlsby", description="kind of a task's modules")
    drop_layers: Annotated[tuple[int, ...], BeforeValidator(parse_layers)] = Field(
        (), description="layers without adapters or fusion, such as 0-4 (AdapterDrop)"
    )


class Bottleneck(RecipePart):
    flags = {"width": "bottleneck"}

    width: Width = Field(64, ge=1, description="adapter width m")
    train_layernorm: bool = Field(False, description="train the LayerNorms with the adapter (Houlsby et al. 2019)")


class Pal(RecipePart):
    model_config = ConfigDict(validate_default=True)

    size: Width = Field(204, ge=1, description="width s of a projected attention layer")
    heads: Width = Field(12, ge=1, description="its attention heads; they divide the size")

    @field_validator("heads")
    @classmethod
    def _divide_the_size(cls, heads: int, info: ValidationInfo) -> int:
        size = info.data.get("size")
        if size is not None and size % heads:
            raise ValueError(f"all heads have the same width, so give a divisor of pal_size ({size})")
        return heads


class Prefix(RecipePart):
    length: Tokens = Field(10, ge=1, description="vectors that a prefix puts before each layer's input")


class Lora(RecipePart):
    rank: Width = Field(8, ge=1, description="rank r of the terms that LoRA adds to query and value")


class Unipelt(RecipePart):
    bottleneck: Width = Field(48, ge=1, description="width m of its bottlenecks")
    prefix: Tokens = Field(10, ge=1, description="length of its prefixes")
    rank: Width = Field(8, ge=1, description="rank r of its LoRA")


ADAPTER_KINDS: dict[AdapterKind, str] = {
    "houlsby": "bottleneck",
    "pfeiffer": "bottleneck",
    "pal": "pal",
    "prefix": "prefix",
    "prefix-tuning": "prefix",
    "lora": "lora",
    "ia3": "",
    "bitfit": "",
    "unipelt": "unipelt",
}
"""The part of a recipe with the settings of each kind, if it has any. The methods are in ``pipeline/methods``."""

BOTTLENECKS: frozenset[AdapterKind] = frozenset({"houlsby", "pfeiffer"})
"""The kinds that fusion can mix; another kind may use the same settings."""


EXPERTS = 3
"""Number of experts in a fusion of experts, unless another is given."""
USUAL_FORM: FusionForm = "experts"
"""The form that ``fuse`` trains. A row of a study is gated, unless it says otherwise."""
MOST_EXPERTS = 20
"""Maximum number of runs of one row to merge or join."""


class Merge(RecipePart):
    """How an adapter is merged from those of its target and of other tasks, in a row of method ``merge``."""

    flags = {"rule": "merge", "density": "ties_density", "scale": "ties_scale", "train": "train_merged"}

    rule: Literal["none", "mean", "ties"] = Field(
        "none", description="mean: of the weights; ties: of their changes in training (Yadav et al. 2023)"
    )
    density: Real = Field(0.2, gt=0, le=1, description="share of each adapter's changes that is merged: the largest")
    scale: Number = Field(1.0, gt=0, description="lambda, the factor of the merged changes")
    train: bool = Field(False, description="train the merged adapter and its head further")


class Smart(RecipePart):
    flags = {"weight": "smart", "direction": "smart_direction", "radius": "smart_radius"}

    weight: Number = Field(0.0, ge=0, description="lambda of SMART, smoothness against perturbed embeddings; 0 is off")
    direction: SmartDirection = Field(
        "reference", description="of the perturbation: as in the authors' code, or along the gradient"
    )
    radius: Number = Field(1.0, gt=0, description="largest entry of a token's perturbation")


class Contrastive(RecipePart):
    flags = {"weight": "contrastive", "temperature": "contrastive_temperature"}

    weight: Number = Field(0.0, ge=0, description="weight of the supervised contrastive term on classes; 0 is off")
    temperature: Annotated[Number, Field(ge=1e-3)] = Field(0.3, description="tau, by which its cosines are divided")


class Pretrained(RecipePart):
    """How the pretrained weights train, if they train."""

    flags = {"learning_rate": "backbone_learning_rate"}

    learning_rate: Number | None = Field(
        None, gt=0, description="peak learning rate of pretrained weights; unset: learning_rate"
    )
    layer_decay: Real = Field(
        1.0, gt=0, le=1, description="learning rate of a layer divided by that of the layer above"
    )
    embedding_learning_rate: Number | None = Field(
        None, gt=0, description="peak learning rate of embeddings; unset: as one layer below the lowest"
    )
    freeze_embeddings: bool = Field(False, description="freeze the embeddings")
    second_encoder: Literal["none", "static", "tuned"] = Field(
        "none", description="a second encoder, frozen (static) or trained too (tuned)"
    )


class Pairs(RecipePart):
    """For pairs that are encoded as one input."""

    flags = {"order": "pair_order"}

    order: PairOrder = Field("given", description="random: draw the order of the two texts in each epoch")
    average_orders: bool = Field(False, description="score the mean over both orders")


class Joint(RecipePart):
    """For joint training of several tasks."""

    flags = {}

    mixing: Mixing = Field("simultaneous", description="which tasks have a batch in a step")
    temperature: Number = Field(
        1.0, ge=0.1, description="of mixing = temperature: 1 is proportional; the larger, the more even"
    )
    steps_per_epoch: Count | None = Field(
        None, ge=1, description="steps of an epoch; unset: as the mixing rule implies"
    )
    max_steps_per_epoch: Count | None = Field(
        None, ge=1, description="maximum steps of an epoch, if the mixing rule implies more"
    )
    epoch_of: Name | None = Field(
        None,
        description="the task whose rows make an epoch of simultaneous and round-robin mixing; unset: the smallest",
    )
    loss_weight: Number = Field(1.0, gt=0, description="weight of the task's loss")
    split_layers: Count = Field(0, ge=0, description="number of top layers that each task has for itself")
    gradient_surgery: GradientSurgery = Field("none", description="how tasks' gradients are combined")

    @field_validator("epoch_of", "gradient_surgery")
    @classmethod
    def _fits_the_mixing(cls, value: str | None, info: ValidationInfo) -> str | None:
        mixing = info.data.get("mixing", "simultaneous")
        if info.field_name == "gradient_surgery" and value != "none" and mixing != "simultaneous":
            raise ValueError(
                f"'{value}' combines the gradients of several tasks, but with mixing = '{mixing}' a step has one: use"
                " mixing = 'simultaneous'"
            )
        if info.field_name == "epoch_of" and value is not None and mixing not in ("simultaneous", "round-robin"):
            raise ValueError(
                f"with mixing = '{mixing}' an epoch has the rows of all tasks: use mixing = 'simultaneous' or"
                " 'round-robin'"
            )
        return value


class Source(Protocol):
    """An adapter that a fusion mixes."""

    @property
    def task(self) -> str: ...

    @property
    def run(self) -> str: ...


class FormSettings(RecipePart):
    """A form of fusion without settings, which trains over all adapters that it is given, the target's included."""

    summary: ClassVar[str] = ""
    epochs: ClassVar[int] = 3
    learning_rate_default: ClassVar[float] = 1e-3
    trains: ClassVar[bool] = True
    """Whether its layers have trainable weights."""
    anchored: ClassVar[bool] = False
    """It starts from one of its adapters, the best on dev, with that adapter's head; this start is scored too."""

    of_target: ClassVar[bool] = False
    """It mixes several adapters of the target instead of one for each task, and starts as their mean."""

    @property
    def own_adapter(self) -> Own:
        """Which adapter of the target takes part beside those that the fusion weighs."""
        return "none"

    @property
    def trains_own(self) -> bool:
        """Whether an adapter for the target trains with the fusion."""
        return self.own_adapter in ("fresh", "warm", "trained")

    @property
    def fuses_own(self) -> bool:
        """Whether the fusion mixes the target's adapter of stage one."""
        return self.own_adapter not in ("fresh", "warm")

    @property
    def probes_gates(self) -> bool:
        """Whether linear probes select the sources and their gates."""
        return False

    def names_of(self, sources: Iterable[Source]) -> list[str]:
        """The names of a fusion's ``sources`` in its model: their tasks, or ``task@run`` if all are of the target."""
        return [f"{source.task}@{source.run}" if self.of_target else source.task for source in sources]

    def resolved(self, learning_rate: float) -> Self:
        """The settings with every None filled; ``learning_rate`` is the fusion's."""
        return self


def even_gate(sources: int) -> float:
    """The initial gate of each of ``sources`` that start alike: 2 / N, at most 1."""
    return min(1.0, 2 / sources)


class Gated(FormSettings):
    """Settings of a gated fusion."""

    summary = "a new adapter of the target and gates on the other tasks' adapters, trained together"
    flags = {
        "rank": "gate_rank",
        "start": "gate_start",
        "learning_rate": "gate_learning_rate",
        "shared": "gate_shared",
        "own": "own_adapter",
    }

    gate: Gate = Field(
        "token",
        description="token: a gate for each token; or fixed gates: scalar, a number; vector, a number for each feature;"
        " matrix, a number plus a matrix",
    )
    rank: Width | None = Field(None, ge=1, description="rank of that matrix; unset: full")
    start: Annotated[Real, Field(ge=-100, le=100)] | Literal["even", "probe"] | None = Field(
        None,
        description="initial gate of each source: a number; even: 2 / sources, at most 1; probe: linear probes select"
        " the sources and their gates; unset: probe if the own adapter is fresh, else even",
    )
    learning_rate: Number | None = Field(
        None, gt=0, description="peak learning rate of the gates; unset: learning_rate"
    )
    shared: bool = Field(False, description="the same gates at all sites")
    own: Own = Field(
        "fresh",
        description="the target's own adapter: fresh: a new one, trained with the gates; warm: the same, initialised"
        " from the source that a linear probe prefers; trained or frozen: that of stage one; none: the target's adapter"
        " has a gate like the others",
    )

    @property
    def own_adapter(self) -> Own:
        return self.own

    @property
    def probes_gates(self) -> bool:
        return self.start == "probe"

    def resolved(self, learning_rate: float) -> Self:
        usual = "probe" if self.own == "fresh" else "even"
        rate = None if self.learning_rate == learning_rate else self.learning_rate
        return self.model_copy(update={"start": usual if self.start is None else self.start, "learning_rate": rate})

    @property
    def rank_in_effect(self) -> int | None:
        """The rank of gates that are matrices, or None."""
        return self.rank if self.gate == "matrix" else None

    def start_of(self, gates: int) -> float:
        """The initial gate of each source at a site with ``gates`` of them; 0 if probes will choose it."""
        if isinstance(self.start, float):
            return self.start
        return even_gate(gates) if self.start == "even" else 0.0


class Anchor(FormSettings):
    """Settings of an anchored fusion."""

    summary = "attention initialised to the best single adapter"
    anchored = True

    flags = {"score": "anchor", "rank": "fusion_rank"}

    score: Number = Field(5.0, ge=0, description="initial attention score of the anchor; the other adapters have 0")
    rank: Width = Field(16, ge=1, description="rank of Q, K and V - I")


class Standard(FormSettings):
    """Settings of a standard fusion."""

    summary = "the form of Pfeiffer et al. 2021"
    epochs = 2
    learning_rate_default = 5e-4  # many weights, each with little to do

    flags = {"regularization": "fusion_regularization"}

    regularization: Number = Field(0.01, ge=0, description="weight of ||V - I||^2 per fusion site")


class Mean(FormSettings):
    summary = "the plain mean of the adapters, where only the head trains"
    trains = False


class Experts(FormSettings):
    """Settings of a fusion of experts."""

    summary = "attention over several adapters of the target, initialised to their mean"
    of_target = True

    flags = {"train": "train_experts", "rank": "experts_rank"}

    train: bool = Field(False, description="train the attention and the head; unset: keep the mean")
    rank: Width = Field(16, ge=1, description="rank of Q, K and V - I")


FORMS: dict[FusionForm, type[FormSettings]] = {
    "gated": Gated,
    "anchored": Anchor,
    "standard": Standard,
    "mean": Mean,
    "experts": Experts,
}
SUMMARIES = "; ".join(f"{name}: {form.summary}" for name, form in FORMS.items())


class Fusion(RecipePart):
    flags = {"form": "fusion", "implementation": "fusion_impl", "best": "best_sources"}

    form: FusionForm = Field("gated", description=SUMMARIES)
    implementation: FusionImplementation = Field("fast", description="stock: compute fusion with AdapterHub's own code")
    head_start: bool = Field(
        True, description="initialise the head from the target's own adapter; anchored: from the anchor"
    )
    best: Count | None = Field(
        None, ge=1, description="try only this many sources: those that linear probes rank highest; unset: all"
    )


def gates_text(gates: Mapping[str, float]) -> str:
    """``quora 1, mnli 0.5``."""
    return ", ".join(f"{name} {gate:.2g}" for name, gate in gates.items())
