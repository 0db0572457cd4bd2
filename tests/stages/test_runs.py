"""runs list, show, compare and remove, and du: what they print of a ledger, and what they refuse."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import numpy as np
import pandas as pd
import pytest

from pipeline.cli.app import main
from pipeline.cli.runs import runs_list
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.store import SourceRun, Store
from pipeline.settings.kinds import Method
from pipeline.settings.recipe import Recipe
from pipeline.stats.paired import paired_difference
from pipeline.system.atomic import size_of, write_text
from stages.run_comparison import compare_runs
from stages.runs import RunDescription, Runs, Sort
from tests.permissions import unreadable
from tests.pipeline.records.artifacts import save, save_ensemble, save_study
from tests.pipeline.records.test_ledger import CURVE, IDENTITY, OWN, record
from tests.processes import left_behind

FIRST, SECOND, LATER, ALONE = "a" * 12, "b" * 12, "c" * 12, "d" * 12
Run = Callable[..., tuple[int, list[str], str]]
ROWS = 40
LABELS = np.arange(ROWS) % 2


def answers(seed: int, rows: int = ROWS) -> pd.DataFrame:
    """Predictions that are right on about 80 % of the rows."""
    wrong = np.random.default_rng(seed).random(rows) < 0.2
    labels = LABELS[:rows]
    return pd.DataFrame({"id": [str(row) for row in range(rows)], "label": labels, "prediction": labels ^ wrong})


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Two adapters, a sequential run after the first of them, and one run that nothing needs."""
    ledger = Ledger(tmp_path / "reports")

    def finish(run: str, day: int, dev: float, table: pd.DataFrame, **changes: Any) -> None:
        score = OWN.model_copy(update={"dev": dev, "recipe": changes.pop("recipe", Recipe(epochs=2))})
        values = {"sources": (), "scores": {"sst": score}, "finished_at": f"2026-01-{day:02d}T12:00:00+00:00"}
        ledger.finish(record(run, **values | changes), CURVE, {"sst": table})

    finish(FIRST, 1, 0.7, answers(1))
    finish(SECOND, 2, 0.8, answers(2), seed=2, recipe=Recipe(epochs=2, batch_size=8))
    source = SourceRun(task="sst", run=FIRST, digest="cc")
    finish(LATER, 3, 0.6, answers(3), kind="sequential", sources=(source,))
    finish(ALONE, 4, 0.5, answers(4, rows=20), kind="full")
    return ledger


@pytest.fixture
def verb(tmp_path: Path, ledger: Ledger, run: Callable[..., tuple[int, str, str]]) -> Run:
    """Exit status, lines of stdout, and stderr."""

    def lines(*arguments: object) -> tuple[int, list[str], str]:
        status, out, errors = run(*arguments, f"--store={tmp_path / 'store'}", f"--reports={tmp_path / 'reports'}")
        return status, out.splitlines(), errors

    return lines


def interrupt(ledger: Ledger, run: str) -> None:
    """Leave what a killed command leaves of a run after its first checkpoint."""
    with ledger.lock(run):
        write_text(ledger.checkpoint_file(run), "x" * 1000)


def need_all(root: Path) -> None:
    """Let the store, a study and an ensemble need the second run, the ensemble the first too; the study has tried the
    later run."""
    save(Store(root / "store"), SECOND)
    save_study(root / "reports", SECOND, SECOND, trials=(SECOND, LATER))
    save_ensemble(root / "reports", "both", FIRST, SECOND)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [FIRST, SECOND, LATER, ALONE]),
        (["--sort", "score"], [SECOND, FIRST, LATER, ALONE]),
        (["--kind", "adapter"], [FIRST, SECOND]),
        (["--task", "sts"], []),
        (["--since", "2026-01-03"], [LATER, ALONE]),
        (["--since", "2026-01-03T13:00+01:00", "--kind", "sequential"], [LATER]),
        (["--since", "2026-01-03T12:00:01", "--sort", "task"], [ALONE]),
        (["--since", "2026-01-03T12:00:00.5"], [LATER, ALONE]),  # records have whole seconds
        (["--unused"], [SECOND, LATER, ALONE]),
    ],
)
def test_a_list_is_filtered_and_sorted(options: list[str], expected: list[str], verb: Run, ledger: Ledger) -> None:
    status, out, _ = verb("runs", "list", *options, "--json")
    listed = json.loads(out[-1])
    assert (status, [run["run"] for run in listed["runs"]], listed["unfinished"]) == (0, expected, 0)
    assert [line.split()[0] for line in out[:-1]] == (["run", *expected] if expected else ["no"])
    for run in listed["runs"]:
        assert run["bytes"] == size_of(ledger.folder(run["run"]))


