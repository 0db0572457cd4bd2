"""A checkpoint comes back exactly as it was, or not at all."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.optim import AdamW

from pipeline.system.errors import PipelineError
from pipeline.training.progress import Checkpoint, Progress, Resumption, load_checkpoint, save_checkpoint


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
