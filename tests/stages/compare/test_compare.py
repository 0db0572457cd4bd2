"""compare on generated data: the cells a study gets, what is trained once, what is refused, what fails alone."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.cli.printing import print_filled
from pipeline.records.store import Artifact, Manifest, Store
from pipeline.records.studies import StudyResult
from pipeline.runs.build import restore_run
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError
from stages.archives import export_runs, import_runs
from stages.compare.check import shared_texts
from stages.compare.compare import compare, dry_run
from stages.compare.plan import jobs_of, plan
from stages.pretrain import pretrain
from stages.report import report
from stages.runs import Runs
from tests.runs import again
from tests.stages.compare.small import QUICK, study


@pytest.fixture(scope="module")
def compared(place):
    small = study(
        methods=["frozen", "full", "sequential", "multitask", "adapter", "fusion"],
        targets=["films", "pairs"],
        sources=["meals"],
        seeds=[1],
        limit=64,
        target_limit=48,
        dev_limit=30,
        curve={"rows": [24, 48], "methods": ["full", "multitask", "fusion"]},
    )
    return small, place, *compare(small, place)


@pytest.mark.slow
def test_a_study_has_every_row_target_and_seed_and_keeps_to_its_rows(compared) -> None:
    _, workspace, result, folder = compared
    assert {entry.error for entry in result.entries} == {None}
    main = [(entry.method, entry.target) for entry in result.entries if entry.rows is None and entry.seed == 1]
    rows = ("frozen", "full", "sequential:pairs", "sequential:meals", "multitask", "adapter", "fusion")
    assert [method for method, target in main if target == "films"] == list(rows)
    assert [method for method, target in main if target == "pairs"] == [r.replace("pairs", "films") for r in rows]
    curve = {(entry.method, entry.target, entry.rows) for entry in result.entries if entry.rows is not None}
    assert curve == {(row, target, 24) for row in ("full", "multitask", "fusion") for target in ("films", "pairs")}
    assert len(result.entries) == len(main) + len(curve)
    for name in ("study.json", "results.csv", "tables.md", "tables.tex", "index.html"):
        assert (folder / name).is_file()
    for entry in result.entries:
        record = workspace.ledger.find(entry.run)
        size = entry.rows or 48
        found = record.score(entry.target)
        assert (found.train_rows, found.rows) == (size, 30)
        for source in record.sources:
            base = workspace.ledger.find(source.run)
            assert base.own.train_rows == (size if source.task == record.task else 64)
            assert base.seed == record.seed
            if entry.method == "sequential:pairs":  # starts where the source ended
                assert (base.kind, base.task, source.digest) == ("full", "pairs", base.weights_sha256)
                assert entry.total_seconds == pytest.approx(record.cost.seconds + base.cost.seconds)


def test_a_study_goes_on_elsewhere_from_the_records_of_its_runs(compared, no_training, tmp_path: Path) -> None:
    small, workspace, result, folder = compared
    exported, missing = export_runs(Runs(workspace.reports, workspace.store_root), tmp_path / "runs.tar.xz", "small")
    assert {entry.run for entry in result.entries} <= {*exported}
    assert not missing
    imported = import_runs(tmp_path / "reports", tmp_path / "runs.tar.xz")
    assert (imported.added, imported.already_here, imported.study) == (tuple(exported), (), "small")
    assert (
        report("small", tmp_path / "reports").joinpath("results.csv").read_text()
        == (folder / "results.csv").read_text()
    )
    elsewhere = dataclasses.replace(workspace, store_root=tmp_path / "store", reports=tmp_path / "reports")
    assert compare(small, elsewhere)[0] == result


def test_a_row_that_continues_runs_can_be_added_to_a_study_that_kept_no_weights(workspace: Workspace) -> None:
    values: dict[str, Any] = {"targets": ["films", "meals"], "limit": 32, "recipe": QUICK | {"epochs": 1}}
    first, _ = compare(study(**values), workspace)
    assert not any(workspace.ledger.weights_file(str(entry.run)).exists() for entry in first.entries)
    second, _ = compare(study(methods=["full", "sequential"], **values), again(workspace))
    assert [entry.error for entry in second.entries] == [None] * 4
    assert {entry.run for entry in first.entries} == {e.run for e in second.entries if e.line.row == "full"}
    assert dry_run(study(methods=["full", "sequential"], **values), again(workspace))  # nor does it name what has none


def test_weights_without_their_hash_count_as_missing(workspace: Workspace) -> None:
    """A kill between the two files leaves the record of a run that had kept none."""
    result, _ = compare(study(limit=32, recipe=QUICK | {"epochs": 1}), workspace)
    run = str(result.entries[0].run)
    workspace.ledger.weights_file(run).write_bytes(b"")
    assert workspace.finished(run, with_model=False) is not None
    assert workspace.finished(run, with_model=True) is None


def test_a_dry_run_of_a_finished_study_has_nothing_to_do(compared, no_training) -> None:
    small, workspace, result, _ = compared
    before = {path: path.stat().st_mtime_ns for path in workspace.reports.rglob("*")}
    planned = dry_run(small, again(workspace))
    assert {path: path.stat().st_mtime_ns for path in workspace.reports.rglob("*")} == before
    # Beside the entries' runs: full and the adapter of the source, full and the adapters of targets as sources.
    assert planned.summary()["runs"] > len({entry.run for entry in result.entries})
    runs = planned.summary()["runs"]
    assert planned.summary() == {"study": "small", "runs": runs, "done": runs, "to_do": 0, "seconds": 0.0}
    more = dry_run(small.model_copy(update={"seeds": (1, 2)}), again(workspace)).summary()
    assert more["done"] == runs
    assert more["to_do"] == more["done"]
    assert more["seconds"] > 0


def test_a_dry_run_trains_and_writes_nothing_and_owns_that_it_cannot_tell_the_time(
    workspace: Workspace, no_training: None, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = dry_run(study(methods=["full", "adapter", "fusion"], targets=["films", "meals"]), workspace)
    assert planned.summary() == {"study": "small", "runs": 6, "done": 0, "to_do": 6, "seconds": None}
    print_filled("plan", planned.summary(), False, plan=planned)
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert [line.split()[:4] for line in lines if line.startswith("  adapter")] == [["adapter", "2", "0", "2"]]
    assert "unknown" in text
    assert not workspace.reports.exists()


def test_a_point_of_the_curve_stays_whatever_bounds_the_rows_that_choose(
    workspace: Workspace, no_training: None
) -> None:
    """Where a share of train chooses, a limit draws from these rows too: 90 of 96 is a point, 96 is the main table."""
    curved = study(scoring="train", curve={"rows": [90, 96]})
    plans = [dry_run(curved.model_copy(update={"dev_limit": limit}), again(workspace)) for limit in (None, 8)]
    assert [planned.summary()["runs"] for planned in plans] == [2, 2]


def test_a_failed_run_leaves_a_hole_and_the_rest_goes_on(workspace: Workspace, capsys) -> None:
    broken = study(
        methods=["adapter", "full", "sequential"],
        targets=["films", "meals"],
        reference="adapter",
        rows={"full": {"recipe": {"learning_rate": 1e30, "max_grad_norm": 1e30}}},
    )
    result, folder = compare(broken, workspace)
    failed = {(entry.method, entry.target) for entry in result.entries if entry.error}
    # What builds on a failed run fails with its reason.
    assert failed == {
        ("full", "films"), ("full", "meals"), ("sequential:meals", "films"), ("sequential:films", "meals"),
    }  # fmt: skip
    assert "no longer a finite number" in (folder / "tables.md").read_text()
    kept = json.loads((folder / "study.json").read_text())["entries"]
    assert [entry["run"] is None for entry in kept] == [False, False, True, True, True, True]
    assert capsys.readouterr().err.count("failed: ") == 4


def test_everything_that_can_be_known_is_told_before_training(
    workspace: Workspace, data_folder: Path, tmp_path: Path, no_training: None
) -> None:
    data = shutil.copytree(data_folder, tmp_path / "data")
    rows = pd.read_csv(data / "meals" / "train.csv", dtype=object)
    rows.loc[3, "label"] = "7"
    rows.to_csv(data / "meals" / "train.csv", index=False)
    wrong = study(
        methods=["full", "cosine", "adapter", "fusion", "other", "long", "ignored", "matrix", "anchored"],
        targets=["films", "pairs"],
        sources=["meals", "nothing"],
        recipe=QUICK | {"bottleneck": 64},
        rows={
            "matrix": {"method": "fusion", "recipe": {"gate": "matrix", "gate_rank": 33}},
            "anchored": {"method": "fusion", "recipe": {"fusion": "anchored", "fusion_rank": 34}},
            "cosine": {"method": "full", "recipe": {"head": "cosine"}},
            "layered": {"method": "adapter", "recipe": {"train_layernorm": True, "bottleneck": 8}},
            "fusion": {"of": "layered"},
            "other": {
                "method": "fusion",
                "recipe": {"fusion": "standard", "adapter": "pfeiffer", "encoding": "siamese"},
            },
            "long": {"method": "full", "recipe": {"max_length": 999}},
            "ignored": {"method": "fusion", "own": ["adapter"]},
        },
    )
    for command in (compare, dry_run):
        with pytest.raises(PipelineError) as caught:
            command(wrong, dataclasses.replace(workspace, data=data))
        message = str(caught.value)
        for expected in (
            "unknown task 'nothing'",
            "meals/train.csv",
            "row 5: 7",
            "cosine on films: head 'cosine' compares two sentences",
            "adapter on films: bottleneck 64 is more than the backbone's width (32)",
            "fusion on pairs: the adapter of films (row layered) trained its own LayerNorms",
            "other on films: the adapter of films (row adapter) is of kind houlsby, not pfeiffer",
            "long on pairs: max_length 999",
            "matrix on pairs: gate_rank 33 is more than the backbone's width (32)",
            "anchored on pairs: fusion_rank 34 is more than the backbone's width (32)",
            "rows.ignored.own: a gated fusion trains a new adapter of its own: leave own out",
        ):
            assert expected in message
        lines = message.splitlines()
        assert len(lines) == len(set(lines))
        assert message.count("unknown task") == 1  # not again for each row that takes from it


def test_a_row_does_not_name_what_stands_apart_from_its_target(workspace: Workspace, no_training: None) -> None:
    wrong = study(
        methods=["full", "in-turn", "later", "more", "fine"],
        targets=["films", "meals"],
        sources=["pairs"],
        apart={"films": ["pairs"]},
        rows={
            "in-turn": {"method": "sequential", "order": ["pairs", "meals", "films"]},
            "later": {"method": "multitask", "after": ["pairs"]},
            "more": {"method": "full", "recipe": {"extra": [{"task": "pairs"}]}},
            "fine": {"method": "full", "recipe": {"extra": [{"task": "pairs"}]}, "targets": ["meals"]},
        },
    )
    with pytest.raises(PipelineError) as caught:
        compare(wrong, workspace)
    message = str(caught.value)
    for place in ("in-turn", "later", "more"):
        assert f"rows.{place}: takes pairs for films, which apart.films forbids" in message
    assert "rows.fine" not in message


def test_nor_does_what_it_is_built_on_add_rows_of_such_a_task(workspace: Workspace, no_training: None) -> None:
    """The adapter of meals is trained on rows of pairs, whatever is built on it."""
    of = {"methods": ["fusion", "warm", "joint", "alone"], "targets": ["films", "meals"], "reference": "alone"}
    rows = {
        "warm": {"method": "adapter", "of": "adapter"},
        "joint": {"method": "multitask", "targets": ["films"]},
        "alone": {"method": "adapter"},
    }
    given = {"rows": rows, "tasks": {"meals": {"extra": {"pairs": {"scale": [0, 1]}}}}}
    with pytest.raises(PipelineError) as caught:
        dry_run(study(**of, **given, apart={"films": ["pairs"]}), workspace)
    lines = [line for line in str(caught.value).splitlines() if "apart.films forbids" in line]
    assert [line.split(":")[0].strip(" -") for line in lines] == ["rows.fusion", "rows.warm", "rows.joint"]
    assert all(": takes pairs for films, which" in line for line in lines)


READING = Recipe(trainable="full", epochs=1, learning_rate=2e-3, batch_size=16, precision="fp32")


def test_a_backbone_that_read_the_texts_to_be_held_out_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    pretrain(["films"], tmp_path / "once", READING, workspace, seed=0, limit=32)
    twice = dataclasses.replace(workspace, backbone_name=str(tmp_path / "once"))
    pretrain(["pairs"], tmp_path / "read", READING, twice, seed=0, limit=32)
    chosen = on_read_backbone(tmp_path / "read", scoring="held-out")
    with pytest.raises(
        PipelineError, match="was pretrained further on the training texts of films, of which this study"
    ):
        dry_run(chosen, workspace)
    dry_run(on_read_backbone(tmp_path / "read", scoring="half"), workspace)


@pytest.mark.parametrize("limit", [{"limit": 1}, {"dev_limit": 2, "recipe": QUICK}])
def test_a_sample_of_one_class_is_told_before_training(limit, workspace: Workspace, tmp_path, no_training) -> None:
    data = tmp_path / "data"
    shutil.copytree(workspace.data, data)
    dev = pd.read_csv(data / "films" / "dev.csv")
    dev["label"] = [int(row < 2) for row in range(len(dev))]
    dev.to_csv(data / "films" / "dev.csv", index=False)
    with pytest.raises(PipelineError, match="leaves a single class of task 'films'"):
        compare(study(**limit), dataclasses.replace(workspace, data=data))


def test_what_a_study_scores_on_was_no_sources_training_row(workspace: Workspace, tmp_path, capsys) -> None:
    data = tmp_path / "data"
    shutil.copytree(workspace.data, data)
    meals, films = (pd.read_csv(data / name / "train.csv") for name in ("meals", "films"))
    dev = pd.read_csv(data / "films" / "dev.csv")
    leaked = dev.head(7).assign(id=[f"leaked {row}" for row in range(7)])
    leaked["sentence"] = leaked["sentence"].str.upper() + " !"
    meals = meals[~meals["sentence"].isin(dev["sentence"])].reset_index(drop=True)
    pd.concat([leaked, meals]).to_csv(data / "meals" / "train.csv", index=False)
    workspace = dataclasses.replace(workspace, data=data)
    # Over the limit a sample is drawn of what is left; a task that is scored itself keeps its own rows.
    small = study(
        methods=["full", "sequential"], sources=["meals"], recipe=QUICK | {"epochs": 1}, dev_limit=20, seeds=[1, 2]
    )
    result, _ = compare(small, workspace)
    record = workspace.ledger.find(next(e.run for e in result.entries if e.method == "sequential:meals"))
    source = workspace.ledger.find(record.sources[0].run)
    assert (record.own.train_rows, source.own.train_rows) == (len(films), len(meals))
    note = "meals: 7 training rows that also occur in dev or test of films are left out"
    assert capsys.readouterr().err.count(note) == 1  # and not once for each of the two runs that train on meals

    dev.assign(sentence=meals["sentence"].head(len(dev))).to_csv(data / "films" / "dev.csv", index=False)
    meals.head(len(dev)).to_csv(data / "meals" / "train.csv", index=False)
    with pytest.raises(PipelineError, match="task 'meals': without the rows that occur in dev or test of 'films', 0 "):
        compare(small, dataclasses.replace(workspace))


def told(**values: Any) -> list[str]:
    """What a study over built-in tasks tells of the text that they share."""
    of = study(**values)
    return list(shared_texts(of, jobs_of(of, plan(of)), Workspace("none", None, Path("none"), Path("none"))))


def test_text_that_a_target_shares_with_a_task_is_told_with_the_rows_that_use_it() -> None:
    rows = {"mixed": {"method": "full", "recipe": {"extra": {"sick": {}}}}, "after": {"method": "multitask"}}
    values: dict[str, Any] = {"targets": ["sts", "quora"], "sources": ["mrpc", "sick"], "rows": rows}
    assert told(methods=["full", "adapter"], **values) == []  # each task is trained alone
    lines = told(methods=["full", "fusion", "sequential", "mixed"], **values)
    assert [line.split(" share")[0] for line in lines] == ["sts and mrpc", "sts and sick"]
    assert lines[0].endswith("; rows that use mrpc for sts: fusion; sequential.")
    assert lines[1].endswith("; rows that use sick for sts: fusion; sequential; mixed.")
    assert "one pair in eleven" in lines[1]
    rows["fusion"] = {"method": "fusion", "sources": ["quora"], "targets": ["sts"]}
    assert told(methods=["full", "fusion"], **values) == []
    # Said by either task's file, and found by an alias.
    assert len(told(targets=["imdb", "cfimdb"], methods=["full", "fusion"])) == 2
    aliased = told(targets=["sick"], methods=["full"], recipe=QUICK | {"extra": {"stsb": {}}})
    assert aliased[0].startswith("sick and sts share text")


@pytest.mark.parametrize(
    "rows",
    [
        {"read": {"method": "full", "tune": {"extra": [{}, {"sick": {}}]}}},
        {"read": {"method": "full", "of": "probe"}, "probe": {"method": "frozen", "recipe": {"extra": {"sick": {}}}}},
        {"read": {"method": "ensemble", "of": ["full", "multitask"]}},
        {"read": {"method": "fusion", "sources": ["qqp"]}, "adapter": {"tasks": {"qqp": {"extra": {"sick": {}}}}}},
    ],
    ids=["a trial", "the row that it starts from", "a member", "an adapter of a source"],
)
def test_text_that_any_model_behind_a_row_has_read_is_told(rows: dict[str, Any]) -> None:
    (line,) = told(methods=["full", "read"], targets=["sts"], sources=["sick", "qqp"], rows=rows, scoring="half")
    assert line.startswith("sts and sick share text (") and line.endswith("; rows that use sick for sts: read.")


def on_read_backbone(folder: Path, **values: Any) -> Study:
    """Adapters and fusion on the study's backbone and on another one."""
    rows = {
        "read-adapter": {"method": "adapter", "backbone": str(folder)},
        "read-fusion": {"method": "fusion", "of": "read-adapter", "backbone": str(folder)},
    }
    methods = ["adapter", "read-adapter", "read-fusion"]
    return study(methods=methods, targets=["films", "meals"], limit=32, dev_limit=30, rows=rows, **values)


