"""The models of a store over HTTP: the numbers of ``predict``, one backbone, and a store that changes meanwhile."""

import json
import math
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

import httpx
import huggingface_hub

from pipeline import Model, load
from pipeline.cli.app import main
from pipeline.records.store import Artifact, Store
from pipeline.system.process import SIGNALS
from stages.explain import listed
from stages.extract import extract
from stages.serve.door import Limits, listen
from stages.serve.serve import make_app
from stages.serve.shelf import StoreShelf
from tests.forked import Forked
from tests.nano import save_backbone
from tests.serving import served
from tests.stages.conftest import Shop

NUMBER = itemgetter("label", "score")


def texts_of(shop: Shop, task: str) -> list[Any]:
    rows = pd.read_csv(shop.workspace.data / task / "dev.csv")
    columns = ["sentence1", "sentence2"] if task == "pairs" else ["sentence"]
    return [list(row) if len(row) > 1 else row[0] for row in rows[columns].itertuples(index=False, name=None)]


@pytest.fixture(scope="module")
def shelf(shop: Shop) -> StoreShelf:
    return StoreShelf.open(shop.store, ["films"], None, "fp32")


@pytest.fixture(scope="module")
def client(shelf: StoreShelf) -> Iterator[httpx.Client]:
    with served(make_app(shelf, Limits())) as address, httpx.Client(base_url=address, timeout=120) as opened:
        yield opened


@pytest.mark.parametrize("name", ["films", "meals", "pairs", "films adapter"])
def test_the_numbers_are_those_of_predict(name: str, shop: Shop, client: httpx.Client) -> None:
    task = name.split()[0]
    target = f"films@{shop.adapters['films'].run}" if "adapter" in name else task
    texts = texts_of(shop, task)
    given = [tuple(text) if task == "pairs" else text for text in texts]
    model = load(target, store=shop.store, precision="fp32")
    expected = model.predict(given)

    def ask(inputs: Any, **options: bool) -> Any:
        answer = client.post(f"/models/{target}/predict", json={"inputs": inputs, "truncate": True, **options})
        assert (answer.status_code, answer.headers["x-model"]) == (200, f"{task}@{model.run}")
        return answer.json()

    # The same texts in one request are the same batch: bit for bit the same numbers.
    assert ask(texts) == [*map(listed, expected)]
    assert ask(texts, raw_scores=True) == [listed(each, "none") for each in expected]
    # Alone or beside others that happen to come at the same time, the padding differs.
    with ThreadPoolExecutor(16) as pool:
        alone = list(pool.map(ask, texts))
    for one, each in zip(alone, expected, strict=True):
        assert dict(map(NUMBER, one)) == pytest.approx(dict(map(NUMBER, listed(each))), abs=1e-5)


def test_the_client_of_huggingface_hub_is_answered(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)  # it would refuse even this machine
    huggingface_hub.configure_http_backend()
    text = "the film is good"
    plain = client.post("/predict", json={"inputs": text}).json()
    raw = client.post("/predict", json={"inputs": text, "raw_scores": True}).json()
    for address in (f"{client.base_url}/predict", f"{client.base_url}/predict/", str(client.base_url)):
        hub = huggingface_hub.InferenceClient(model=address, token="x")
        assert hub.text_classification(text) == plain
        assert hub.text_classification(text, top_k=1) == plain[:1]
        assert hub.text_classification(text, function_to_apply="softmax", top_k=9) == plain
        assert hub.text_classification(text, function_to_apply="none") == raw
        sigmoids = hub.text_classification(text, function_to_apply="sigmoid")
        assert [each.score for each in sigmoids] == pytest.approx([1 / (1 + math.exp(-each["score"])) for each in raw])
    pairs = huggingface_hub.InferenceClient(model=f"{client.base_url}/models/pairs/predict", token="x")
    pair = ["the film is good", "the song is bad"]
    expected = client.post("/models/pairs/predict", json={"inputs": pair}).json()
    for given in (pair, {"text": pair[0], "text_pair": pair[1]}):
        assert pairs.text_classification(given) == expected
    with pytest.raises(huggingface_hub.errors.HfHubHTTPError, match="422"):
        pairs.text_classification(text)
    huggingface_hub.configure_http_backend()  # forgets the sessions that take no notice of being offline


