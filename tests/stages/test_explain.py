"""What a fusion listened to, what its adapters say alone, and what changes without each of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import Model, PipelineError, load
from pipeline.cli.app import main
from pipeline.records.store import MANIFEST
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.explain import MOST_WORDS, explain, listed, masked_words, passes_of
from stages.extract import extract
from stages.prune import prune
from tests.nano import save_backbone
from tests.runs import single_run
from tests.stages.conftest import Shop

Command = Callable[..., tuple[int, str, str]]

FILM = "the film is very good"
SHORT = "the film is good"
PAIR = ("the film is good", "the song is awful")


@pytest.fixture(scope="module")
def opened(shop: Shop) -> Callable[..., Model]:
    return lambda target, **settings: load(target, store=shop.store, precision="fp32", **settings)


def explained(model: Model, text: Any) -> dict[str, Any]:
    return explain(model, text, [model.sibling(artifact) for artifact in model.beside()])


@pytest.mark.parametrize(("task", "text"), [("films", FILM), ("pairs", PAIR)])
def test_a_prediction_without_an_adapter_is_that_of_the_pruned_fusion(
    task: str, text: Any, shop: Shop, opened: Callable[..., Model], tmp_path: Path
) -> None:
    model = opened(task, using="fusion")
    before = model.predict([text])
    found = {name: model.predict([text], without=name)[0] for name in model.adapters}
    assert len({answer.score or answer.probabilities["good"] for answer in [*found.values(), *before]}) == 4
    assert model.predict([text]) == before
    # Its own adapter a pruned gated fusion keeps, so the one of two sources goes that is listened to less.
    record = prune(task, shop.copied(tmp_path), keep=1 if task == "films" else 2).record
    pruned = load(record.artifact or "", precision="fp32")
    (gone,) = {*model.adapters} - {*pruned.adapters}
    (expected,) = pruned.predict([text])
    assert found[gone].score == (None if expected.score is None else pytest.approx(expected.score, abs=1e-5))
    # The temperature is that of the pruned fusion, so the raw outputs are compared.
    assert found[gone].outputs == pytest.approx(expected.outputs, abs=1e-4)


@pytest.mark.parametrize(
    ("target", "without", "message"),
    [
        ("films", "nope", "without='nope': <fusion films@.*> mixes meals, pairs, films: give one of several"),
        ("meals", "meals", "without='meals': <adapter meals@.*> mixes no adapters"),
    ],
)
def test_what_is_not_mixed_cannot_be_left_out(
    target: str, without: str, message: str, opened: Callable[..., Model]
) -> None:
    with pytest.raises(PipelineError, match=message):
        opened(target).predict([FILM], without=without)


def test_an_explanation_holds_what_the_model_says(shop: Shop, opened: Callable[..., Model]) -> None:
    model = opened("films")
    summary = explained(model, FILM)
    assert json.loads(json.dumps(summary)) == summary
    answer = {each["label"]: each["score"] for each in summary["answer"]}
    assert answer == dict(model.predict([FILM])[0].probabilities)
    # Pairs reads two texts, so it has no answer of its own for one.
    singles = {each["task"]: each for each in summary["singles"]}
    assert {task: each["run"] for task, each in singles.items()} == {
        task: shop.adapters[task].run for task in ("films", "meals")
    }
    for task, single in singles.items():
        alone = opened(f"{task}@{shop.adapters[task].run}").predict([FILM])[0]
        assert {each["label"]: each["score"] for each in single["answer"]} == dict(alone.probabilities)
        assert single["same_labels"]
    for each in summary["without"]:
        rest = model.predict([FILM], without=each["adapter"])[0]
        assert {label["label"]: label["score"] for label in each["answer"]} == dict(rest.probabilities)
    assert [each["adapter"] for each in summary["without"]] == summary["adapters"] == ["meals", "pairs", "films"]
    (part,) = summary["inputs"]
    assert part["tokens"] == ["[CLS]", "the", "film", "is", "very", "good", "[SEP]"]
    assert [(each["layer"], each["site"]) for each in part["layers"]] == [
        (layer, site) for layer in (0, 1) for site in ("attention", "ffn")
    ]
    table = model.explain(FILM).set_index(["layer", "site", "position", "adapter"])["share"]
    for each in part["layers"]:
        for position, shares in enumerate(each["shares"]):
            assert sum(shares) == pytest.approx(1.0, abs=1e-4)
            for name, share in zip(summary["adapters"], shares, strict=True):
                assert share == pytest.approx(table[each["layer"], each["site"], position, name], abs=1e-6)
    assert sum(summary["mean_shares"].values()) == pytest.approx(1.0)
    assert (summary["tokens"], summary["max_length"]) == (7, 24)


def test_an_explanation_of_a_score_and_of_an_adapter(opened: Callable[..., Model]) -> None:
    summary = explained(opened("pairs", using="fusion"), PAIR)
    assert [each["label"] for each in summary["answer"]] == ["score"]
    assert [single["task"] for single in summary["singles"]] == ["pairs"]
    assert [each["adapter"] for each in summary["without"]] == ["films", "meals", "pairs"]
    alone = explained(opened("meals"), FILM)
    assert (alone["adapters"], alone["singles"], alone["without"], alone["inputs"]) == ([], [], [], [])


@pytest.mark.parametrize(("target", "using"), [("films", "auto"), ("pairs", "fusion"), ("films", "adapter")])
def test_as_many_texts_are_counted_as_are_computed(
    target: str, using: str, opened: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(target, using=using)
    singles, made = [model.sibling(artifact) for artifact in model.beside()], []
    for name in ("predict", "explain"):
        method = getattr(Model, name)
        count = len if name == "predict" else lambda text: 1
        monkeypatch.setattr(
            Model, name, lambda own, texts, _method=method, _count=count, **kw: (
                made.append(_count(texts)) or _method(own, texts, **kw)
            ),
        )  # fmt: skip
    text = PAIR if target == "pairs" else FILM
    explain(model, text, singles)
    assert sum(made) == passes_of(model, singles, text)


def test_the_word_that_decides_has_the_largest_effect(workspace: Workspace, quick: Callable[..., Recipe]) -> None:
    """The classes of films are known by one word."""
    record = single_run(workspace, "full", "films", quick("full", epochs=12), 1).get()
    assert record.dev == 1
    model = load(f"films@{record.run}", reports=workspace.reports, precision="fp32")
    words = explain(model, SHORT, ())["words"]
    assert [each["word"] for each in words] == SHORT.split()
    (before,), rests = model.predict([SHORT]), [SHORT.replace(word, "[MASK]") for word in SHORT.split()]
    effects = {}
    for each, rest in zip(words, rests, strict=True):
        found = {label["label"]: label["score"] for label in each["answer"]}
        (expected,) = model.predict([rest])
        assert found == pytest.approx(dict(expected.probabilities), abs=1e-5)
        effects[each["word"]] = abs(found["good"] - before.probabilities["good"])
    assert max(effects, key=effects.__getitem__) == "good"


@pytest.mark.parametrize(
    ("text", "mask", "expected"),
    [
        ("one", "", []),
        ("one", "M", [(0, "one", "M")]),
        ("a b", "", [(0, "a", " b"), (0, "b", "a ")]),
        ("  a\n b, ", "M", [(0, "a", "  M\n b, "), (0, "b,", "  a\n M ")]),
        (("a b", "c"), "M", [(0, "a", ("M b", "c")), (0, "b", ("a M", "c")), (1, "c", ("a b", "M"))]),
        (("a", "b c"), "", [(1, "b", ("a", " c")), (1, "c", ("a", "b "))]),
    ],
)
def test_each_word_is_masked_once(text: Any, mask: str, expected: list[Any]) -> None:
    assert masked_words(text, mask) == expected
    assert len(masked_words("w " * (MOST_WORDS + 9), mask)) == MOST_WORDS


def test_siblings_hold_one_copy_of_the_backbone_and_say_what_they_say_alone(
    shop: Shop, opened: Callable[..., Model]
) -> None:
    model = opened("films")
    for artifact in model.beside():
        sibling = model.sibling(artifact)
        ours, theirs = (dict(each._model.backbone.named_parameters()) for each in (model, sibling))
        names = shop.workspace.backbone.tensor_names
        assert all(ours[name].data_ptr() == theirs[name].data_ptr() for name in names)
        alone = opened(f"{artifact.manifest.task}@{artifact.manifest.run}")
        assert sibling.predict([FILM] * 3) == alone.predict([FILM] * 3)


@pytest.mark.parametrize(
    ("settings", "probability"),
    [
        ({}, lambda raw, e: e(raw["good"]) / (e(raw["good"]) + e(raw["bad"]))),
        ({"one_logit": True}, lambda raw, e: 1 / (1 + e(-raw["good"]))),
    ],
)
def test_raw_scores_are_the_heads_outputs(settings, probability, workspace, quick) -> None:
    import math

    extract("films", quick("adapter", epochs=1, **settings), workspace, seed=1)
    model = load("films", store=workspace.store_root, precision="fp32")
    answer, temperature = model.predict([FILM])[0], model.artifact.manifest.temperature
    calibrated = {each["label"]: each["score"] / temperature for each in listed(answer, "none")}
    assert answer.probabilities["good"] == pytest.approx(probability(calibrated, math.exp), abs=1e-6)


def test_the_command_prints_the_same(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--store", str(shop.store), "--precision", "fp32"]
    assert main(["explain", "--target", "films", "--text", FILM, *places, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    summary = json.loads(lines[-1])
    assert lines[0].startswith(f"fusion films, run {summary['run']}: {summary['answer'][0]['label']} ")
    table = {line.split()[0]: line.split() for line in lines[lines.index("") + 1 :] if line}
    for each in summary["without"]:
        share = f"{summary['mean_shares'][each['adapter']]:.3f}"
        first = each["answer"][0]
        row = next(line.split() for line in lines if line.split()[:2] == [each["adapter"], share])
        assert [first["label"], f"{first['score']:.4f}"] == row[-3:-1]
    assert {"[CLS]", "film", "[SEP]"} <= table.keys()
    run = shop.adapters["films"].run
    for target in (["films", "--using", run], [f"films@{run}"]):
        assert main(["explain", "--target", *target, "--text", FILM, *places]) == 0
        captured = capsys.readouterr()
        assert f"adapter films, run {run}" in captured.out and "without it" in captured.out
    pair = ["--target", "pairs", "--using", "fusion", "--text", PAIR[0], "--text-b", PAIR[1]]
    assert main(["explain", *pair, *places]) == 0
    assert "change of score" in capsys.readouterr().out


def test_an_artifact_that_is_gone_is_said_to_be_gone(shop: Shop, run: Command, tmp_path: Path) -> None:
    record, places = shop.adapters["films"], ["--store", tmp_path / "store", "--reports", shop.workspace.reports]
    shutil.copytree(shop.store, tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "adapters" / "films")
    status, _, error = run("explain", "--target", "films", "--using", record.run, "--text", FILM, *places)
    assert (status, "Traceback" in error) == (2, False)
    assert f"error: the adapter of run {record.run} is not in {tmp_path / 'store'}: name the store that has it" in error


def test_a_run_of_the_ledger_is_found_where_the_settings_file_says(
    workspace: Workspace, quick: Callable[..., Recipe], run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = single_run(workspace, "full", "films", quick("full", epochs=1), 1).get()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text(f'store = "{workspace.store_root}"\nreports = "{workspace.reports}"\n')
    workspace.reports.rename(tmp_path / "elsewhere")
    question = ["explain", "--target", "films", "--using", record.run, "--text", FILM, "--precision", "fp32"]
    assert f"no run '{record.run}'" in run(*question)[2]
    for places in (["--reports", "elsewhere"], []):
        if not places:
            (tmp_path / "elsewhere").rename(workspace.reports)
        status, out, _ = run(*question, *places)
        assert status == 0 and out.startswith(f"full films, run {record.run}: ")


@pytest.mark.parametrize("kind", ["frozen", "full"])
def test_a_kept_run_reads_as_many_texts_as_its_task_has(
    kind: str, workspace: Workspace, quick: Callable[..., Recipe], run: Command
) -> None:
    recipe = quick("head" if kind == "frozen" else "full", epochs=1)
    record = single_run(workspace, kind, "pairs", recipe, 1).get()
    assert record.recipe.encoding == "cross"
    places = {"store": workspace.store_root, "reports": workspace.reports, "precision": "fp32"}
    expected = load(f"pairs@{record.run}", data=workspace.data, **places).predict([PAIR])
    assert load(f"pairs@{record.run}", **places).predict([PAIR]) == expected
    question = ["explain", "--target", f"pairs@{record.run}", "--text", PAIR[0]]
    question += ["--store", workspace.store_root, "--reports", workspace.reports, "--precision", "fp32"]
    both = [*question, "--text-b", PAIR[1]]
    status, out, _ = run(*both)
    assert status == 0 and f"score {expected[0].score:.4f}" in out
    status, _, error = run(*question)
    assert status == 2 and "task 'pairs' reads a pair of texts" in error and "--text-b" in error


def test_a_folder_that_lacks_some_of_a_fusions_tasks_is_no_hindrance(shop: Shop, run: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copytree(shop.workspace.data / "films", tmp_path / "mine" / "films")
    question = ["explain", "--target", "films", "--text", FILM, "--store", shop.store, "--precision", "fp32"]
    expected = run(*question)[:2]
    assert expected[0] == 0 and "meals" in expected[1]
    assert run(*question, "--data", tmp_path / "empty", "--data", tmp_path / "mine")[:2] == expected
    assert "no such folder" in run(*question, "--data", tmp_path / "none")[2]


@pytest.mark.parametrize("command", [["explain", "--target", "films", "--text", FILM], ["serve", "--port", "0"]])
def test_the_backbone_is_that_of_the_settings_file(
    command: list[str], shop: Shop, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command[0] == "serve":
        pytest.importorskip("fastapi", reason="the extra serve is not installed")
    save_backbone(tmp_path / "other", seed=5)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text(f'store = "{shop.store}"\nbackbone = "other"\n')
    status, _, error = run(*command)
    assert status == 2 and "fits backbone 'other'" in error


def test_names_of_classes_cannot_steer_a_terminal(shop: Shop, run: Command, tmp_path: Path) -> None:
    """They are those of whoever made the artifact."""
    artifact = shop.copied(tmp_path).store.find(shop.adapters["films"].run)
    manifest = json.loads((artifact.folder / MANIFEST).read_text())
    manifest["meaning"]["classes"] = ["\x1b[31mbad", "good\nfusion films"]
    (artifact.folder / MANIFEST).write_text(json.dumps(manifest))
    target = ["--target", f"films@{artifact.manifest.run}", "--store", tmp_path / "store"]
    status, out, _ = run("explain", *target, "--text", FILM, "--precision", "fp32", "--json")
    *lines, last = out.splitlines()
    assert status == 0 and lines.index("") == 3
    assert all(line.isprintable() for line in lines)
    assert {each["label"] for each in json.loads(last)["answer"]} == {*manifest["meaning"]["classes"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "films", "--text", " "], "is ' ': a blank text"),
        (["--target", "pairs", "--text", "a"], "task 'pairs' reads a pair of texts"),
        (["--target", "films", "--text", "a", "--text-b", "b"], "task 'films' reads a single text"),
        (["--target", "films@", "--text", "a"], "'films@': name a run after @, or leave @ out"),
        (["--target", "films@a", "--using", "b", "--text", "a"], "each say which model: give one of them"),
    ],
)
def test_what_cannot_be_explained_is_one_message(
    arguments: list[str], message: str, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *arguments, "--store", str(shop.store), "--precision", "fp32"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
