"""Which of two classes a cosine head takes for that of similar texts."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from pipeline import load
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.extract import extract

Quick = Callable[..., Recipe]
COSINE = {"encoding": "siamese", "head": "cosine", "class_weights": "balanced"}


def made(data: Path, classes: list[str], similar: str | None) -> Path:
    """A folder of tasks with one of pairs, of which those of "same" are equal texts."""
    folder = data / "alike"
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(
        'name = "alike"\nkind = "classes"\ntext = ["a", "b"]\nlabel = "label"\nmetric = "macro-f1"\n'
        f"classes = {json.dumps(classes)}\n" + (f'similar = "{similar}"\n' if similar else "")
    )
    for split in ("train", "dev"):
        rows = pd.DataFrame({"a": [f"the {split} film number {row} was good" for row in range(40)]})
        rows["label"] = ["different" if row % 3 else "same" for row in range(40)]
        rows["b"] = [f"a meal for {row}" if row % 3 else a for row, a in enumerate(rows["a"])]
        rows.to_csv(folder / f"{split}.csv", index=False)
    return data


@pytest.mark.parametrize(
    ("classes", "similar", "is_told"),
    [
        (["different", "same"], None, False),
        (["same", "different"], None, True),
        (["same", "different"], "same", False),
        (["different", "same"], "different", True),
    ],
)
def test_a_cosine_that_would_be_trained_the_wrong_way_is_told(
    classes: list[str],
    similar: str | None,
    is_told: bool,
    workspace: Workspace,
    quick: Quick,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The alphabet may put the similar pairs first; before training, the cosine of two equal texts is 1."""
    place = replace(workspace, data=made(tmp_path / "data", classes, similar))
    extract("alike", quick("adapter", cosine_threshold="tuned", **COSINE), place, seed=0)
    told = capsys.readouterr().err
    assert ('write similar = "same" into its task.toml' in told) is is_told


@pytest.mark.parametrize("threshold", ["zero", "tuned"])
def test_a_task_that_names_its_similar_class_trains_and_answers_as_one_with_its_classes_in_the_other_order(
    threshold: str, workspace: Workspace, quick: Quick, tmp_path: Path
) -> None:
    recipe = quick("adapter", cosine_threshold=threshold, **COSINE)
    second, first, linear = (
        replace(workspace, data=made(tmp_path / f"{number}", classes, similar), store_root=tmp_path / f"s{number}")
        for number, (classes, similar) in enumerate(
            [(["different", "same"], None), (["same", "different"], "same"), (["same", "different"], None)]
        )
    )
    records = [extract("alike", recipe, place, seed=0).record for place in (second, first)]
    assert records[0].dev == records[1].dev
    assert threshold == "zero" or records[0].dev > 0.9  # raw cosines are all above 0
    tables = [workspace.ledger.predictions(record.run) for record in records]
    swapped = tables[1].rename(columns={"probability_0": "probability_1", "probability_1": "probability_0"})
    swapped[["label", "prediction"]] = 1 - swapped[["label", "prediction"]]
    pd.testing.assert_frame_equal(tables[0], swapped[tables[0].columns])
    pairs = [("the film was good", "the film was good"), ("the film was good", "a meal for 3")]
    answers = [load("alike", store=str(place.store_root), precision="fp32").predict(pairs) for place in (second, first)]
    assert [each.label for each in answers[0]] == [each.label for each in answers[1]]
    for one, other in zip(*answers, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities)
    # The key concerns a cosine alone, and no run that is named without it.
    names = [place.resolve(recipe, place.task("alike")).identity.get("cosine_similar") for place in (second, first)]
    assert names == [None, "first"]
    joined = quick("adapter")
    assert len({json.dumps(place.resolve(joined, place.task("alike")).identity) for place in (first, linear)}) == 1
    assert first.task("alike").meaning == linear.task("alike").meaning