def test_what_a_study_shows_or_tried_is_not_listed_as_unused(verb: Run, ledger: Ledger, tmp_path: Path) -> None:
    need_all(tmp_path)
    assert [run["run"] for run in json.loads(verb("runs", "list", "--unused", "--json")[1][-1])["runs"]] == [ALONE]


def test_a_list_names_what_is_damaged_and_counts_what_is_unfinished(verb: Run, ledger: Ledger) -> None:
    (ledger.folder(FIRST) / "run.json").write_text("{}")
    ledger.folder(LATER).rename(ledger.folder("copy"))
    interrupt(ledger, "e" * 12)
    status, out, error = verb("runs", "list")
    assert (status, [line.split()[0] for line in out]) == (0, ["run", SECOND, ALONE])
    assert str(ledger.folder(FIRST) / "run.json") in error
    assert f"the record of run {LATER}: " in error
    assert "1 unfinished: see du" in error


def test_a_list_says_what_runs_of_one_kind_and_task_differ_in(verb: Run, ledger: Ledger) -> None:
    finished = ledger.find(FIRST)
    recipe = finished.recipe_of("sst").model_copy(update={"batch_size": 8})
    score = finished.score("sst").model_copy(update={"limit": 100, "recipe": recipe})
    other = finished.model_copy(
        update={
            "run": "e" * 12,
            "scores": {"sst": score},
            "anchor": "sts",
        }
    )
    ledger.finish(other, CURVE, {"sst": answers(5)})
    _, out, _ = verb("runs", "list", "--kind", "adapter")
    rows = {line.split()[0]: line for line in out}
    assert rows["run"].split()[:3] == ["run", "finished", "kind"] and rows["run"].endswith("on disk  differs in")
    assert "seed  epochs  metric" in rows["run"]
    assert [each for each in ("limit 100", "started as sts", "batch size 8") if each not in rows["e" * 12]] == []
    assert not {"limit", "started"} & {*rows[FIRST].split()}
    assert "2026-01-01 12:00" in rows[FIRST]


def test_show_has_what_a_run_was_trained_on_and_with_and_what_needs_it(
    verb: Run, ledger: Ledger, tmp_path: Path
) -> None:
    need_all(tmp_path)
    status, out, _ = verb("runs", "show", SECOND, "--json")
    shown = json.loads(out[-1])
    assert (status, shown["recipes"]) == (0, {"sst": {"epochs": 2, "batch_size": 8}})
    assert [point["dev"] for point in shown["curve"]] == [point["dev"] for point in CURVE]
    assert [(use["kind"], use["name"]) for use in shown["used_by"]] == [
        ("artifact", str(tmp_path / f"store/adapters/sst/{SECOND}")), ("study", "few"), ("ensemble", "both"),
    ]  # fmt: skip
    assert shown["used_by"][1]["detail"] == "adapter on sst, seed 1 and 1 more"
    assert f"used by     run {LATER} (sequential of sst)" in verb("runs", "show", FIRST)[1]
    assert "used by     nothing" in verb("runs", "show", ALONE)[1]
    finished = ledger.find(LATER)
    shown = json.loads(verb("runs", "show", LATER, "--json")[1][-1])
    assert shown["data"] == {"sst": {"train_rows": 10, "limit": None, "fingerprints": {"dev": "bb"}}}
    assert shown["scores"] == {"sst": {"metric": "accuracy", "score": 0.6, "rows": 2, "dev": 0.6}}
    assert shown["sources"] == [{"task": "sst", "run": FIRST}]
    same = ("seed", "finished_at", "backbone", "best_epoch", "anchor", "provenance")
    assert {key: shown[key] for key in same} == {key: getattr(finished, key) for key in same}
    assert (shown["bytes"], shown["problems"]) == (size_of(ledger.folder(LATER)), [])


