"""The untrained backbone's cosine beside a run that read the pairs as one input."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.cli import train
from pipeline.cli.options import OneRun, Places, Training
from pipeline.runs import untrained
from pipeline.runs.untrained import Untrained, untrained_cosine
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.extract import extract
from tests.runs import joint_run, single_run

Quick = Callable[..., Recipe]
COSINE = {"encoding": "siamese", "head": "cosine", "cosine_threshold": "tuned"}


def test_both_are_scored_on_the_same_rows(workspace: Workspace, quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    record = extract("pairs", quick("adapter", encoding="cross"), workspace, seed=0).record
    frozen = single_run(workspace, "frozen", "pairs", quick("head", **COSINE), seed=0).get()
    found = untrained_cosine(record, workspace)
    assert found is not None and (found.constant, found.rows) == (0.0, record.own.rows)
    assert (found.cosine, found.run) == (pytest.approx(frozen.dev, abs=1e-6), pytest.approx(record.dev))
    monkeypatch.setattr(untrained, "ROWS", 7)
    some = untrained_cosine(record, workspace)
    assert some is not None and some.rows == 7
    tables = [workspace.ledger.predictions(run, "pairs").sample(7, random_state=0) for run in (frozen.run, record.run)]
    expected = [float(np.corrcoef(each["prediction"], each["label"])[0, 1]) for each in tables]
    assert (some.cosine, some.run) == pytest.approx(expected)


def test_only_a_run_of_one_task_that_read_its_pairs_as_one_input_is_compared(
    workspace: Workspace, quick: Quick
) -> None:
    cross = quick("full", encoding="cross")
    both = joint_run(
        workspace, ["pairs", "films"], {"pairs": cross, "films": cross}, limits={"pairs": 16, "films": 16}, seed=0
    )
    for record in (
        extract("films", quick("adapter"), workspace, seed=0).record,
        extract("pairs", quick("adapter", **COSINE), workspace, seed=0).record,
        both.get(),
    ):
        assert untrained_cosine(record, workspace) is None


@pytest.mark.parametrize(
    ("scores", "head", "told"),
    [
        (Untrained(0.9, 0.7, 0.0, 1200), None, True),
        (Untrained(0.7, 0.7, 0.0, 1200), None, False),
        (Untrained(0.9, 0.7, 0.9, 1200), None, False),
        (None, None, False),
        (Untrained(0.9, 0.7, 0.0, 1200), "linear", False),
    ],
    ids=["better", "no better", "no better than one class", "not compared", "the reading was given"],
)
def test_it_is_told_where_it_is_better_and_once(
    scores: Untrained | None,
    head: str | None,
    told: bool,
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(untrained, "untrained_cosine", lambda *_: scores)
    assert workspace.data is not None
    places = Places(
        backbone=workspace.backbone_name,
        data=(workspace.data,),
        store=workspace.store_root,
        reports=workspace.reports,
    )
    training = Training(epochs=1, batch_size=16, head=head)  # type: ignore[arg-type]

    def note() -> bool:
        train.extract(task="pairs", bottleneck=8, places=places, training=training, running=OneRun())
        error = capsys.readouterr().err
        return "has pearson 0.9000 on 1,200 rows of dev, more than this model's 0.7000" in error

    assert note() is told
    assert not note()  # the run is finished by then


@pytest.mark.parametrize("classes", [["different", "same"], ["same", "different"]], ids=["right", "wrong"])
def test_a_cosine_of_two_classes_in_the_wrong_order_is_told(
    classes: list[str], workspace: Workspace, quick: Quick, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The alphabet may put the similar pairs first; before training, the cosine of two equal texts is 1."""
    folder = tmp_path / "data" / "alike"
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(
        f'name = "alike"\nkind = "classes"\ntext = ["a", "b"]\nlabel = "label"\nmetric = "accuracy"\n'
        f"classes = {json.dumps(classes)}\n"
    )
    for split in ("train", "dev"):
        rows = pd.DataFrame({"a": [f"the {split} film number {row} was good" for row in range(40)]})
        rows["label"] = ["same" if row % 2 else "different" for row in range(40)]
        rows["b"] = [a if row % 2 else f"a meal for {row}" for row, a in enumerate(rows["a"])]
        rows.to_csv(folder / f"{split}.csv", index=False)
    extract("alike", quick("adapter", **COSINE), replace(workspace, data=tmp_path / "data"), seed=0)
    note = "note: alike: texts of 'same' are more similar than those of 'different', but a cosine head reads the second"
    remedy = 'write classes = ["different", "same"] in its task.toml'
    told = capsys.readouterr().err
    assert (note in told) is (remedy in told) is (classes[0] == "same")
