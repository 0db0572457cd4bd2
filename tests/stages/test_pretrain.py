"""Further pretraining: a backbone comes out that has read the tasks' texts, and every command takes it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from transformers import BertConfig

from pipeline.cli.app import main
from pipeline.models.backbone import open_backbone
from pipeline.runs.outcome import Made
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from pipeline.training.masked_lm import Masking, fit_masked
from pipeline.training.optim import peak_rates
from stages.demo import pretrain_fresh
from stages.extract import extract
from stages.pretrain import pretrain, pretraining_seconds
from stages.runs import Runs


def test_a_backbone_comes_out_that_has_learned(tmp_path: Path) -> None:
    """In "x is y", y follows from x: the masked word can be guessed."""
    pairs = [("snow", "white"), ("grass", "green"), ("coal", "black"), ("blood", "red")]
    texts = [f"{a} is {b}" for a, b in pairs] * 70
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(**sizes, max_position_embeddings=16, initializer_range=0.1)
    recipe = Recipe(trainable="full", epochs=15, learning_rate=5e-3, batch_size=16, precision="fp32")
    score = pretrain_fresh(texts, tmp_path / "backbone", config, recipe, Masking(), seed=0, held_out=40)
    assert score > 0.6  # of nine words
    backbone = open_backbone(str(tmp_path / "backbone"))
    assert len(backbone.tokenizer.fast) == 5 + 9
    assert backbone.tokenizer.token_types


QUICK = Recipe(trainable="full", epochs=2, learning_rate=2e-3, batch_size=16, precision="fp32")


def test_a_backbone_reads_the_texts_of_tasks_and_every_command_takes_it(workspace, tmp_path, capsys) -> None:
    output = tmp_path / "read"
    found = pretrain(["films", "pairs"], output, QUICK, workspace, seed=0).record
    assert "no masked-language-model head: a new one" in capsys.readouterr().err
    assert not found.had_head
    scores = found.masked_accuracy
    assert scores.after > scores.before
    assert found.rows == {
        name: len(pd.read_csv(workspace.data / name / "train.csv")) - sum(found.left_out[name].values())
        for name in ("films", "pairs")
    }
    backbone = open_backbone(str(output))
    assert backbone.weights_hash != workspace.backbone.weights_hash
    assert backbone.tokenizer.hash == workspace.backbone.tokenizer.hash
    record = extract(
        "films", Recipe(epochs=1, bottleneck=8), replace(workspace, backbone_name=str(output)), seed=0
    ).record
    assert record.identity["backbone"]["weights"] == backbone.weights_hash
    # Its record is in its folder, so the ledger has none, and yet nothing of it is unfinished.
    runs = Runs(workspace.reports, workspace.store_root)
    assert (runs.ledger.began(found.run), runs.unfinished) == (True, [])
    # It has its head now, and goes on with it.
    again = pretrain(["films"], tmp_path / "twice", QUICK, replace(workspace, backbone_name=str(output)), seed=0).record
    assert again.had_head
    assert again.masked_accuracy.before > scores.before


def test_a_fresh_head_learns_faster_than_the_encoder_and_one_that_came_along_does_not(
    workspace, tmp_path, monkeypatch
) -> None:
    def rates_of(output: str, workspace) -> tuple[set[float], set[float]]:
        """Peak rates of the encoder and of the head."""
        taken = {}

        def spy(*arguments, **settings):
            taken.update(peak_rates(*arguments, **settings))
            return taken

        monkeypatch.setattr("pipeline.training.fit.peak_rates", spy)
        recipe = QUICK.model_copy(update={"learning_rate": None, "epochs": 1})
        pretrain(["films"], tmp_path / output, recipe, workspace, seed=0)
        heads = {name for name in taken if name.startswith("head.")}
        return {taken[name] for name in taken.keys() - heads}, {taken[name] for name in heads}

    assert rates_of("read", workspace) == ({1e-5}, {1e-3})
    assert rates_of("twice", replace(workspace, backbone_name=str(tmp_path / "read"))) == ({1e-5}, {1e-5})


def test_what_was_read_to_the_end_is_not_read_again(workspace, tmp_path, monkeypatch) -> None:
    output = tmp_path / "read"
    found = pretrain(["films"], output, QUICK, workspace, seed=0).record
    kept = json.loads((output / "pretraining.json").read_text())
    assert (kept["from"], kept["total_seconds"]) == (workspace.backbone.name, kept["seconds"])
    assert found.summary() == {key: kept[key] for key in ("run", "backbone", "masked_accuracy", "seconds")}
    assert [point["epoch"] for point in kept["curve"]] == [point["epoch"] for point in found.curve]
    monkeypatch.setattr("pipeline.training.masked_lm.fit", lambda *_, **__: pytest.fail("trained"))
    assert pretrain(["films"], output, QUICK, workspace, seed=0) == Made(found, is_new=False)
    for other in ({"seed": 1}, {"seed": 0, "limit": 50}):
        with pytest.raises(PipelineError, match="holds a backbone that was trained differently"):
            pretrain(["films"], output, QUICK, workspace, **other)


def test_a_repeated_command_says_that_nothing_was_computed(workspace, tmp_path, capsys) -> None:
    places = [f"--backbone={workspace.backbone_name}", f"--data={workspace.data}", f"--reports={workspace.reports}"]
    command = ["pretrain", "--tasks=films", "--epochs=1", "--limit=32", f"--output={tmp_path / 'read'}", *places]
    told = "It was finished before: nothing was computed. Delete the folder to train it again\n"
    assert main(command) == 0
    assert told not in capsys.readouterr().out
    assert main(command) == 0
    assert capsys.readouterr().out.endswith(told)


def damage(how: str, file: Path) -> None:
    content = file.read_bytes()
    file.unlink()
    if how == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif how == "changed":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("how", ["gone", "cut", "changed"])
def test_a_backbone_that_is_damaged_is_not_finished(how, name, workspace, tmp_path) -> None:
    output, recipe = tmp_path / "read", QUICK.model_copy(update={"epochs": 1})
    pretrain(["films"], output, recipe, workspace, seed=0, limit=32)
    damage(how, output / name)
    told = rf"read: {name} is missing or damaged: delete the folder, and the command trains it again$"
    with pytest.raises(PipelineError, match=told):
        pretrain(["films"], output, recipe, workspace, seed=0, limit=32)
    shutil.rmtree(output)
    assert pretrain(["films"], output, recipe, workspace, seed=0, limit=32).is_new


def test_texts_of_dev_are_not_read(workspace, tmp_path) -> None:
    data = tmp_path / "data"
    shutil.copytree(workspace.data, data)
    train, dev = (pd.read_csv(data / "films" / f"{split}.csv") for split in ("train", "dev"))
    own = int(train["sentence"].isin(dev["sentence"]).sum())
    leaked = dev.head(5).assign(id=[f"leaked {row}" for row in range(5)])
    pd.concat([train, leaked]).to_csv(data / "films" / "train.csv", index=False)
    found = pretrain(["films"], tmp_path / "read", QUICK, replace(workspace, data=data), seed=0).record
    assert found.left_out["films"]["films"] == own + 5
    assert found.rows["films"] == len(train) - own


def test_an_interrupted_run_goes_on_to_the_same_backbone(workspace, tmp_path, monkeypatch) -> None:
    recipe, there = QUICK.model_copy(update={"hidden_dropout": 0.2}), replace(workspace, checkpoint_seconds=0.0)
    whole = pretrain(["films", "pairs"], tmp_path / "whole", recipe, workspace, seed=0).record
    from pipeline.training import masked_lm

    read, step = masked_lm.cut, 0

    def killed(batch, pieces, *padding):
        nonlocal step
        step += len(padding)  # an evaluation passes none
        if padding and step == 9:
            raise KeyboardInterrupt
        return read(batch, pieces, *padding)

    monkeypatch.setattr(masked_lm, "cut", killed)
    with pytest.raises(KeyboardInterrupt):
        pretrain(["films", "pairs"], tmp_path / "cut", recipe, there, seed=0)
    assert not (tmp_path / "cut").exists()
    assert Runs(workspace.reports, workspace.store_root).unfinished == [whole.run]
    again = pretrain(["pairs", "films"], tmp_path / "cut", recipe, there, seed=0).record
    assert step < 9 + 2 * 12  # it did not begin anew
    assert again.masked_accuracy == whole.masked_accuracy
    hashes = {open_backbone(str(tmp_path / name)).weights_hash for name in ("whole", "cut")}
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("output", "told"),
    [("file/read", "there is a file where a folder is needed"), ("a" * 300, "the name is too long")],
)
def test_an_output_that_cannot_be_is_told_before_training(output, told, workspace, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr("pipeline.training.masked_lm.fit", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(PipelineError, match=told):
        pretrain(["films"], tmp_path / output, QUICK, workspace, seed=0)


def test_texts_without_a_known_word_are_refused(workspace, tmp_path) -> None:
    data = tmp_path / "data"
    shutil.copytree(workspace.data, data)
    rows = pd.read_csv(data / "films" / "train.csv").assign(sentence=[f"qqq{row}" for row in range(96)])
    rows.to_csv(data / "films" / "train.csv", index=False)
    with pytest.raises(PipelineError, match="task 'films': its train texts have no word that the backbone knows"):
        pretrain(["films"], tmp_path / "read", QUICK, replace(workspace, data=data), seed=0)


@pytest.mark.parametrize("name", ["mine.txt", "pretraining.json"])
@pytest.mark.parametrize(
    "content", ["[1]", "{}", "{", '{"seconds": "long", "identity": {}}', '{"seconds": 1.0, "identity": []}']
)
def test_a_folder_with_something_else_is_left_alone(content, name, workspace, tmp_path) -> None:
    (tmp_path / name).write_text(content)
    assert pretraining_seconds(tmp_path) == 0
    with pytest.raises(PipelineError, match="holds something else"):
        pretrain(["films"], tmp_path, QUICK, workspace, seed=0)
    assert (tmp_path / name).read_text() == content


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ([], "name each task once"),
        (["films", "films"], "name each task once"),
        (["flims"], "unknown task 'flims'"),
    ],
)
def test_bad_tasks_are_refused(tasks, told, workspace, tmp_path) -> None:
    with pytest.raises(PipelineError, match=told):
        pretrain(tasks, tmp_path / "read", QUICK, workspace, seed=0)


def test_what_another_command_has_written_meanwhile_stays(workspace, tmp_path, monkeypatch) -> None:
    output = tmp_path / "read"

    def meanwhile(*arguments, **settings):
        output.mkdir()
        (output / "mine.txt").write_text("mine")
        return fit_masked(*arguments, **settings)

    monkeypatch.setattr("stages.pretrain.fit_masked", meanwhile)
    with pytest.raises(PipelineError, match="holds something else"):
        pretrain(["films"], output, QUICK, workspace, seed=0)
    assert [file.name for file in tmp_path.iterdir() if file.name.strip(".").startswith("read")] == ["read"]
    assert (output / "mine.txt").read_text() == "mine"
