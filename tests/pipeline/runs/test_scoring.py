"""Evaluations: what the model said at the kept epoch, said once."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.runs.scoring import Evaluations
from pipeline.training.progress import Progress


@pytest.mark.parametrize(("best", "expected"), [(0, "now"), (2, "now"), (3, "said 0"), (4, "said 1"), (5, "said 2")])
@pytest.mark.parametrize("tunes", [False, True])
def test_the_best_epochs_predictions_are_made_again_only_if_another_process_made_them(
    best: int, expected: str, tunes: bool
) -> None:
    """The curve has epochs 0 and 2 of a process that was stopped, and three of this one.

    A threshold that is tuned is the last epoch's, so it is tuned again.
    """
    fitted = Progress(curve=[{"epoch": float(epoch)} for epoch in (0, 2, 3, 4, 5)], best_epoch=best)
    says = iter(["said 0", "said 1", "said 2", "now"])
    scoring: Any = SimpleNamespace(predict_choosing=lambda _: next(says), value=len, tunes=tunes)
    model: Any = SimpleNamespace(of=lambda _: None)
    evaluations = Evaluations(model, {"films": scoring}, {})
    assert [evaluations(None) for _ in range(3)] == [6.0] * 3
    assert evaluations.best(fitted) == {"films": "now" if tunes else expected}
