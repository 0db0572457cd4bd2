"""Write a trained model in a form that stock AdapterHub and transformers load, with a script that runs it.

An adapter, or a fusion with its adapters, goes into AdapterHub's files; a model with a trained backbone goes into
those of transformers. If these libraries have the head, their files include it; otherwise the script pools and applies
it. Their heads return logits of all classes, or one score: a single logit z for two classes equals the logits (0, z),
and a score in a task's range is a linear function of the head's output, so the last layer's weights can hold both.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import adapters
import torch
from adapters import AutoAdapterModel
from adapters.composition import Fuse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from pipeline.methods.houlsby import bottleneck_of
from pipeline.methods.registry import FORMS, METHODS, members_of
from pipeline.methods.saved import ADAPTER_CONFIG, ADAPTER_FILE, sites_of
from pipeline.models.backbone import HAS_POOLER
from pipeline.models.transfer_model import CosineHead
from pipeline.records.store import HEAD
from pipeline.system.atomic import write_json, write_text
from pipeline.system.errors import PipelineError
from pipeline.training.objectives import output_scale
from stages.export.exported import SCRIPT, TASK_FILE, Trained, Written

Layout = Literal["adapter", "fusion", "full"]
_CODE = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
).get_template("run.py.jinja")


# tanh(e x) / e is x up to (e x)^2 / 3: less than 1e-5 of it for |x| <= 20. A power of two, so that scaling is exact.
_EPSILON = 2.0**-12
_EXACT = frozenset({"bert", "roberta", "xlm-roberta", "distilbert"})
"""Families whose sequence classification head has such a function. Others use GELU or a LayerNorm."""


def write(trained: Trained, folder: Path) -> Written:
    """Write the model; raises a :class:`PipelineError` that names a suitable format if these libraries lack a part."""
    if problem := _why_not(trained):
        raise PipelineError(
            f"run {trained.run} ({trained.kind} of '{trained.task.name}'): {problem}: use --format onnx"
        )
    backbone = trained.backbone
    where = {
        "backbone": str(Path(backbone.name).absolute()) if backbone.is_folder else backbone.name,
        "skip_layers": list(trained.recipe.adapter.drop_layers),
    }
    write_json(folder / TASK_FILE, trained.described() | where)
    trained.write_tokenizer(folder)
    missing = why_no_stock_head(trained)
    if trained.artifact is None:
        layout: Layout = "full"
        model: Any = None if missing else as_classifier(trained)
        if model is None:
            missing = missing or f"they have no head '{trained.recipe.head}' for this family of models"
            # The trained encoder without the changes that make it faster.
            encoder: Any = trained.model.backbone
            pooler = {"add_pooling_layer": False} if encoder.config.model_type in HAS_POOLER else {}
            model = AutoModel.from_config(type(encoder.config).from_dict(encoder.config.to_dict()), **pooler)
            model.load_state_dict(encoder.state_dict())
        model.save_pretrained(folder)
    else:
        model = (AutoModel if missing else AutoAdapterModel).from_pretrained(
            trained.backbone.name, use_safetensors=True
        )
        model.config.name_or_path = trained.backbone.shown_name
        if missing:
            adapters.init(model)
        else:
            add_to_adapterhub(model, trained)
        layout = _save_modules(model, trained, folder, with_head=not missing)
    if missing and (tensors := layers_of_head(trained)):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / HEAD)
    write_text(folder / SCRIPT, _code(trained, layout, not missing, whole=True))
    notes = []
    if missing:
        notes.append(f"The head is in {SCRIPT}, not in the libraries' own files: {missing}.")
    if layout != "full" and backbone.is_folder:
        notes.append(
            f"The encoder is a folder of the machine that exported it: say in {TASK_FILE} where it is on yours."
        )
    code = _code(trained, layout, not missing, whole=False)
    return Written(code, "transformers" if layout == "full" else "adapter-transformers", tuple(notes))


def _code(trained: Trained, layout: Layout, stock_head: bool, whole: bool) -> str:
    """Python that loads the model and runs it; ``stock_head``: the head is in the libraries' files."""
    loader = "AutoAdapterModel" if stock_head else "AutoModel"
    return _CODE.render(
        whole=whole,
        layout=layout,
        stock_head=stock_head,
        loader="AutoModelForSequenceClassification" if stock_head and layout == "full" else loader,
        own_weights=not stock_head and trained.recipe.head != "cosine",
        trained=trained,
        task_file=TASK_FILE,
        head_file=HEAD,
    )


