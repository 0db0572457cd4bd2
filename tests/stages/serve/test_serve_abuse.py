"""Clients that are slow, large, broken or many: others get right answers meanwhile, and memory is bounded."""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

import httpx

from tests.forked import Forked
from tests.stages.conftest import Shop

GOOD = {"inputs": "the film is good"}
MOST_MB = 150
"""What abuse may add to the server's memory: 64 bodies of 1 MiB, and the texts that wait."""


@pytest.fixture(scope="module")
def process(shop: Shop) -> Iterator[tuple[psutil.Process, str]]:
    """The real server, and its address."""
    line = ["serve", "--store", str(shop.store), "--port", "0", "--precision", "fp32", "--model", "films"]
    with closing(Forked(line)) as started:
        yield psutil.Process(started.pid), started.first_line().split()[1]


def connected(address: str) -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def slowly(address: str) -> None:
    """Headers, and then a body, a byte at a time, neither of which ever ends."""
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
    for start in (head, head + b"\r\n"):
        with connected(address) as opened:
            opened.sendall(start)
            for letter in b"X-Slow: yes" if start is head else b'{"inputs":':
                time.sleep(0.05)
                opened.sendall(bytes([letter]))


def hugely(address: str) -> None:
    """A body that is too long as its header says, and one that turns out to be."""
    for body in (b"x" * 2**24, (b"x" * 2**16 for _ in range(2**8))):
        with suppress(httpx.TransportError):  # the connection is closed before all is sent
            assert httpx.post(f"{address}/predict", content=body, timeout=60).status_code == 413


def wordily(address: str) -> None:
    """A text of 100,000 tokens, cut or not; the longest that is read; and too many short ones."""
    for long in ({"inputs": "good " * 100_000}, {"inputs": "good " * 100_000, "truncate": True}):
        assert httpx.post(f"{address}/predict", json=long, timeout=60).status_code == 413
    cut = {"inputs": "a " * 2**15, "truncate": True}
    assert httpx.post(f"{address}/predict", json=cut, timeout=60).status_code == 200
    assert httpx.post(f"{address}/predict", json={"inputs": ["good"] * 1000}, timeout=60).status_code == 413


BROKEN = (
    b"",
    b"{",
    b"[" * 100_000,
    b'{"inputs": "\xff"}',
    b'{"inputs": "\\ud800"}',
    b"null",
    b'{"inputs": {}}',
    b"NaN",
)


def brokenly(address: str) -> None:
    """Bodies that are no JSON, or not of the right form."""
    for body in BROKEN:
        assert httpx.post(f"{address}/predict", content=body, timeout=60).status_code == 422


NAMES = (
    "..",
    "../../etc/passwd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "films%00",
    "~root",
    "C:%5Cx",
    "a" * 5000,
    "%E2%80%AEfilms",
)


def sneakily(address: str) -> None:
    """Names of models that could be paths, sent as they are."""
    for name in NAMES:
        connection = HTTPConnection(urlsplit(address).netloc, timeout=60)
        with closing(connection):
            connection.request("POST", f"/models/{name}/predict", json.dumps(GOOD))
            answer = connection.getresponse()
            content = answer.read()
        assert answer.status in (404, 405, 422)
        assert len(content) < 1000 and b"root:" not in content


def rebound(address: str) -> None:
    """What a page of another site sends whose name has come to resolve to this machine."""
    for path in ("/models", "/", "/metrics"):
        assert httpx.get(f"{address}{path}", headers={"host": "rebound.example"}, timeout=60).status_code == 400


def raw(address: str) -> None:
    """What is not HTTP at all: answered with 400, or the connection is closed, at whatever moment."""
    for content in (b"\x16\x03\x01\x02\x00\x01", b"GET / HTTQ/1.1\r\n\r\n", b"A" * 200_000):
        with connected(address) as opened:
            try:
                opened.sendall(content)
                opened.shutdown(socket.SHUT_WR)
                answer = opened.recv(4096)
            except TimeoutError:
                raise
            except OSError:  # ENOTCONN of shutdown, after a reset, is no ConnectionError
                continue
        assert answer[:12] in (b"", b"HTTP/1.1 400")


def flooding(address: str) -> None:
    """More at once than the queue takes: each is answered or told to come again."""
    limits = httpx.Limits(max_connections=32)
    with httpx.Client(base_url=address, timeout=120, limits=limits) as client, ThreadPoolExecutor(32) as pool:
        found = pool.map(lambda _: client.post("/predict", json={"inputs": ["good"] * 64}), range(100))
        statuses = Counter(each.status_code for each in found)
    assert set(statuses) <= {200, 429} and statuses[200]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "abuse", [slowly, hugely, wordily, brokenly, sneakily, rebound, raw, flooding], ids=lambda one: one.__name__
)
def test_others_get_right_answers_meanwhile_and_memory_is_bounded(
    abuse: Callable[[str], None], process: tuple[psutil.Process, str]
) -> None:
    running, address = process
    expected = httpx.post(f"{address}/predict", json=GOOD, timeout=60).json()
    before, stop, answers = running.memory_info().rss, threading.Event(), list[list[dict[str, Any]]]()

    def ask() -> None:
        with httpx.Client(base_url=address, timeout=60) as client:
            while not stop.is_set() or not answers:
                found = client.post("/predict", json=GOOD)
                if found.status_code != 429:  # of a flood
                    answers.append(found.json())

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(abuse, [address] * (1 if abuse is flooding else 8)))
    finally:
        stop.set()
        asking.join()
    for answer in answers:  # equal up to the order of sums in a batch
        assert [each["label"] for each in answer] == [each["label"] for each in expected]
        assert [each["score"] for each in answer] == pytest.approx([each["score"] for each in expected], abs=1e-5)
    assert (running.memory_info().rss - before) / 2**20 < MOST_MB
    assert httpx.get(f"{address}/health", timeout=60).status_code == 200
