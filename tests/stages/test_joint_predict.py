"""Several targets over one file: the columns each would have alone, in as few forward passes as can be."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.cli.app import main
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.extract import extract
from stages.fuse import fuse
from stages.predict import predict
from tests.nano import add_pair_task
from tests.runs import places

pytestmark = pytest.mark.usefixtures("trained_once")

Quick = Callable[..., Recipe]


@pytest.fixture
def data(data_folder: Path, tmp_path: Path) -> Path:
    """The tasks of every test and one more, of classes over the columns of ``pairs``."""
    data = shutil.copytree(data_folder, tmp_path / "data")
    add_pair_task(data, "twins", [1, 4], ["no", "maybe", "yes"])
    return data


@pytest.fixture
def workspace(backbone_folder: Path, data: Path, tmp_path: Path) -> Workspace:
    return Workspace(str(backbone_folder), data, tmp_path / "store", tmp_path / "reports")


@pytest.fixture
def source(data: Path, tmp_path: Path) -> Path:
    """All text columns in one file, ids out of order, sentences repeated."""
    pairs = pd.read_csv(data / "pairs" / "dev.csv").drop(columns="score")
    rows = pairs.assign(sentence=pd.read_csv(data / "films" / "dev.csv")["sentence"])
    rows = pd.concat([rows, rows.head(9).assign(id=range(100, 109))]).sample(frac=1, random_state=1)
    rows.to_csv(tmp_path / "in.csv", index=False)
    return tmp_path / "in.csv"


@pytest.fixture
def run(workspace: Workspace, source: Path, tmp_path: Path) -> Callable[..., tuple[dict[str, Any], pd.DataFrame]]:
    def run(target: str, using: str = "auto", **settings: Any) -> tuple[dict[str, Any], pd.DataFrame]:
        out = tmp_path / "out.parquet"
        values = {"batch_size": 8, "precision": "fp32", **settings}
        written = predict(target, source, out, dataclasses.replace(workspace), using=using, **values)
        return written.summary(), pd.read_parquet(out)

    return run


SUMMARY = ("run", "kind", "task", "blank", "cut", "max_length")
"""What ``--json`` says of a target."""


def assert_same_as_apart(run, targets: list[str], **settings: Any) -> dict[str, Any]:
    """Together, each target has the columns that it has alone."""
    alone = {target: run(target, **settings) for target in targets}
    result, table = run(",".join(targets), **settings)
    given = ["id", "sentence1", "sentence2", "sentence"]  # the columns of the input, which stay
    names = [f"{target}_{column}" for target in targets for column in alone[target][1].columns[4:]]
    assert table.columns.tolist() == [*given, *names]
    for target, (own, expected) in alone.items():
        assert {key: own[key] for key in SUMMARY} | {"task": target, "blank": 0} in result["targets"]
        pd.testing.assert_frame_equal(table[given], expected[given])
        columns = table[[f"{target}_{column}" for column in expected.columns[4:]]]
        pd.testing.assert_frame_equal(columns.set_axis(expected.columns[4:], axis=1), expected.iloc[:, 4:], atol=1e-5)
    return result


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"adapter": "pfeiffer"},
        {"encoding": "siamese"},
        {"encoding": "siamese", "head": "cosine", "adapter": "pfeiffer"},
        {"encoding": "siamese", "head": "mlp", "drop_layers": [0]},
    ],
    ids=["cross", "pfeiffer", "siamese", "cosine", "dropped"],
)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_score_and_classes_share_one_pass(settings, pooling, workspace, quick, run) -> None:
    cosine = settings.get("head") == "cosine"
    extract("pairs", quick("adapter", epochs=1, pooling=pooling, **settings), workspace, seed=0)
    # Heads and pooling are each task's own.
    own = settings | ({"head": "difference"} if cosine else {}) | {"pooling": "cls", "bottleneck": 4}
    extract("twins", quick("adapter", epochs=1, **own), workspace, seed=3)
    assert_same_as_apart(run, ["pairs", "twins"])
    result = assert_same_as_apart(run, ["twins", "pairs"])
    assert (result["rows"], result["passes"], list(result)) == (49, 1, ["targets", "rows", "output", "passes"])


def test_what_cannot_share_a_pass_is_run_apart(workspace: Workspace, quick: Quick, run) -> None:
    for task in ("films", "meals", "pairs"):
        extract(task, quick("adapter", epochs=1), workspace, seed=0)
    extract("twins", quick("adapter", epochs=1, encoding="siamese"), workspace, seed=0)
    assert assert_same_as_apart(run, ["films", "pairs", "meals", "twins"])["passes"] == 3
    fuse("films", quick("fusion", epochs=1), workspace, seed=0)
    assert assert_same_as_apart(run, ["films", "meals"])["passes"] == 2
    assert assert_same_as_apart(run, ["films", "meals"], using="adapter")["passes"] == 1
    assert assert_same_as_apart(run, ["films", "meals"], using="adapter", drop_layers=(0,))["passes"] == 1


@pytest.mark.parametrize("settings", [{"train_layernorm": True}, {"max_length": 12}])
def test_unlike_adapters_do_not_share_a_pass(settings, workspace, quick, run) -> None:
    extract("films", quick("adapter", epochs=1), workspace, seed=0)
    extract("meals", quick("adapter", epochs=1, **settings), workspace, seed=0)
    assert assert_same_as_apart(run, ["films", "meals"])["passes"] == 2


def test_every_mistake_is_named_at_once(workspace: Workspace, quick: Quick, run, source: Path) -> None:
    for target, using, message in (
        ("films,meals", "0123456789ab", "(?s)1 problem\n.*no run '0123456789ab' in"),
        ("films,meals", "ensemble:best", "--using ensemble:best: an ensemble is made for one task"),
        ("films,meals", "auto", "(?s)2 problems.*extract --task films.*extract --task meals"),
        ("films,meals", "fusion", "(?s)2 problems.*fuse --target films.*fuse --target meals"),
    ):
        with pytest.raises(PipelineError, match=message):
            run(target, using)
    extract("films", quick("adapter", epochs=1), workspace, seed=0)
    with pytest.raises(PipelineError, match="(?s)1 problem\n.*'meals'"):
        run("films,meals")
    table = pd.read_csv(source)
    table.drop(columns=["sentence", "sentence2"]).to_csv(source, index=False)
    expected = (
        r"(?s)in\.csv: 3 problems\n  task 'films': column 'sentence' is missing.*task 'pairs'.*'sentence2' is missing"
    )
    with pytest.raises(PipelineError, match=expected):
        run("films,pairs,twins")


def test_the_command_prints_a_line_a_target_and_one_object(workspace, quick, source, tmp_path, capsys) -> None:
    runs = [extract(task, quick("adapter", epochs=1), workspace, seed=0).record.run for task in ("films", "meals")]
    arguments = [*places(workspace), f"--input={source}", f"--output={tmp_path / 'o.csv'}", "--json"]
    capsys.readouterr()
    assert main(["predict", "--target", "films,meals", *arguments]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    for run, task, line in zip(runs, ("films", "meals"), lines, strict=True):
        assert line == f"49 predictions of adapter {run} for {task} in {tmp_path / 'o.csv'}"
    length = min(workspace.task("films").max_length, workspace.backbone.max_length)
    assert json.loads(last) == {
        "targets": [
            {"run": run, "kind": "adapter", "task": task, "blank": 0, "cut": 0, "max_length": length}
            for run, task in zip(runs, ("films", "meals"), strict=True)
        ],
        "rows": 49, "output": str(tmp_path / "o.csv"), "passes": 1,
    }  # fmt: skip
    found = pd.read_csv(tmp_path / "o.csv")
    assert found.columns.tolist() == [
        *pd.read_csv(source).columns,
        *(f"{task}_{name}" for task in ("films", "meals")
          for name in ("prediction", "confidence", "probability_bad", "probability_good")),
    ]  # fmt: skip
    assert found["id"].tolist() == pd.read_csv(source)["id"].tolist()
    assert main(["predict", "--target", "films", *arguments]) == 0
    keys = {*SUMMARY, "rows", "output"}
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).keys() == keys
