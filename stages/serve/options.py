"""Mistakes in the options of ``serve``; imports no model, so that they are reported before the libraries load."""

from pathlib import Path

from pipeline.records.store import Store
from pipeline.runs.kept_models import check_task, kept_for, parse_model, silent_unless_refused
from pipeline.system.backbone_name import is_folder
from pipeline.system.errors import PipelineError
from stages.serve.limits import Limits
from stages.serve.server import listen


def check(store: Path, host: str, port: int, target: str | None, backbone: str | None, limits: Limits) -> None:
    """Find mistakes in the arguments of :func:`stages.serve.serve`; raises as that does."""
    limits.check()
    listen(host, port).close()
    if backbone is not None:
        is_folder(backbone)
    with silent_unless_refused():
        tasks_to_serve(Store(store), target, backbone)


def tasks_to_serve(store: Store, target: str | None, backbone: str | None) -> list[str]:
    """The names of models to try to load first, for :func:`pipeline.runs.model.load`: ``target``, or every task.

    Raises:
        PipelineError: the store has none, or not the target, or some on several backbones of which none is named.
    """
    store.check()
    artifacts = store.artifacts()
    if not artifacts:
        raise PipelineError(f"no model in {store.root}: train one with python -m pipeline extract --task TASK")
    names = {artifact.manifest.backbone_weights: artifact.manifest.backbone for artifact in artifacts}
    if target is None and backbone is None and len(names) > 1:
        listed = ", ".join(sorted(names.values()))
        raise PipelineError(f"{store.root} has models of several backbones: name one of {listed} with --backbone")
    if target is None:
        return sorted({artifact.manifest.task for artifact in artifacts})
    task, run, _ = parse_model(target, store.root)
    _check_served(task, run, store)
    return [target]


def _check_served(task: str, run: str, store: Store) -> None:
    """Raise a :class:`PipelineError` unless the store has the run, or where it is empty a model, of the task."""
    if not run:
        kept_for(task, "auto", store)
        return
    if (artifact := store.find(run)) is None:
        raise PipelineError(
            f"--model {task}@{run}: {store.root} has no such run, and only its adapters and fusions are served: see"
            " store list"
        )
    check_task(artifact, task)
