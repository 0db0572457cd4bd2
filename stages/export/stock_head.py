"""Fold a head, and the conversion of its outputs, into the layers of transformers' and AdapterHub's heads.

Their heads return logits of all classes, or one score. A single logit z for two classes equals the logits (0, z), and a
score in a task's range is a linear function of the head's output, so the last layer's weights can hold both.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel

from pipeline.models.heads import CosineHead
from pipeline.training.objectives import output_scale
from stages.export.trained import Trained

# tanh(e x) / e is x up to (e x)^2 / 3: less than 1e-5 of it for |x| <= 20. A power of two, so that scaling is exact.
_EPSILON = 2.0**-12
_EXACT = frozenset({"bert", "roberta", "xlm-roberta", "distilbert"})
"""Families whose sequence classification head has such a function. Others use GELU or a LayerNorm."""


@torch.no_grad()
def layers_of_head(trained: Trained) -> dict[str, Tensor]:
    """``out.weight`` and ``out.bias`` for logits or the score, and for an MLP also ``hidden.weight`` and so on.

    Empty for a cosine head, which has no weights.
    """
    head = trained.model.head
    if isinstance(head, CosineHead):
        return {}
    tensors = {name: tensor.detach().clone() for name, tensor in head.named_parameters()}
    weight, bias = tensors["out.weight"], tensors["out.bias"]
    if trained.recipe.one_logit:
        weight, bias = (torch.cat([torch.zeros_like(each), each]) for each in (weight, bias))
    elif trained.task.range is not None:
        zero, unit = output_scale(trained.task, trained.recipe)
        weight, bias = unit * weight, unit * bias + zero
    return {**tensors, "out.weight": weight, "out.bias": bias}


def why_no_stock_head(trained: Trained) -> str:
    """Why neither library has such a head; empty if they may have it."""
    if trained.recipe.encoding == "siamese" and trained.task.is_pair:
        return f"they have no head that reads two texts apart ({trained.recipe.head}, siamese)"
    if len(trained.inputs) > 1:
        return "they have no head that averages both orders of a pair"
    if trained.recipe.pooling == "mean":
        return "their heads read the first token, and this one the mean over all"
    return ""


def labels_of(trained: Trained) -> dict[int, str]:
    """The names of a head's outputs in both libraries."""
    return dict(enumerate(trained.task.classes or ("score",)))


def add_to_adapterhub(model: Any, trained: Trained) -> None:
    """Add the trained head as an AdapterHub classification head with the task's name."""
    layers = layers_of_head(trained)
    model.add_classification_head(
        trained.task.name,
        num_labels=len(layers["out.bias"]),
        layers=len(layers) // 2,
        activation_function="relu",
        id2label=labels_of(trained),
    )
    linear = [module for module in model.heads[trained.task.name] if isinstance(module, nn.Linear)]
    _fill(linear[-1], layers, "out")
    if len(linear) > 1:
        _fill(linear[0], layers, "hidden")


def as_classifier(trained: Trained) -> PreTrainedModel | None:
    """The model as its family's sequence classification class; None if that class cannot represent it.

    Such a class has a layer with tanh (BERT, RoBERTa) or ReLU (DistilBERT) between the first token and the logits. For
    small numbers tanh is the identity, and x = relu(x) - relu(-x).
    """
    layers, config = layers_of_head(trained), _config_of(trained)
    if config.model_type not in _EXACT:
        return None
    weight, width = layers["out.weight"], trained.backbone.hidden_size
    model: Any = AutoModelForSequenceClassification.from_config(config)
    if hasattr(model, "pre_classifier"):
        first, last = model.pre_classifier, model.classifier
        if "hidden.weight" in layers:
            hidden, out = (layers["hidden.weight"], layers["hidden.bias"]), (weight, layers["out.bias"])
        elif 2 * len(weight) > width:
            return None
        else:
            signs = torch.eye(len(weight))
            rest = width - 2 * len(weight)
            hidden = torch.cat([weight, -weight, weight.new_zeros(rest, width)]), weight.new_zeros(width)
            out = torch.cat([signs, -signs, weight.new_zeros(len(weight), rest)], dim=1), layers["out.bias"]
    elif "hidden.weight" in layers:
        return None
    else:
        is_roberta = hasattr(model.classifier, "dense")
        first = model.classifier.dense if is_roberta else model.base_model.pooler.dense
        last = model.classifier.out_proj if is_roberta else model.classifier
        hidden = _EPSILON * torch.eye(width), torch.zeros(width)
        out = weight / _EPSILON, layers["out.bias"]
    _set(first, *hidden)
    _set(last, *out)
    model.base_model.load_state_dict(trained.model.backbone.state_dict(), strict=False)
    return model.eval()


def _config_of(trained: Trained) -> PretrainedConfig:
    encoder: Any = trained.model.backbone
    config = type(encoder.config).from_dict(encoder.config.to_dict())
    config.id2label = labels_of(trained)
    config.label2id = {name: number for number, name in labels_of(trained).items()}
    config.problem_type = "regression" if trained.task.kind == "score" else "single_label_classification"
    return config


def _fill(linear: nn.Linear, layers: dict[str, Tensor], name: str) -> None:
    _set(linear, layers[f"{name}.weight"], layers[f"{name}.bias"])


@torch.no_grad()
def _set(linear: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    linear.weight.copy_(weight)
    linear.bias.copy_(bias)
