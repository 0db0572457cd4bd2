"""What faster models cost in score: adapters in fewer layers, and fewer adapters in a fusion."""

from collections.abc import Callable
from typing import Any

from pipeline.data.tokens import TokenisedSplit, tokenise
from pipeline.models.transfer_model import TransferModel
from pipeline.records.run_record import RunRecord
from pipeline.runs.build import restore
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.stats.metrics import score
from pipeline.training.devices import make_accelerator
from pipeline.training.objectives import mean_outputs, objective_of
from stages.demo import write_tasks
from stages.extract import extract
from stages.fuse import fuse
from stages.prune import prune

from .backbones import given_or_minilm
from .report import Report
from .rows import uses_real_rows
from .setting import Setting
from .timing import Row, interleave, per_second

_EPOCHS = 3
_TRAINED = 2  # A round trains one model per layer, which takes minutes; a run's speed is already a mean over steps.
_REAL_TASKS = ("sst", "quora", "sts")


def run(setting: Setting) -> Report:
    workspace, tasks = _workspace(setting)
    limit = 32 if setting.quick else 640
    real = uses_real_rows(setting)
    rows = f"{limit} rows of {tasks[0]}" if real else f"Random weights, {limit} rows of the demo's task {tasks[0]}"
    notes = (
        f"{rows}, {_EPOCHS} epochs, batch 32, bottleneck {setting.bottleneck}, fp32. Training: the steps of a whole"
        " run, with the pass that caches the output of the layers below the first adapter. Prediction: one pass over"
        " dev. Dev scores are of one seed" + ("." if real else ", and mean nothing with random weights."),
        "Medians (lowest to highest) of rounds in which the peers ran in turn.",
    )
    return Report(notes, (_dropped(setting, workspace, tasks[0], limit), _pruned(setting, workspace, tasks, limit)))


def _dropped(setting: Setting, workspace: Workspace, task: str, limit: int) -> list[Row]:
    """0, 1, ... bottom layers without adapters: dropped in training, or only for prediction."""
    counts = range(workspace.backbone.layers)

    def train(count: int) -> Callable[[], float]:
        return lambda: _extract(setting, workspace, task, limit, count, force=True).cost.examples_per_second

    trained = interleave({str(count): train(count) for count in counts}, min(setting.repeats, _TRAINED))
    records = {count: _extract(setting, workspace, task, limit, count) for count in counts}
    models = {count: _model(workspace, records[count]) for count in counts}
    predicted = interleave(
        {str(count): _prediction(workspace, task, models[count]) for count in counts}, setting.repeats
    )
    return [
        {
            "bottom layers without adapters": count,
            "training, examples/s": trained[str(count)],
            "prediction, rows/s": predicted[str(count)],
            "dev score": records[count].dev,
            "dev score, dropped when predicting": _score(workspace, task, _model(workspace, records[0], count)),
        }
        for count in counts
    ]


def _pruned(setting: Setting, workspace: Workspace, tasks: list[str], limit: int) -> list[Row]:
    """The fusion of all tasks' adapters, then pruned to fewer and fewer."""
    for task in tasks:
        _extract(setting, workspace, task, limit)
    recipe = Recipe.parse(
        {"trainable": "fusion", "fusion": "anchored", "epochs": _EPOCHS, "precision": "fp32"}, "adapter_drop"
    )
    whole = fuse(tasks[0], recipe, workspace, seed=0, limit=limit).record
    parts = [prune(tasks[0], workspace, keep=keep, using=whole.run).record for keep in range(len(tasks) - 1, 0, -1)]
    records = {len(record.sources): record for record in (whole, *parts)}
    predicted = interleave(
        {str(count): _prediction(workspace, tasks[0], _model(workspace, record)) for count, record in records.items()},
        setting.repeats,
    )
    return [
        {
            "adapters in the fusion": count,
            "kept": ", ".join(source.task for source in record.sources),
            "prediction, rows/s": predicted[str(count)],
            "dev score": record.dev,
        }
        for count, record in records.items()
    ]


def _workspace(setting: Setting) -> tuple[Workspace, list[str]]:
    """The workspace and the names of the tasks, target first: those given, or the demo's."""
    root = setting.scratch / "adapter-drop"
    if uses_real_rows(setting):
        assert setting.data is not None
        data, tasks = setting.data, [name for name in _REAL_TASKS if (setting.data / name).is_dir()]
        if len(tasks) < 2:
            raise SystemExit(f"--data {data}: a fusion needs two of the tasks {', '.join(_REAL_TASKS)}")
    else:
        data = root / "data"
        tasks = write_tasks(data)
    return Workspace(str(given_or_minilm(setting)), data, root / "store", root / "reports"), tasks


def _extract(
    setting: Setting, workspace: Workspace, task: str, limit: int, dropped: int = 0, force: bool = False
) -> RunRecord:
    values: dict[str, Any] = {"bottleneck": setting.bottleneck, "epochs": _EPOCHS, "precision": "fp32"}
    recipe = Recipe.parse({**values, "drop_layers": list(range(dropped))}, "adapter_drop")
    return extract(task, recipe, workspace, seed=0, limit=limit, force=force).record


def _model(workspace: Workspace, record: RunRecord, dropped: int = 0) -> TransferModel:
    artifact = workspace.store.find(record.run)
    assert artifact is not None
    task = workspace.task(record.task)
    return restore(artifact, task, workspace, tuple(range(dropped)))


def _prediction(workspace: Workspace, task: str, model: TransferModel) -> Callable[[], float]:
    dev = _dev(workspace, task, model)
    return per_second(len(dev), lambda: _outputs(workspace, dev, model))


def _score(workspace: Workspace, name: str, model: TransferModel) -> float:
    task, labels = workspace.task(name), workspace.splits.of(workspace.task(name), None, 0).dev["label"]
    assert task.head is not None
    found = objective_of(task, Recipe(head=task.head)).predict(_outputs(workspace, _dev(workspace, name, model), model))
    return score(task.metric, found.values, labels.to_numpy())


def _outputs(workspace: Workspace, dev: TokenisedSplit, model: TransferModel) -> Any:
    accelerator = make_accelerator("fp32")
    pad = workspace.backbone.tokenizer.pad_token_id
    return mean_outputs(model.to(accelerator.device), [dev], batch_size=64, pad_token_id=pad, accelerator=accelerator)


def _dev(workspace: Workspace, name: str, model: TransferModel) -> TokenisedSplit:
    task = workspace.task(name)
    longest = min(task.max_length, workspace.backbone.max_length)
    rows = workspace.splits.of(task, None, 0).dev
    return tokenise(rows, workspace.backbone.tokenizer, model.encoding, longest)
