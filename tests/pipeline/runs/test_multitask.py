"""Joint training: one task is plain training, several share a model, and a stop changes nothing."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from pipeline.models.transfer_model import MultitaskModel
from pipeline.runs.build import build_for_training
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.stats.metrics import score
from pipeline.system.errors import PipelineError
from tests.runs import Stopped, joint_run, single_run, stop_at

Quick = Callable[..., Recipe]
TASKS = ("films", "meals", "pairs")


def make(workspace: Workspace, quick: Quick, tasks: Any = TASKS, own: Any = None, **settings: Any) -> TrainingRun:
    """A run with its tasks' own recipe keys in ``own`` and its limits in ``limits``."""
    limits = settings.pop("limits", {})
    seed = settings.pop("seed", 1)
    recipes = {task: quick(**({"trainable": "full"} | settings | (own or {}).get(task, {}))) for task in tasks}
    return joint_run(workspace, tasks, recipes, seed=seed, limits={task: limits.get(task) for task in tasks})


def scores(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[["epoch", "loss", "dev", "learning_rate", "examples"]]


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("films", {}),
        pytest.param(
            "films", {"pooling": "cls", "head_dropout": 0.3, "gradient_accumulation_steps": 3}, marks=pytest.mark.long
        ),
        ("pairs", {"encoding": "siamese", "min_steps": 20, "evaluations": 2}),
        pytest.param("pairs", {"head": "cosine", "score_start": True}, marks=pytest.mark.long),
        ("films", {"trainable": "full+adapter", "backbone_learning_rate": 1e-4, "layer_decay": 0.5}),
    ],
)
def test_one_task_alone_is_plain_training_bit_for_bit(task, settings, workspace: Workspace, quick: Quick) -> None:
    recipe = quick(**{"trainable": "full"} | settings)
    plain = single_run(workspace, "full", task, recipe, seed=1, limit=50).get()
    alone = make(workspace, quick, [task], limits={task: 50}, **settings).get()
    ledger = workspace.ledger
    assert alone.kind == "multitask"
    assert (alone.dev, alone.best_epoch, alone.own.train_rows, alone.cost.trainable_parameters, alone.parameters) == (
        plain.dev, plain.best_epoch, plain.own.train_rows, plain.cost.trainable_parameters, plain.parameters,
    )  # fmt: skip
    pd.testing.assert_frame_equal(ledger.predictions(alone.run), ledger.predictions(plain.run), check_exact=True)
    pd.testing.assert_frame_equal(scores(ledger.curve(alone.run)), scores(ledger.curve(plain.run)), check_exact=True)
    assert set(alone.scores) == {task}


def test_several_tasks_have_one_run_with_scores_and_predictions_of_each(workspace: Workspace, quick: Quick) -> None:
    run = make(workspace, quick, ["pairs", "films", "meals"], limits={"pairs": 40})
    assert run.finished() is None
    record = run.get()
    assert run.finished() == record
    assert (record.task, record.trained_on) == ("films+meals+pairs", ("films", "meals", "pairs"))
    assert (record.scores["pairs"].train_rows, record.scores["pairs"].rows) == (40, 40)
    for task in TASKS:
        table = workspace.ledger.predictions(record.run, task)
        metric = record.score(task).metric
        assert metric == ("pearson" if task == "pairs" else "accuracy")
        assert score(metric, table["prediction"].to_numpy(), table["label"].to_numpy()) == record.score(task).dev
    curve = workspace.ledger.curve(record.run).set_index("epoch")
    columns = [f"dev_{task}" for task in TASKS]
    assert curve["dev"].to_numpy() == pytest.approx(curve[columns].mean(axis=1).to_numpy())
    assert record.best_epoch == curve["dev"].idxmax()
    kept = curve.loc[record.best_epoch, columns]
    assert kept.tolist() == [record.score(task).dev for task in TASKS]
    # A pass over the smallest task, 40 rows, is an epoch: three steps of three batches, of which its last has 8 rows.
    assert curve["examples"].tolist()[0] == 3 * 16 + 3 * 16 + 40
    heads = 2 * (2 * 32 + 2) + 32 + 1
    assert (record.parameters.backbone, record.parameters.head) == (workspace.backbone.parameters, heads)
    assert record.cost.trainable_parameters == workspace.backbone.parameters + heads


def test_what_determines_it_and_nothing_else_names_the_run(workspace: Workspace, quick: Quick) -> None:
    name = make(workspace, quick).name
    assert make(workspace, quick, TASKS[::-1]).name == name
    others = [
        make(workspace, quick, TASKS[:2]),
        make(workspace, quick, seed=2),
        make(workspace, quick, epochs=3),
        make(workspace, quick, limits={"meals": 50}),
        make(workspace, quick, own={"pairs": {"encoding": "siamese"}}),
    ]
    assert len({name, *(run.name for run in others)}) == 1 + len(others)


