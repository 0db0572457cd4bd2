"""The forms of fusion in a recipe: their settings and what follows from them. No layers, since importing torch is slow.

The layers of a form are in ``pipeline/methods/FORM.py``.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from pipeline.settings.fields import Real
from pipeline.settings.parts import Count, Number, RecipePart, Width

FusionForm = Literal["gated", "anchored", "standard", "mean"]
FusionImplementation = Literal["fast", "stock"]
Gate = Literal["token", "scalar", "vector", "matrix"]
Own = Literal["fresh", "warm", "trained", "frozen", "none"]


class FormSettings(RecipePart):
    """A form of fusion without settings, which trains over all adapters that it is given, the target's included."""

    summary: ClassVar[str] = ""
    epochs: ClassVar[int] = 3
    learning_rate_default: ClassVar[float] = 1e-3
    trains: ClassVar[bool] = True
    """Whether its layers have trainable weights."""
    anchored: ClassVar[bool] = False
    """It starts from one of its adapters, the best on dev, with that adapter's head; this start is scored too."""

    @property
    def trains_own(self) -> bool:
        """Whether an adapter for the target trains with the fusion."""
        return False

    @property
    def fuses_own(self) -> bool:
        """Whether the fusion mixes the target's adapter of stage one."""
        return True

    @property
    def warm_starts_own(self) -> bool:
        """Whether the target's adapter is warm-started from another task's."""
        return False

    @property
    def adds_own(self) -> bool:
        """Whether the target's adapter is added with weight 1, beside the adapters that the fusion weighs."""
        return False

    @property
    def probes_gates(self) -> bool:
        """Whether linear probes select the sources and their gates."""
        return False

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
        "gate": "gate",
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
    def trains_own(self) -> bool:
        return self.own in ("fresh", "warm", "trained")

    @property
    def fuses_own(self) -> bool:
        return self.own not in ("fresh", "warm")

    @property
    def warm_starts_own(self) -> bool:
        return self.own == "warm"

    @property
    def adds_own(self) -> bool:
        return self.own != "none"

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
        match self.start:
            case "even":
                return even_gate(gates)
            case "probe" | None:
                return 0.0
            case number:
                return number


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


FORMS: dict[FusionForm, type[FormSettings]] = {"gated": Gated, "anchored": Anchor, "standard": Standard, "mean": Mean}
SUMMARIES = "; ".join(f"{name}: {form.summary}" for name, form in FORMS.items())


class Fusion(RecipePart):
    flags = {"form": "fusion", "implementation": "fusion_impl", "best": "best_sources"}

    form: FusionForm = Field(
        "gated",
        description=SUMMARIES,
    )
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
