"""Verbs that use trained models: predict, evaluate, ensemble, explain, export, serve."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from pipeline.cli import options
from pipeline.cli.printing import print_evaluation, print_explanation, print_filled
from pipeline.data.labels import EnsembleRule
from pipeline.data.tables import STANDARD, check_output, read_input
from pipeline.data.tasks import find_task
from pipeline.runs.kept_models import check_models, find_model, parse_model
from pipeline.settings.parts import parse_layers
from pipeline.settings.recipe import Precision
from pipeline.system.errors import PipelineError
from pipeline.system.reading import present, reading
from pipeline.system.streams import LIBRARIES, announce, notice
from stages.serve.door import Limits, check_serve

Raw = Annotated[
    options.Flag, Parameter(help="Probabilities as the model was trained, without the temperature fitted on dev.")
]


def predict(
    *,
    target: str,
    input: options.TableFile,
    output: options.TableFile,
    text: str | None = None,
    using: str = "auto",
    drop_layers: str | None = None,
    raw: Raw = False,
    passes: options.Passes = options.Passes(),
    json: options.Json = False,
    places: options.Places = options.Places(),
) -> None:
    """Predict for rows with or without labels: their columns, the prediction, its confidence and all probabilities.

    Args:
        target: The task to predict, or several, such as sst,quora,sts: columns are then named <task>_prediction etc.
        input: Table with the text columns of each task (csv, xlsx, parquet and others, by suffix), or - for csv from
            standard input. A row with a blank text gets no prediction.
        output: Table to write, in any of these formats and in the input's order, delimited and encoded like the input,
            or - for csv to standard output. All but parquet have four decimals.
        text: The input's column of texts, or two for pairs, such as question,answer (named as in the task's files).
        using: fusion, adapter (each: the best on dev), a RUN or ensemble:NAME; auto: the better of fusion and adapter
            on dev.
        drop_layers: Leave out the adapters or fusion of these layers, such as 0-4 or 0,1,3: faster, without new
            training (none).
    """
    to_stdout = str(output) == "-"
    if to_stdout and json:
        raise PipelineError("--json prints to standard output, where --output - writes the table: give --output FILE")
    places.check(*options.names_in(target) or ())
    try:
        dropped = parse_layers(drop_layers or ())
    except ValueError as error:
        raise PipelineError(f"--drop-layers {drop_layers}: {error}") from None
    _check_there(input)
    check_models(target, using, places.task, places.store, places.reports)
    check_output(output, input)
    rows = None if input == STANDARD else read_input(input)  # only one process can read standard input
    announce(LIBRARIES)
    from stages import predict as stage

    table = stage.predict(
        target,
        input,
        output,
        places.workspace(usual=""),
        using=using,
        batch_size=passes.batch_size,
        precision=passes.precision,
        drop_layers=dropped,
        rows=rows,
        texts=options.names_in(text) or (),
        raw=raw,
    )
    if not to_stdout:
        print_filled("predict", table.summary(), json, table=table)
    for task in table.tasks:
        if task.blank:
            notice(f"{task.blank} of {table.rows} rows have a blank text and no prediction for {task.task}")
        _tell_cut(*task.cut, table.rows - task.blank, task.task)
        if task.outside and task.range is not None:
            low, high = task.range
            notice(
                f"note: {task.outside:,} of {table.rows - task.blank:,} scores of {task.task} are outside"
                f" {low:g}..{high:g}, the range of the task: a regression is not bounded; clip them if you need to"
            )


def evaluate(
    *,
    target: str,
    using: str = "auto",
    input: options.TableFile | None = None,
    split: Literal["dev", "test"] | None = None,
    against: str | None = None,
    errors: Path | None = None,
    skip_baselines: options.Flag = False,
    raw: Raw = False,
    unknown: Literal["error", "ignore"] = "error",
    passes: options.Passes = options.Passes(),
    json: options.Json = False,
    places: options.Places = options.Places(),
) -> None:
    """Score a trained model on labelled rows that it has not seen, beside simple baselines, and by class.

    Rows whose text stands in those that the model, or one that it builds on, was trained or selected on are left out.
    Only --split dev scores the rows that selected the model.

    Args:
        target: The task.
        using: fusion, adapter (each: the best on dev), a RUN or ensemble:NAME; auto: the better of fusion and adapter
            on dev.
        input: Table with texts and labels of the task, as predict reads it, or - for csv from standard input (a split
            of the task).
        split: The split to score if there is no --input (dev).
        against: Another model, named as for --using, to compare with on the same rows, which neither has seen.
        errors: Table to write of the rows with a wrong class, surest first; for scores of all rows, largest error
            first.
        skip_baselines: Score the model alone, without fitting TF-IDF and frozen vectors on its training rows.
        unknown: ignore: leave out, and count, rows with a label that the task, or the RUN, does not know.
    """
    places.check(target)
    if input is not None:
        if split is not None:
            raise PipelineError(f"--input {input} and --split {split} each name the rows to score: give one of them")
        _check_there(input)
    for name in filter(None, (using, against)):
        check_models(target, name, places.task, places.store, places.reports)
    if errors is not None:
        check_output(errors, input or STANDARD, "--errors")
    announce(LIBRARIES)
    from stages import evaluate as stage

    evaluation = stage.evaluate(
        target,
        places.workspace(usual=""),
        using=using,
        against=against,
        input_file=input,
        split=split or "dev",
        batch_size=passes.batch_size,
        precision=passes.precision,
        raw=raw,
        errors_file=errors,
        with_baselines=not skip_baselines,
        unknown=unknown,
    )
    print_evaluation(evaluation, json)
    _tell_cut(evaluation.cut, evaluation.max_length, evaluation.rows, evaluation.task)


def ensemble(
    *,
    target: str,
    name: str,
    runs: str | None = None,
    rule: EnsembleRule = "mean",
    choose_on: Literal["half", "all"] = "half",
    best: int | None = None,
    seed: options.Seed = 0,
    data: options.DataFolders = (),
    reports: options.ReportsFolder = options.REPORTS,
    json: options.Json = False,
) -> None:
    """Join finished runs into an ensemble from their saved predictions; nothing is trained.

    Args:
        target: The task.
        name: Name of the ensemble, for predict --using ensemble:NAME. One of the same name and task is replaced.
        runs: Runs to choose from, such as RUN,RUN,RUN (every finished run of the task, on any backbone).
        rule: mean: the mean of members, added best first while the score does not fall; uniform: the mean of all;
            weighted: with weights that add up to one; mode: the most frequent class; median: the median score.
        choose_on: half: select members and weights on one half of dev and score on the other; that score is slightly
            optimistic, since the members' epochs were selected on all of dev. all: select and score on all of dev,
            which is more optimistic.
        best: mode, median: number of members, the best on dev (5; all that --runs names).
        seed: Determines the halves.
    """
    from stages.ensemble import ensemble as run

    task = find_task(target, *data)
    record = run(task, name, reports, runs=options.names_in(runs), rule=rule, chosen_on=choose_on, best=best, seed=seed)
    summary = record.summary()
    print_filled("ensemble", summary, json, record=record, held_out_is=summary.get("held_out_is"))


def _tell_cut(cut: int, max_length: int, rows: int, task: str) -> None:
    """Report on stderr how many of ``rows`` are too long for the model of ``task``."""
    if cut:
        notice(
            f"note: {cut:,} of {rows:,} rows are longer than the {max_length} tokens that the model of {task} reads,"
            " and are cut: how many it reads was set by --max-length when it was trained"
        )


def _check_there(table: Path) -> None:
    """Raise a :class:`PipelineError` if the input table does not exist; ``-`` is standard input."""
    if table != STANDARD:
        with reading(table):
            table.stat()


def explain(
    *,
    target: str,
    text: options.FreeText,
    text_b: options.FreeText | None = None,
    using: str = "auto",
    precision: Precision = "auto",
    json: options.Json = False,
    places: options.Places = options.Places(),
) -> None:
    """Explain a model's answer for one text: what changes without each word, and for a fusion without each adapter.

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


