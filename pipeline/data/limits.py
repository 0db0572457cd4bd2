"""How many rows an option may ask for. Imports nothing heavy, so commands can check before their libraries load."""

from pipeline.system.errors import PipelineError


def check_limit(limit: int | None, option: str = "--limit", rows: str = "training row") -> None:
    if limit is not None and limit < 1:
        raise PipelineError(f"{option} {limit}: give at least 1 {rows}, or leave it out for all")


def check_batch_size(rows: int) -> None:
    if rows < 1:
        raise PipelineError(f"--batch-size {rows}: give at least 1")
