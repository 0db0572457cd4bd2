"""Verbs that show one answer, or answer over HTTP: explain, serve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, cast, get_args

from cyclopts import Parameter

from pipeline.cli.options import PLACES, REPORTS, STORE, Json, ReportsFolder, StoreFolder
from pipeline.cli.printing import print_explanation
from pipeline.settings.recipe import Precision
from pipeline.system.errors import PipelineError

Backbone = Annotated[
    str | None,
    Parameter(group=PLACES, help="Hub id or local folder of the backbone (the one that the model was trained on)."),
]


def explain(
    *,
    target: str,
    text: str,
    text_b: str | None = None,
    using: str = "auto",
    precision: Precision = "auto",
    backbone: Backbone = None,
    store: StoreFolder = STORE,
    reports: ReportsFolder = REPORTS,
    json: Json = False,
) -> None:
    """Explain a model's answer for one text: what a fusion listened to, and what changes without each adapter.

    Args:
        target: The task, or TASK@RUN for one run.
        text: The text, or the first of a pair.
        text_b: The second text of a pair.
        using: fusion or adapter, the best one on dev, or a run; auto is the better of the two.
        precision: auto: bf16 where the GPU or CPU has instructions for it, else fp32.
    """
    from stages import explain as stage
    from stages.api import Using, load

    if using not in get_args(Using):
        if "@" in target:
            raise PipelineError(f"--target {target} and --using {using} each name a run: give one of them")
        target, using = f"{target}@{using}", "auto"
    model = load(target, store=store, backbone=backbone, reports=reports, using=cast(Using, using), precision=precision)
    inputs = text if text_b is None else (text, text_b)
    model.check(inputs, "--text")
    singles = [model.sibling(artifact) for artifact in model.beside()]
    print_explanation(stage.explain(model, inputs, singles), json)
    if model.kind != "fusion":
        print("note: only a fusion mixes adapters: --using fusion explains one, if the task has one", file=sys.stderr)


def serve(
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    model: str | None = None,
    backbone: Backbone = None,
    store: StoreFolder = STORE,
    precision: Precision = "auto",
    max_batch: int = 64,
    max_queue: int = 1024,
    max_body: int = 2**20,
    max_text: int = 2**16,
    max_wait: float = 4.0,
    poll: float = 2.0,
    max_models: int = 64,
) -> None:
    """Serve the models of a store over HTTP, with a page to try them at /; Ctrl-C stops.

    Args:
        port: Port to listen on; 0: any that is free, which is printed.
        host: Address to listen on; 0.0.0.0 can be reached from other machines. There is no password.
        model: What POST /predict asks: a task or TASK@RUN (the only task).
        precision: auto: bf16 where the GPU or CPU has instructions for it, else fp32.
        max_batch: Texts or pairs of a request, and of a forward pass.
        max_queue: Texts or pairs that may wait; further requests get 429.
        max_body: Bytes of a request.
        max_text: Characters of a text, also of one that may be cut.
        max_wait: Milliseconds that a request waits for others to be computed with.
        poll: Seconds between two looks at the store.
        max_models: Models in memory; others are loaded when they are asked for, in place of the one not asked longest.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise PipelineError(
            f"serve needs {error.name}: install the extra, pip install 'adapter-fusion-pipeline[serve]'"
        ) from None
    from pipeline.serving.app import Limits
    from stages import serve as stage

    stage.serve(
        Path(store),
        host=host,
        port=port,
        target=model,
        backbone=backbone,
        precision=precision,
        limits=Limits(
            body=max_body,
            text=max_text,
            batch=max_batch,
            queue=max_queue,
            wait=max_wait / 1000,
            poll=poll,
            models=max_models,
        ),
        announce=lambda line: print(line, flush=True),
    )
