"""Show training progress: a bar on a terminal, and one line per epoch everywhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

console = Console(stderr=True, highlight=False, soft_wrap=True)


class TrainingProgress(Progress):
    """A bar with loss, examples per second and time left, on stderr; stdout is for results."""

    def __init__(self, title: str, epochs: int, *, shown: bool = True) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:.0f} examples/s"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )
        self._title, self._epochs, self._shown = title, epochs, shown
        self._bar = self.add_task(title, total=None, loss=float("nan"), speed=0.0)
        self._next_refresh = 0.0

    def due(self) -> bool:
        """Whether to refresh the bar. Reading the loss from a GPU makes the host wait, so not at every step."""
        return not self.disable and time.monotonic() >= self._next_refresh

    def step(self, done: int, total: int, epoch: int, loss: float, speed: float) -> None:
        description = f"{self._title} epoch {epoch}/{self._epochs}"
        self.update(self._bar, description=description, completed=done, total=total, loss=loss, speed=speed)
        self._next_refresh = time.monotonic() + 0.5

    def epoch(self, epoch: int, loss: float | None, score: str, best: bool, speed: float, seconds_left: float) -> None:
        """Print a line for the end of ``epoch``, or, without a loss, for the start."""
        minutes, seconds = divmod(round(seconds_left), 60)
        line = f"{self._title} start: {score}"
        if loss is not None:
            line = (
                f"{self._title} epoch {epoch}/{self._epochs}: loss {loss:.4f}, {score}{' (best)' if best else ''},"
                f" {speed:.0f} examples/s, {minutes}:{seconds:02d} left"
            )
        if self._shown:
            console.print(line)
