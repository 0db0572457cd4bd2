"""The verb export: a trained model for other programs."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from pipeline.cli.options import Flag, Json, Places, need_extra
from pipeline.cli.printing import print_filled
from pipeline.system.errors import PipelineError
from pipeline.system.streams import LIBRARIES, announce


def export(
    *,
    target: str,
    output: Path,
    format: Literal["onnx", "adapterhub"] = "onnx",
    using: str = "auto",
    int8: Flag = False,
    license: Annotated[str | None, Parameter(name="--license")] = None,
    push_to_hub: str | None = None,
    yes: Flag = False,
    json: Json = False,
    places: Places = Places(),
) -> None:
    """Write a trained model for other programs: as ONNX, or as stock AdapterHub and transformers load it.

    The folder appears only if the exported model answers as the trained one does.

    Args:
        target: The task.
        output: Folder to write. An earlier export there is replaced; a folder with any other file is refused.
        format: onnx: for onnxruntime, any model; adapterhub: adapters and fusions in AdapterHub's files, other models
            in those of transformers.
        using: fusion, adapter (each: the best on dev) or a RUN; auto: the better of fusion and adapter on dev.
        int8: onnx: store weights as 8-bit integers; the check reports how much answers change.
        license: Identifier for the model card, such as apache-2.0 (not stated).
        push_to_hub: Repository OWNER/NAME of the Hugging Face Hub. Only lists what would be uploaded, unless --yes is
            given. A new repository is private.
        yes: Upload.
    """
    if int8 and format != "onnx":
        raise PipelineError(f"--int8 is for --format onnx, not {format}")
    if yes and push_to_hub is None:
        raise PipelineError("--yes uploads: say where with --push-to-hub OWNER/NAME")
    from stages.export import hub

    places.check(target)
    hub.check(places.task(target).name, using, output, push_to_hub, places.store, places.reports)
    if format == "onnx":
        need_extra("export", "export --format onnx", "onnx", "onnxruntime", "onnxscript")
    announce(LIBRARIES)
    from stages.export import export as stage

    exported = stage.export(
        target,
        output,
        places.workspace(usual=""),
        format,
        int8=int8,
        using=using,
        licence=license,
        push_to=push_to_hub,
        upload=yes,
    )
    print_filled("export", exported.summary(), json, exported=exported)
