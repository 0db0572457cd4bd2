"""Whatever a command does, it reads the weights of its backbone once."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pipeline import load
from tests.nano import THINGS
from tests.reads import reads_of
from tests.stages.conftest import Shop

Run = Callable[..., tuple[int, str, str]]
SMALL = ("--seed", 2, "--recipe", "small.toml")
STUDY = """
methods = ["full", "adapter", "fusion"]
targets = ["films"]
sources = ["meals"]
recipe = { bottleneck = 8, epochs = 1, gate_start = "even" }
"""


@pytest.mark.parametrize(
    "command",
    [
        ("extract", "--task", "films", *SMALL),
        pytest.param(("extract", "--task", "films", "--start-from", "best", *SMALL), marks=pytest.mark.long),
        ("fuse", "--target", "films", "--fusion", "gated", "--sources", "meals,pairs", *SMALL),
        pytest.param(
            ("fuse", "--target", "films", "--fusion", "gated", "--sources", "best:1", *SMALL), marks=pytest.mark.long
        ),
        ("fuse", "--target", "films", "--sources", "meals,pairs", *SMALL),
        ("fuse", "--target", "films", "--fusion", "anchored", *SMALL),
        pytest.param(("fuse", "--target", "films", "--fusion", "standard", *SMALL), marks=pytest.mark.long),
        ("compare", "--study", "study.toml", "--seeds", 1),
        ("predict", "--target", "films", "--input", "new.csv", "--output", "scored.csv"),
        pytest.param(("evaluate", "--target", "films", "--input", "labelled.csv"), marks=pytest.mark.long),
        ("explain", "--target", "films", "--using", "fusion", "--text", "the film is good"),
    ],
    ids=lambda command: " ".join(map(str, command[:5])),
)
def test_of_the_backbone_every_tensor_is_read_once(
    command: Sequence[object], shop: Shop, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, backbone = shop.copied(tmp_path), Path(shop.workspace.backbone_name)
    monkeypatch.chdir(tmp_path)
    Path("new.csv").write_text("sentence\nthe film is good\n")
    rows = [
        f"the {thing} is very {word} {word},{label}" for thing in THINGS for label, word in enumerate(("bad", "good"))
    ]
    Path("labelled.csv").write_text("\n".join(["sentence,label", *rows, *(row.replace("very", "") for row in rows)]))
    Path("small.toml").write_text("bottleneck = 8\nepochs = 1\n")
    Path("study.toml").write_text(STUDY)
    places = ("--backbone", backbone, "--data", workspace.data, "--store", "store", "--reports", "reports")
    with reads_of(backbone) as reads:
        status, _, errors = run(*command, *places)
    assert status == 0, errors
    assert set(reads.values()) == {1}


def test_load_and_predict_read_every_tensor_once(shop: Shop) -> None:
    backbone = Path(shop.workspace.backbone_name)
    with reads_of(backbone) as reads:
        model = load("films", store=shop.store, backbone=str(backbone), data=shop.workspace.data)
        model.predict(["the film is good"])
    assert set(reads.values()) == {1}


def test_a_server_reads_every_tensor_once_for_all_its_models(shop: Shop) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from stages.serve.shelf import StoreShelf

    backbone = Path(shop.workspace.backbone_name)
    with reads_of(backbone) as reads:
        shelf = StoreShelf.open(shop.store, ["films"], str(backbone), "fp32")
        for model in shelf.models():
            shelf.explainer(model["name"], "a fine film")
    assert shelf.loaded == len(shelf.models()) > 1
    assert set(reads.values()) == {1}
