"""The script that asks an exported model through AdapterHub and transformers, written for this one model."""

from typing import Literal

from pipeline.records.store import HEAD
from stages.export.trained import TASK_FILE, Trained

Layout = Literal["adapter", "fusion", "full"]

_ABOUT = '''"""Ask the model in this folder: ``python run.py TEXT``, with two texts for a model of pairs.

Needs {needs}.
"""
'''
_MAIN = """
if __name__ == "__main__":
    asked = 1 + max(number for texts in TASK["inputs"] for number in texts)
    if len(sys.argv) != 1 + asked:
        print(f"usage: python {sys.argv[0]}{asked * ' TEXT'}", file=sys.stderr)
        sys.exit(2)
    (values,) = answer([tuple(sys.argv[1:])]).values()
    for name, value in zip(TASK["classes"] or ["score"], values.reshape(-1), strict=True):
        print(f"{value:.4f}  {name}")
"""
_LOADED: dict[tuple[Layout, bool], str] = {
    ("adapter", True): """model = AutoAdapterModel.from_pretrained(TASK["backbone"])
model.load_adapter(str(FOLDER), set_active=True, use_safetensors=True)""",
    ("adapter", False): """model = AutoModel.from_pretrained(TASK["backbone"])
adapters.init(model)
model.load_adapter(str(FOLDER), set_active=True, use_safetensors=True)""",
    ("fusion", True): """model = AutoAdapterModel.from_pretrained(TASK["backbone"])
fused, head = model.load_adapter_setup(str(FOLDER), use_safetensors=True)
model.set_active_adapters(fused, skip_layers=TASK["skip_layers"])
model.active_head = head""",
    ("fusion", False): """model = AutoModel.from_pretrained(TASK["backbone"])
adapters.init(model)
fused = model.load_adapter_setup(str(FOLDER), use_safetensors=True)[0]
model.set_active_adapters(fused, skip_layers=TASK["skip_layers"])""",
    ("full", True): "model = AutoModelForSequenceClassification.from_pretrained(FOLDER)",
    ("full", False): "model = AutoModel.from_pretrained(FOLDER)",
}


def compose(trained: Trained, layout: Layout, stock_head: bool) -> str:
    """The whole script; ``stock_head`` says whether the head is in the libraries' own files."""
    needs = "torch, transformers and safetensors" if layout == "full" else "torch, transformers 4.57 and adapters 1.3"
    code = how_to_load(trained, layout, stock_head, "Path(__file__).resolve().parent")
    code = code.replace("import json\n", "import json\nimport sys\n", 1)
    return f"{_ABOUT.format(needs=needs)}\n{code}{_MAIN}"


def how_to_load(trained: Trained, layout: Layout, stock_head: bool, folder: str) -> str:
    """The part of the script that loads the model and defines ``answer``; ``folder`` is an expression."""
    loaded = _LOADED[layout, stock_head]
    weightless = trained.recipe.head == "cosine"
    own = not stock_head and not weightless
    names = [name for name in ("AutoModelForSequenceClassification", "AutoModel") if f"{name}." in loaded]
    imports = [
        "import json",
        "from pathlib import Path",
        "",
        *(["import adapters"] if "adapters.init" in loaded else []),
        "import torch",
        *(["from adapters import AutoAdapterModel"] if "AutoAdapterModel" in loaded else []),
        *(["from safetensors.torch import load_file"] if own else []),
        *([] if stock_head else ["from torch.nn import functional as F"]),
        f"from transformers import {', '.join([*names, 'AutoTokenizer'])}",
    ]
    setup = [
        "",
        f"FOLDER = {folder}",
        f'TASK = json.loads((FOLDER / "{TASK_FILE}").read_text(encoding="utf-8"))',
        "tokenizer = AutoTokenizer.from_pretrained(FOLDER)",
        loaded,
        "model.eval()",
        *([f'head = load_file(FOLDER / "{HEAD}")'] if own else []),
    ]
    outputs = _logits() if stock_head else [*_vectors(trained), *_own_head(trained)]
    return "\n".join([*imports, *setup, "", "", *outputs, "", "", *_answer(trained), ""])


def _tokenised() -> str:
    return '    inputs = tokenizer(*columns, truncation=True, padding=True, return_tensors="pt")'


def _logits() -> list[str]:
    return ["def outputs(*columns):", _tokenised(), "    return model(**inputs).logits"]


def _vectors(trained: Trained) -> list[str]:
    pooled = (
        ["    return hidden[:, 0]"]
        if trained.recipe.pooling == "cls"
        else [
            '    mask = inputs["attention_mask"].unsqueeze(-1)',
            "    return (hidden * mask).sum(1) / mask.sum(1)",
        ]
    )
    return ["def vectors(*columns):", _tokenised(), "    hidden = model(**inputs).last_hidden_state", *pooled, "", ""]


def _own_head(trained: Trained) -> list[str]:
    kind = trained.recipe.head or ""
    read = ["    features = vectors(*columns)"]
    if trained.recipe.encoding == "siamese" and trained.task.is_pair:
        joined = "u, v, (u - v).abs()" if kind.startswith("difference") else "u, v"
        read = ["    u, v = (vectors(column) for column in columns)"]
        if kind == "cosine":
            return ["def outputs(*columns):", *read, "    return F.cosine_similarity(u, v, dim=-1).unsqueeze(-1)"]
        read.append(f"    features = torch.cat([{joined}], dim=-1)")
    if kind.endswith("mlp"):
        read.append('    features = F.relu(F.linear(features, head["hidden.weight"], head["hidden.bias"]))')
    return ["def outputs(*columns):", *read, '    return F.linear(features, head["out.weight"], head["out.bias"])']


def _answer(trained: Trained) -> list[str]:
    asked = "outputs(*columns)"
    if trained.task.is_pair and trained.recipe.pairs.average_orders and trained.recipe.encoding == "cross":
        asked = "(outputs(*columns) + outputs(*columns[::-1])) / 2"
    row = ("a",) * len(trained.task.text)
    return [
        "def answer(rows):",
        f'    """The {trained.answer} of rows of {"two texts" if trained.task.is_pair else "one text"} each."""',
        "    if not rows:",
        f"        return {{name: values[:0] for name, values in answer([{row!r}]).items()}}",
        "    columns = [list(texts) for texts in zip(*rows, strict=True)]",
        "    with torch.inference_mode():",
        f"        values = {asked}",
        *_read(trained),
        f'    return {{"{trained.answer}": values.numpy()}}',
    ]


_SIMILAR = {"second": "1 - positive, positive", "first": "positive, 1 - positive"}
"""The probabilities of two classes, by the one that is of similar texts."""


def _read(trained: Trained) -> list[str]:
    if trained.recipe.head == "cosine" and trained.task.range is None:
        return [
            "    positive = ((1 + values[:, 0]) / 2).clamp(0, 1)",
            f"    values = torch.stack([{_SIMILAR[trained.recipe.cosine_similar]}], dim=-1)",
        ]
    if trained.task.range is None:
        return ["    values = values.softmax(-1)"]
    if trained.recipe.head != "cosine":
        return ["    values = values[:, 0]"]
    low, high = trained.task.range
    if trained.recipe.cosine_scale == "clamped":
        return [f"    values = {low!r} + {high - low!r} * values[:, 0].clamp(min=0)"]
    return [f"    values = {(low + high) / 2!r} + {(high - low) / 2!r} * values[:, 0]"]
