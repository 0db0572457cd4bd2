"""Verbs that use trained models: predict, evaluate, ensemble."""

from pathlib import Path
from typing import Literal

from pipeline.cli.options import REPORTS, DataFolders, Json, Passes, Places, ReportsFolder, Seed, TableFile, names_in
from pipeline.cli.printing import print_ensemble, print_evaluation, print_predictions
from pipeline.data.metric_names import EnsembleRule
from pipeline.data.tables import STANDARD, check_output, read_input
from pipeline.data.tasks import find_task
from pipeline.runs.kept_models import check_models
from pipeline.settings.fields import layers_option
from pipeline.system.errors import PipelineError
from pipeline.system.reading import reading
from pipeline.system.streams import LIBRARIES, announce, notice


def predict(
    *,
    target: str,
    input: TableFile,
    output: TableFile,
    using: str = "auto",
    drop_layers: str | None = None,
    passes: Passes = Passes(),
    json: Json = False,
    places: Places = Places(),
) -> None:
    """Predict for rows with or without labels: their columns, the prediction and the probability of each class.

    Args:
        target: The task to predict, or several, such as sst,quora,sts: columns are then named <task>_prediction etc.
        input: Table with the text columns of each task (csv, xlsx, parquet and others, by suffix), or - for csv from
            standard input. A row with a blank text gets no prediction.
        output: Table to write, in any of these formats and in the input's order, or - for csv to standard output.
        using: fusion, adapter (each: the best on dev), a RUN or ensemble:NAME; auto: the better of fusion and adapter
            on dev.
        drop_layers: Leave out the adapters or fusion of these layers, such as 0-4 or 0,1,3: faster, without new
            training (none).
    """
    to_stdout = str(output) == "-"
    if to_stdout and json:
        raise PipelineError("--json prints to standard output, where --output - writes the table: give --output FILE")
    places.check(*names_in(target) or ())
    dropped = layers_option(drop_layers)
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
    )
    if not to_stdout:
        print_predictions(table, json)
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
    input: TableFile | None = None,
    split: Literal["dev", "test"] | None = None,
    passes: Passes = Passes(),
    json: Json = False,
    places: Places = Places(),
) -> None:
    """Score a trained model on labelled rows that it has not seen, overall and by class.

    Rows whose text stands in those that the model, or one that it builds on, was trained or selected on are left out.
    Only --split dev scores the rows that selected the model.

    Args:
        target: The task.
        using: fusion, adapter (each: the best on dev), a RUN or ensemble:NAME; auto: the better of fusion and adapter
            on dev.
        input: Table with texts and labels of the task, as predict reads it, or - for csv from standard input (a split
            of the task).
        split: The split to score if there is no --input (dev).
    """
    places.check(target)
    if input is not None:
        if split is not None:
            raise PipelineError(f"--input {input} and --split {split} each name the rows to score: give one of them")
        _check_there(input)
    check_models(target, using, places.task, places.store, places.reports)
    announce(LIBRARIES)
    from stages import evaluate as stage

    evaluation = stage.evaluate(
        target,
        places.workspace(usual=""),
        using=using,
        input_file=input,
        split=split or "dev",
        batch_size=passes.batch_size,
        precision=passes.precision,
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
    seed: Seed = 0,
    data: DataFolders = (),
    reports: ReportsFolder = REPORTS,
    json: Json = False,
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
    record = run(task, name, reports, runs=names_in(runs), rule=rule, chosen_on=choose_on, best=best, seed=seed)
    print_ensemble(record, json)


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