def test_a_run_needs_all_that_it_is_built_on_and_was_chosen_from(verb: Run, ledger: Ledger) -> None:
    """What it only chose from is known by what that kept of its model, which several runs may have in common."""
    sources = tuple(SourceRun(task=task, run=run, digest="cc") for task, run in (("sst", SECOND), ("sts", ALONE)))
    twins = ["8" * 12, "9" * 12]
    for run in twins:
        ledger.finish(record(run, sources=(), artifact_digest="ee"), CURVE, {"sst": answers(1)})
    chosen_from = [{"task": task, "digest": digest} for task, digest in (("sst", "cc"), ("sts", "ee"))]
    fusion = record("f" * 12, kind="fusion", sources=sources, identity={**IDENTITY, "sources": chosen_from})
    ledger.finish(fusion, CURVE, {"sst": answers(1)})
    for run in (SECOND, ALONE, *twins):
        status, _, error = verb("runs", "remove", run)
        assert (status, f"run {run}: fusion of sst {fusion.run} builds on it" in error) == (2, True)
    assert verb("runs", "remove", fusion.run, SECOND, ALONE, *twins)[0] == 0


def test_an_ensemble_needs_the_members_that_it_did_not_take_too(verb: Run, ledger: Ledger) -> None:
    """Its name depends on all of them: without one, compare would train that again to name the ensemble."""
    taken = (SourceRun(task="sst", run=SECOND, digest=SECOND),)
    identity = {"kind": "ensemble", "tasks": IDENTITY["tasks"], "members": [SECOND, ALONE]}
    ensemble = record("f" * 12, kind="ensemble", sources=taken, identity=identity)
    ledger.finish(ensemble, CURVE, {"sst": answers(1)})
    for run in (SECOND, ALONE):
        status, _, error = verb("runs", "remove", run)
        assert (status, f"run {run}: ensemble of sst {ensemble.run} builds on it" in error) == (2, True)
    assert verb("runs", "remove", ensemble.run, SECOND, ALONE)[0] == 0


def test_what_a_record_says_can_neither_steer_a_terminal_nor_forge_a_line(verb: Run, ledger: Ledger) -> None:
    finished = ledger.find(FIRST)
    task = finished.identity["tasks"]["sst"]
    printed = []
    for text in ("plain", f"\x1b[2J\n{SECOND}"):
        identity = {**finished.identity, "tasks": {"sst": {**task, "recipe": {"batch_size": text}}}}
        values = {"run": "e" * 12, "backbone": text, "identity": identity}
        ledger.finish(finished.model_copy(update=values), CURVE, {"sst": answers(5)})
        commands = (["list"], ["show", "e" * 12], ["compare", FIRST, "e" * 12])
        printed.append([verb("runs", *command)[1] for command in commands])
    for plain, odd in zip(*printed, strict=True):
        assert len(odd) == len(plain)
        assert all(line.isprintable() for line in odd)
        assert any("\ufffd[2J\ufffd" in line for line in odd)


def test_compare_is_the_paired_test_of_both_predictions(verb: Run, ledger: Ledger) -> None:
    status, out, _ = verb("runs", "compare", FIRST, SECOND, "--json")
    found = json.loads(out[-1])
    assert (status, found["settings"]) == (0, {"seed": [1, 2], "batch_size": [32, 8]})
    ours, theirs = (ledger.predictions(run)["prediction"].to_numpy() for run in (FIRST, SECOND))
    test = paired_difference("accuracy", [ours], [theirs], LABELS).comparison()
    (score,) = found["scores"]
    assert score["test"]["difference"] == pytest.approx((ours == LABELS).mean() - (theirs == LABELS).mean())
    assert score["test"]["interval"] == pytest.approx(test.interval)
    assert (score["test"]["p_value"], score["test"]["verdict"]) == (pytest.approx(test.p_value), test.verdict)
    back = json.loads(verb("runs", "compare", SECOND, FIRST, "--json")[1][-1])["scores"][0]["test"]
    assert back["difference"] == -score["test"]["difference"]