def test_rows_on_a_backbone_that_read_the_tasks_texts_first(workspace: Workspace, tmp_path: Path) -> None:
    read = pretrain(["films", "meals"], tmp_path / "read", READING, workspace, seed=0, limit=32).record
    result, folder = compare(on_read_backbone(tmp_path / "read", cross_task=True), again(workspace))
    assert {entry.error for entry in result.entries} == {None}
    records = {(e.method, e.target): (e, workspace.ledger.find(e.run)) for e in result.entries}
    weights = {record.identity["backbone"]["weights"] for _, record in records.values()}
    assert len(weights) == 2
    for (method, target), (entry, record) in records.items():
        name = workspace.backbone_name if method == "adapter" else str(tmp_path / "read")
        assert record.backbone == name
        assert len(record.scores) == 2, "each is scored on the other task by its own backbone"
        own = [workspace.ledger.find(source.run) for source in record.sources]
        assert {source.backbone for source in own} <= {name}
        trained = sum(each.cost.seconds for each in (record, *own))
        expected = trained if method == "adapter" else trained + read.seconds
        assert entry.total_seconds == pytest.approx(expected), (method, target)
    tables = (folder / "tables.md").read_text()
    assert "| method | backbone |" in tables
    assert "read-adapter: read; read-fusion: read" in tables


