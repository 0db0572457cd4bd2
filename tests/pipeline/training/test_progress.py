"""A checkpoint comes back exactly as it was, or not at all; and what a terminal shows of training."""

import io
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.optim import AdamW

from pipeline.system.errors import PipelineError
from pipeline.training import progress
from pipeline.training.progress import (
    Checkpoint,
    Progress,
    Resumption,
    TrainingProgress,
    load_checkpoint,
    save_checkpoint,
)


def checkpoint(seed: int = 0) -> Checkpoint:
    torch.manual_seed(seed)
    return Checkpoint(
        progress=Progress(
            epoch=2, batch=3, step=7, best_epoch=1, best_score=0.5, curve=[{"epoch": 1.0, "loss": None, "dev": 0.5}]
        ),
        weights={"layer.weight": torch.randn(2, 3), "layer.bias": torch.randn(2).bfloat16()},
        best_weights={"layer.weight": torch.randn(2, 3), "layer.bias": torch.zeros(0)},
        optimizer={0: {"step": torch.tensor(7.0), "exp_avg": torch.randn(2, 3)}, 10: {"step": torch.tensor(7.0)}},
        scaler={"scale": 65536.0},
        companions={1: {"a/b": torch.arange(3)}},
    )


def flat(value: Any) -> Any:
    """With tensors as lists, so that ``==`` compares them."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.tolist()
    return {key: flat(each) for key, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("progress", [Progress(), checkpoint().progress], ids=["before any score", "later"])
def test_a_checkpoint_comes_back_as_it_was(progress: Progress, tmp_path: Path) -> None:
    written = checkpoint()
    written.progress.__dict__.update(vars(progress))
    save_checkpoint(tmp_path / "state", written)
    found = load_checkpoint(tmp_path / "state")
    assert flat(vars(found)) == flat(vars(written))
    assert load_checkpoint(tmp_path / "none") is None


def test_no_flipped_byte_goes_unnoticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the sizes, names, shapes and metadata at the start of the file as in the tensors."""
    file = tmp_path / "state"
    save_checkpoint(file, checkpoint())
    content = file.read_bytes()
    unnoticed = []
    for position in range(len(content)):
        file.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        if load_checkpoint(file) is not None:
            unnoticed.append((position, content[max(position - 20, 0) : position + 20]))
    assert unnoticed == []
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == len(content)
    assert all(line.startswith(f"warning: {file} cannot be read (") for line in warnings)
    assert all(line.endswith("): this run starts from its beginning") for line in warnings)


def test_a_checkpoint_of_another_format_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "state"
    save_checkpoint(file, checkpoint())
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    save_file(load_file(file), file, metadata={**metadata, "format": "1"})
    assert load_checkpoint(file) is None
    assert "written by another version" in capsys.readouterr().err


def test_processes_that_read_different_checkpoints_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 1)
    accelerator: Any = SimpleNamespace(num_processes=2, is_main_process=True, scaler=None)
    for other, expected in ((0, nullcontext()), (7, pytest.raises(PipelineError, match="read different checkpoints"))):
        monkeypatch.setattr("pipeline.training.progress.gather_object", lambda own, other=other: [*own, other])
        with expected:
            Resumption(None, 60.0, model, model, AdamW(model.parameters()), accelerator)


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
