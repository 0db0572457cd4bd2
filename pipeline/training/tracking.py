"""Log a run to TensorBoard, MLflow or Weights & Biases, through accelerate."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from pipeline.system.errors import PipelineError, shortened

PROJECT = "adapter-fusion"
"""The experiment in MLflow, and the project in Weights & Biases."""


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
