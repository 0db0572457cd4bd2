"""Reports made by hand for the tests of the page, and a reader of its HTML."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.records.run_record import Cost, Parameters, RunRecord, TaskScore
from pipeline.records.store import SourceRun
from pipeline.records.studies import Line
from pipeline.reporting.report import Cell, Figure, Report, Table
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe

HOSTILE = (
    "\"'><script>window.hostile = 1</script><img src=x onerror='window.hostile = 2'>"
    '</style></title></details></table>--><a href="javascript:window.hostile = 3">&amp; {{ 7 * 7 }} {% raw %}</script>'
)
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 100" width="{width}pt" height="100pt">'
    "<style>text {{ fill: red }}</style><text x='9' y='50' style='font-size: 30px'>picture</text></svg>"
)
LOADING = {"src", "href", "srcset", "data", "action", "formaction", "poster", "background", "xlink:href"}
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Tags with their attributes, texts by the element they stand in, and whether every element is closed."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def text_of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def plain(text: str) -> str:
    return text


def hostile(text: str) -> str:
    return f"{text} {HOSTILE}"


def sample_report(folder: Path, text: Callable[[str], str] = plain) -> Report:
    """A report with its figures drawn into ``folder``; every text that is not a name goes through ``text``."""
    study = parse_study(
        {
            "name": "sample",
            "description": text("Every method on the same rows"),
            "methods": ["full", "adapter", "fusion"],
            "targets": ["sst", "sts"],
            "seeds": [1, 2],
            "limit": 1000,
            "rows": {"fusion": {"title": text("fusion of two")}},
        },
        "test",
    )
    records = {
        record.run: record
        for record in (
            _record(f"{method}-{task}-{seed}", method, task, seed, text)
            for method in study.methods
            for task in study.targets
            for seed in study.seeds
        )
    }
    return Report(
        study=study,
        backbone=text("nano"),
        advice=(text("Use the adapter."), text("It is cheap.")),
        cautions=(text("One seed."),),
        verdict=(text("Fusion wins."), text("It costs little.")),
        summary=(text("On sts, fusion is better than full fine-tuning by 1.3 points."),),
        tables=(_scores(text), _kinds(text)),
        figures=(_figure(folder, "pareto", 160, text), _figure(folder, "curves", 600, text)),
        notes=(text("Dev scores at the best epoch."),),
        missing=(text("full sst seed 2: no memory"),),
        results=_results(records),
        records=records,
        curves={run: _curve(text)[: 0 if run.startswith("adapter") else None] for run in records},
    )


def _scores(text: Callable[[str], str]) -> Table:
    """Numbers that sort otherwise than their texts do, a hole, marks, one run and several."""
    rows = (
        (Cell(text("full fine-tuning")), Cell("0.500 ± 0.002", 0.5, ("full-sst-1", "full-sst-2")), Cell("9", 9.0)),
        (
            Cell(text("adapter")),
            Cell("-0.100", -0.1, ("adapter-sst-1",), "worse", text("95 % CI -0.62 to -0.58, p 0.001")),
            Cell("10,000", 10_000.0, ("adapter-sst-1",)),
        ),
        (Cell(text("Fusion")), Cell("0.7", 0.7, verdict="better", detail=text("overall"), best=True), Cell("-")),
        (Cell(text("ensemble")), Cell("-"), Cell("1,000")),
        (
            Cell(text("weak")),
            Cell("0.250", 0.25, verdict="not significant", warning=text("still rising")),
            Cell("80", 80.0),
        ),
    )
    columns = (text("method"), text("sst"), text("parameters"))
    return Table("main", text("Scores"), columns, rows, (text("± is the standard deviation."),))


def _kinds(text: Callable[[str], str]) -> Table:
    """A second table with a text column after the first, and many rows."""
    rows = tuple((Cell(f"row {n}"), Cell(text(f"backbone {n}")), Cell(f"{100 * n / 7:.1f}", n / 7)) for n in range(30))
    return Table("published", text("Published results"), ("row", "what differs", "score"), rows)


def _figure(folder: Path, name: str, width: int, text: Callable[[str], str]) -> Figure:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.svg").write_text(SVG.format(width=width), encoding="utf-8")
    (folder / f"{name}.csv").write_text("method,score\nfull,0.5\n", encoding="utf-8")
    return Figure(name, text("Score against parameters"), text("Each dot is a method."))


def _record(run: str, method: str, task: str, seed: int, text: Callable[[str], str]) -> RunRecord:
    other = "sst" if task == "sts" else "sts"
    values: dict[str, Any] = {
        "run": run,
        "kind": method,
        "seed": seed,
        "identity": {
            "tasks": {task: {"meaning": {}, "data": {text("train"): text("0123456789abcdef" * 4)}, "recipe": {}}},
            "backbone": {"weights": text("b" * 64)},
            "seed": seed,
        },
        "backbone": text("nano"),
        "best_epoch": 2,
        "scores": {
            task: TaskScore(
                metric="accuracy",
                dev=0.5 + seed / 100,
                rows=500,
                recipe=Recipe(epochs=3, drop_layers=(0, 1)),
                train_rows=1000,
                limit=1000,
            ),
            other: TaskScore(metric="pearson", dev=0.25, rows=500, before=0.75),
        },
        "cost": Cost(trainable_parameters=1_234_567, seconds=12.4, examples_per_second=99.0, peak_memory_mb=512.0),
        "parameters": Parameters(backbone=1, head=1, model=2),
        "artifact": text("adapters_store/a"),
        "provenance": {"commit": text("0123abc"), "dirty": True, text("torch"): text("2.9"), "hardware": None},
        "finished_at": text("2026-01-02T03:04:05+00:00"),
    }
    if method == "fusion":
        values["sources"] = tuple(
            SourceRun(task=source, run=f"{kind}-{source}-{seed}", digest=text("f" * 64))
            for kind, source in (("adapter", "sst"), ("elsewhere", "imdb"))
        )
        values["unchanged"] = {text("backbone"): text("e" * 64)}
    return RunRecord(**values)


def _curve(text: Callable[[str], str]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "epoch": [0.0, 1.0, 2.0, 3.0],
            "loss": [None, 1.5, 1.25, 1.125],
            "dev": [0.2, 0.4, 0.6, 0.5],
            text("more"): 1e-4,
        }
    )


def _results(records: dict[str, RunRecord]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "method": Line(record.kind),
                "target": record.task,
                "seed": record.seed,
                "split": "dev",
                "metric": record.metric,
                "value": record.dev,
                **record.cost.model_dump(),
                "run": record.run,
                "train_rows": 1000,
                "stored_parameters": 22_000_000 if record.kind == "full" else None,
                "total_seconds": 20.5,
            }
            for record in records.values()
        ]
    )