@pytest.mark.parametrize("form", ["task", "run", "folder"])
def test_the_default_model_is_the_one_that_was_named(form: str, shop: Shop) -> None:
    run = shop.adapters["films"].run  # not the task's best
    name, target = {
        "task": ("films", "films"),
        "run": (f"films@{run}", f"films@{run}"),
        "folder": (f"films@{run}", str(shop.store / "adapters" / "films" / run)),
    }[form]
    shelf = StoreShelf.open(shop.store, [target], None, "fp32")
    assert shelf.default == name
    asked = shelf.load(name).name
    assert asked == (f"films@{shop.fusions['films'].run}" if form == "task" else name)
    assert [model["name"] for model in shelf.models() if model["default"]] == [asked]


def test_few_models_stay_in_memory_and_answer_the_same(shelf: StoreShelf, shop: Shop) -> None:
    small = StoreShelf.open(shop.store, ["films"], None, "fp32", most=1)
    assert (small.tasks, small.loaded) == (shelf.tasks, 1)
    for name in ("films", "meals", "pairs", "films", "meals"):
        rows = [(tuple(text) if isinstance(text, list) else text, False) for text in texts_of(shop, name)[:3]]
        model = small.find(name) or small.load(name)
        assert small.find(name) is model
        assert small.loaded == 1
        assert model.answers(rows) == shelf.load(name).answers(rows)


def test_the_model_that_was_not_asked_longest_makes_room(shop: Shop) -> None:
    small = StoreShelf.open(shop.store, ["films"], None, "fp32", most=2)
    for name in ("films", "meals"):
        small.load(name)
    assert small.find("films") is not None
    small.load("pairs")
    assert [small.find(name) is None for name in ("films", "meals", "pairs")] == [False, True, False]