def test_compare_shows_in_which_classes_runs_differ(verb: Run, ledger: Ledger) -> None:
    """No run of the one predicts for the other, whatever their scores."""
    for run, classes, metric in (("8", ["biling", "billing"], "accuracy"), ("9", ["billing", "bug"], "macro-f1")):
        meaning = {"classes": classes, "range": None, "metric": metric}
        identity = {**IDENTITY, "tasks": {"sst": {"meaning": meaning, "data": {"train": "a", "dev": "bb"}}}}
        ledger.finish(record(run * 12, identity=identity), CURVE, {"sst": answers(1)})
    _, out, _ = verb("runs", "compare", "8" * 12, "9" * 12, "--json")
    differing = {"classes": [["biling", "billing"], ["billing", "bug"]], "metric": ["accuracy", "macro-f1"]}
    assert json.loads(out[-1])["settings"] == differing
    assert "  classes: biling, billing | billing, bug" in out


def test_the_tests_on_several_tasks_are_corrected_for_one_another(verb: Run, ledger: Ledger) -> None:
    """Of two joint runs."""
    tables = {"sst": answers(1), "sts": answers(2)}
    right = {task: table.assign(prediction=LABELS) for task, table in tables.items()}
    joint = [
        record(each * 12, seed=seed, kind="multitask", scores=dict.fromkeys(tables, OWN))
        for seed, each in enumerate("ef")
    ]
    for each, predictions in zip(joint, (tables, right), strict=True):
        ledger.finish(each, CURVE, predictions)
    scores = json.loads(verb("runs", "compare", *(each.run for each in joint), "--json")[1][-1])["scores"]
    assert [score["task"] for score in scores] == ["sst", "sts"]
    for score in scores:
        ours, theirs = (ledger.predictions(each.run, score["task"])["prediction"].to_numpy() for each in joint)
        test = paired_difference("accuracy", [ours], [theirs], LABELS).comparison(2)
        assert test.p_value < 1  # or the correction would not show
        assert score["test"]["p_value"] == pytest.approx(test.p_value)
        assert score["test"]["interval"] == pytest.approx(test.interval)


def test_runs_that_were_scored_on_other_rows_or_tasks_are_not_paired(verb: Run, ledger: Ledger) -> None:
    (score,) = json.loads(verb("runs", "compare", FIRST, ALONE, "--json")[1][-1])["scores"]
    assert score["test"] is None and score["why_untested"].startswith("they were scored on different rows")
    (ledger.folder(SECOND) / "predictions.parquet").unlink()
    (score,) = json.loads(verb("runs", "compare", FIRST, SECOND, "--json")[1][-1])["scores"]
    assert "predictions.parquet" in score["why_untested"]
    other = record("e" * 12, scores={"sts": OWN}, sources=())
    ledger.finish(other, CURVE, {"sts": answers(5)})
    status, out, _ = verb("runs", "compare", FIRST, other.run)
    assert (status, out[-1]) == (0, "no task that both were scored on")
    assert "  task: sst | sts" in out


def test_what_is_needed_is_removed_only_by_force(verb: Run, ledger: Ledger, tmp_path: Path) -> None:
    need_all(tmp_path)
    for runs, needed in (
        ([FIRST], [f"sequential of sst {LATER} builds on it", "ensemble:both fails"]),
        ([SECOND, ALONE], [f"{SECOND} still predicts", "report --study few fails", "ensemble:both fails"]),
        ([LATER], [f"run {LATER}: report --study few fails"]),  # a trial
    ):
        status, out, error = verb("runs", "remove", *runs)
        assert (status, out) == (2, [])
        assert error.startswith("error: still needed; --force removes them anyway, and then\n")
        assert len(error.splitlines()) == 1 + len(needed)
        assert all(text in error for text in needed)
        assert all(ledger.folder(run).is_dir() for run in runs)
    size = size_of(ledger.folder(SECOND))
    status, out, error = verb("runs", "remove", SECOND, "--force", "--json")
    assert (status, json.loads(out[-1])["bytes"], error.count("warning: broken: ")) == (0, size, 3)
    assert not ledger.folder(SECOND).exists()
    assert Store(tmp_path / "store").verify() == 1


