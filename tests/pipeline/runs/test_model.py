"""Models in a Python program: the numbers of the command, from whatever names a model, and nothing loaded before."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset

from pipeline import Model, PipelineError, Predicted, load
from pipeline.methods.attention import site_attention
from pipeline.records.run_record import RunRecord
from pipeline.runs.build import restore
from pipeline.runs.scoring import Scoring
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.training.devices import make_accelerator
from stages.extract import extract
from stages.fuse import fuse
from stages.predict import predict
from tests.nano import save_backbone
from tests.runs import single_run

pytestmark = pytest.mark.usefixtures("trained_once")

Quick = Callable[..., Recipe]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def adapters(workspace: Workspace, quick: Quick) -> dict[str, RunRecord]:
    return {
        task: extract(task, quick("adapter", epochs=1), workspace, seed=1).record
        for task in ("films", "meals", "pairs")
    }


@pytest.fixture
def opened(workspace: Workspace) -> Callable[..., Model]:
    def opened(target: str | Path = "films", **settings: Any) -> Model:
        return load(target, **{"store": workspace.store_root, "precision": "fp32", **settings})

    return opened


def commanded(workspace: Workspace, task: str, **settings: Any) -> tuple[list[Any], list[Predicted], str]:
    """The texts of the task's dev rows, and what the command predicts for them with which run."""
    file, out = workspace.data / task / "dev.csv", workspace.reports.parent / "out.parquet"
    values = {"using": "auto", "batch_size": 64, "precision": "fp32", **settings}
    run = predict(task, file, out, dataclasses.replace(workspace), **values).tasks[0].name
    table = pd.read_parquet(out)
    if task == "pairs":
        texts: list[Any] = list(zip(table["sentence1"], table["sentence2"], strict=True))
        return texts, [Predicted(None, score, {}) for score in table["prediction"].tolist()], run
    columns = table[["probability_bad", "probability_good"]].to_numpy().tolist()
    expected = [
        Predicted(label, None, {"bad": bad, "good": good})
        for label, (bad, good) in zip(table["prediction"], columns, strict=True)
    ]
    return table["sentence"].tolist(), expected, run


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("films", {}),
        ("films", {"pooling": "cls", "truncation": "head-and-tail", "max_length": 6}),
        ("pairs", {}),
        ("pairs", {"encoding": "siamese"}),
        ("pairs", {"encoding": "siamese", "head": "cosine"}),
        ("pairs", {"average_orders": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_numbers_are_those_of_the_command(
    task: str, settings: dict[str, Any], precision: str, workspace: Workspace, quick: Quick, opened
) -> None:
    extract(task, quick("adapter", epochs=1, **settings), workspace, seed=0)
    for batch_size in (7, 64):
        texts, expected, _ = commanded(workspace, task, precision=precision, batch_size=batch_size)
        assert opened(task, precision=precision).predict(texts, batch_size=batch_size) == expected
    # A second call is as good as the first, and writes no tokens to the disk.
    before = sorted(Path(os.environ["PIPELINE_CACHE"]).iterdir())
    model = opened(task, precision=precision, device="cpu")
    # Rounding differs with the padding, in bf16 by more.
    tolerance = 5e-2 if precision == "bf16" else 1e-4
    for text, one in zip(texts[:3], expected, strict=False):
        (alone,) = model.predict([text])
        assert alone.score == (None if one.score is None else pytest.approx(one.score, abs=tolerance))
        assert alone.probabilities == pytest.approx(one.probabilities, abs=tolerance)
    assert sorted(Path(os.environ["PIPELINE_CACHE"]).iterdir()) == before


def test_a_model_is_named_by_task_run_or_folder(
    workspace: Workspace, adapters, quick: Quick, opened, monkeypatch
) -> None:
    fused = fuse("films", quick("fusion", epochs=1), workspace, seed=1).record
    full = single_run(workspace, "full", "films", quick("full", epochs=1), seed=1).get()
    own, folder = adapters["films"], Path(adapters["films"].artifact)
    best = fused if fused.dev > own.dev else own
    monkeypatch.chdir(folder)
    for target, settings, record in (
        ("films", {}, best),
        ("films", {"using": "fusion"}, fused),
        ("films", {"using": "adapter"}, own),
        ("films", {"using": own.run}, own),
        (f"films@{own.run}", {}, own),
        (f"films@{full.run}", {"reports": workspace.reports}, full),
        (str(folder), {"store": None}, own),
        (Path(), {"store": None}, own),
        (folder, {}, own),
        (Path(fused.artifact or ""), {"store": None}, fused),
        ("films", {"backbone": workspace.backbone_name, "data": workspace.data}, best),
    ):
        model = opened(target, **settings)
        texts, expected, run = commanded(workspace, "films", using=record.run)
        assert (model.task, model.run, model.kind, model.classes) == ("films", run, record.kind, ("bad", "good"))
        assert model.predict(texts) == expected
    assert repr(model) == f"<{best.kind} films@{best.run} on {workspace.backbone_name}, cpu>"
    assert (model.is_pair, opened("pairs").is_pair, opened("pairs").classes) == (False, True, ())


TABLE = pd.DataFrame({"text": ["the film is good"]})
UNFIT: list[tuple[str, Any, str]] = [
    ("films", ["the film is good", ("a", "b")], r"texts\[1\] is \('a', 'b'\): task 'films' reads a single text"),
    ("films", [["the film is good"]], r"texts\[0\] is \['the film is good'\]: task 'films' reads a single text"),
    ("films", "the film is good", r"texts is one text, where a list is needed: write predict\(\[text\]\)"),
    ("films", ["the film", 7], r"texts\[1\] is 7: 7 is not text"),
    ("films", [None], r"texts\[0\] is None: None is not text"),
    ("films", [float("nan")], r"texts\[0\] is nan: nan is not text"),
    ("films", [b"the film"], r"texts\[0\] is b'the film': b'the film' is not text"),
    ("films", ["good", " \n"], r"texts\[1\] is .*a blank text has no prediction: leave it out"),
    ("films", ["good \ud800"], r"texts\[0\] is .*an unpaired surrogate"),
    ("pairs", ["the film is good"], r"texts\[0\] is 'the film is good': task 'pairs' reads a pair of texts"),
    ("pairs", ("a", "b"), r"texts\[0\] is 'a': task 'pairs' reads a pair of texts, such as \[.a., .b.\]"),
    ("pairs", [("a", "b", "c")], r"texts\[0\] is .*task 'pairs' reads a pair of texts"),
    ("pairs", [("a", 2)], r"texts\[0\] is \('a', 2\): 2 is not text"),
    ("pairs", [("a", "b"), ("a", "")], r"texts\[1\] is .*a blank text has no prediction"),
    ("films", TABLE, r'texts is a table, where a list is needed: give table\["text"\].tolist\(\)'),
    ("pairs", TABLE, r'is a table, .*: give list\(zip\(table\["text_a"\], table\["text_b"\]\)\)'),
    *(
        (
            "films",
            unordered,
            rf"texts is {re.escape(repr(unordered))}, where a list is needed: give one, such as \[text\]",
        )
        for unordered in ({"text": ["a"]}, {"a"}, frozenset("a"), b"a", None, 3, np.array("a"))
    ),
]


def test_texts_that_do_not_fit_the_task_are_named(workspace: Workspace, adapters, opened) -> None:
    models = {task: opened(task) for task in ("films", "pairs")}
    for task, texts, message in UNFIT:
        with pytest.raises(PipelineError, match=message) as caught:
            models[task].predict(texts)
        assert "\n" not in str(caught.value)
        with pytest.raises(PipelineError, match=message):
            models[task].lengths(texts)
    for batch_size, message in ((0, "0: give at least 1"), (2.5, "2.5: give a whole"), ("8", "'8': give a whole")):
        with pytest.raises(PipelineError, match=f"^batch_size={message}"):
            models["films"].predict(["the film is good"], batch_size=batch_size)
    for model in models.values():
        assert model.predict([]) == model.lengths([]) == []


def test_texts_may_be_any_column_or_iterator(workspace: Workspace, adapters, opened) -> None:
    model, texts = opened(), ["the film is good", "the film is bad"]
    expected = model.predict(texts)
    table = pd.DataFrame({"text": texts})
    columns = (tuple(texts), iter(texts), table["text"], table["text"].to_numpy(), Dataset.from_pandas(table)["text"])
    for column in (*columns, dict(enumerate(texts)).values(), np.array(texts), (text for text in texts)):
        assert model.predict(column, batch_size=np.int64(64)) == expected


def test_a_model_that_cannot_be_had_is_one_message(
    workspace: Workspace, adapters, opened, tmp_path, monkeypatch
) -> None:
    run, folder = adapters["films"].run, Path(adapters["films"].artifact)
    other = save_backbone(tmp_path / "other", seed=7)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    shutil.copytree(folder, tmp_path / "apart" / folder.name)
    for target, settings, message in (
        ("nope", {}, r"no model of 'nope' in .*store: there are those of films, meals, pairs"),
        ("films", {"using": "fusion"}, r"no fusion of 'films' in .*store: there is none"),
        ("films", {"store": "nowhere"}, r"nowhere: no such folder \(--store\)"),
        ("films", {"store": "empty"}, r"no model of 'films' in empty: there is none"),
        ("films@0123456789ab", {}, r"no run '0123456789ab' in .*store or reports"),
        ("films@../x", {}, r"no run '../x' in"),
        (f"meals@{run}", {}, rf"run {run} was trained for 'films', not 'meals'"),
        ("Films", {}, r"'Films' is not a task, TASK@RUN or folder of an artifact"),
        ("", {}, r"'' is not a task, TASK@RUN or folder of an artifact"),
        (
            "empty/",
            {"store": None},
            r"'empty/' is not a task, TASK@RUN or folder of an artifact \(it has no manifest.json",
        ),
        (tmp_path / "apart" / run, {"store": None}, r"is not in a store: its place is STORE/adapters/TASK/RUN"),
        (folder, {"store": "empty"}, r"is in another store than empty: leave out store="),
        ("films", {"backbone": other}, r"no model of 'films' .* fits backbone '.*other'"),
        (f"films@{run}", {"backbone": other}, r"was trained on backbone '.*', whose weights are not those of"),
        (f"films@{run}", {"using": "fusion"}, rf"target='films@{run}' names a run, so using='fusion' has no effect"),
        ("films", {"device": "tpu"}, r"device='tpu': give cpu, cuda or cuda:N"),
        ("films", {"device": "cuda:99"}, r"device='cuda:99': there is no such device here"),
        ("films", {"device": "meta"}, r"device='meta': there is no such device here"),
        ("films", {"precision": "fp16", "device": "cpu"}, r"fp16 needs a GPU"),
        ("films", {"precision": "fp8"}, r"precision='fp8': give auto, fp32, bf16, fp16"),
        ("films", {"using": "adaptor"}, r"no run 'adaptor' in .*: give auto, fusion, adapter or a run"),
        *(
            (target, {name: wrong}, rf"^{name}={re.escape(repr(wrong))}: give {remedy}")
            for target in ("films", f"films@{run}")
            for name, wrong, remedy in (
                ("store", 3, "a folder$"),
                ("backbone", 3, "a folder or Hub id$"),
                ("data", 3, "a folder, or a list of folders$"),
                ("data", {"a"}, "a folder, or a list of folders$"),
                ("reports", None, "a folder$"),
                ("using", None, "auto, fusion, adapter or a run$"),
            )
        ),
        (3, {}, "^target=3: give a task, TASK@RUN or the folder of an artifact$"),
        ("films", {"data": [tmp_path, 3]}, "^data=3: give a folder, or a list of folders$"),
        ("films@", {}, "^'films@': name a run after @, or leave @ out$"),
        ("films@ ", {}, "^'films@ ': name a run after @, or leave @ out$"),
        ("meals", {"using": run}, rf"run {run} was trained for 'films', not 'meals'"),
        (f"films@{run}", {"using": run}, rf"target='films@{run}' names a run, so using='{run}' has no effect"),
    ):
        with pytest.raises(PipelineError, match=message) as caught:
            opened(target, **settings)
        assert "\n" not in str(caught.value)
    (folder / "head.safetensors").write_bytes(b"")
    with pytest.raises(PipelineError, match="damaged: its sha256 is not the manifest's"):
        opened("films")


def test_the_backbone_is_the_one_that_the_manifest_names(
    workspace: Workspace, quick: Quick, opened, tmp_path: Path
) -> None:
    moved = dataclasses.replace(workspace, backbone_name=str(save_backbone(tmp_path / "here", seed=7)))
    extract("films", quick("adapter", epochs=1), moved, seed=1)
    texts, expected, _ = commanded(moved, "films")
    assert opened().predict(texts) == expected
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(PipelineError, match=r"here.*The model was trained on it: give its folder or Hub id"):
        opened()
    assert opened(backbone=tmp_path / "there").predict(texts) == expected
    # Of several backbones' models the best one, unless a backbone is named.
    extract("films", quick("adapter", epochs=20, batch_size=8, learning_rate=1e-2), workspace, seed=1)
    assert opened().backbone == workspace.backbone_name
    assert opened(backbone=tmp_path / "there").predict(texts) == expected


def test_a_task_that_has_changed_since_is_refused_if_its_data_are_named(
    workspace: Workspace, adapters, opened, data_folder: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(data_folder, tmp_path / "data"))
    toml = data / "films" / "task.toml"
    toml.write_text(toml.read_text().replace('["bad", "good"]', '["good", "bad"]'))
    with pytest.raises(PipelineError, match=r"had other classes \(now in another order\): train it"):
        opened(data=data)
    assert opened().classes == ("bad", "good")


def test_a_task_may_be_named_by_its_alias_in_the_folders_that_describe_it(
    workspace: Workspace, adapters, opened, data_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    toml = Path(shutil.copytree(data_folder / "films", tmp_path / "data" / "films")) / "task.toml"
    toml.write_text(f'aliases = ["movies"]\n{toml.read_text()}')
    run = adapters["films"].run
    for data in (tmp_path / "data", str(tmp_path / "data"), [tmp_path / "data"], (tmp_path / "empty", toml.parents[1])):
        for target in ("movies", "films", f"movies@{run}"):
            model = opened(target, data=data)
            assert (model.task, model.run) == ("films", run)
    assert opened(data=[]).run == run
    for data in (None, []):
        with pytest.raises(PipelineError, match="no model of 'movies'"):
            opened("movies", data=data)
    with pytest.raises(PipelineError, match="unknown task 'films'"):
        opened(data=[tmp_path / "empty"])


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling": "cls"},
        {"fusion": "anchored"},
        *(pytest.param(each, marks=pytest.mark.long) for each in ({}, {"fusion": "standard"}, {"own_adapter": "none"})),
    ],
    ids=str,
)
def test_an_explanation_is_the_attention_of_each_token(settings, workspace, adapters, quick, opened) -> None:
    """Averaged over tokens, it is what a report says of the same row."""
    fused = fuse("films", quick("fusion", epochs=1, **settings), workspace, seed=1).record
    text = "the film is very good"
    table = opened(f"films@{fused.run}").explain(text)
    assert table.columns.tolist() == ["input", "position", "token", "layer", "site", "adapter", "share"]
    words = table.drop_duplicates("position").sort_values("position")["token"].tolist()
    assert words == ["[CLS]", *text.split(), "[SEP]"]
    assert table.groupby(["position", "layer", "site"])["share"].sum().to_numpy() == pytest.approx(1.0, abs=1e-5)

    rows = pd.DataFrame({"id": ["0"], "text_a": [text], "label": [1]})
    artifact = workspace.store.find(fused.run)
    task = workspace.task("films")
    scoring = Scoring(task, rows, artifact.manifest.recipe, workspace.backbone, make_accelerator("fp32"))
    names = list(table["adapter"].unique())
    sites = site_attention(restore(artifact, task, workspace).backbone, names, scoring.inputs())
    for (layer, place), (total, tokens) in sites.items():
        of_site = table[(table["layer"] == layer) & (table["site"] == place)]
        means = [of_site.loc[of_site["adapter"] == name, "share"].mean() for name in names]
        assert means == pytest.approx((total / tokens).tolist(), abs=1e-6)
        assert len(of_site) == tokens * len(names)


def test_a_pair_is_explained_as_it_is_read(workspace: Workspace, adapters, quick: Quick, opened) -> None:
    pair = ("the film is good", "the meal is very bad")
    cross = fuse("pairs", quick("fusion", epochs=1), workspace, seed=1).record
    table = opened(f"pairs@{cross.run}").explain(pair)
    assert table["input"].unique().tolist() == [0]
    assert len(table["position"].unique()) == 3 + 4 + 5
    for task in ("films", "pairs"):
        extract(
            task, quick("adapter", epochs=1, **({"encoding": "siamese"} if task == "pairs" else {})), workspace, seed=2
        )
    apart = fuse("pairs", quick("fusion", epochs=1, encoding="siamese"), workspace, seed=2).record
    table = opened(f"pairs@{apart.run}").explain(pair)
    for number, text in enumerate(pair):
        words = table[table["input"] == number].drop_duplicates("position")["token"].tolist()
        assert words == ["[CLS]", *text.split(), "[SEP]"]
    twice = opened(f"pairs@{apart.run}").explain((pair[0], pair[0]))
    first, second = (twice[twice["input"] == number]["share"].to_numpy() for number in (0, 1))
    assert np.array_equal(first, second)


def test_only_a_fusion_has_shares_to_explain(workspace: Workspace, adapters, quick: Quick, opened) -> None:
    full = single_run(workspace, "full", "films", quick("full", epochs=1), seed=1).get()
    for target, using in (("films", "adapter"), (f"films@{full.run}", "auto")):
        with pytest.raises(
            PipelineError, match=r"run .* of 'films'\) is not a fusion: only a fusion has shares of adapters"
        ):
            opened(target, using=using, reports=workspace.reports).explain("the film is good")
    fuse("films", quick("fusion", epochs=1), workspace, seed=1)
    with pytest.raises(PipelineError, match="reads a single text"):
        opened(using="fusion").explain(("the film", "is good"))


@pytest.mark.long
def test_the_calling_program_keeps_its_own_accelerate_logging_and_model(workspace: Workspace, adapters) -> None:
    code = (
        "import logging, sys, transformers\nlevel = logging.getLogger('transformers').level\n"
        "from accelerate.state import AcceleratorState, PartialState\nfrom pipeline import load\n"
        f"model = load('films', store={str(workspace.store_root)!r}, precision='bf16')\n"
        "print(model.predict(['the film is good'])[0].label)\n"
        "assert not PartialState._shared_state and not AcceleratorState._shared_state\n"
        "assert logging.getLogger('transformers').level == level == logging.WARNING"
    )
    own = {name: value for name, value in os.environ.items() if not name.endswith("_VERBOSITY")}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=own, capture_output=True, text=True)
    assert (done.returncode, done.stdout) in ((0, "bad\n"), (0, "good\n")), done.stderr
    assert not done.stderr


