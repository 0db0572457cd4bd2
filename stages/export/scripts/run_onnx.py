"""Ask the model in this folder: ``python run.py TEXT``, with two texts for a model of pairs.

Needs numpy, onnxruntime and tokenizers. Pooling, head and probabilities are inside model.onnx.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

FOLDER = Path(__file__).resolve().parent
TASK = json.loads((FOLDER / "task.json").read_text(encoding="utf-8"))
TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))  # it cuts and pads as the model needs
TOKENIZER.encode_special_tokens = TASK["split_special_tokens"]  # which its file cannot hold
TEXTS = 1 + max(number for texts in TASK["inputs"] for number in texts)  # of a row: one, or two of a pair
MODEL = onnxruntime.InferenceSession(str(FOLDER / "model.onnx"), providers=["CPUExecutionProvider"])


def answer(rows: list[tuple[str, ...]]) -> dict[str, np.ndarray]:
    """The head's outputs, and probabilities (B, classes) or scores (B,), of B rows of one text or two."""
    if not rows:
        return {name: values[:0] for name, values in answer([("",) * TEXTS]).items()}
    names = [each.name for each in MODEL.get_inputs()]
    kinds = ("ids", "attention_mask", "type_ids")[: len(names) // len(TASK["inputs"])]
    encodings = [
        TOKENIZER.encode_batch([tuple(row[n] for n in texts) if len(texts) > 1 else row[texts[0]] for row in rows])
        for texts in TASK["inputs"]
    ]
    arrays = [np.array([getattr(one, kind) for one in batch], np.int64) for batch in encodings for kind in kinds]
    outputs = MODEL.run(None, dict(zip(names, arrays, strict=True)))
    return dict(zip([each.name for each in MODEL.get_outputs()], outputs, strict=True))


if __name__ == "__main__":
    if len(sys.argv) != 1 + TEXTS:
        print(f"usage: python {sys.argv[0]}{TEXTS * ' TEXT'}", file=sys.stderr)
        sys.exit(2)
    found = answer([tuple(sys.argv[1:])])
    for name, value in zip(TASK["classes"] or ["score"], list(found.values())[1].reshape(-1), strict=True):
        print(f"{value:.4f}  {name}")
