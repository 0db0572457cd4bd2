"""The server, killed while it answers: no wrong answer leaves it, and the next one gives the same ones."""

import json
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx

from tests.faults.harness import SIGNALS, Fault, Outcome
from tests.forked import Forked, run

BODY = {"inputs": ["the film is good", "the meal is very grim", "the walk is warm"]}


def kill_server(store: Path, kills: int, seed: int) -> Iterator[Outcome]:
    """Start a server for the models of ``store``, kill it while it answers, and so on: all answers must be equal."""
    draw = random.Random(seed)
    expected: list[str] = []
    for _ in range(kills):
        fault = Fault(draw.choice(SIGNALS), share=draw.random())
        answers: list[str] = []
        with closing(Forked(["serve", f"--store={store}", "--port=0", "--precision=fp32", "--model=films"])) as server:
            address = server.first_line().split()[1]
            _ask(address, answers, 1)
            asking = [threading.Thread(target=_ask, args=(address, answers, 1000)) for _ in range(4)]
            for thread in asking:
                thread.start()
            asking[0].join(0.5 * (fault.share or 0.0))
            server.send_signal(fault.signal)
            for thread in asking:
                thread.join(60)
            status, printed = server.wait(60), server.printed()
        expected = expected or answers[:1]
        # Stopped by a signal it still answers what has arrived, and ends well; killed it does neither.
        wanted = -signal.SIGKILL if fault.signal is signal.SIGKILL else 0
        problems = [f"answered {answer}" for answer in {*answers} - {*expected}]
        problems += [f"ended with status {status}: {printed}"] * (status != wanted)
        problems += [f"printed a traceback: {printed}"] * ("Traceback" in printed)
        verified, told = run(["store", "verify", f"--store={store}"])
        problems += [f"store verify: {told}"] * (verified != 0)
        yield Outcome("serve", fault, True, problems)


def _ask(address: str, answers: list[str], most: int) -> None:
    """Add the classes of each answer, and probabilities to four digits: the last ones depend on who asks meanwhile."""
    for _ in range(most):
        try:
            answer = httpx.post(f"{address}/predict", json=BODY, timeout=30)
        except httpx.TransportError:
            return
        if answer.status_code != 503:  # it is stopping
            numbers = json.loads(answer.text, parse_float=lambda text: round(float(text), 4))
            answers.append(f"{answer.status_code} {numbers}")