def _why_not(trained: Trained) -> str:
    recipe, artifact = trained.recipe, trained.artifact
    if trained.cuts_middle:
        return "transformers' tokenizers cannot keep the beginning and the end of a text (truncation = 'head-and-tail')"
    if recipe.pooling == "pooler":
        return "its head reads the backbone's own pooler, which AdapterHub leaves out"
    if recipe.cosine_threshold == "tuned":
        return "they have no cosine with a threshold (cosine_threshold = 'tuned')"
    if artifact is None:
        if recipe.trainable == "full+adapter":
            return "its modules were trained together with the backbone, which AdapterHub's adapters cannot express"
        if recipe.has_modules:
            return "its modules were trained for several tasks at once, and are in no files of AdapterHub"
        return "transformers has no model of two encoders" if trained.model.second else ""
    encoder: Any = trained.model.backbone
    if encoder.config.model_type == "modernbert":
        return "AdapterHub 1.3 gives a ModernBERT random biases, so that it answers differently there"
    for kept in (artifact, *trained.adapters):
        own = kept.manifest.recipe
        if own.trainable == "adapter" and (lacking := METHODS[own.adapter.kind].stock_lacks):
            return f"AdapterHub has no {lacking} (adapter '{own.adapter.kind}')"
        if own.bottleneck.train_layernorm:
            return "AdapterHub has no place for the LayerNorms that were trained with the adapter"
    is_adapter = artifact.manifest.kind == "adapter"
    return "" if is_adapter else FORMS[recipe.fusion.form].stock_lacks(recipe, artifact.manifest.files)


def _save_modules(model: Any, trained: Trained, folder: Path, with_head: bool) -> Layout:
    """Write adapters and fusion with AdapterHub's functions; returns the layout, ``adapter`` or ``fusion``."""
    artifact, task = trained.artifact, trained.task.name
    assert artifact is not None
    if artifact.manifest.kind == "adapter":
        for name in (ADAPTER_CONFIG, ADAPTER_FILE):
            shutil.copyfile(artifact.folder / name, folder / name)
        if with_head:
            model.save_head(str(folder), task, use_safetensors=True)
        return "adapter"
    names = trained.recipe.form.names_of(artifact.manifest.sources)
    members = members_of(trained.recipe, task, names)
    if joined := FORMS[trained.recipe.fusion.form].as_adapters(trained.model.backbone, members):
        _add_joined(model, trained, joined)
        model.save_adapter(str(folder), task, use_safetensors=True)
        return "adapter"
    # Load into the encoder, from which it was saved: AdapterHub finds a fusion's tensors only under the same names.
    encoder = model.base_model
    for name, each in zip(names, trained.adapters, strict=True):
        encoder.load_adapter(str(each.folder), load_as=name, use_safetensors=True)
    encoder.load_adapter_fusion(str(artifact.folder), use_safetensors=True)
    head = {"head_setup": task} if with_head else {}
    model.save_adapter_setup(str(folder), Fuse(*names), use_safetensors=True, **head)
    return "fusion"


def _add_joined(model: Any, trained: Trained, joined: Sequence[Mapping[str, Tensor]]) -> None:
    """Add the bottleneck adapter equivalent to a fusion, with its weights at each site."""
    task, recipe = trained.task.name, trained.recipe
    config = bottleneck_of(recipe, model.config, len(joined[0]["down.bias"]))
    model.add_adapter(task, config=config.replace(leave_out=sorted(recipe.adapter.drop_layers)))
    sites = [site for site in sites_of(model) if task in site.adapters]
    for site, tensors in zip(sites, joined, strict=True):
        adapter = site.adapters[task]
        for name, linear in (("down", adapter.adapter_down[0]), ("up", adapter.adapter_up)):
            _set(linear, tensors[f"{name}.weight"], tensors[f"{name}.bias"])


@torch.no_grad()
def layers_of_head(trained: Trained) -> dict[str, Tensor]:
    """``out.weight`` and ``out.bias`` for logits or the score, and for an MLP also ``hidden.weight`` and so on.

    Empty for a cosine head, which has no weights.
    """
    head = trained.model.head
    if isinstance(head, CosineHead):
        return {}
    tensors = {name: tensor.detach().clone() for name, tensor in head.named_parameters()}
    weight, bias = tensors["out.weight"], tensors["out.bias"] - tensors.pop("threshold", 0)
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


def add_to_adapterhub(model: Any, trained: Trained) -> None:
    """Add the trained head as an AdapterHub classification head with the task's name."""
    layers = layers_of_head(trained)
    model.add_classification_head(
        trained.task.name,
        num_labels=len(layers["out.bias"]),
        layers=len(layers) // 2,
        activation_function="relu",
        id2label=dict(enumerate(trained.task.classes or ("score",))),
    )
    linear = [module for module in model.heads[trained.task.name] if isinstance(module, nn.Linear)]
    for module, name in zip(linear, ("hidden", "out")[-len(linear) :], strict=True):
        _set(module, layers[f"{name}.weight"], layers[f"{name}.bias"])


def as_classifier(trained: Trained) -> PreTrainedModel | None:
    """The model as its family's sequence classification class; None if that class cannot represent it.

    Such a class has a layer with tanh (BERT, RoBERTa) or ReLU (DistilBERT) between the first token and the logits. For
    small numbers tanh is the identity, and x = relu(x) - relu(-x).
    """
    layers, encoder = layers_of_head(trained), cast(Any, trained.model.backbone)
    config = type(encoder.config).from_dict(encoder.config.to_dict())
    config.id2label = dict(enumerate(trained.task.classes or ("score",)))
    config.label2id = {name: number for number, name in config.id2label.items()}
    config.problem_type = {
        "score": "regression",
        "classes": "single_label_classification",
        "labels": "multi_label_classification",
    }[trained.task.kind]
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


@torch.no_grad()
def _set(linear: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    linear.weight.copy_(weight)
    linear.bias.copy_(bias)
