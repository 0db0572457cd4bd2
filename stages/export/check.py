"""Check that an exported folder gives the same answers as its model."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.tasks import Task
from pipeline.system.errors import PipelineError
from stages.export.trained import SCRIPT, Texts, Trained

TOLERANCE = 1e-4
"""Largest difference that fp32 rounding explains, in an output, a probability, or a score in its unit."""

Answers = Mapping[str, np.ndarray]
"""``outputs`` of the head (B, k), and ``probabilities`` (B, C) or ``scores`` (B,)."""


@dataclass(frozen=True)
class Agreement:
    """How far an export's answers are from the model's."""

    rows: int
    batches: int
    difference: float
    """Largest difference in outputs, probabilities or scores, whichever come closest to their limit."""
    allowed: float
    """That limit: the largest difference that fp32 rounding explains."""
    agree: float | None
    """Share of rows with the same class; None for scores."""


@dataclass(frozen=True)
class Checked:
    """The result of comparing an export's answers with the model's."""

    texts: str
    """Where the compared texts come from."""
    fp32: Agreement
    int8: Agreement | None = None

    def sentences(self) -> list[str]:
        sentences = [
            f"{self.fp32.rows} texts ({self.texts}) in {self.fp32.batches} batches of 1 to 32: in fp32 no output"
            f" differs from the trained model's by more than {self.fp32.difference:.1e}"
            f" (allowed: {self.fp32.allowed:g})."
        ]
        if self.int8 is not None:
            same = "" if self.int8.agree is None else f", and {self.int8.agree:.1%} of the classes are the same"
            sentences.append(f"The int8 model's outputs differ by up to {self.int8.difference:.2g}{same}.")
        return sentences


def script_of(folder: Path) -> Callable[[Texts], Answers]:
    """The function ``answer`` of the script in ``folder``, as a user's program would import it."""
    # Compiled here because an import would leave its cache in the folder.
    file = folder / SCRIPT
    names: dict[str, Any] = {"__name__": "exported", "__file__": str(file)}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
    answer: Callable[[Texts], Answers] = names["answer"]
    return answer


def compare(trained: Trained, expected: Answers, folder: Path, texts: Texts) -> Agreement:
    """Compare the answers of the script in ``folder``, in batches of many sizes and so of many lengths."""
    answer, batches = script_of(folder), list(_batches(len(texts)))
    parts = [answer([*texts][batch]) for batch in batches]
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    units = {"scores": score_unit(trained.task), "outputs": _output_unit(trained)}
    differences = [
        (float(np.abs(values - expected[name]).max()), TOLERANCE * units.get(name, 1.0))
        for name, values in outputs.items()
    ]
    difference, allowed = max(differences, key=lambda pair: pair[0] / pair[1])
    agree = None
    if trained.answer == "probabilities":
        same = outputs[trained.answer].argmax(axis=-1) == expected[trained.answer].argmax(axis=-1)
        agree = float(same.mean())
    return Agreement(len(texts), len(batches), difference, allowed, agree)


def score_unit(task: Task) -> float:
    """What an output of 1 adds to a score, at least 1; more if the scores are too large for fp32.

    A score of 5,000 has steps of 0.0005 in fp32.
    """
    low, high = task.range or (-1.0, 1.0)
    return max(1.0, (high - low) / 2, max(abs(low), abs(high)) / 1000)


def _output_unit(trained: Trained) -> float:
    is_score = trained.task.kind == "score" and trained.recipe.score_loss == "raw" and trained.recipe.head != "cosine"
    return score_unit(trained.task) if is_score else 1.0


def check(agreement: Agreement, folder: Path) -> None:
    """Raise a :class:`PipelineError` if answers differ by more than rounding."""
    if not agreement.difference <= agreement.allowed:
        raise PipelineError(
            f"{folder}: not written: the exported model's answers differ from the model's own by"
            f" {agreement.difference:.2g}, more than {agreement.allowed:g}, on {agreement.rows} texts. This is a limit"
            " of the format for this model: use another --format, or predict here"
        )


def _batches(rows: int) -> Iterator[slice]:
    """Batches of 1, 2, 4, ... 32 rows."""
    start, size = 0, 1
    while start < rows:
        yield slice(start, start + size)
        start, size = start + size, min(2 * size, 32)
