"""The server under load while a better adapter is swapped in, against calling the model in a loop."""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from pipeline.models.backbone import open_backbone
from pipeline.records.store import Store
from pipeline.runs.model import Model, load

from .backbones import describe, given_or_minilm, worded
from .ours import random_adapter, source_task
from .report import Report
from .rows import real_lengths
from .setting import Setting
from .timing import Row, Sample, ratio

CLIENTS = 64
_TEXTS, _LOOP = 500, 100
_TOLERANCE = 1e-4
"""How far a probability may be off: padding depends on the rest of a batch."""


@dataclass
class Found:
    """What the clients observed."""

    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    wrong: int = 0
    by: dict[str, int] = field(default_factory=dict)


def run(setting: Setting) -> Report:
    folder = setting.backbone or worded(setting, given_or_minilm(setting))
    backbone, task = open_backbone(str(folder)), source_task(0)
    store = Store(setting.scratch / "served")
    artifacts = [random_adapter(setting, backbone, store, task, number, dev=float(number)) for number in range(2)]
    texts = _texts(backbone.tokenizer.fast.get_vocab())
    models = {f"{task.name}@{each.manifest.run}": load(each.folder, precision="fp32") for each in artifacts}
    expected = {name: [dict(each.probabilities) for each in model.predict(texts)] for name, model in models.items()}
    # The better adapter appears after half of the requests.
    better = setting.scratch / "better"
    artifacts[1].folder.rename(better)
    found, model = Found(), models[f"{task.name}@{artifacts[1].manifest.run}"]
    served, looped = [], []
    with _server(store.root) as address:
        for part in np.array_split(np.arange(setting.requests), min(setting.repeats, setting.requests)):
            numbers = part.tolist()
            swap = {setting.requests // 2: lambda: better.rename(artifacts[1].folder)}
            seconds = asyncio.run(_load(address, texts, expected, numbers, found, swap))
            served.append(len(numbers) / seconds)
            looped.append(_in_a_loop(model, texts[: min(len(numbers), _LOOP)]))
    rates, alone = Sample(tuple(served)), Sample(tuple(looped))
    p50, p99 = np.percentile(found.seconds, [50, 99]) * 1000
    row: Row = {
        "requests": setting.requests,
        "p50, ms": float(p50),
        "p99, ms": float(p99),
        "texts/s": rates,
        "in a loop, texts/s": alone,
        "served / loop": ratio(rates, alone),
        "before the swap": found.by.get(f"{task.name}@{artifacts[0].manifest.run}", 0),
        "after it": found.by.get(f"{task.name}@{artifacts[1].manifest.run}", 0),
        "lost": found.lost,
        "wrong": found.wrong,
    }
    return Report(
        (
            f"{describe(setting)}: one text per request, {CLIENTS} clients, one adapter, fp32. The clients share"
            " the cores with the server. Wrong: a probability differs by more than 1e-4 from that of predict with the"
            " model that the answer names.",
            "In a loop: predict called on one text at a time while the server is idle. Both took turns in"
            f" {len(served)} rounds: median (lowest to highest).",
        ),
        ([row],),
    )


def _texts(vocabulary: Mapping[str, int]) -> list[str]:
    """Random words in texts of SST's lengths."""
    generator, words = random.Random(0), sorted(word for word in vocabulary if word.isascii() and word.isalnum())
    return [" ".join(generator.choices(words, k=max(1, length - 2))) for length in real_lengths("sst", _TEXTS)]


@contextmanager
def _server(store: Path) -> Iterator[str]:
    """The address of ``serve``, running in another process."""
    command = ["serve", "--store", str(store), "--port", "0", "--precision", "fp32", "--poll", "0.2"]
    with subprocess.Popen([sys.executable, "-m", "pipeline", *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()


async def _load(
    address: str,
    texts: Sequence[str],
    expected: Mapping[str, Sequence[Mapping[str, float]]],
    requests: Sequence[int],
    found: Found,
    before: Mapping[int, Callable[[], object]],
) -> float:
    """Seconds for the numbered ``requests`` from all clients at once; ``before[number]()`` runs before that request."""
    url, numbers = urlsplit(address), iter(requests)

    async def client() -> None:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        for number in numbers:
            if number in before:
                before[number]()
            started = time.perf_counter()
            try:
                name, answer = await _ask(reader, writer, texts[number % len(texts)])
            except (OSError, ValueError, asyncio.IncompleteReadError):
                found.lost += 1
                writer.close()
                reader, writer = await asyncio.open_connection(url.hostname, url.port)
                continue
            found.seconds.append(time.perf_counter() - started)
            found.by[name] = found.by.get(name, 0) + 1
            wanted = expected[name][number % len(texts)]
            found.wrong += any(abs(wanted[each["label"]] - each["score"]) > _TOLERANCE for each in answer)
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.perf_counter() - started


def _in_a_loop(model: Model, texts: Sequence[str]) -> float:
    """Texts per second with one call per text."""
    started = time.perf_counter()
    for text in texts:
        model.predict([text])
    return len(texts) / (time.perf_counter() - started)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str) -> tuple[str, list[Any]]:
    """The model and the answer for one text; raises a ValueError if the status is not 200."""
    body = json.dumps({"inputs": text, "truncate": True}).encode()
    writer.write(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    content = await reader.readexactly(int(headers["content-length"]))
    if head[0].split()[1] != "200":
        raise ValueError(head[0])
    return headers["x-model"], json.loads(content)
