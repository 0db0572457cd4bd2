"""Which of a task's models in the store a command uses."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.data.tasks import find_task
from pipeline.records.store import MANIFEST, Artifact, SourceRun, Store
from pipeline.runs.kept_models import best_model, best_of, find_model
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from tests.pipeline.records.artifacts import FUSED, OTHER, SST, STS, manifest, save


def artifact(kind: str, dev: float, run: str) -> Artifact:
    return Artifact(folder=Path(run), manifest=manifest(run * 12, kind=kind, dev=dev))


@pytest.mark.parametrize(
    ("using", "adapter", "fusion", "chosen"),
    [
        ("auto", 0.7, 0.8, "fusion"),
        ("auto", 0.8, 0.7, "adapter"),
        ("auto", 0.8, 0.8, "adapter"),  # of equals the faster one
        ("auto", -0.2, -0.1, "fusion"),  # a correlation may be negative
        ("fusion", 0.8, 0.7, "fusion"),
        ("adapter", 0.7, 0.8, "adapter"),
    ],
)
def test_the_model_with_the_highest_dev_score_is_used(using: str, adapter: float, fusion: float, chosen: str) -> None:
    artifacts = [artifact("adapter", adapter, "a"), artifact("fusion", fusion, "b"), artifact("adapter", -1.0, "c")]
    for order in (artifacts, artifacts[::-1]):
        best = best_of(order, using)
        assert best is not None and best.manifest.kind == chosen
        assert best.manifest.dev == {"adapter": adapter, "fusion": fusion}[chosen]


PERMUTED = Recipe(encoding="cross", permute_labels=True)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"dev": 0.8, "dev_rows": 500}, {"dev": 1.0, "dev_rows": 6, "part_of_dev": True}),
        ({"dev": 0.8}, {"dev": 1.0, "part_of_dev": True}),  # older manifests do not say
        ({"dev": 1.0, "dev_rows": 24}, {"dev": 1.0, "dev_rows": 6}),
        ({"dev": 0.5}, {"dev": 0.6, "recipe": PERMUTED}),
    ],
    ids=str,
)
def test_what_few_rows_chose_or_taught_nothing_comes_last(first: dict[str, Any], second: dict[str, Any]) -> None:
    for names in ("ab", "ba"):
        artifacts = [
            Artifact(folder=Path(name), manifest=manifest(name * 12, **changes))
            for name, changes in zip(names, (first, second), strict=True)
        ]
        assert best_of(artifacts, "auto") == artifacts[0]
        assert best_of(artifacts[1:], "auto") == artifacts[1]


@pytest.mark.parametrize("using", ["auto", SST])
def test_an_early_look_leaves_warnings_to_the_command_unless_it_refuses(
    using: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "store")
    save(store, SST)
    (save(store, STS, "sts").folder / MANIFEST).write_text("{")
    assert find_model("sst", using, store.root, tmp_path / "reports") == store.find(SST)
    assert capsys.readouterr() == ("", "")
    with pytest.raises(PipelineError, match="no model of 'sts' in .*: there are those of sst"):
        find_model("sts", "auto", store.root, tmp_path / "reports")
    assert capsys.readouterr().err.startswith("warning: left out: ")


@pytest.mark.parametrize(
    ("other", "is_told"),
    [
        ({"dev_rows": 500, "dev_fingerprint": "b"}, True),
        ({"dev_rows": 50, "dev_fingerprint": "b"}, True),
        ({"dev_rows": 50, "dev_fingerprint": "a"}, False),
        ({"dev_rows": 25, "dev_fingerprint": "b", "part_of_dev": True}, False),
    ],
    ids=str,
)
def test_a_model_that_was_scored_on_other_dev_rows_is_named(
    other: dict[str, Any], is_told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither score is the higher: the one of a new model may be lower because its dev split is harder."""
    store, task = Store(tmp_path / "store"), find_task("sst")
    kept = save(store, SST, dev=0.91, dev_rows=50, dev_fingerprint="a", meaning=task.meaning)
    newer = save(store, STS, dev=0.89, meaning=task.meaning, **other)
    workspace = Workspace("", None, store.root, tmp_path / "reports")
    assert best_model("sst", "auto", workspace, task) == kept
    note = (
        f"note: sst: adapter {kept.manifest.run} (dev accuracy 0.9100 on 50 rows) is used. adapter {newer.manifest.run}"
        f" (dev accuracy 0.8900 on {newer.manifest.dev_rows} rows) was scored on other dev rows, so the two cannot be"
        f" compared: --using {newer.manifest.run} takes that one\n"
    )
    assert capsys.readouterr().err == (note if is_told else "")


