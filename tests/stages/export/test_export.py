"""The verb export from end to end: the folder, its check, its card, and every mistake before it is written."""

import dataclasses
import json
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import transformers
import yaml

from pipeline import load
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.export import adapterhub, exported
from stages.export.export import export
from stages.export.exported import Trained, Written
from stages.extract import extract
from tests.runs import joint_run, places, single_run
from tests.stages.conftest import Shop

pytestmark = pytest.mark.usefixtures("trained_once")

Command = Callable[..., tuple[int, str, str]]
TEXTS = ["the film is good", "the meal is very awful", "the song"]


def code_of(folder: Path) -> str:
    """The Python that the card shows."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return code


def test_onnx_from_the_command_line(shop: Shop, run: Command, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    folder = tmp_path / "films"
    status, out, _ = run("export", "--target", "films", "--output", folder, "--int8", "--json", *places(shop.workspace))
    assert status == 0
    assert "40 rows of dev and 24 texts drawn" in out and "of the classes are the same" in out
    result = json.loads(out.splitlines()[-1])
    assert (result["kind"], result["format"], result["precision"]) == ("fusion", "onnx", "int8")
    assert result["checked"]["fp32"]["difference"] < 1e-4 < result["checked"]["int8"]["difference"]
    assert result["checked"]["int8"]["agree"] > 0.9
    model = load("films", store=shop.store, precision="fp32")
    expected = model.predict(["the film is good"])[0].probabilities
    code = code_of(folder).replace("A text.", "the film is good")
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    found = [float(number) for number in re.findall(r"0\.\d+", printed)]
    assert found[-2:] == pytest.approx([*expected.values()], abs=0.1)  # int8


def test_adapterhub_from_the_command_line_with_the_code_of_its_card_and_its_script(
    shop: Shop, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pairs"
    arguments = ["--target", "pairs", "--format", "adapterhub", "--output", folder, *places(shop.workspace)]
    status, out, _ = run("export", *arguments)
    assert status == 0 and "the mean over all" in out
    assert "__pycache__" not in {file.name for file in folder.iterdir()}
    pair = ("the film is good", "the film is bad")
    expected = load("pairs", store=shop.store, precision="fp32").predict([pair])[0].score
    shown = code_of(folder)
    code = shown.replace('("A text.", "Another text.")', repr(pair))
    assert code != shown
    monkeypatch.chdir(folder)
    exec(code, {})
    (printed,) = re.findall(r"\[([-\d.]+)\]", capsys.readouterr().out)
    assert float(printed) == pytest.approx(expected, abs=1e-4)
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "argv", ["run.py", *pair])
    runpy.run_path(str(folder / "run.py"), run_name="__main__")
    assert capsys.readouterr().out.split() == [f"{expected:.4f}", "score"]
    monkeypatch.setattr(sys, "argv", ["run.py", pair[0]])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(folder / "run.py"), run_name="__main__")
    assert "run.py TEXT TEXT" in capsys.readouterr().err


def test_the_card_has_the_metadata_of_the_hub_and_says_which_rows_scored(shop: Shop, tmp_path: Path) -> None:
    export("films", tmp_path / "one", shop.workspace, "adapterhub", using="adapter", licence="mit")
    text = (tmp_path / "one" / "README.md").read_text()
    metadata = yaml.safe_load(text.split("---\n")[1])
    record = shop.adapters["films"]
    (result,) = metadata["model-index"][0]["results"]
    assert (metadata["license"], metadata["library_name"]) == ("mit", "adapter-transformers")
    assert result["dataset"]["split"] == "dev" and result["metrics"][0]["value"] == round(record.dev, 4)
    assert "base_model" not in metadata  # a folder of this machine
    assert f"| dev | 40 | {record.dev:.4f} | selected this model" in text and "96 training rows" in text
    assert "The score is on rows that also selected the epoch" in text
    assert "`bad`, `good`" in text and "Probabilities are calibrated: temperature" in text
    # without the run's record, from the manifest alone
    apart = dataclasses.replace(shop.workspace, reports=tmp_path / "no reports")
    export("films", tmp_path / "two", apart, "adapterhub", using="adapter")
    text = (tmp_path / "two" / "README.md").read_text()
    assert f"| dev | 40 | {record.dev:.4f}" in text and "Not stated by whoever exported" in text


def test_the_card_names_the_tasks_that_an_adapter_was_trained_on_before(
    workspace: Workspace, quick: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract("pairs", quick("adapter", epochs=1), workspace, seed=0)
    for task, start in (("meals", "pairs"), ("films", "meals")):
        monkeypatch.setattr("pipeline.runs.initial.most_explaining", lambda *_, start=start: start)
        extract(task, quick("adapter", epochs=1), workspace, seed=0, start_from=start)
    export("films", tmp_path / "films", workspace, "adapterhub", using="adapter")
    text = (tmp_path / "films" / "README.md").read_text()
    assert "Before that, the adapter was trained on `pairs`, `meals`." in text


def test_the_card_names_the_data_and_terms_of_all_tasks_that_a_model_was_trained_on(
    workspace: Workspace, quick: Callable[..., Recipe], tmp_path: Path
) -> None:
    data = shutil.copytree(workspace.data, tmp_path / "own")
    for name in ("meals", "films"):
        file = data / name / "task.toml"
        file.write_text(f'{file.read_text()}\nterms = "as {name} asks"\n')
    place, recipe = dataclasses.replace(workspace, data=data), quick("full", epochs=1)
    first = single_run(place, "full", "meals", recipe, 1).get()
    second = single_run(place, "sequential", "pairs", recipe, 1, start=first, keep_weights=True).get()
    third = single_run(place, "sequential", "films", recipe, 1, start=second, keep_weights=True).get()
    tasks = ["films", "meals"]
    joint = joint_run(
        place, tasks, dict.fromkeys(tasks, recipe), limits=dict.fromkeys(tasks), seed=1, keep_weights=True
    ).get()
    for record, sentence in (
        (third, "Before that, the model was trained on `meals`, `pairs`."),
        (joint, "The model was trained on `meals` at the same time."),
    ):
        export("films", tmp_path / record.kind, place, "adapterhub", using=record.run)
        text = (tmp_path / record.kind / "README.md").read_text()
        assert sentence in text
        assert "Data of `films`: as films asks. Data of `meals`: as meals asks. The terms of" in text


def test_a_full_model_of_the_ledger(
    workspace: Workspace, quick: Callable[..., Recipe], run: Command, tmp_path: Path
) -> None:
    """Its folder is one of transformers, and answers as ``predict`` does."""
    record = single_run(workspace, "full", "films", quick("full", epochs=1, pooling="cls"), 1).get()
    status, _, _ = run(
        "export", "--target", "films", "--using", record.run, "--format", "adapterhub", "--output", tmp_path / "films",
        *places(workspace),
    )  # fmt: skip
    assert status == 0
    table = pd.DataFrame({"sentence": TEXTS})
    table.to_csv(tmp_path / "new.csv", index=False)
    run(
        "predict", "--target", "films", "--using", record.run, "--input", tmp_path / "new.csv", "--output",
        tmp_path / "out.csv", "--precision", "fp32", "--raw", *places(workspace),
    )  # fmt: skip
    expected = pd.read_csv(tmp_path / "out.csv")["probability_good"].tolist()
    classify = transformers.pipeline("text-classification", model=str(tmp_path / "films"), device="cpu", top_k=None)
    found = [{each["label"]: each["score"] for each in answer}["good"] for answer in classify(TEXTS)]
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.long
def test_an_interrupt_waits_until_the_graph_is_traced(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of it, torch's own cleaning up would put an assertion in the interrupt's place."""
    pytest.importorskip("onnx")
    original, traced = torch.onnx.export, []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        traced.append(original(*arguments, **options))
        return traced[0]

    monkeypatch.setattr(torch.onnx, "export", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export("films", tmp_path / "films", shop.workspace, "onnx", using="adapter")
    assert len(traced) == 1
    assert not (tmp_path / "films").exists()


def test_a_failed_check_writes_nothing_and_keeps_the_earlier_export(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, write = tmp_path / "films", adapterhub.write

    def lossy(trained: Trained, folder: Path) -> Written:
        trained.model.head.out.bias.data[0] += 1e-3
        return write(trained, folder)

    export("films", folder, shop.workspace, "adapterhub", using="adapter")
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    monkeypatch.setattr(adapterhub, "write", lossy)
    for place in (folder, tmp_path / "new"):
        with pytest.raises(PipelineError, match="answers differ"):
            export("films", place, shop.workspace, "adapterhub", using="adapter")
    assert before == {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert [entry.name for entry in tmp_path.iterdir()] == ["films"]


def add(folder: Path, name: str) -> None:
    """What an export does not write: a file, one in a hidden folder, or a broken link."""
    if name == "weights":
        (folder / name).symlink_to("nowhere")
    else:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


@pytest.mark.covering(1)
@pytest.mark.parametrize("during", [False, True])
@pytest.mark.parametrize("name", ["notes.txt", ".git/HEAD", "weights"])
def test_what_somebody_put_beside_an_export_is_not_deleted(
    name: str, during: bool, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, write = tmp_path / "films", adapterhub.write

    def while_somebody_adds(trained: Trained, temporary: Path) -> Written:
        add(folder, name)
        return write(trained, temporary)

    export("films", folder, shop.workspace, "adapterhub", using="adapter")
    if during:
        monkeypatch.setattr(adapterhub, "write", while_somebody_adds)
    else:
        add(folder, name)
    before = {file: file.lstat().st_mtime_ns for file in folder.rglob("*")}
    with pytest.raises(PipelineError, match=f"holds '{name}', which no export wrote"):
        export("films", folder, shop.workspace, "adapterhub", using="adapter")
    assert before.items() <= {file: file.lstat().st_mtime_ns for file in folder.rglob("*")}.items()


def test_an_export_is_replaced_by_one_of_another_form(shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "pairs"
    for using in ("fusion", "adapter"):
        export("pairs", folder, shop.workspace, "adapterhub", using=using)
        files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        assert json.loads((folder / "task.json").read_text())["files"] == files
        (folder / "__pycache__").mkdir()  # a program imports run.py
        (folder / "__pycache__" / "run.pyc").touch()


def test_push_to_hub_is_a_dry_run_unless_it_is_asked_for(
    shop: Shop, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[tuple[Path, str]] = []
    monkeypatch.setattr(
        exported, "push", lambda folder, name: pushed.append((folder, name)) or exported.address_of(name)
    )
    monkeypatch.setattr(type(shop.workspace.backbone), "is_folder", property(lambda backbone: False))
    arguments = [
        "export", "--target", "films", "--using", "adapter", "--format", "adapterhub", "--output", tmp_path / "films",
        "--push-to-hub", "me/films", *places(shop.workspace),
    ]  # fmt: skip
    status, out, _ = run(*arguments)
    assert status == 0 and not pushed
    assert "would be uploaded to https://huggingface.co/me/films" in out and "nothing was uploaded" in out
    for file in (tmp_path / "films").iterdir():
        assert re.search(rf"{file.stat().st_size:,}  {file.name}\n", out)
    status, out, _ = run(*arguments, "--yes")
    assert status == 0 and pushed == [(tmp_path / "films", "me/films")]
    assert "uploaded to https://huggingface.co/me/films" in out and "would" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--int8", "--format", "adapterhub"], "--int8 is for --format onnx"),
        (["--yes"], "--push-to-hub OWNER/NAME"),
        (
            ["--push-to-hub", "me/films", "--format", "adapterhub", "--using", "adapter"],
            "give its Hub id with --backbone",
        ),
        (["--using", "0" * 12], "no run '000000000000'"),
        (["--format", "adapterhub"], "no fusion with a gate for each token"),
        (["--output", "taken"], "holds 'mine.txt', which no export wrote"),
        (["--output", "alike"], "holds 'task.json', which no export wrote"),
    ],
    ids=str,
)
def test_mistakes_are_one_message(
    arguments: list[str], message: str, shop: Shop, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").mkdir()
    Path("taken/mine.txt").write_text("mine")
    Path("alike").mkdir()
    Path("alike/task.json").write_text('{"task": "mine"}')
    output = [] if "--output" in arguments else ["--output", "new"]
    status, _, error = run("export", "--target", "films", *output, *arguments, *places(shop.workspace))
    assert status == 2 and message in error and "Traceback" not in error
    assert not Path("new").exists() and Path("taken/mine.txt").exists() and len([*Path("alike").iterdir()]) == 1


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_extra_it_says_what_to_install(
    missing: str, shop: Shop, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    arguments: list[Any] = ["--target", "films", "--output", tmp_path / "new", *places(shop.workspace)]
    status, _, error = run("export", *arguments)
    assert status == 2 and "adapter-fusion-pipeline[export]" in error
    assert run("export", *arguments, "--format", "adapterhub", "--using", "adapter")[0] == 0  # needs none of it