STACKED: dict[str, Any] = {
    "methods": ["adapter", "fusion", "full", "sequential"],
    "targets": ["films", "pairs"],
    "seeds": [1],
    "limit": 32,
    "recipe": QUICK | {"epochs": 1},
    "rows": {"standard": {"method": "fusion", "of": "adapter", "recipe": {"fusion": "standard"}}},
}


def finished_at(result: StudyResult, workspace: Workspace) -> dict[tuple[str, str, int], str]:
    """When the run of each cell was finished; its name with it, for two may end in the same second."""
    runs = {cell.run: workspace.ledger.find(str(cell.run)) for cell in result.entries}
    return {(str(e.line), e.target, e.seed): f"{e.run} {runs[e.run].finished_at}" for e in result.entries}


def test_what_is_finished_stands_on_its_record_without_any_model(workspace: Workspace) -> None:
    """Reports copied to another machine go on there: models are made again only for what is still to be built."""
    first, _ = compare(study(**STACKED), workspace)
    assert not any(cell.error for cell in first.entries)
    before = finished_at(first, workspace)
    shutil.rmtree(workspace.store_root)
    for weights in workspace.reports.rglob("weights.safetensors"):
        weights.unlink()
    assert compare(study(**STACKED), again(workspace))[0] == first
    assert not workspace.store.artifacts()

    # A new row is built on the lost adapters: these are trained again, and nothing that was built on them before.
    more, _ = compare(study(**STACKED | {"methods": [*STACKED["methods"], "standard"]}), again(workspace))
    assert not any(cell.error for cell in more.entries)
    after = finished_at(more, workspace)
    assert {place for place in before if after[place].split()[0] == before[place].split()[0]} == set(before)
    artifacts = workspace.store.artifacts()
    assert {(each.manifest.kind, each.manifest.task) for each in artifacts} == {
        (kind, task) for kind in ("adapter", "fusion") for task in ("films", "pairs")
    }
    standard = {str(cell.run) for cell in more.entries if cell.method == "standard"}
    assert {each.manifest.run for each in artifacts if each.manifest.kind == "fusion"} == standard