def serve(
    *,
    port: Annotated[int, options.between(0, 2**16 - 1)] = 8000,
    host: str = "127.0.0.1",
    model: str | None = None,
    backbone: Annotated[str | None, Parameter(group=options.PLACES)] = None,
    store: options.StoreFolder = options.STORE,
    precision: Precision = "auto",
    limits: Annotated[Limits, Parameter(name="*", group="Limits")] = Limits(),
) -> None:
    """Serve the models of a store over HTTP, with a page to try them at /; Ctrl-C stops.

    Args:
        port: Port to listen on; 0: any free port, which is printed.
        host: Address to listen on; 0.0.0.0 can be reached from other machines. There is no password.
        model: Task or TASK@RUN, or several, such as tickets@RUN,reviews@RUN. A run stands for its task's name, whatever
            else the store gets; the first answers POST /predict (the best runs; the only task).
        backbone: Hub id or local folder of the backbone (the one that the models were trained on).
        precision: auto: bf16 where the GPU or CPU has instructions for it, else fp32.
    """
    options.need_extra("serve", "serve", "fastapi", "uvicorn", "prometheus_client")
    models = options.names_in(model) or []
    if model is not None and not models:  # an unset variable of a script must not unpin the models
        raise PipelineError("--model names no model: give a task or TASK@RUN, or leave it out")
    check_serve(store, host, port, models, backbone, limits)
    announce(LIBRARIES)
    from stages.serve import serve as stage

    stage.serve(store, host=host, port=port, targets=models, backbone=backbone, precision=precision, limits=limits)


def export(
    *,
    target: str,
    output: Path,
    format: Literal["onnx", "adapterhub"] = "onnx",
    using: str = "auto",
    int8: options.Flag = False,
    license: Annotated[str | None, Parameter(name="--license")] = None,
    push_to_hub: str | None = None,
    yes: options.Flag = False,
    json: options.Json = False,
    places: options.Places = options.Places(),
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
    from stages.export.exported import check_export

    (task,) = places.check(target)
    check_export(task.name, using, output, push_to_hub, places.store, places.reports)
    if format == "onnx":
        options.need_extra("export", "export --format onnx", "onnx", "onnxruntime", "onnxscript")
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
