"""What a terminal shows of training."""

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from pipeline.training import progress
from pipeline.training.progress import TrainingProgress

Screen = Callable[[TrainingProgress], str]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """The bar as one line of text."""
    monkeypatch.setattr(progress, "console", Console(file=io.StringIO(), force_terminal=True, width=160))

    def text(shown: TrainingProgress) -> str:
        plain = Console(file=io.StringIO(), width=160)
        plain.print(shown.get_renderable())
        assert isinstance(plain.file, io.StringIO)
        return re.sub(r"[ \u2501\u2578\u257a-]+", " ", plain.file.getvalue()).strip()

    return text


def test_the_bar_shows_only_what_is_known(screen: Screen) -> None:
    shown = TrainingProgress("adapter sst", 3)
    assert screen(shown) == "adapter sst starts elapsed 0:00:00"
    assert shown.due()
    shown.step(5, 30, 1, 0.5, 123.4, 61.2, False)
    assert not shown.due()
    assert screen(shown).startswith("adapter sst epoch 1/3 loss 0.5000 123 examples/s elapsed 0:00:0")
    assert screen(shown).endswith("left over 1:01")
    shown.scoring(1)
    assert screen(shown).startswith("adapter sst epoch 1/3, scoring dev loss 0.5000")
    shown.step(14, 30, 2, 0.25, 99.0, 39512.0, True)
    assert screen(shown).endswith("left 10:58:32")
    shown.step(15, 30, 2, 0.25, 99.0, 5.0, True)
    assert screen(shown).startswith("adapter sst epoch 2/3 loss 0.2500 99 examples/s")
    assert screen(shown).endswith("left 0:05")
