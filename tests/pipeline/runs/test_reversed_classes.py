"""A cosine head that would be trained to call texts similar that are the less similar ones."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.extract import extract

Quick = Callable[..., Recipe]
COSINE = {"encoding": "siamese", "head": "cosine", "cosine_threshold": "tuned"}


@pytest.mark.parametrize("key", ["", 'similar = "same"\n'])
@pytest.mark.parametrize("classes", [["different", "same"], ["same", "different"]], ids=["second", "first"])
def test_a_cosine_of_two_classes_in_the_wrong_order_is_told(
    classes: list[str], key: str, workspace: Workspace, quick: Quick, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The alphabet may put the similar pairs first; before training, the cosine of two equal texts is 1."""
    folder = tmp_path / "data" / "alike"
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(
        f'name = "alike"\nkind = "classes"\ntext = ["a", "b"]\nlabel = "label"\nmetric = "accuracy"\n'
        f"classes = {json.dumps(classes)}\n{key}"
    )
    for split in ("train", "dev"):
        rows = pd.DataFrame({"a": [f"the {split} film number {row} was good" for row in range(40)]})
        rows["label"] = ["same" if row % 2 else "different" for row in range(40)]
        rows["b"] = [a if row % 2 else f"a meal for {row}" for row, a in enumerate(rows["a"])]
        rows.to_csv(folder / f"{split}.csv", index=False)
    extract("alike", quick("adapter", **COSINE), replace(workspace, data=tmp_path / "data"), seed=0)
    note = "note: alike: texts of 'same' are more similar than those of 'different', but a cosine head reads the second"
    remedy = 'write similar = "same" into its task.toml'
    told = capsys.readouterr().err
    assert (note in told) is (remedy in told) is (classes[0] == "same" and not key)
