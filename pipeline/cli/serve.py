"""Verbs that show one answer, or answer over HTTP: explain, serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pipeline.cli.options import (
    PLACES,
    REPORTS,
    STORE,
    DataFolders,
    FreeText,
    Json,
    ReportsFolder,
    StoreFolder,
    need_extra,
)
from pipeline.cli.printing import print_explanation
from pipeline.data.tasks import check_folder, find_task
from pipeline.data.texts import check_input
from pipeline.records.store import Artifact
from pipeline.runs.kept_models import find_model, parse_model
from pipeline.settings.recipe import Precision
from pipeline.system.backbone_name import is_folder
from pipeline.system.errors import PipelineError
from pipeline.system.reading import present
from pipeline.system.streams import LIBRARIES, announce, notice
from stages.serve.door import Limits, check_serve

Backbone = Annotated[
    str | None,
    Parameter(group=PLACES, help="Hub id or local folder of the backbone (the one that the model was trained on)."),
]


def explain(
    *,
    target: str,
    text: FreeText,
    text_b: FreeText | None = None,
    using: str = "auto",
    precision: Precision = "auto",
    backbone: Backbone = None,
    data: DataFolders = (),
    store: StoreFolder = STORE,
    reports: ReportsFolder = REPORTS,
    json: Json = False,
) -> None:
    """Explain a model's answer for one text: the shares of a fusion's adapters, and what changes without each adapter.

    Args:
        target: The task, or TASK@RUN for one run.
        text: The text, or the first of a pair.
        text_b: The second text of a pair.
        using: fusion, adapter (each: the best on dev) or a RUN; auto: the better of fusion and adapter on dev.
        precision: auto: bf16 where the GPU or CPU has instructions for it, else fp32.
    """
    inputs = text if text_b is None else (text, text_b)
    if backbone is not None:
        is_folder(backbone)
    task, run, root = parse_model(target, store, *data)
    if run and using != "auto":
        raise PipelineError(f"--target {target} and --using {using} each say which model: give one of them")
    own = _own_folder(task, data)
    kept = find_model(task, run or using, root, reports)
    pair = kept.manifest.pair if isinstance(kept, Artifact) else bool(kept.score(task).pair)
    _check_texts(text, text_b, task, pair if own is None else find_task(task, own).is_pair)
    announce(LIBRARIES)
    from pipeline.runs.model import load
    from stages import explain as stage

    model = load(target, store=store, backbone=backbone, data=own, reports=reports, using=using, precision=precision)
    singles = [model.sibling(artifact) for artifact in model.beside()]
    print_explanation(stage.explain(model, inputs, singles), json)
    if model.kind != "fusion":
        notice(f"note: only a fusion mixes adapters: --target {task} --using fusion explains one, if the task has one")


def _check_texts(text: str, text_b: str | None, task: str, is_pair: bool) -> None:
    """Raise a :class:`PipelineError` unless ``--text`` and ``--text-b`` fit the model for ``task``."""
    if is_pair and text_b is None:
        raise PipelineError(f"task '{task}' reads a pair of texts: give the second one with --text-b")
    if not is_pair and text_b is not None:
        raise PipelineError(f"task '{task}' reads a single text: leave out --text-b")
    check_input(text if text_b is None else (text, text_b), "--text", task, is_pair)


def _own_folder(task: str, data: tuple[Path, ...]) -> Path | None:
    """The first folder that describes ``task``; without one, the model's description is used."""
    for folder in data:
        check_folder(folder)
    return next((folder for folder in data if present(folder / task / "task.toml")), None)


def serve(
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    model: str | None = None,
    backbone: Backbone = None,
    store: StoreFolder = STORE,
    precision: Precision = "auto",
    limits: Annotated[Limits, Parameter(name="*", group="Limits")] = Limits(),
) -> None:
    """Serve the models of a store over HTTP, with a page to try them at /; Ctrl-C stops.

    Args:
        port: Port to listen on; 0: any free port, which is printed.
        host: Address to listen on; 0.0.0.0 can be reached from other machines. There is no password.
        model: The model of POST /predict: a task or TASK@RUN (the only task).
        precision: auto: bf16 where the GPU or CPU has instructions for it, else fp32.
    """
    need_extra("serve", "serve", "fastapi", "uvicorn", "prometheus_client")
    check_serve(store, host, port, model, backbone, limits)
    announce(LIBRARIES)
    from stages.serve import serve as stage

    stage.serve(store, host=host, port=port, target=model, backbone=backbone, precision=precision, limits=limits)