def test_importing_the_package_loads_nothing_else() -> None:
    code = (
        "import sys, typing; before = set(sys.modules); import pipeline; print(*sorted(set(sys.modules) - before));"
        "assert pipeline.__version__; assert not hasattr(pipeline, 'nothing')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "pipeline pipeline.system pipeline.system.version\n"), done.stderr


@pytest.mark.long
def test_the_types_are_seen_by_a_users_type_checker(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "from pipeline import Predicted, load\nmodel = load('films')\n"
        "found: list[Predicted] = model.predict(['a', ('b', 'c')])\nfound[0].label = 'x'\nmodel.predict([1])\n"
    )
    options = "--config-file= --ignore-missing-imports --follow-imports=silent --no-site-packages"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options.split(), f"--cache-dir={tmp_path / 'cache'}", "program.py"],
        cwd=tmp_path, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    kinds = [message.split("error: ")[1].split("  [")[1] for message in done.stdout.splitlines()[:-1]]
    assert kinds == ["misc]", "list-item]"], done.stdout
    for package in ("pipeline", "stages"):
        assert (ROOT / package / "py.typed").is_file()


def test_the_examples_in_the_documentation_run(
    backbone_folder: Path, data_folder: Path, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, as_here in (("tickets", "films"), ("sts", "pairs")):
        folder = Path(shutil.copytree(data_folder / as_here, tmp_path / "data" / name))
        toml = folder / "task.toml"
        toml.write_text(toml.read_text().replace(f'"{as_here}"', f'"{name}"'))
    places = Workspace(str(backbone_folder), tmp_path / "data", Path("adapters_store"), Path("reports"))
    for name in ("tickets", "sts"):
        extract(name, quick("adapter", epochs=1), places, seed=0)
    fuse("tickets", quick("fusion", epochs=1), places, seed=0)
    for file, count in (("docs/python.md", 5), ("README.md", 1)):
        blocks = [part.partition("```")[0] for part in (ROOT / file).read_text().split("```python\n")[1:]]
        assert len(blocks) == count
        capsys.readouterr()
        names: dict[str, Any] = {}
        for block in blocks:
            exec(compile(block, file, "exec"), names)
        printed = capsys.readouterr().out
        if count == 1:
            assert printed.strip() in places.task("tickets").classes
        else:
            assert float(printed.splitlines()[2])
            assert [line.split()[0] for line in printed.splitlines()[:2]] == [each.label for each in names["answers"]]
            assert names["by_layer"].T.groupby(level="layer").sum().to_numpy() == pytest.approx(1.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_numbers_of_the_cpu(workspace: Workspace, adapters, opened) -> None:
    texts = ["the film is good", "the meal is very bad"]
    models = [opened(device=device) for device in ("cpu", "cuda", "cuda:0")]
    one, *others = [[p.probabilities["good"] for p in model.predict(texts)] for model in models]
    for other in others:
        assert other == pytest.approx(one, abs=1e-4)
