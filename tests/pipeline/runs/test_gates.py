"""Which sources a gated fusion starts with, and how strong: what probes prefer, step by step."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pipeline.data.tasks import find_task
from pipeline.methods.gated import GatedFusion
from pipeline.runs import initial
from pipeline.runs.initial import ADDED_ROWS, Chooser
from pipeline.settings.recipe import Recipe

MEMBERS = ("own", "a", "b", "c", "d", "e", "f")
SOURCES = MEMBERS[1:]


class Site:
    """A fused site whose gates can be read."""

    def __init__(self) -> None:
        self.fusion = GatedFusion("token", 4, len(MEMBERS), own=0, start=0.0)

    def gates(self) -> dict[str, float]:
        named = zip(SOURCES, self.fusion.bias.tolist(), strict=True)
        return {name: gate for name, gate in named if gate}


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, float]]:
    """``choose_gates`` where a probe explains what ``worth`` says of the open gates, give or take ``noise``, and
    ``on_few`` more where it reads only the rows by which others are added."""

    def chosen(
        worth: Callable[[Mapping[str, float]], float],
        rows: int = 40,
        noise: float = 0.01,
        on_few: float = 0.0,
        warm: bool = False,
        read: list[tuple[int, int]] | None = None,
    ) -> dict[str, float]:
        site = Site()
        monkeypatch.setattr("pipeline.methods.gated.fused_sites", lambda *_: [(None, site.fusion)])
        monkeypatch.setattr(initial, "features_of", lambda *_: site.gates())
        # Each gate has noise of its own, without which the t test would see no spread; its mean is zero.
        spread = np.random.default_rng(0).normal(size=(2, rows))
        spread -= spread.mean(axis=1, keepdims=True)

        def probe(features: Mapping[str, float], _: object, table: pd.DataFrame) -> np.ndarray:
            if read is not None:
                read.append((len(features), len(table)))
            explained = worth(features) + (on_few if len(table) == ADDED_ROWS else 0.0)
            return explained + noise * spread[min(len(features), 1), : len(table)]

        monkeypatch.setattr(initial, "probe", probe)
        accelerator: Any = type("Main", (), {"device": torch.device("cpu"), "is_main_process": True})
        table = pd.DataFrame({"label": [0, 1] * (rows // 2)})
        encoder: Any = torch.nn.Identity()
        run: Any = SimpleNamespace(task=find_task("mr"), recipe=Recipe(trainable="fusion"))
        run.request, run.backbone, run.workspace, run.data = None, None, None, {"mr": SimpleNamespace(train=table)}
        scoring: Any = SimpleNamespace(accelerator=accelerator)
        return Chooser(run, scoring).choose_gates(encoder, MEMBERS, SOURCES, warm)

    return chosen


def test_sources_join_as_long_as_each_explains_more(
    choose: Callable[..., dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The best alone is first. Of what helps beside it, the gate that helps most is taken, and noise is not."""

    def worth(open_gates: Mapping[str, float]) -> float:
        of = {"a": 0.4, "b": 0.35, "c": 0.1, "d": 0.003}
        alone = max((of.get(name, 0.0) for name in open_gates), default=0.0)
        with_b = 0.1 if open_gates.get("b") == 0.5 and "a" in open_gates else 0.0
        with_b -= 0.2 if open_gates.get("b") == 1.0 and "a" in open_gates else 0.0
        return alone + with_b + (0.004 if "c" in open_gates and "a" in open_gates else 0.0)

    assert choose(worth) == {"a": 1.0, "b": 0.5}
    told = capsys.readouterr().err
    assert told == "mr: gates start at a 1, b 0.5; variance explained: none 0.000, a 0.400, with b 0.500\n"


