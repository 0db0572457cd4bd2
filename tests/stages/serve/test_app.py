"""The server's addresses with models of our own making: forms, limits, errors, and that a page loads nothing else."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

import httpx

from pipeline.runs.model import Predicted
from pipeline.system.errors import PipelineError
from stages.explain import TooLong, listed
from stages.serve.door import Limits, hosts_of, listen
from stages.serve.serve import make_app, read_page
from tests.serving import served

Client = Callable[..., httpx.Client]


class Fake:
    """Answers with the length of a text; words beyond four are too many unless they may be cut."""

    def __init__(self, name: str, is_pair: bool = False) -> None:
        self.name, self.is_pair = name, is_pair
        self.open = threading.Event()
        self.open.set()
        self.asked = 0

    def check(self, text: Any, where: str) -> Any:
        parts = text if isinstance(text, list) else [text]
        is_text = len(parts) == 1 + self.is_pair and all(isinstance(part, str) for part in parts)
        if isinstance(text, list) != self.is_pair or not is_text:
            raise PipelineError(f"{where} is {text!r}: not what {self.name} reads")
        if not all(part.strip() for part in parts):
            raise PipelineError(f"{where} is {text!r}: blank")
        return tuple(parts) if self.is_pair else text

    def answers(self, rows: Sequence[Any]) -> list[Predicted | TooLong]:
        self.asked += 1
        assert self.open.wait(20)
        if any(text == "boom" for text, _ in rows):
            raise RuntimeError("boom")
        return [self._answer(text, cut) for text, cut in rows]

    def _answer(self, text: Any, cut: bool) -> Predicted | TooLong:
        words = " ".join([text] if isinstance(text, str) else text).split()
        if len(words) > 4 and not cut:
            return TooLong(f"has {len(words)} tokens")
        return Predicted("short", None, {"short": 1 - len(words) / 100, "long": len(words) / 100}, (-1.0, 1.0))


class FakeShelf:
    default: str | None = "films"
    loaded = 2

    def __init__(self) -> None:
        self.served = {"films": Fake("films@1"), "pairs": Fake("pairs@2", is_pair=True)}
        self.refreshed = self.loads = 0

    @property
    def tasks(self) -> list[str]:
        return list(self.served)

    def models(self) -> list[dict[str, Any]]:
        return [{"name": served.name} for served in self.served.values()]

    def has(self, name: str) -> bool:
        return name == "damaged" or name in self.served

    def find(self, name: str) -> Fake | None:
        return self.served.get(name)

    def load(self, name: str) -> Fake:
        self.loads += 1
        if name == "damaged":
            raise PipelineError("damaged: train it again")
        return self.served[name]

    def explainer(self, name: str, text: Any) -> tuple[Callable[[], dict[str, Any]], int]:
        return lambda: {"text": text, "task": name}, 5

    def refresh(self) -> int:
        self.refreshed += 1
        raise OSError("the disk is away for a moment")


@pytest.fixture
def shelf() -> FakeShelf:
    return FakeShelf()


@pytest.fixture
def client(shelf: FakeShelf) -> Iterator[Client]:
    with ExitStack() as stack:

        def open_client(hosts: Sequence[str] = ("*",), **limits: Any) -> httpx.Client:
            address = stack.enter_context(served(make_app(shelf, Limits(**limits), hosts)))
            return stack.enter_context(httpx.Client(base_url=address, timeout=30))

        yield open_client
        for model in shelf.served.values():
            model.open.set()


@pytest.fixture(scope="module")
def opened() -> Iterator[httpx.Client]:
    """A client of one server for all tests that leave it as it was."""
    app = make_app(FakeShelf(), Limits(max_body=150_000, max_batch=3), ["*"])
    with served(app) as address, httpx.Client(base_url=address, timeout=30) as client:
        yield client


UNREAD = "inputs is 'a': not what pairs@2 reads"


def sent(short: float, long: float) -> list[dict[str, Any]]:
    """An answer as it is sent, the higher score first."""
    labels = [{"label": "short", "score": short}, {"label": "long", "score": long}]
    return sorted(labels, key=lambda each: -each["score"])


SHORT, PAIR = sent(0.99, 0.01), sent(0.98, 0.02)


@pytest.mark.parametrize(
    ("address", "body", "expected"),
    [
        ("/predict", {"inputs": "a"}, SHORT),
        ("/predict", {"inputs": ["a"]}, [SHORT]),
        ("/predict", {"inputs": ["a", "b"]}, [SHORT, SHORT]),
        ("/predict", {"inputs": [["a"], ["b"]]}, [SHORT, SHORT]),
        ("/predict", {"inputs": "a", "raw_scores": True}, sent(-1.0, 1.0)),
        ("/predict", {"inputs": "a b c d e f", "truncate": True}, sent(0.94, 0.06)),
        ("/predict", {"inputs": "a", "parameters": {}}, [SHORT]),
        ("/predict", {"inputs": "a", "parameters": {"top_k": 1}, "options": {"use_cache": False}}, [SHORT[:1]]),
        ("/predict", {"inputs": ["a", "b"], "parameters": {"truncation": True, "max_length": 9}}, [SHORT, SHORT]),
        ("/predict", {"inputs": "a b c d e f", "parameters": {"truncation": True}}, [sent(0.94, 0.06)]),
        ("/predict", {"inputs": "a", "parameters": {"function_to_apply": "none"}}, [sent(-1.0, 1.0)]),
        ("/predict", {"inputs": "a", "function_to_apply": "sigmoid"}, sent(0.2689414213699951, 0.7310585786300049)),
        ("/predict", {"inputs": "a", "truncate": None, "raw_scores": None, "truncation_direction": "Left"}, SHORT),
        ("/predict", {"inputs": {"text": "a"}, "model": "x", "stream": False}, SHORT),
        ("/models/pairs/predict", {"inputs": {"text": "a", "text_pair": "b"}}, PAIR),
        ("/models/pairs/predict", {"inputs": [{"text": "a", "text_pair": "b"}], "parameters": None}, [PAIR]),
        ("/models/pairs/predict", {"inputs": ["a", "b"], "parameters": {}}, [PAIR]),
        ("/", {"inputs": "a"}, SHORT),
        ("/predict/", {"inputs": "a"}, SHORT),
        ("/predict/all/", {"inputs": "a", "tasks": ["films"]}, {"answers": {"films": SHORT}, "left_out": {}}),
        ("/models/films/predict", {"inputs": "a"}, SHORT),
        ("/models/pairs/predict", {"inputs": ["a", "b"]}, PAIR),
        ("/models/pairs/predict", {"inputs": [["a", "b"]]}, [PAIR]),
        ("/models/pairs/predict", {"inputs": [["a", "b"], ["c", "d"]]}, [PAIR, PAIR]),
        ("/models/films/explain", {"inputs": "a"}, {"text": "a", "task": "films"}),
        ("/models/pairs/explain", {"inputs": ["a", "b"]}, {"text": ["a", "b"], "task": "pairs"}),
        ("/predict/all", {"inputs": "a"}, {"answers": {"films": SHORT}, "left_out": {"pairs": UNREAD}}),
        ("/predict/all", {"inputs": "a", "tasks": ["films"]}, {"answers": {"films": SHORT}, "left_out": {}}),
    ],
    ids=str,
)  # fmt: skip
def test_answers_have_the_form_of_the_inputs(opened: httpx.Client, address: str, body: Any, expected: Any) -> None:
    answer = opened.post(address, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json() == expected
    assert answer.headers["content-type"] == "application/json"


REFUSED: list[tuple[str, Any, int, str]] = [
    *(("/predict", body, 422, "the body is not JSON") for body in (b"", b"nonsense", b"\xff\xfe\x00", b"1" * 5000)),
    ("/predict", b"[" * 100_000, 422, "the body is not JSON: nested too deeply"),
    *(("/predict", body, 422, "the body is .*: write an object") for body in (b'"a text"', b"[]")),
    ("/predict", {}, 422, "inputs: missing"),
    ("/predict", {"inputs": "a", "truncate": "yes"}, 422, "truncate: Input should be a valid boolean"),
    ("/predict", {"inputs": "a", "raw_scores": 1}, 422, "raw_scores: Input should be a valid boolean"),
    ("/predict", {"inputs": "a", "parameters": {"top_k": 0}}, 422, "top_k"),
    ("/predict", {"inputs": "a", "parameters": {"function_to_apply": "tanh"}}, 422, "function_to_apply"),
    ("/predict", {"inputs": "a", "parameters": 7}, 422, "parameters"),
    ("/predict", {"inputs": "a b c d e", "truncate": True, "truncation_direction": "left"}, 413, "5 tokens"),
    ("/predict", {"inputs": []}, 422, "inputs is empty"),
    ("/predict", {"inputs": None}, 422, "inputs"),
    *(("/predict", {"inputs": inputs}, 422, "inputs is ") for inputs in (7, True, {"words": "a"})),
    ("/predict", {"inputs": ["a", " "]}, 422, r"inputs\[1\] is ' ': blank"),
    ("/predict", {"inputs": ""}, 422, "inputs is '': blank"),
    ("/predict", {"inputs": ["a", 7]}, 422, r"inputs\[1\] is 7"),
    ("/predict", {"inputs": [["a", "b"]]}, 422, r"inputs\[0\] is \['a', 'b'\]: not what films@1 reads"),
    ("/predict", {"inputs": "a b c d e"}, 413, "inputs has 5 tokens"),
    ("/predict", {"inputs": ["a", "a b c d e"]}, 413, r"inputs\[1\] has 5 tokens"),
    ("/predict", {"inputs": ["a"] * 4}, 413, "inputs has 4 texts or pairs, more than 3"),
    ("/predict", {"inputs": "a" * 200_000}, 413, "the body is longer than 150000 bytes"),
    ("/models/pairs/predict", {"inputs": "a"}, 422, "not what pairs@2 reads"),
    *(("/models/pairs/predict", {"inputs": [["a", "b"], c]}, 422, "not what pairs@2 reads") for c in ("c", ["a"])),
    ("/models/nope/predict", {"inputs": "a"}, 404, "no model 'nope': there are those of films, pairs"),
    ("/models/..%2F..%2Fetc/predict", {"inputs": "a"}, 404, "(?i)no"),
    ("/models/%2Fetc%2Fpasswd/predict", {"inputs": "a"}, 404, "(?i)no"),
    ("/models/damaged/predict", {"inputs": "a"}, 503, "model 'damaged' cannot be loaded: damaged: train it again"),
    ("/models/nope/explain", {"inputs": "a"}, 404, "no model 'nope'"),
    ("/models/films/explain", {"inputs": ["a", "b"]}, 422, "an explanation is of one text or pair"),
    ("/models/films/explain", {"inputs": "a", "truncate": True}, 422, "truncate: unknown key"),
    ("/predict/all", {"inputs": "a", "tasks": []}, 422, "tasks: List should have at least 1 item"),
    ("/predict/all", {"inputs": "a", "tasks": ["nope"]}, 404, "no model 'nope'"),
    ("/predict/all", {"inputs": "a", "tasks": ["pairs"]}, 422, "not what pairs@2 reads"),
    ("/predict/all", {"inputs": " "}, 422, "blank"),
    ("/predict", {"inputs": "boom"}, 500, "the server failed"),
    ("/nowhere", {"inputs": "a"}, 404, "POST '/nowhere': Not Found"),
    ("/health", {"inputs": "a"}, 405, "POST '/health': Method Not Allowed"),
]


@pytest.mark.parametrize(("address", "body", "status", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_answered_is_one_clear_message(
    opened: httpx.Client, address: str, body: Any, status: int, message: str
) -> None:
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = opened.post(address, **sent)
    assert answer.status_code == status
    assert answer.json().keys() == {"error", "error_type"}
    assert re.search(message, answer.json()["error"])
    assert "\n" not in answer.json()["error"]
    # The server goes on.
    assert opened.post("/predict", json={"inputs": "a"}).json() == SHORT


def test_an_answer_lists_its_labels_the_highest_first_and_equal_ones_in_order() -> None:
    answer = Predicted("b", None, {"a": 0.2, "b": 0.4, "c": 0.4})
    assert [each["label"] for each in listed(answer)] == ["b", "c", "a"]


@pytest.mark.parametrize("names", [["no", "yes"], ["yes", "no"]])
def test_the_raw_score_of_a_cosine_is_that_of_similar_texts(names: list[str]) -> None:
    similar = Predicted("yes", None, {name: float(name == "yes") for name in names}, outputs=(0.7,))
    assert listed(similar, "none") == [{"label": "yes", "score": 0.7}, {"label": "no", "score": -0.7}]
    other = Predicted("no", None, {name: float(name == "no") for name in names}, outputs=(-0.7,))
    assert listed(other, "none") == [{"label": "no", "score": 0.7}, {"label": "yes", "score": -0.7}]


def test_a_body_without_a_length_is_read_no_further_than_the_limit(client: Client) -> None:
    address = client(max_body=1000).base_url
    with socket.create_connection((address.host, address.port), timeout=30) as opened:
        opened.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(11):
            opened.sendall(b"64\r\n" + b" " * 100 + b"\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            part = opened.recv(10_000)
            assert part
            answer += part
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"the body is longer than 1000 bytes" in answer


def test_a_full_queue_is_429_with_the_time_to_wait_and_loses_none(client: Client, shelf: FakeShelf) -> None:
    opened = client(max_queue=2, max_batch=1, max_wait=0.0)
    films = shelf.served["films"]
    films.open.clear()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(opened.post, "/predict", json={"inputs": "a"}) for _ in range(8)]
        while sum(each.done() for each in answers) < 5:  # one is computed, two wait
            time.sleep(0.005)
        films.open.set()
        found = [each.result() for each in answers]
    assert sorted(each.status_code for each in found) == [200] * 3 + [429] * 5
    refused = next(each for each in found if each.status_code == 429)
    assert (refused.headers["retry-after"], refused.json()["error_type"]) == ("1", "overloaded")
    assert opened.post("/predict", json={"inputs": "a"}).json() == SHORT


def test_an_explanation_takes_the_room_of_its_passes_and_no_more_than_there_is(
    client: Client, shelf: FakeShelf
) -> None:
    opened = client(max_queue=4, max_batch=1, max_wait=0.0)
    films = shelf.served["films"]
    films.open.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(opened.post, "/predict", json={"inputs": "a"})
        while not films.asked:
            time.sleep(0.005)
        explained = pool.submit(opened.post, "/models/films/explain", json={"inputs": "a"})
        while "pipeline_queue_rows 4.0" not in opened.get("/metrics").text:
            time.sleep(0.005)
        assert opened.post("/predict", json={"inputs": "a"}).status_code == 429
        films.open.set()
    assert first.result().json() == SHORT
    assert explained.result().json() == {"text": "a", "task": "films"}
    assert "pipeline_queue_rows 0.0" in opened.get("/metrics").text


@pytest.mark.parametrize(
    ("tasks", "status", "message"),
    [
        ([f"none{number}" for number in range(100_000)], 404, "no model 'none0'"),
        (["films", "pairs", "damaged"], 413, "tasks has 3 names, more than 2: send fewer at once"),
    ],
    ids=["unknown", "many"],
)
def test_names_of_tasks_are_refused_before_anything_is_loaded(
    tasks: list[str], status: int, message: str, client: Client, shelf: FakeShelf
) -> None:
    answer = client(max_body=2**22, max_models=1).post("/predict/all", json={"inputs": "a", "tasks": tasks})
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert (shelf.loads, shelf.served["films"].asked) == (0, 0)


def test_stopping_answers_what_waits(shelf: FakeShelf) -> None:
    films, app = shelf.served["films"], make_app(shelf, Limits(max_wait=0.0, max_batch=1))
    with ThreadPoolExecutor(8) as pool:
        with served(app) as address:
            films.open.clear()
            answers = [pool.submit(httpx.post, f"{address}/predict", json={"inputs": "a"}) for _ in range(5)]
            while app.state.service.batcher.waiting < 4:
                time.sleep(0.005)
            threading.Timer(0.3, films.open.set).start()
        assert [each.result().json() for each in answers] == [SHORT] * 5
        assert not app.state.service.batcher.is_alive


def test_health_models_metrics_and_openapi(client: Client, shelf: FakeShelf) -> None:
    opened = client()
    opened.post("/predict", json={"inputs": "a"})
    opened.post("/models/secret-name/predict", json={"inputs": "a"})
    assert opened.get("/health").json() == {"status": "ok"}
    assert opened.get("/models").json() == {"default": "films", "models": [{"name": "films@1"}, {"name": "pairs@2"}]}
    metrics = opened.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'pipeline_requests_total{path="/predict",status="200"} 1' in metrics.text
    assert 'path="/models/{name}/predict",status="404"' in metrics.text
    assert "secret-name" not in metrics.text
    for line in (
        "pipeline_models_loaded 2.0", "pipeline_queue_rows 0.0", "pipeline_model_swaps_total 0.0",
        "pipeline_batch_rows_sum 1.0", 'pipeline_batch_rows_bucket{le="4.0"} 1.0', "pipeline_batch_seconds_count 1.0",
        'pipeline_request_seconds_count{path="/predict"} 1.0', 'seconds_bucket{le="0.005",path="/predict"} ',
    ):  # fmt: skip
        assert line in metrics.text
    described = opened.get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]
    assert described["content"]["application/json"]["schema"]["required"] == ["inputs"]
    shelf.served.clear()
    assert opened.get("/health").status_code == 503


def test_without_a_default_model_predict_says_what_to_ask(client: Client, shelf: FakeShelf) -> None:
    shelf.default = None
    answer = client().post("/predict", json={"inputs": "a"})
    assert answer.status_code == 404
    assert "POST /models/TASK/predict, where TASK is one of films, pairs" in answer.json()["error"]


def test_a_store_that_fails_for_a_while_is_looked_at_again_and_named_once(
    client: Client, shelf: FakeShelf, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = client(poll=0.02)
    while shelf.refreshed < 4:
        time.sleep(0.01)
    assert opened.get("/health").status_code == 200
    assert capsys.readouterr().err.count("OSError: the disk is away") == 1


def test_every_answer_forbids_to_guess_its_type_and_the_page_all_but_itself(client: Client) -> None:
    opened = client()
    for address in ("/", "/health", "/nowhere"):
        assert opened.get(address).headers["x-content-type-options"] == "nosniff"
    page = opened.get("/")
    policy = page.headers["content-security-policy"]
    assert (page.text, policy) == read_page()
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    for outside in ("http://", "https://", "//cdn", "@import", "url("):
        assert outside not in page.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((name, 200) for name in ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "my-machine")),
        *((name, 400) for name in ("rebound.example", "rebound.example:8000", "localhost.rebound.example", "[::1", "")),
    ],
)
def test_a_request_for_another_name_is_refused_and_counted(host: str, status: int, client: Client) -> None:
    with closing(listen("127.0.0.1", 0)) as bound:
        opened = client(hosts=hosts_of(bound, "my-machine"))
    answer = opened.get("/models", headers={"host": host})
    assert (answer.status_code, answer.headers["x-content-type-options"]) == (status, "nosniff")
    assert f'status="{status}"' in opened.get("/metrics").text