def test_a_model_of_the_present_classes_comes_before_a_better_one_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task that got another class and was trained again is answered by the new model.

    Until then it is refused, without a note that a model is used.
    """
    store, task = Store(tmp_path / "store"), find_task("sst")
    for run, dev, rows in ((SST, 0.9, 50), (OTHER, 0.8, 60)):
        save(store, run, dev=dev, dev_rows=rows, meaning={**task.meaning, "classes": [*task.classes[1:], "mixed"]})
    workspace = Workspace("", None, store.root, tmp_path / "reports")
    capsys.readouterr()
    with pytest.raises(PipelineError) as caught:
        best_model("sst", "auto", workspace, task)
    assert str(caught.value) == (
        f"run {SST} was trained when task 'sst' had other classes (now also '{task.classes[0]}'; now without 'mixed'):"
        " train it again (python -m pipeline extract --task sst), or give the task its old definition"
    )
    assert capsys.readouterr().err == ""
    new = save(store, STS, dev=0.8, meaning=task.meaning)
    assert best_model("sst", "auto", workspace, task) == new


def test_where_the_definition_is_not_at_hand_the_classes_that_were_trained_last_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, task = Store(tmp_path / "store"), find_task("sst")
    workspace = Workspace("", None, store.root, tmp_path / "reports")
    old = save(store, SST, dev=0.9, meaning={**task.meaning, "classes": ["bad", "good"]})
    assert (best_model("sst", "auto", workspace), capsys.readouterr().err) == (old, "")
    new, better = (save(store, run, dev=dev, meaning=task.meaning) for run, dev in ((STS, 0.7), (OTHER, 0.8)))
    fusion = save(store, FUSED, dev=0.95, kind="fusion", meaning={**task.meaning, "classes": ["bad", "good"]})
    assert best_of([old, new, better], "auto") == better
    assert find_model("sst", "adapter", store.root, tmp_path / "reports") == better
    assert best_of([old, new, better, fusion], "auto") == fusion
    assert best_model("sst", "adapter", workspace) == better
    assert capsys.readouterr().err == (
        f"note: sst: adapter {OTHER} is used. Models of other classes, range or metric are not: fusion {FUSED}, newer;"
        f" adapter {SST}. The name sst@RUN takes one of these\n"
    )


@pytest.mark.parametrize("runs", [(SST, STS), (STS, SST)])
def test_of_equal_scores_the_run_that_finished_first_counts(runs: tuple[str, str], tmp_path: Path) -> None:
    """A new run takes the place of one that is in use only if it is better: on few rows equal scores are common."""
    store = Store(tmp_path / "store")
    first, _ = (save(store, run, dev=0.9478) for run in runs)
    for _ in range(2):
        assert best_of(store.artifacts(), "adapter") == best_of(store.artifacts()[::-1], "adapter") == first
        save(store, FUSED, kind="fusion", dev=0.9478)
    assert best_of(store.artifacts(), "auto") == first


@pytest.mark.parametrize(("is_changed", "used"), [(False, FUSED), (True, SST)])
def test_a_fusion_is_used_only_over_what_its_adapters_held(is_changed: bool, used: str, tmp_path: Path) -> None:
    """As where another machine has trained an adapter of the same name, which came out otherwise."""
    store, workspace = Store(tmp_path / "store"), Workspace("", None, tmp_path / "store", tmp_path / "reports")
    save(store, SST, dev=0.5)
    source = save(store, STS, "sts").manifest
    if is_changed:
        assert save(store, STS, "sts", width=7).manifest.digest != source.digest
    fused = (SourceRun(task="sts", run=STS, digest=source.digest),)
    save(store, FUSED, kind="fusion", dev=0.9, sources=fused)
    assert best_model("sst", "auto", workspace).manifest.run == used


def test_a_name_that_is_nearly_one_of_the_store_is_answered_with_it(tmp_path: Path) -> None:
    store, reports = Store(tmp_path / "store"), tmp_path / "reports"
    save(store, SST, "tickets")
    with pytest.raises(PipelineError, match=r"no model of 'ticket' in .*/store: did you mean 'tickets'\?$"):
        find_model("ticket", "auto", store.root, reports)
    with pytest.raises(PipelineError, match=r"there are those of tickets; .* extract --task ticket trains one"):
        find_model("ticket", "auto", store.root, reports, is_defined=True)
    with pytest.raises(PipelineError, match=r"a run that runs list shows; did you mean 'fusion'\?$"):
        find_model("tickets", "fussion", store.root, reports)
