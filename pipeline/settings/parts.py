"""The parts of a recipe beside those of adapters: fusion, SMART, pretrained weights, pairs, joint training."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from pipeline.settings.part import Count, Number, Part, Width

FusionForm = Literal["anchored", "standard"]
FusionImplementation = Literal["fast", "stock"]
SmartDirection = Literal["reference", "gradient"]
PairOrder = Literal["given", "random"]
SecondEncoder = Literal["none", "static", "tuned"]
Mixing = Literal["simultaneous", "round-robin", "proportional", "square-root", "annealed", "shuffled", "temperature"]
GradientSurgery = Literal["none", "pcgrad", "upgrad"]


class Fusion(Part):
    flags = {"form": "fusion", "implementation": "fusion_impl", "head_start": "head_start"}

    form: FusionForm = Field("anchored", description="starts as one adapter; standard: Pfeiffer et al. 2021")
    implementation: FusionImplementation = Field("fast", description="stock computes fusion by AdapterHub's own code")
    head_start: bool = Field(True, description="start the fusion's head from the target's own adapter")


class Anchor(Part):
    """Of an anchored fusion."""

    flags = {"score": "anchor", "rank": "fusion_rank"}

    score: Number = Field(5.0, ge=0, description="attention score of the first adapter at the start; others have 0")
    rank: Width = Field(16, ge=1, description="rank of Q, K and V - I")


class Standard(Part):
    """Of a standard fusion."""

    flags = {"regularization": "fusion_regularization"}

    regularization: Number = Field(0.01, ge=0, description="weight of ||V - I||^2 a fusion site")


class Smart(Part):
    flags = {"weight": "smart"}

    weight: Number = Field(0.0, ge=0, description="lambda of SMART, smoothness against perturbed embeddings; 0 is off")
    direction: SmartDirection = Field("reference", description="as its authors' code, or along the gradient")
    radius: Number = Field(1.0, gt=0, description="largest entry of a token's perturbation")


class Pretrained(Part):
    """How the pretrained weights train, where they do."""

    flags = {
        "learning_rate": "backbone_learning_rate",
        **{key: key for key in ("layer_decay", "embedding_learning_rate", "freeze_embeddings", "second_encoder")},
    }

    learning_rate: Number | None = Field(None, gt=0, description="of pretrained weights, if another")
    layer_decay: float = Field(1.0, gt=0, le=1, description="rate of a layer over that of the one above")
    embedding_learning_rate: Number | None = Field(None, gt=0, description="if not that of a layer below the lowest")
    freeze_embeddings: bool = Field(False, description="leave the embeddings as they were pretrained")
    second_encoder: SecondEncoder = Field("none", description="another encoder beside it, frozen or tuned too")


class Pairs(Part):
    """Of pairs that are encoded as one input."""

    flags = {"order": "pair_order", "average_orders": "average_orders"}

    order: PairOrder = Field("given", description="random: train in a random order each epoch")
    average_orders: bool = Field(False, description="score the mean of both orders")


class Joint(Part):
    """Of training several tasks together."""

    flags = {
        key: key
        for key in ("mixing", "temperature", "steps_per_epoch", "loss_weight", "split_layers", "gradient_surgery")
    }

    mixing: Mixing = Field("simultaneous", description="which tasks' batches make up a step")
    temperature: Number = Field(1.0, ge=0.1, description="mixing by temperature: 1 proportional, large even")
    steps_per_epoch: Count | None = Field(None, ge=1, description="if not what the mixing rule implies")
    loss_weight: Number = Field(1.0, gt=0, description="weight of this task's loss")
    split_layers: Count = Field(0, ge=0, description="top layers that each task has for itself")
    gradient_surgery: GradientSurgery = Field("none", description="how tasks' gradients are combined")

    @field_validator("gradient_surgery")
    @classmethod
    def _needs_several_gradients(cls, surgery: GradientSurgery, info: ValidationInfo) -> GradientSurgery:
        mixing = info.data.get("mixing", "simultaneous")
        if surgery != "none" and mixing != "simultaneous":
            raise ValueError(
                f"'{surgery}' combines the gradients of several tasks, but with mixing = '{mixing}' a step has one: use"
                " mixing = 'simultaneous'"
            )
        return surgery
