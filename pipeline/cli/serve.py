"""Verbs that show one answer, or answer over HTTP: explain, serve."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from pipeline.cli.options import PLACES, STORE, FreeText, Json, Places, StoreFolder, between, need_extra
from pipeline.cli.printing import print_explanation
from pipeline.runs.kept_models import find_model, parse_model
from pipeline.settings.recipe import Precision
from pipeline.system.errors import PipelineError
from pipeline.system.reading import present
from pipeline.system.streams import LIBRARIES, announce, notice
from stages.serve.door import Limits, check_serve


def explain(
    *,
    target: str,
    text: FreeText,
    text_b: FreeText | None = None,
    using: str = "auto",
    precision: Precision = "auto",
    json: Json = False,
    places: Places = Places(),
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
    places.check()
    task, run, root = parse_model(target, places.store, *places.data)
    if run and using != "auto":
        raise PipelineError(f"--target {target} and --using {using} each say which model: give one of them")
    # Without a folder that describes the task, the model's description is used.
    own = next((folder for folder in places.data if present(folder / task / "task.toml")), None)
    find_model(task, run or using, root, places.reports)
    announce(LIBRARIES)
    from pipeline.runs.model import load
    from stages import explain as stage

    model = load(
        target,
        store=places.store,
        backbone=places.backbone,
        data=own,
        reports=places.reports,
        using=using,
        precision=precision,
    )
    model.check(inputs, "--text (with --text-b for a pair)")
    singles = [model.sibling(artifact) for artifact in model.beside()]
    print_explanation(stage.explain(model, inputs, singles), json)
    if model.kind != "fusion":
        notice(f"note: only a fusion mixes adapters: --target {task} --using fusion explains one, if the task has one")


def serve(
    *,
    port: Annotated[int, between(0, 2**16 - 1)] = 8000,
    host: str = "127.0.0.1",
    model: str | None = None,
    backbone: Annotated[str | None, Parameter(group=PLACES)] = None,
    store: StoreFolder = STORE,
    precision: Precision = "auto",
    limits: Annotated[Limits, Parameter(name="*", group="Limits")] = Limits(),
) -> None:
    """Serve the models of a store over HTTP, with a page to try them at /; Ctrl-C stops.

    Args:
        port: Port to listen on; 0: any free port, which is printed.
        host: Address to listen on; 0.0.0.0 can be reached from other machines. There is no password.
        model: The model of POST /predict: a task or TASK@RUN (the only task).
        backbone: Hub id or local folder of the backbone (the one that the models were trained on).
        precision: auto: bf16 where the GPU or CPU has instructions for it, else fp32.
    """
    need_extra("serve", "serve", "fastapi", "uvicorn", "prometheus_client")
    check_serve(store, host, port, model, backbone, limits)
    announce(LIBRARIES)
    from stages.serve import serve as stage

    stage.serve(store, host=host, port=port, target=model, backbone=backbone, precision=precision, limits=limits)