def test_tasks_read_their_inputs_each_in_its_own_way(workspace: Workspace, quick: Quick) -> None:
    """Siamese pairs beside single texts, and CLS beside mean pooling: no task sees a backbone cut for another."""
    own = {"pairs": {"encoding": "siamese", "head": "cosine", "pooling": "mean"}, "meals": {"pooling": "mean"}}
    run = make(workspace, quick, own=own, pooling="cls")
    model = build_for_training(run.request, run.parts, workspace.backbone, workspace.ledger).model.eval()
    ids = torch.randint(5, 20, (4, 9), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    assert model.of("meals").encode(**inputs).shape == (4, 32)
    hidden = workspace.backbone.load().eval()(**inputs).last_hidden_state
    torch.testing.assert_close(model.of("films").encode(**inputs), hidden[:, 0])
    torch.testing.assert_close(model.of("meals").encode(**inputs), hidden.mean(dim=1))
    assert model("pairs", **inputs).shape == (2, 1)
    record = run.get()
    assert set(record.scores) == {"films", "meals", "pairs"}


def test_a_static_encoder_is_read_in_each_tasks_own_way(workspace: Workspace, quick: Quick) -> None:
    for own in ({"pairs": {"pooling": "cls"}}, {"films": {"pooling": "cls"}}):
        run = make(workspace, quick, own=own, pooling="mean", second_encoder="static", split_layers=1)
        model = build_for_training(run.request, run.parts, workspace.backbone, workspace.ledger).model.eval()
        ids = torch.randint(5, 20, (4, 9), generator=torch.Generator().manual_seed(0))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        hidden = workspace.backbone.load().eval()(**inputs).last_hidden_state
        for name in ("films", "meals"):
            expected = hidden[:, 0] if name in own else hidden.mean(dim=1)
            torch.testing.assert_close(model.of(name).encode(**inputs)[:, 32:], expected)


def test_embeddings_that_are_frozen_are_so_in_both_encoders(workspace: Workspace, quick: Quick) -> None:
    run = make(workspace, quick, second_encoder="tuned", freeze_embeddings=True)
    model = build_for_training(run.request, run.parts, workspace.backbone, workspace.ledger).model
    training = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert any(".second." in name for name in training)
    assert not any(".embeddings." in name for name in training)


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ({}, 8),
        ({"mixing": "annealed", "steps_per_epoch": 7}, 14),
        pytest.param({"mixing": "round-robin"}, 24, marks=pytest.mark.long),
        pytest.param({"gradient_surgery": "pcgrad"}, 8, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_stopped_run_ends_bit_for_bit_as_one_never_stopped(
    rule, steps, workspace, quick, tmp_path, monkeypatch
) -> None:
    settings = {"limits": {"pairs": 50}, **rule}
    record = make(workspace, quick, **settings).get()
    other = dataclasses.replace(workspace, reports=tmp_path / "stopped", checkpoint_seconds=0.0)
    begun = stop_at(monkeypatch, 7)  # in the second epoch, if it has four steps
    with pytest.raises(Stopped):
        make(other, quick, **settings).get()
    assert other.ledger.checkpoint_file(record.run).is_file()
    resumed = make(dataclasses.replace(other), quick, **settings).get()
    assert len(begun) == 1 + steps
    assert (resumed.run, resumed.dev, resumed.scores) == (record.run, record.dev, record.scores)
    for task in TASKS:
        found = [place.ledger.predictions(record.run, task) for place in (workspace, other)]
        pd.testing.assert_frame_equal(*found, check_exact=True)
    curves = [place.ledger.curve(record.run).drop(columns="seconds") for place in (workspace, other)]
    pd.testing.assert_frame_equal(*curves, check_exact=True)


@pytest.mark.parametrize(
    ("tasks", "settings", "message"),
    [
        (TASKS, {"own": {"meals": {"epochs": 3}}}, r"epochs must be the same for all tasks \(films: 2, meals: 3"),
        (TASKS, {"own": {"meals": {"learning_rate": 1e-4}}}, "learning_rate must be the same"),
        (TASKS, {"own": {"meals": {"trainable": "adapter"}}}, "trainable must be the same for all tasks"),
        (TASKS, {"own": {"meals": {"mixing": "shuffled"}}}, "mixing must be the same"),
        (TASKS, {"mixing": "annealed", "gradient_surgery": "pcgrad"}, "with mixing = 'annealed' a step has one"),
        (TASKS, {"own": {"meals": {"head": "cosine", "encoding": "siamese"}}}, "compares two sentences"),
    ],
)
def test_runs_that_cannot_be_are_refused_before_training(tasks, settings, message, workspace, quick) -> None:
    with pytest.raises(PipelineError, match=message):
        make(workspace, quick, tasks, **settings)


def test_a_step_without_a_task_leaves_its_head_bit_for_bit_as_it_is(workspace: Workspace, quick: Quick) -> None:
    """Momentum and weight decay would move it."""
    run = make(workspace, quick, mixing="round-robin")
    model = build_for_training(run.request, run.parts, workspace.backbone, workspace.ledger).model
    from accelerate import Accelerator

    from pipeline.data.batches import Piece, inputs_of
    from pipeline.training.fit import TrainingData, fit

    ids = torch.randint(5, 20, (4, 9), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    order, heads = ["films", "meals", "meals", "films"], []

    def steps(epoch: int, first: int) -> Any:
        for task in order:
            heads.append(model.of("films").head.out.weight.detach().clone())
            yield [Piece({**inputs, "rows": torch.arange(4)}, task)]

    fit(
        model, recipe=run.recipe, seed=1, data=TrainingData(steps, 4, 1),
        loss=lambda model, piece: model(piece.task, **inputs_of(piece.batch)).square().mean(),
        evaluate=lambda _: 0.0, metric="mean", accelerator=Accelerator(cpu=True), title="test",
    )  # fmt: skip
    start, one, two, three = heads
    assert not torch.equal(start, one)
    assert torch.equal(one, two)
    assert torch.equal(two, three)


def test_a_weight_on_the_loss_is_a_weight_on_its_gradient(workspace, quick, monkeypatch) -> None:
    """The gradients of one step, before clipping and Adam: of all tasks weighted, and of the first alone."""
    from pipeline.training import fit

    original, found = fit._backward, []

    def kept(model: Any, *arguments: Any) -> Any:
        total = original(model, *arguments)
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        return total

    monkeypatch.setattr(fit, "_backward", kept)
    for weighted in ((), TASKS, TASKS[:1]):
        own = {task: {"loss_weight": 3.0} for task in weighted}
        make(workspace, quick, own=own, epochs=1, limits=dict.fromkeys(TASKS, 16)).get()
    plain, every, first = found
    for name, gradient in plain.items():
        torch.testing.assert_close(every[name], 3 * gradient, atol=1e-6, rtol=1e-4)
        if ".head." in name:
            factor = 3 if name.startswith("models.0.") else 1
            torch.testing.assert_close(first[name], factor * gradient, atol=1e-6, rtol=1e-4)


COSINE = {"pairs": {"encoding": "siamese", "head": "cosine"}}


@pytest.mark.parametrize(
    ("settings", "message", "fit"),
    [
        ({"gradient_surgery": "pcgrad"}, "gradient_surgery works in one process only", {}),
        ({"l2_sp": 0.1}, "l2_sp of several tasks works in one process only", {"tasks": ["films"], "l2_sp": 0.1}),
        ({"own": COSINE, "trainable": "head"}, "pairs: a cosine on a frozen backbone trains nothing", {"own": COSINE}),
    ],
    ids=["surgery", "heads that a step leaves out", "a task that trains nothing"],
)
def test_what_processes_that_add_up_gradients_cannot_train_is_refused(
    settings, message, fit, workspace, quick, monkeypatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PipelineError, match=message):
        make(workspace, quick, precision="fp32", **settings)
    make(workspace, quick, precision="fp32", **fit)
    monkeypatch.setenv("WORLD_SIZE", "1")
    make(workspace, quick, precision="fp32", **settings)


@pytest.mark.parametrize(("surgery", "copies"), [("none", 3), ("pcgrad", 5)])
def test_more_than_memory_holds_is_refused_with_the_estimate(surgery, copies, workspace, quick, monkeypatch) -> None:
    """Weights, a gradient (one a task with surgery) and two moments: what trains needs so many times its size more."""
    needed = copies * 4 * workspace.backbone.parameters
    monkeypatch.setattr("pipeline.training.devices.free_bytes", lambda: needed - 1)
    with pytest.raises(PipelineError, match=r"training needs at least .* GiB \(weights .*Adam's moments"):
        make(workspace, quick, gradient_surgery=surgery).get()
    heads = copies * 4 * 1000
    monkeypatch.setattr("pipeline.training.devices.free_bytes", lambda: needed + heads)
    monkeypatch.setattr("pipeline.runs.training_run.fit", lambda *_, **__: (_ for _ in ()).throw(Stopped))
    with pytest.raises(Stopped):
        make(workspace, quick, gradient_surgery=surgery).get()


def test_frozen_embeddings_stay_and_are_kept_for_the_task_after(workspace: Workspace, quick: Quick) -> None:
    ledger, settings = workspace.ledger, {"epochs": 1}
    first = single_run(workspace, "full", "films", quick("full", **settings), seed=1).get()
    frozen = quick("full", freeze_embeddings=True, **settings)
    second = single_run(workspace, "sequential", "meals", frozen, seed=1, start=first, keep_weights=True).get()
    before, after = (load_file(ledger.weights_file(record.run)) for record in (first, second))
    assert {name for name in before if name.startswith("backbone.")} == {n for n in after if n.startswith("backbone.")}
    embeddings = [name for name in before if ".embeddings." in name]
    assert embeddings
    assert all(torch.equal(before[name], after[name]) for name in embeddings)
    layer = next(name for name in before if name.endswith("layer.0.output.dense.weight"))
    assert not torch.equal(before[layer], after[layer])
    assert second.cost.trainable_parameters < first.cost.trainable_parameters


def test_after_other_tasks_the_heads_beside_a_second_encoder_are_fresh(workspace: Workspace, quick: Quick) -> None:
    """They read both sentence vectors, and the kept one was trained on one."""
    first = single_run(workspace, "full", "films", quick("full", epochs=1), seed=1).get()
    recipes = dict.fromkeys(("films", "meals"), quick("full", epochs=1, second_encoder="static"))
    run = joint_run(workspace, tuple(recipes), recipes, seed=1, limits=dict.fromkeys(recipes, 32), start=first)
    assert set(run.get().scores) == set(recipes)


@pytest.mark.parametrize("changed", [{}, {"head": "mlp"}], ids=str)
def test_after_other_tasks_it_keeps_the_heads_that_fit(
    changed: dict[str, str], workspace: Workspace, quick: Quick
) -> None:
    first = single_run(workspace, "full", "films", quick("full", epochs=1), seed=1).get()
    second = single_run(
        workspace, "sequential", "meals", quick("full", epochs=1), seed=1, start=first, keep_weights=True
    ).get()
    tasks, plain = ("pairs", "films", "meals"), quick("full", epochs=1)
    recipes = {"pairs": plain, "films": quick("full", epochs=1, **changed), "meals": plain}
    limits = dict.fromkeys(tasks, 40)
    after, fresh = (
        joint_run(workspace, tasks, recipes, seed=1, limits=limits, start=start) for start in (second, None)
    )
    assert after.name != fresh.name
    built, new = (
        build_for_training(run.request, run.parts, run.backbone, workspace.ledger).model for run in (after, fresh)
    )

    def head(model: MultitaskModel, task: str) -> dict[str, torch.Tensor]:
        return {f"head.{name}": tensor for name, tensor in model.of(task).head.state_dict().items()}

    kept = {"films": first, "meals": second} if not changed else {"meals": second}
    for task in tasks:
        tensors = head(built, task).items()
        if task in kept:
            expected = load_file(workspace.ledger.weights_file(kept[task].run))
            assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors)
        else:  # drawn by seed and task, as it is not where nothing was trained before
            assert not any(torch.equal(tensor, head(new, task)[name]) for name, tensor in tensors)


@pytest.mark.parametrize(
    ("settings", "encoders"),
    [({}, 1.0), ({"split_layers": 1}, None), ({"second_encoder": "static"}, 1.0), ({"second_encoder": "tuned"}, 4.0)],
    ids=str,
)
def test_tasks_may_have_layers_or_encoders_of_their_own(settings, encoders, workspace: Workspace, quick: Quick) -> None:
    record = make(workspace, quick, limits=dict.fromkeys(TASKS, 32), epochs=1, **settings).get()
    backbone, head = record.parameters.backbone, record.parameters.head
    trained = record.cost.trainable_parameters - head
    if encoders is not None:
        assert trained == encoders * backbone
    else:
        layer = sum(p.numel() for p in workspace.backbone.load().encoder.layer[-1].parameters())
        assert trained == backbone + 2 * layer
    is_static = settings.get("second_encoder") == "static"
    assert record.parameters.model == record.cost.trainable_parameters + (backbone if is_static else 0)
    plain = make(workspace, quick, limits=dict.fromkeys(TASKS, 32), epochs=1).get()
    assert (record.run == plain.run) == (not settings)


@pytest.mark.parametrize("mixing", ["simultaneous", "round-robin"])
def test_a_task_that_trains_nothing_leaves_the_others_to_train(mixing: str, workspace: Workspace, quick: Quick) -> None:
    """A cosine has no weights, and on a frozen backbone nothing else of its task has: its score stays."""
    record = make(workspace, quick, own=COSINE, trainable="head", mixing=mixing, epochs=8, learning_rate=3e-2).get()
    alone = single_run(workspace, "frozen", "pairs", quick("head", encoding="siamese", head="cosine"), seed=1).get()
    assert record.score("pairs").dev == pytest.approx(alone.dev)
    curve = workspace.ledger.curve(record.run)
    assert curve["loss"].iloc[-1] < curve["loss"].iloc[0]
