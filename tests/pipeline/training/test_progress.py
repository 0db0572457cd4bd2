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
    shown = TrainingProgress("adapter sst", 3, 175)
    assert screen(shown) == "adapter sst starts elapsed 0:00:00"
    assert shown.due()
    shown.step(5, 30, 1, 0.5, 123.4, 61.2)
    assert not shown.due()
    assert screen(shown).startswith("adapter sst epoch 1/3 loss 0.5000 123 examples/s elapsed 0:00:0")
    assert screen(shown).endswith("left 1:01")
    shown.scoring(1)
    assert screen(shown).startswith("adapter sst epoch 1/3, scoring dev loss 0.5000")
    shown.step(14, 30, 2, 0.25, 99.0, 39512.0)
    assert screen(shown).endswith("left 10:58:32")
    shown.step(15, 30, 2, 0.25, 99.0, 5.0)
    assert screen(shown).startswith("adapter sst epoch 2/3 loss 0.2500 99 examples/s")
    assert screen(shown).endswith("left 0:05")


@pytest.mark.parametrize(("left", "about"), [(200.0, "3 min"), (41.4, "41 s")])
def test_the_time_is_announced_once_as_soon_as_some_steps_were_timed(
    left: float, about: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, file = [100.0], io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=file, soft_wrap=True))
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown, steps = TrainingProgress("adapter mails", 67, 175), []
    for step in range(1, 11):
        now[0] += 1
        if shown.due():
            steps.append(step)
            shown.step(step, 402, 1, 0.5, 64.0, left)
    assert steps == [5]
    assert file.getvalue() == f"adapter mails: 67 epochs of 175 rows, 402 steps, about {about} left\n"
