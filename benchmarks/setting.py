"""Setting: what all benchmarks of a command share."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Setting:
    """The command's options, and a scratch folder that is deleted at its end."""

    scratch: Path
    output: Path
    quick: bool
    repeats: int
    backbone: Path | None
    data: Path | None
    requests: int = 10_000
    rows: int | None = None

    @property
    def bottleneck(self) -> int:
        return 16 if self.quick else 64

    @property
    def device(self) -> str:
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"
