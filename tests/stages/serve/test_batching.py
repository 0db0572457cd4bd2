"""The queue: requests for the same work share a batch, each gets its own results, and none is lost."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from stages.serve.batching import Batcher, Closed


class Model:
    """Doubles numbers, and keeps what it was given at once."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = threading.Event()
        self.open.set()

    def double(self, rows: Sequence[int]) -> list[int]:
        self.batches.append(list(rows))
        assert self.open.wait(10)
        if -1 in rows:
            raise ValueError("-1")
        return [2 * row for row in rows]


@contextmanager
def batcher(**settings: Any) -> Iterator[Batcher]:
    made = Batcher(**{"max_rows": 4, "max_wait": 0.01, "max_queue": 100, **settings})
    yield made
    made.close()


def held(queue: Batcher, model: Model) -> Future[list[Any]]:
    """A request that is being computed until ``model.open`` is set."""
    model.open.clear()
    first = queue.submit(model.double, [0])
    while not model.batches:
        time.sleep(0.001)
    return first


def test_requests_that_wait_share_batches_in_their_order_and_are_never_split() -> None:
    model = Model()
    with batcher() as queue:
        first = held(queue, model)
        others = [queue.submit(model.double, rows) for rows in ([1, 2], [3], [4, 5], [6, 7, 8, 9, 10], [11])]
        model.open.set()
        assert [each.result(10) for each in [first, *others]] == [
            [0], [2, 4], [6], [8, 10], [12, 14, 16, 18, 20], [22],
        ]  # fmt: skip
    assert model.batches == [[0], [1, 2, 3], [4, 5], [6, 7, 8, 9, 10], [11]]


def test_only_requests_for_the_same_work_are_joined_and_the_oldest_comes_first() -> None:
    one, other = Model(), Model()
    with batcher() as queue:
        held(queue, one)
        results = [queue.submit(model.double, [n]) for n, model in enumerate((other, one, other, one), 1)]
        one.open.set()
        assert [each.result(10) for each in results] == [[2], [4], [6], [8]]
    assert (one.batches, other.batches) == ([[0], [2, 4]], [[1, 3]])


@pytest.mark.parametrize("requests", [[[1], [2, 3]], [[1, 2, 3]]], ids=["joined", "alone"])
def test_a_full_batch_does_not_wait(requests: list[list[int]]) -> None:
    """Whether requests have joined, or one fills it."""
    model = Model()
    with batcher(max_rows=3, max_wait=60.0) as queue:
        results = [queue.submit(model.double, rows) for rows in requests]
        assert [each.result(10) for each in results] == [[2 * row for row in rows] for rows in requests]
    assert model.batches == [[1, 2, 3]]


def test_rows_that_fail_cost_others_no_answer() -> None:
    model = Model()
    with batcher() as queue:
        held(queue, model)
        results = [queue.submit(model.double, [n]) for n in (1, -1, 2)]
        model.open.set()
        assert (results[0].result(10), results[2].result(10)) == ([2], [4])
        with pytest.raises(ValueError, match="-1"):
            results[1].result(10)
        assert queue.is_alive
    assert model.batches == [[0], [1, -1, 2], [1], [-1], [2]]


def test_too_few_results_are_an_error_and_not_someone_elses() -> None:
    with batcher() as queue, pytest.raises(RuntimeError, match="1 results for 2 rows"):
        queue.submit(lambda rows: rows[:1], [1, 2]).result(10)


def test_closing_answers_what_waits_and_takes_nothing_more() -> None:
    model = Model()
    queue = Batcher(max_rows=1, max_wait=60.0, max_queue=100)
    held(queue, model)
    waiting = [queue.submit(model.double, [n]) for n in range(20)]
    closing = threading.Thread(target=queue.close)
    closing.start()
    while queue.is_alive:
        time.sleep(0.001)
    with pytest.raises(Closed):
        queue.submit(model.double, [1])
    model.open.set()
    closing.join(10)
    assert [each.result(0) for each in waiting] == [[2 * n] for n in range(20)]


def test_a_request_that_was_given_up_is_not_computed() -> None:
    model = Model()
    with batcher() as queue:
        held(queue, model)
        gone, kept = queue.submit(model.double, [1]), queue.submit(model.double, [2])
        assert gone.cancel()
        model.open.set()
        assert kept.result(10) == [4]
    assert model.batches == [[0], [2]]


def test_many_threads_get_their_own_results() -> None:
    model = Model()
    found: dict[int, list[int]] = {}
    with batcher(max_rows=16, max_queue=1000) as queue:

        def client(number: int) -> None:
            for n in range(50):
                found[50 * number + n] = queue.submit(model.double, [50 * number + n]).result(10)

        threads = [threading.Thread(target=client, args=[number]) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {n: [2 * n] for n in range(800)}
    assert sum(map(len, model.batches)) == 800
    assert max(map(len, model.batches)) > 1