def test_a_model_that_is_damaged_when_it_is_asked_for_gives_way_to_the_next_best(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = shutil.copytree(shop.store, tmp_path / "store")
    small = StoreShelf.open(store, ["pairs"], None, "fp32", most=1)
    (best,) = (each for each in small.models() if each["task"] == "films" and each["best"])
    assert not best["loaded"]
    head = store / f"{best['kind']}s" / "films" / best["run"] / "head.safetensors"
    head.write_bytes(head.read_bytes()[:-1] + b"\x01")
    other = small.load("films")
    assert other.name != best["name"]
    assert small.find("films") is other
    assert capsys.readouterr().err.count(f"warning: {best['name']} cannot be loaded yet") == 1


@pytest.mark.parametrize(("part", "left_out"), [("fusion", 1), ("source", 3)])
def test_a_model_that_is_seen_while_it_is_copied_is_served_once_it_is_whole(
    part: str, left_out: int, shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two fusions mix the adapter that is a source."""
    store = shutil.copytree(shop.store, tmp_path / "store")
    record = shop.fusions["films"] if part == "fusion" else shop.adapters["meals"]
    file = store / f"{record.kind}s" / record.task / record.run / "head.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:50])
    weaker = load(f"films@{shop.adapters['films'].run}", store=store, precision="fp32")
    shelf = StoreShelf(weaker, Store(store), {})
    for _ in range(2):
        shelf.refresh()
        assert shelf.load("films").name == f"films@{shop.adapters['films'].run}"
    assert capsys.readouterr().err.count("cannot be loaded yet") == left_out
    file.write_bytes(content)
    shelf.refresh()
    assert shelf.load("films").name == f"films@{shop.fusions['films'].run}"
    assert shelf.tasks == ["films", "meals", "pairs"]
    assert capsys.readouterr().err == ""


def test_a_model_that_fails_in_an_unforeseen_way_costs_the_others_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = Model.sibling

    def sibling(model: Model, artifact: Artifact) -> Model:
        if artifact.manifest.task == "meals":
            raise RuntimeError("unforeseen")
        return original(model, artifact)

    monkeypatch.setattr(Model, "sibling", sibling)
    shelf = StoreShelf.open(shop.store, ["films"], None, "fp32")
    shelf.refresh()
    assert shelf.tasks == ["films", "pairs"]
    assert capsys.readouterr().err.count("RuntimeError: unforeseen") == 1


def test_texts_that_are_too_long_or_unfit_cost_others_no_answer(client: httpx.Client) -> None:
    bodies = [
        ({"inputs": "the film is good"}, 200),
        ({"inputs": "very " * 50}, 413),
        ({"inputs": "very " * 50, "truncate": True}, 200),
        ({"inputs": ["the film is good", "very " * 50]}, 413),
        ({"inputs": ["the film is good", " "]}, 422),
        ({"inputs": ["a", "b"]}, 200),
    ]
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: client.post("/predict", json=body[0]), bodies))
    assert [answer.status_code for answer in answers] == [status for _, status in bodies]
    assert answers[1].json()["error"] == (
        'inputs has 52 tokens, and films reads 24: shorten it, or send "truncate": true to have its end cut'
    )
    assert answers[3].json()["error"].startswith("inputs[1] has 52 tokens")
    assert answers[4].json()["error"].startswith("inputs[1] is ' ': a blank text")


def test_several_tasks_and_an_explanation(client: httpx.Client, shop: Shop) -> None:
    every = client.post("/predict/all", json={"inputs": "the film is good"}).json()
    assert every["answers"].keys() == {"films", "meals"}
    assert "task 'pairs' reads a pair of texts" in every["left_out"]["pairs"]
    found = client.post("/models/films/explain", json={"inputs": "the film is good"}).json()
    assert found["answer"] == client.post("/predict", json={"inputs": "the film is good"}).json()
    assert [each["adapter"] for each in found["without"]] == ["meals", "pairs", "films"]
    assert found["inputs"][0]["tokens"][1:3] == ["the", "film"]
    pair = {"inputs": ["the film is good", "the song is bad"]}
    for record in (shop.fusions["pairs"], shop.adapters["pairs"]):
        assert client.post(f"/models/pairs@{record.run}/explain", json=pair).json()["run"] == record.run


@pytest.fixture
def changing(shop: Shop, tmp_path: Path, quick: Callable[..., Any]) -> tuple[Path, list[Any]]:
    """A store with the weaker of two adapters of films, and the artifacts of both, the better one last."""
    workspace = shop.copied(tmp_path)
    extract("films", quick("adapter", learning_rate=1e-3, epochs=1), workspace, seed=2)
    artifacts = [
        each for each in workspace.store.artifacts() if each.manifest.task == "films" and not each.manifest.sources
    ]
    ranked = sorted(artifacts, key=lambda each: (each.manifest.dev, each.manifest.run))[-2:]
    put(ranked[0], tmp_path / "own")
    return tmp_path / "own", ranked


def put(artifact: Any, store: Path) -> None:
    """Copy an artifact into a store, where it appears complete or not at all."""
    target = store / artifact.manifest.place
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(artifact.folder, target.with_name(".new"))
    target.with_name(".new").rename(target)


def test_a_better_model_is_swapped_in_without_a_lost_or_wrong_answer(
    changing: tuple[Path, list[Any]], shop: Shop
) -> None:
    store, (weak, strong) = changing
    texts = texts_of(shop, "films")
    expected = {
        f"films@{each.manifest.run}": [one.probabilities for one in load(each.folder, precision="fp32").predict(texts)]
        for each in (weak, strong)
    }
    asked: list[str] = []
    with served(make_app(StoreShelf.open(store, [], None, "fp32"), Limits(poll=0.05))) as address:

        def client(number: int) -> None:
            with httpx.Client(base_url=address, timeout=60) as own:
                after = 0
                while after < 10:
                    answer = own.post("/predict", json={"inputs": texts[number]})
                    assert answer.status_code == 200
                    name = answer.headers["x-model"]
                    scores = {label["label"]: label["score"] for label in answer.json()}
                    assert scores == pytest.approx(expected[name][number], abs=1e-5)
                    asked.append(name)
                    after += name == f"films@{strong.manifest.run}"
                    if len(asked) == 40:
                        put(strong, store)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(client, range(8)))
        assert "pipeline_model_swaps_total 1" in httpx.get(f"{address}/metrics").text
    assert set(asked) == {*expected}


def test_a_store_that_changes_is_picked_up(
    changing: tuple[Path, list[Any]], shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    store, (weak, strong) = changing
    shelf = StoreShelf.open(store, [], None, "fp32")
    names = [f"films@{each.manifest.run}" for each in (weak, strong)]
    put(strong, store)
    assert shelf.load("films").name == names[0]
    shelf.refresh()
    assert shelf.load("films").name == names[1]
    assert shelf.load(names[0]).name == names[0]
    # The best one is damaged before it is read: the next best serves, and one line says so.
    assert capsys.readouterr().err == ""
    pinned = StoreShelf.open(store, [names[0]], None, "fp32")
    assert pinned.default == pinned.load("films").name == names[0]
    assert [model["name"] for model in pinned.models() if model["best"]] == [names[0]]
    damaged = store / strong.manifest.place / "head.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x01")
    fresh = StoreShelf(load(names[0], store=store, precision="fp32"), Store(store), {})
    assert fresh.load("films").name == names[0]
    fresh.refresh()
    assert capsys.readouterr().err.count("damaged") == 1
    # What is in memory needs no file any more.
    assert shelf.load("films").model.predict(["the film is good"])
    shutil.rmtree(store / strong.manifest.place)
    shelf.refresh()
    assert shelf.load("films").name == names[0]
    with pytest.raises(KeyError):
        shelf.load(names[1])
    # Trained again: other contents under the same name.
    before = shelf.load("films").model
    manifest = json.loads((store / weak.manifest.place / "manifest.json").read_text())
    shutil.copy(strong.folder / "head.safetensors", store / weak.manifest.place / "head.safetensors")
    manifest["files"]["head.safetensors"] = strong.manifest.files["head.safetensors"]
    (store / weak.manifest.place / "manifest.json").write_text(json.dumps(manifest))
    shelf.refresh()
    assert shelf.load("films").model.predict(["the film is good"]) != before.predict(["the film is good"])
    # A store that is away is one that may come back.
    store.rename(store.with_name("away"))
    shelf.refresh()
    assert shelf.tasks == ["films"]
    assert "no such folder" in capsys.readouterr().err
    shutil.rmtree(store.with_name("away") / "adapters")
    store.with_name("away").rename(store)
    shelf.refresh()
    assert shelf.tasks == []


def test_what_cannot_be_served_is_one_message(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    other = save_backbone(tmp_path / "other", seed=5)
    with listen("127.0.0.1", 0) as taken:
        cases: list[tuple[list[str], str]] = [
            (["--store", str(tmp_path / "nowhere")], "no such folder"),
            (["--store", str(tmp_path / "empty")], "no model in"),
            (["--port", str(taken.getsockname()[1])], "Address already in use: give another --port"),
            (
                ["--model", "films@0123456789ab"],
                "has no such run, and only its adapters and fusions are served: see store list",
            ),
            (["--backbone", str(other)], "no model of 'films'"),
            (["--max-queue", "10"], r"--max-queue 10: give at least --max-batch (64)"),
            (["--max-wait", "nan"], "--max-wait nan: give 0 to 60000"),
            (["--poll", "inf"], "--poll inf: give 0.05 to 86400"),
        ]
        for arguments, message in cases:
            places = [] if "--store" in arguments else ["--store", str(shop.store)]
            port = [] if "--port" in arguments else ["--port", "0"]
            assert main(["serve", *arguments, *places, *port, "--precision", "fp32"]) == 2
            error = capsys.readouterr().err
            assert message in error
            assert "Traceback" not in error
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["serve", "--store", str(shop.store)]) == 2
    assert "serve needs fastapi: install the extra" in capsys.readouterr().err


def test_a_batch_of_the_queue_is_one_forward_pass(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than 64 texts too, where --max-batch allows them."""
    served = StoreShelf.open(shop.store, ["films"], None, "fp32").load("films")
    sizes, encode = [], served.model._model.backbone.forward

    def forward(*arguments: Any, **inputs: Any) -> Any:
        sizes.append(len(inputs["input_ids"]))
        return encode(*arguments, **inputs)

    monkeypatch.setattr(served.model._model.backbone, "forward", forward)
    assert len(served.answers([("the film is good", True)] * 100)) == 100
    assert len(sizes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [SIGNALS[0], *(pytest.param(n, marks=pytest.mark.long) for n in SIGNALS[1:])])
def test_a_signal_stops_the_server_once_it_has_answered(number: signal.Signals, shop: Shop) -> None:
    """The real process: requests that arrived before the signal get their answers, and the status is 0."""
    line = ["serve", "--store", str(shop.store), "--port", "0", "--max-wait", "1500", "--precision", "fp32"]
    with closing(Forked([*line, "--model", "films"])) as server:
        started = server.first_line()
        address = started.split()[1]
        assert started == f"serving {address} (films, meals, pairs; POST /predict asks films)"
        with ThreadPoolExecutor(4) as pool:
            # They wait for others to be computed with, longer than until the signal.
            body = {"inputs": "the film is good"}
            answers = [pool.submit(httpx.post, f"{address}/predict", json=body, timeout=60) for _ in range(4)]
            while "pipeline_queue_rows 4" not in httpx.get(f"{address}/metrics", timeout=60).text:
                time.sleep(0.01)
            server.send_signal(number)
            assert [each.result().status_code for each in answers] == [200] * 4
        assert server.wait(60) == 0
        assert server.printed() == f"{started}\nstopping: no new requests; those that arrived are answered\n"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/health")
