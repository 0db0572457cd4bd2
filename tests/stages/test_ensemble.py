"""Ensembles of finished runs: which take part, what is kept, and that prediction repeats it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.cli.app import main
from pipeline.data.tasks import Task, find_task
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import EnsembleRecord, Ensembles
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.stats.metrics import score
from pipeline.system.errors import PipelineError
from stages.ensemble import ensemble
from tests.pipeline.records.test_ledger import OWN, record
from tests.runs import single_run

Quick = Callable[..., Recipe]
ROWS = 60
SST, STS = find_task("sst"), find_task("sts")


def labels_of(task: Task) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 5, ROWS) if task.kind == "classes" else rng.uniform(0, 5, ROWS)


def finished(
    ledger: Ledger, run: str, skill: float, task: Task = SST, dev_rows: str = "dev", others: tuple[Task, ...] = ()
) -> RunRecord:
    """A run in the ledger with made-up predictions, the better the more skill it has."""
    rng = np.random.default_rng(int(run, 16))

    def predictions(each: Task) -> tuple[pd.DataFrame, float]:
        labels = labels_of(each)
        table = pd.DataFrame({"id": [str(i) for i in range(ROWS)], "label": labels})
        if each.kind == "score":
            table["prediction"] = skill * labels + (1 - skill) * rng.normal(size=ROWS) * 3
        else:
            chances = rng.random((ROWS, 5)) + 4 * skill * rng.random((ROWS, 1)) * np.eye(5)[labels]
            chances = (chances / chances.sum(axis=1, keepdims=True)).astype(np.float32)
            table["prediction"] = chances.argmax(axis=1)
            table = pd.concat([table, pd.DataFrame(chances).add_prefix("probability_")], axis=1)
        return table, score(each.metric, table["prediction"].to_numpy(), labels)

    def part(each: Task) -> dict[str, Any]:
        return {"meaning": each.meaning, "data": {"train": "rows", "dev": dev_rows}}

    made = {each.name: predictions(each) for each in (task, *others)}
    found = record(
        run,
        kind="multitask" if others else "full",
        identity={"tasks": {each.name: part(each) for each in (task, *others)}, "backbone": {"weights": "aa"}},
        scores={
            name: OWN.model_copy(update={"metric": find_task(name).metric, "dev": value, "rows": ROWS})
            for name, (_, value) in made.items()
        },
        sources=(),
    )
    curve = [{"epoch": 1.0, "dev": made[task.name][1]}]
    ledger.finish(found, curve, {name: table for name, (table, _) in made.items()})
    return found


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    return tmp_path / "reports"


@pytest.fixture
def ledger(reports: Path) -> Ledger:
    ledger = Ledger(reports)
    for number, skill in enumerate((0.2, 0.5, 0.6, 0.55, 0.1)):
        finished(ledger, f"{number:012x}", skill)
    for number, skill in enumerate((0.5, 0.6, 0.4), start=10):
        finished(ledger, f"{number:012x}", skill, STS)
    return ledger


def table_of(reports: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(reports / "ensembles" / name / "predictions.parquet")


@pytest.mark.parametrize(
    ("task", "rule"),
    [(SST, "mean"), (SST, "weighted"), (SST, "mode"), (STS, "mean"), (STS, "weighted"), (STS, "median")],
)
def test_it_is_chosen_on_one_half_scored_on_the_other_and_kept(task, rule, ledger, reports) -> None:
    record = ensemble(task, "mine", reports, rule=rule)
    assert Ensembles(reports).find("mine") == record
    assert len(record.considered) == (5 if task is SST else 3)
    assert {member.run for member in record.members} <= set(record.considered)
    assert sum(member.weight for member in record.members) == pytest.approx(1)
    table = table_of(reports, "mine")
    assert table["id"].tolist() == [str(i) for i in range(ROWS)]
    for rows, scores in ((table["chosen_on"], record.chosen), (~table["chosen_on"], record.held_out)):
        part = table[rows]
        assert scores.rows == ROWS // 2 == len(part)
        assert scores.ensemble == score(task.metric, part["prediction"].to_numpy(), part["label"].to_numpy())
        alone = ledger.predictions(record.best)[rows]
        assert scores.best == score(task.metric, alone["prediction"].to_numpy(), alone["label"].to_numpy())
    assert record.drop == record.chosen.ensemble - record.held_out.ensemble
    if rule in ("mean", "weighted"):
        assert record.chosen.ensemble >= record.chosen.best


def test_what_is_held_out_has_no_say_in_who_takes_part(ledger: Ledger, reports: Path) -> None:
    before = ensemble(SST, "mine", reports, rule="weighted")
    chosen = table_of(reports, "mine")["chosen_on"]
    for run in before.considered:  # all are right about the held-out half but the members
        table = ledger.predictions(run)
        wrong = run in {member.run for member in before.members}
        table.loc[~chosen, "prediction"] = (table["label"] + wrong) % 5
        table.to_parquet(ledger.folder(run) / "predictions.parquet", index=False)
    after = ensemble(SST, "mine", reports, rule="weighted")
    assert after.members == before.members
    assert after.chosen == before.chosen


def test_choosing_on_all_of_dev_says_that_it_flatters(ledger: Ledger, reports: Path, capsys) -> None:
    record = ensemble(SST, "mine", reports, chosen_on="all")
    assert (record.held_out, record.drop, record.chosen.rows) == (None, None, ROWS)
    assert main(["ensemble", "--target=sst", "--name=mine", "--choose-on=all", f"--reports={reports}"]) == 0
    printed = capsys.readouterr().out
    assert "which is optimistic" in printed
    assert "other half" not in printed
    assert record.summary()["held_out_is"] is None


def test_a_model_of_several_tasks_takes_part_for_each(ledger: Ledger, reports: Path) -> None:
    finished(ledger, f"{30:012x}", 0.9, SST, others=(STS,))
    for task in (SST, STS):
        record = ensemble(task, f"of-{task.name}", reports)
        assert record.members[0].run == f"{30:012x}"
        assert record.members[0].dev == ledger.find(f"{30:012x}").score(task.name).dev


def test_runs_on_other_dev_rows_are_left_out_or_named(ledger: Ledger, reports: Path, capsys) -> None:
    other = f"{40:012x}"
    finished(ledger, other, 0.99, dev_rows="fewer")
    record = ensemble(SST, "mine", reports)
    assert other not in record.considered
    assert f"left out: {ledger.folder(other)}: its predictions are of other rows" in capsys.readouterr().err
    with pytest.raises(PipelineError, match=f"{other}: its predictions are of other rows"):
        ensemble(SST, "mine", reports, runs=[f"{1:012x}", f"{2:012x}", other])


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"runs": [f"{1:012x}", f"{1:012x}"]}, ["named more than once"]),
        ({"runs": ["feed", "beef"]}, ["no run feed", "no run beef", "2 problems"]),
        ({"runs": [f"{1:012x}", f"../runs/{1:012x}"]}, [f"no run ../runs/{1:012x}"]),
        ({"runs": ["/etc", "."]}, ["no run /etc", "no run .", "2 problems"]),
        ({"name": "a" * 300}, ["for it names a folder"]),
        ({"runs": [f"{10:012x}"]}, ["was trained for 'sts', not 'sst'"]),
        ({"runs": []}, ["names no run"]),
        ({"rule": "median", "name": "A b"}, ["--rule median is for scores", "--name A b", "2 problems"]),
        ({"best": 3}, ["--best is for mode and median"]),
        ({"rule": "mode", "best": 0}, ["--best 0: give at least 1"]),
        ({"task": STS, "rule": "mode"}, ["--rule mode is for classes"]),
        ({"task": find_task("quora")}, ["no run of 'quora'"]),
    ],
)
def test_what_cannot_be_is_told_at_once(settings, messages, ledger, reports) -> None:
    settings = dict(settings)
    task, name = settings.pop("task", SST), settings.pop("name", "mine")
    with pytest.raises(PipelineError) as caught:
        ensemble(task, name, reports, **settings)
    for message in messages:
        assert message in str(caught.value)
    assert not (reports / "ensembles").exists()


def changed(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        file = folder / "predictions.parquet"
        change(pd.read_parquet(file)).to_parquet(file, index=False)

    return write


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a record": (lambda folder: (folder / "run.json").write_text("{"), "run.json: cannot be read"),
    "no predictions, as of a lean trial": (
        lambda folder: (folder / "predictions.parquet").unlink(), "predictions.parquet: no such file"),
    "predictions": (
        lambda folder: (folder / "predictions.parquet").write_text("x"), "predictions.parquet: cannot be read"),
    "predictions without rows": (changed(lambda table: table.head(0)), "its predictions have no rows"),
    "predictions without probabilities": (
        changed(lambda table: table[["id", "label", "prediction"]]), "not those of the 5 classes of 'sst'"),
    "a probability too few": (
        changed(lambda table: table.drop(columns="probability_4")), "not those of the 5 classes of 'sst'"),
    "a probability too many": (
        changed(lambda table: table.assign(probability_5=0.0)), "not those of the 5 classes of 'sst'"),
    "probabilities that are words": (
        changed(lambda table: table.assign(probability_1="x")), "not those of the 5 classes of 'sst'"),
    "probabilities that are no numbers": (
        changed(lambda table: table.assign(probability_1=np.nan)), "not those of the 5 classes of 'sst'"),
    "predictions of other rows": (changed(lambda table: table.head(50)), "are of other rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_left_out_unless_it_is_named(name: str, ledger: Ledger, reports: Path, capsys) -> None:
    damage, reason = DAMAGES[name]
    runs = [f"{number:012x}" for number in range(5)]
    damage(ledger.folder(runs[0]))
    assert [*ensemble(SST, "mine", reports).considered] == runs[1:]
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: left out: {ledger.folder(runs[0])}")
    assert reason in warning
    assert (f"python -m pipeline runs remove {runs[0]} --force" in warning) == (name != "a record")
    with pytest.raises(PipelineError, match="1 problem") as refused:
        ensemble(SST, "named", reports, runs=runs)
    assert str(ledger.folder(runs[0])) in str(refused.value) and reason in str(refused.value)


def test_scores_with_probabilities_are_refused(ledger: Ledger, reports: Path) -> None:
    run = f"{10:012x}"
    changed(lambda table: table.assign(probability_0=0.5))(ledger.folder(run))
    with pytest.raises(PipelineError, match=f"{run}: its probabilities are not those"):
        ensemble(STS, "mine", reports, runs=[run, f"{11:012x}"])


def test_an_unfinished_run_is_named(ledger: Ledger, reports: Path) -> None:
    ledger.checkpoint_file("abc").parent.mkdir(parents=True)
    with pytest.raises(PipelineError, match="run abc is not finished"):
        ensemble(SST, "mine", reports, runs=["abc", f"{1:012x}"])
    assert "abc" not in ensemble(SST, "mine", reports).considered


def test_a_task_that_has_changed_and_a_name_that_is_taken_are_refused(ledger: Ledger, reports: Path) -> None:
    ensemble(SST, "mine", reports)
    with pytest.raises(PipelineError, match="the name is that of an ensemble of 'sst'"):
        ensemble(STS, "mine", reports)
    turned = SST.model_copy(update={"classes": SST.classes[::-1]})
    with pytest.raises(PipelineError, match="had other classes or range"):
        ensemble(turned, "other", reports, runs=[f"{1:012x}"])


def test_the_command_prints_members_weights_and_drop(ledger: Ledger, reports: Path, capsys) -> None:
    assert main(["ensemble", "--target=sst", "--name=mine", f"--reports={reports}", "--rule=weighted", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    summary = json.loads(last)
    record: EnsembleRecord = Ensembles(reports).named("mine")
    assert summary["members"] == {member.run: member.weight for member in record.members}
    assert summary["drop"] == record.drop
    assert any(f"drop from the half selected on to the other half: {record.drop:.4f}" in line for line in lines)
    assert all(any(member.run in line for line in lines) for member in record.members)


@pytest.fixture
def trained(workspace: Workspace, quick: Quick) -> list[RunRecord]:
    from stages.extract import extract

    recipe = quick("adapter", epochs=1)
    adapter = extract("films", recipe, workspace, seed=0).record
    full = single_run(workspace, "full", "films", quick("full", epochs=1), seed=0).get()
    return [adapter, full]


def test_prediction_says_what_the_ensemble_said_on_dev(trained, workspace, data_folder, tmp_path, capsys) -> None:
    """An adapter and a fully tuned model, on the dev rows in another order."""
    from stages.predict import predict

    films = workspace.task("films")
    record = ensemble(films, "both", workspace.reports, rule="mode", runs=[one.run for one in trained])
    assert len(record.members) == 2
    rows = pd.read_csv(data_folder / "films" / "dev.csv", dtype=str).sample(frac=1, random_state=0)
    source, out = tmp_path / "in.csv", tmp_path / "out.parquet"
    rows.to_csv(source, index=False)
    fresh = dataclasses.replace(workspace, backbone_name="no/such-backbone")  # the members have their own
    settings = {"batch_size": 7, "precision": "fp32"}
    written = predict("films", source, out, fresh, using="ensemble:both", **settings)
    assert written.summary() == {
        "run": "ensemble:both", "kind": "ensemble", "task": "films", "blank": 0, "cut": 0, "max_length": 24,
        "rows": 40, "output": str(out),
    }  # fmt: skip
    found = pd.read_parquet(out).set_index("id")
    kept = table_of(workspace.reports, "both").set_index("id").loc[found.index]
    assert found["prediction"].tolist() == kept["prediction"].map({0: "bad", 1: "good"}).tolist()
    assert found["probability_good"].to_numpy() == pytest.approx(kept["probability_1"].to_numpy(), abs=1e-4)

    with pytest.raises(PipelineError, match=r"no ensemble 'nope' .*there: both.*ensemble --target"):
        predict("films", source, out, fresh, using="ensemble:nope", **settings)
    with pytest.raises(PipelineError, match="made for 'films', not 'meals'"):
        predict("meals", source, out, fresh, using="ensemble:both", **settings)
    workspace.store.remove(trained[0].run)
    with pytest.raises(PipelineError, match=f"ensemble 'both' needs run {trained[0].run}"):
        predict("films", source, out, fresh, using="ensemble:both", **settings)


def test_half_of_dev_that_has_no_correlation_is_not_scored(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROWS", 3)
    finished(Ledger(reports), f"{1:012x}", 0.5, STS)
    for seed in range(4):  # one of the halves is a single row, whichever it is
        with pytest.raises(
            PipelineError, match="3 dev rows of 'sts' are too few to choose on half of: --choose-on all"
        ):
            ensemble(STS, "mine", reports, seed=seed)
    assert ensemble(STS, "mine", reports, chosen_on="all").held_out is None


def test_a_damaged_ensemble_is_made_again_as_its_message_says(ledger: Ledger, reports: Path) -> None:
    ensemble(SST, "mine", reports)
    file = reports / "ensembles" / "mine" / "ensemble.json"
    file.write_text("{")
    with pytest.raises(PipelineError, match="delete it and make the ensemble again"):
        ensemble(SST, "mine", reports)
    file.unlink()
    assert ensemble(SST, "mine", reports) == Ensembles(reports).find("mine")
