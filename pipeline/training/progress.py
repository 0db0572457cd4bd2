"""Show training progress: a bar on a terminal, and one line per epoch everywhere; log it to a tracker."""

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.system.errors import PipelineError, shortened

_TIMED_STEPS, _TIMED_SECONDS = 5, 3.0
"""How many steps are timed, and for how long, before the time that training takes is announced."""
PROJECT = "adapter-fusion"
"""The experiment in MLflow, and the project in Weights & Biases."""
console = Console(stderr=True, highlight=False, soft_wrap=True)


class TrainingProgress(Progress):
    """A bar with loss, examples per second and time left, on stderr; stdout is for results.

    Args:
        rows: training rows of an epoch.
    """

    def __init__(self, title: str, epochs: int, rows: int, *, shown: bool = True) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[measured]}"),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )
        self._title, self._epochs, self._rows, self._shown = title, epochs, rows, shown
        self._steps, self._announce_at = 0, time.monotonic() + _TIMED_SECONDS if shown else math.inf
        # Before the first step there is nothing to measure.
        self._bar = self.add_task(f"{title} starts", total=None, measured="", left="")
        self._next_refresh = 0.0

    def due(self) -> bool:
        """Whether to show this step. Reading the loss from a GPU makes the host wait, so not every step."""
        self._steps, now = self._steps + 1, time.monotonic()
        return self._is_timed(now) or (not self.disable and now >= self._next_refresh)

    def _is_timed(self, now: float) -> bool:
        return self._steps >= _TIMED_STEPS and now >= self._announce_at

    def step(self, done: int, total: int, epoch: int, loss: float, speed: float, left: float) -> None:
        """Show a step in the bar; once the first ones have been timed, print how long all take.

        Args:
            left: estimated seconds of the remaining steps and evaluations.
        """
        if self._is_timed(time.monotonic()):
            self._announce_at = math.inf
            about = f"{left / 60:.0f} min" if left >= 90 else f"{left:.0f} s"
            plan = f"{self._epochs} epochs of {self._rows:,} rows, {total:,} steps"
            console.print(f"{self._title}: {plan}, about {about} left")
        measured = f"loss {loss:.4f}  {speed:.0f} examples/s"
        self._describe(epoch, "", completed=done, total=total, measured=measured)
        self.update(self._bar, left=f"left {_time(left)}")
        self._next_refresh = time.monotonic() + 0.5

    def scoring(self, epoch: int) -> None:
        """Show that the model is being scored on dev, after ``epoch`` or, if that is 0, before the first."""
        self._describe(epoch, ", scoring dev")

    def _describe(self, epoch: int, doing: str, **values: Any) -> None:
        place = f"epoch {epoch}/{self._epochs}" if epoch else "start"
        self.update(self._bar, description=f"{self._title} {place}{doing}", **values)

    def epoch(self, epoch: int, loss: float | None, score: str, best: bool, speed: float, left: float) -> None:
        """Print a line for the end of ``epoch``, or, without a loss, for the start; ``left`` is in seconds."""
        line = f"{self._title} start: {score}"
        if loss is not None:
            line = (
                f"{self._title} epoch {epoch}/{self._epochs}: loss {loss:.4f}, {score}{' (best)' if best else ''},"
                f" {speed:.0f} examples/s, {_time(left)} left"
            )
        if self._shown:
            console.print(line)


def _time(seconds: float) -> str:
    """``0:05``, ``59:00``, ``10:58:32``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def tracking(
    accelerator: Accelerator, tracker: str | None, run: str, title: str, settings: Mapping[str, Any], reports: Path
) -> Iterator[None]:
    """Send what ``accelerator`` logs to ``tracker``, under ``title`` and with the run's ``settings``.

    TensorBoard writes to the run's folder, which is the accelerator's project folder. MLflow writes to
    ``reports/mlruns``, unless MLFLOW_TRACKING_URI names another place.

    Raises:
        PipelineError: the tracker cannot be started, for example because Weights & Biases needs a login.
    """
    if tracker is None:
        yield
        return
    values = {key: value if isinstance(value, int | float | str) else str(value) for key, value in settings.items()}
    keywords = {
        "mlflow": {"run_name": title, "tags": {"run": run}},
        "wandb": {"name": title, "id": run, "resume": "allow", "dir": str(reports)},
    }
    # MLflow 3 needs a flag to allow files; its databases need packages that mlflow-skinny lacks.
    files = {"MLFLOW_TRACKING_URI": (reports / "mlruns").absolute().as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    is_placed = tracker != "mlflow" or "MLFLOW_TRACKING_URI" in os.environ
    added = {} if is_placed else {name: value for name, value in files.items() if name not in os.environ}
    os.environ.update(added)
    try:
        try:
            accelerator.init_trackers("" if tracker == "tensorboard" else PROJECT, values, keywords)
        except Exception as error:  # trackers raise errors of many types
            reason = shortened(str(error).strip() or type(error).__name__, most=300)
            raise PipelineError(f"--track {tracker}: cannot be started: {reason}") from error
        try:
            yield
        finally:
            # Not accelerator.end_training(), which would also destroy the process group.
            for running in accelerator.trackers:
                running.finish()
            accelerator.trackers = []
    finally:
        for name in added:
            os.environ.pop(name, None)
