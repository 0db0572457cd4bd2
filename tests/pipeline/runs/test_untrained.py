"""The untrained backbone's cosine beside a run that read the pairs as one input."""

from collections.abc import Callable

import numpy as np
import pytest

from pipeline.cli import train
from pipeline.cli.options import OneRun, Places, Training
from pipeline.runs import untrained
from pipeline.runs.untrained import untrained_cosine
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.extract import extract
from tests.runs import joint_run, single_run

Quick = Callable[..., Recipe]
COSINE = {"encoding": "siamese", "head": "cosine", "cosine_threshold": "tuned"}


def test_both_are_scored_on_the_same_rows(workspace: Workspace, quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    record = extract("pairs", quick("adapter", encoding="cross"), workspace, seed=0).record
    frozen = single_run(workspace, "frozen", "pairs", quick("head", **COSINE), seed=0).get()
    assert untrained_cosine(record, workspace) == (pytest.approx(frozen.dev, abs=1e-6), pytest.approx(record.dev))
    monkeypatch.setattr(untrained, "ROWS", 7)
    some = untrained_cosine(record, workspace)
    tables = [workspace.ledger.predictions(run, "pairs").sample(7, random_state=0) for run in (frozen.run, record.run)]
    assert some == pytest.approx([float(np.corrcoef(each["prediction"], each["label"])[0, 1]) for each in tables])


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
    [((0.9, 0.7), None, True), ((0.7, 0.7), None, False), (None, None, False), ((0.9, 0.7), "linear", False)],
    ids=["better", "no better", "not compared", "the reading was given"],
)
def test_it_is_told_where_it_is_better_and_once(
    scores: tuple[float, float] | None,
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
        return "has pearson 0.9000 on dev, more than this model's 0.7000" in error

    assert note() is told
    assert not note()  # the run is finished by then