@pytest.mark.parametrize(("more", "gate"), [(0.004, 1.0), (0.006, 0.5)])
def test_between_equals_a_source_joins_at_full_strength(
    more: float, gate: float, choose: Callable[..., dict[str, float]]
) -> None:
    """Half a gate has to explain more than noise beyond what a whole one does."""
    worth = {(): 0.0, ("a",): 0.4, ("a", "b"): 0.5}
    found = choose(lambda open_gates: worth.get(tuple(open_gates), 0.0) + more * (open_gates.get("b") == 0.5))
    assert found == {"a": 1.0, "b": gate}


@pytest.mark.parametrize(("rows", "first", "beside"), [(40, 40, 40), (1000, 1000, 512), (3000, 2000, 512)])
def test_the_first_source_is_tested_on_as_many_rows_as_a_warm_start(
    rows: int, first: int, beside: int, choose: Callable[..., dict[str, float]]
) -> None:
    """Others are added on fewer, against what the first explains of these."""
    read: list[tuple[int, int]] = []
    assert choose(lambda open_gates: 0.1 * ("e" in open_gates), rows=rows, read=read) == {"e": 1.0}
    alone, others = read[: 1 + len(SOURCES)], read[1 + len(SOURCES) :]
    assert alone == [(0, first)] + [(1, first)] * len(SOURCES)
    again = [(1, beside)] if beside < first else []
    assert others[: len(again)] == again
    assert {count for _, count in others[len(again) :]} == {beside}


def test_a_source_that_has_joined_keeps_its_gate(choose: Callable[..., dict[str, float]]) -> None:
    """Others are tried beside it as it is."""
    worth = {None: 0.0, 1.0: 0.4, 0.5: 0.6}
    assert choose(lambda open_gates: worth[open_gates.get("a")]) == {"a": 1.0}


@pytest.mark.parametrize(("name", "is_tried"), [("e", True), ("f", False)])
def test_beside_the_first_the_four_are_tried_that_are_best_alone(
    name: str, is_tried: bool, choose: Callable[..., dict[str, float]]
) -> None:
    """What each adds beside others is not known before."""
    alone = dict(zip(SOURCES, (0.4, 0.3, 0.2, 0.1, 0.05, 0.01), strict=True))

    def worth(open_gates: Mapping[str, float]) -> float:
        return 0.9 if {"a", name} <= open_gates.keys() else max((alone[each] for each in open_gates), default=0.0)

    assert choose(worth) == ({"a": 1.0, name: 1.0} if is_tried else {"a": 1.0})


def test_where_no_source_is_shown_to_help_the_best_stays_closed(choose: Callable[..., dict[str, float]]) -> None:
    """Much more explained may be a few rows' doing."""
    helps = lambda open_gates: 0.1 * ("e" in open_gates)  # noqa: E731
    assert choose(helps, rows=500, noise=0.75) == {"e": 0.0}
    assert choose(helps, rows=1000, noise=0.75)["e"] == 1.0  # all rows are read
    assert choose(helps, noise=1.0) == {"e": 0.0}
    assert choose(helps, noise=0.01) == {"e": 1.0}
    assert choose(lambda _: 0.0, noise=0.0) == {"a": 0.0}


def test_beside_a_warm_start_each_source_only_has_to_add_something(
    choose: Callable[..., dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    def worth(open_gates: Mapping[str, float]) -> float:
        return 0.4 + (0.02 if open_gates.get("b") == 0.5 else -0.1 * len(open_gates))

    assert choose(worth, noise=1.0, warm=True) == {"b": 0.5}
    assert capsys.readouterr().err == (
        "mr: gates start at b 0.5; variance explained: the warm start 0.400, with b 0.420\n"
    )
    assert choose(lambda open_gates: 0.4 - 0.1 * len(open_gates), warm=True) == {"a": 0.0}


def test_too_few_rows_to_tell_leave_all_gates_even(choose: Callable[..., dict[str, float]]) -> None:
    assert choose(lambda _: pytest.fail("probed"), rows=18) == dict.fromkeys(SOURCES, 2 / 6)
