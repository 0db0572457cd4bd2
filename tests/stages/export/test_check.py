"""By how much the answers of an export may differ from the model's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.data.tasks import Task
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.export.export import check, compare

FILES = {"metric": "pearson", "files": {"train": "a", "dev": "b"}, "text": ["text"], "label": "score"}
ROWS = 40


def export_that_differs(by: float, score: float, low: float, high: float, folder: Path, **recipe: Any) -> None:
    """Compare an exported script whose every score is ``by`` higher than the model's."""
    task = Task.parse({"name": "prices", "kind": "score", "range": [low, high], **FILES}, "test")
    trained: Any = SimpleNamespace(task=task, recipe=Recipe(**recipe), answer="scores", temperature=1.0)
    answers = "{name: np.full(len(texts), %r) for name in ('outputs', 'scores')}"
    (folder / "run.py").write_text(f"import numpy as np\ndef answer(texts): return {answers % (score + by)}\n")
    expected = {name: np.full(ROWS, score) for name in ("outputs", "scores")}
    if recipe.get("score_loss") != "raw":  # an output in -1..1 then stands for the score
        expected["outputs"] = np.full(ROWS, score + by)
    check(compare(trained, expected, folder, [("a",)] * ROWS), folder)


@pytest.mark.parametrize("recipe", [{}, {"score_loss": "raw"}], ids=str)
@pytest.mark.parametrize(
    ("low", "high", "score", "rounding"),
    [
        (0.0, 1.0, 0.5, 0.9e-4),
        (0.0, 5.0, 2.5, 2.4e-4),
        (0.0, 5000.0, 2500.0, 0.2),
        (4000.0, 4001.0, 4000.5, 3e-4),  # as close as fp32 numbers of that size are
    ],
)
def test_a_score_may_differ_by_its_share_of_the_range(
    low: float, high: float, score: float, rounding: float, recipe: dict[str, Any], tmp_path: Path
) -> None:
    """Two orders of one sum in fp32 differ by more where scores are larger."""
    export_that_differs(rounding, score, low, high, tmp_path, **recipe)
    with pytest.raises(PipelineError, match="not written: the exported model's answers differ"):
        export_that_differs(4 * rounding, score, low, high, tmp_path, **recipe)