def test_what_was_built_on_a_model_that_comes_out_otherwise_is_built_again(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, forbid_training: Callable[[], None]
) -> None:
    first, _ = compare(study(**STACKED), workspace)
    shutil.rmtree(workspace.store_root)
    save = Store.save

    def save_otherwise(store: Store, manifest: Manifest, write: Callable[[Path], None]) -> Artifact:
        def write_more(folder: Path) -> None:
            write(folder)
            (folder / "other.txt").touch()

        return save(store, manifest, write_more)

    monkeypatch.setattr(Store, "save", save_otherwise)
    values = STACKED | {"methods": [*STACKED["methods"], "standard"]}
    more, _ = compare(study(**values), again(workspace))
    assert not any(cell.error for cell in more.entries)
    runs = {(str(cell.line), cell.target): cell.run for cell in first.entries}
    changed = {place for cell in more.entries if runs.get(place := (str(cell.line), cell.target), cell.run) != cell.run}
    assert changed == {("fusion", "films"), ("fusion", "pairs")}
    adapters = {each.manifest.run: each.manifest.digest for each in workspace.store.artifacts()}
    for cell in more.entries:
        record = workspace.ledger.find(str(cell.run))
        if record.kind == "fusion":
            assert {source.run: source.digest for source in record.sources}.items() <= adapters.items()
    forbid_training()
    assert compare(study(**values), again(workspace))[0] == more