Harm = Callable[[Path], AbstractContextManager[None] | None]
HARMS: dict[str, tuple[Harm, str]] = {
    "a study cut off": (
        lambda reports: cut_off(reports / "few/study.json"), "few/study.json: cannot be read"),
    "a study that may not be read": (
        lambda reports: unreadable(reports / "few/study.json"), "few/study.json: permission denied"),
    "an ensemble cut off": (
        lambda reports: cut_off(reports / "ensembles/both/ensemble.json"), "ensemble.json: cannot be read"),
    "the record of another run": (
        lambda reports: cut_off(reports / f"runs/{LATER}/run.json"), f"{LATER}/run.json: cannot be read"),
    "another run that may not be read": (
        lambda reports: unreadable(reports / f"runs/{LATER}"), f"{LATER}/run.json: permission denied"),
}  # fmt: skip


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize("name", HARMS)
def test_what_may_be_needed_is_removed_only_by_force(name: str, verb: Run, ledger: Ledger, tmp_path: Path) -> None:
    """A file that cannot be read may be the one that names the run."""
    need_all(tmp_path)
    harm, reason = HARMS[name]
    with harm(tmp_path / "reports") or nullcontext():
        status, out, error = verb("runs", "remove", ALONE)
        assert (status, out) == (2, [])
        assert error.startswith("error: cannot tell whether something needs them; --force removes them anyway\n  ")
        assert reason in error
        assert ledger.began(ALONE)
        status, _, error = verb("runs", "remove", ALONE, "--force")
        assert (status, "warning: " in error, reason in error) == (0, True, True)
    assert not ledger.began(ALONE)


@pytest.mark.parametrize("arguments", [["runs", "list"], ["du"]])
def test_a_run_that_may_not_be_read_is_named_and_the_rest_is_shown(
    arguments: list[str], verb: Run, ledger: Ledger
) -> None:
    with unreadable(ledger.folder(SECOND)):
        status, out, error = verb(*arguments)
    assert (status, bool(out)) == (0, True)
    assert error == f"warning: {ledger.folder(SECOND)}/run.json: permission denied\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["remove", "aaaa"], "no run aaaa in"),
        (["remove", ALONE, "a*"], "no run a* in"),
        (["remove", ".."], "no run .. in"),
        (["remove", ALONE, "../runs"], "no run ../runs in"),
        (["remove"], "name runs, or give --unused"),
        (["show", "eeee"], "no finished run eeee in"),
        (["show", "aaa"], "no finished run aaa in"),
        (["compare", FIRST, FIRST], "name two runs"),
        (["list", "--since", "yesterday"], "--since yesterday: give a date such as 20"),
        (["list", "--since", "0001-01-01T00:00+14:00"], "give a date such as 20"),
        (["list", "--sort", "size2"], "--sort"),
    ],
)
def test_slips_are_refused_and_delete_nothing(arguments: list[str], message: str, verb: Run, ledger: Ledger) -> None:
    status, _, error = verb("runs", *arguments)
    assert status == 2
    assert message in error
    assert ledger.names() == [FIRST, SECOND, LATER, ALONE]


def test_a_run_that_is_being_trained_stays_even_by_force(verb: Run, ledger: Ledger) -> None:
    with ledger.lock(ALONE):
        status, _, error = verb("runs", "remove", ALONE, "--force")
    assert (status, ledger.began(ALONE)) == (2, True)
    assert "is being trained by another process" in error