def test_an_adapter_that_is_kept_is_in_the_store_alone(workspace: Workspace) -> None:
    rows = {"through": {"method": "adapter", "through": ["meals"]}, "merged": {"method": "merge", "of": "adapter"}}
    methods = ["adapter", "through", "merged", "fusion", "full"]
    small = study(methods=methods, sources=["meals"], rows=rows, limit=16, recipe=QUICK | {"epochs": 1})
    result, _ = compare(small, workspace, keep_weights=True)
    records = {entry.method: workspace.ledger.find(str(entry.run)) for entry in result.entries}
    kept = {method: workspace.ledger.weights_file(record.run).is_file() for method, record in records.items()}
    assert kept == dict.fromkeys(methods, False) | {"full": True}
    for method, record in records.items():
        assert (record.weights_sha256 is None) == (method != "full")
        restore_run(record, workspace.task("films"), workspace)


def test_models_that_are_wanted_are_made_again(workspace: Workspace) -> None:
    small = study(methods=["adapter"], limit=16, recipe=QUICK | {"epochs": 1})
    first, _ = compare(small, workspace, keep_weights=True)
    shutil.rmtree(workspace.store_root)
    compare(small, again(workspace), keep_weights=True)
    assert [each.manifest.run for each in workspace.store.artifacts()] == [cell.run for cell in first.entries]