def test_du_adds_up_and_names_what_may_go(verb: Run, ledger: Ledger, tmp_path: Path) -> None:
    need_all(tmp_path)
    for run in (FIRST, "e" * 12):
        interrupt(ledger, run)
    (ledger.folder(FIRST) / "weights.safetensors").write_bytes(b"x" * 3000)
    staging = left_behind(tmp_path / "reports", "page")
    staging.mkdir()
    (staging / "page").write_bytes(b"x" * 70)
    status, out, _ = verb("du", "--json")
    found = json.loads(out[-1])
    parts = {part["name"]: (part["count"], part["bytes"]) for part in found["parts"]}
    assert status == 0
    assert parts["store"] == (1, size_of(tmp_path / "store"))
    assert (parts["checkpoints"], parts["kept weights"]) == ((2, 2000), (1, 3000))
    assert sum(parts[name][1] for name in ("runs", "checkpoints", "kept weights")) == size_of(ledger.root)
    spare = {each["what"]: (each["names"], each["bytes"]) for each in found["may_go"]}
    assert spare.pop("runs that nothing needs")[0] == [ALONE]
    assert spare.pop("unfinished runs") == (["e" * 12], size_of(ledger.folder("e" * 12)))
    assert spare.pop("checkpoints of finished runs") == ([FIRST], 1000)
    assert spare["half-written files of killed commands"][1] == 70
    commands = [each["how"].partition(",")[0] for each in found["may_go"] if each["what"] not in spare]
    for command in map(shlex.split, commands):
        (subprocess.check_call if command[0] == "rm" else lambda words: verb(*words[3:]))(command)
    assert {each["what"] for each in json.loads(verb("du", "--json")[1][-1])["may_go"]} == {*spare}


def test_places_without_anything_are_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["runs", "list"], ["du"]):
        assert main([*verb, f"--reports={tmp_path / 'none'}", f"--store={tmp_path / 'none'}"]) == 0
    assert capsys.readouterr().out.startswith(f"no finished runs in {tmp_path / 'none/runs'}\n")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("count", [1, 2, 6, 7, 100])
def test_a_long_curve_shows_its_ends_and_its_best(count: int) -> None:
    curve = [{"epoch": float(epoch), "loss": None, "dev": 0.5} for epoch in range(count)]
    shown = [
        point["epoch"] for point in RunDescription(SimpleNamespace(best_epoch=count // 3), 0, curve, (), ()).points
    ]
    assert shown == sorted(set(shown))
    assert {0, count - 1, count // 3} <= set(shown)
    assert len(shown) <= 7


def test_a_real_run_is_found_with_its_artifact(workspace, quick) -> None:
    from stages.extract import extract

    records: list[RunRecord] = [
        extract("films", quick("adapter"), workspace, seed=seed, limit=32).record for seed in (0, 1)
    ]
    runs = Runs(workspace.reports, workspace.store_root)
    assert [row.record.run for row in runs.listed(sort="task")] == [each.run for each in records]
    found = compare_runs(runs, records[0].run, records[1].run)
    assert {"seed"} <= set(found.settings) <= {"seed", "train (fingerprint)"}
    assert found.scores[0]["test"] is not None
    description = runs.described(records[0].run)
    assert (description.problems, description.record.own.train_rows) == ([], 32)
    (use,) = runs.uses[records[0].run]
    assert (use.kind, use.name) == ("artifact", records[0].artifact)
    runs.remove([records[0].run], force=True)
    assert extract("films", quick("adapter"), workspace, seed=0, limit=32).record.run == records[0].run


def test_nobody_waits_for_torch_to_see_a_ledger() -> None:
    code = "import sys, stages.runs; sys.exit(bool({'torch', 'transformers'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_options_offer_every_kind_and_order() -> None:
    """They are written out at the command line, so that --help loads no ledger."""
    hints = get_type_hints(runs_list)
    assert [set(get_args(hints["sort"])), set(get_args(get_args(hints["kind"])[0]))] == [
        set(get_args(Sort)), set(get_args(Method)),
    ]  # fmt: skip


def test_the_first_characters_of_a_name_stand_for_the_only_run_that_has_them(verb: Run, ledger: Ledger) -> None:
    assert verb("runs", "show", FIRST[:4]) == verb("runs", "show", FIRST)
    assert verb("runs", "compare", FIRST[:4], SECOND[:5]) == verb("runs", "compare", FIRST, SECOND)
    assert verb("runs", "compare", FIRST[:4], FIRST)[0] == 2
    other = f"{FIRST[:8]}bbbb"
    ledger.finish(record(other), CURVE, {"sst": answers(5)})
    status, _, error = verb("runs", "show", FIRST[:4])
    assert (status, error) == (2, f"error: aaaa begins the names of {FIRST}, {other}: give more of the name\n")
    assert verb("runs", "show", other[:9])[1] == verb("runs", "show", other)[1]
    assert verb("runs", "remove", other[:9])[0] == 2
