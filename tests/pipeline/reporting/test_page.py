"""The page of a study shows its texts as text, whatever stands in them, and loads nothing from anywhere."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from pipeline.ledger import Ledger
from pipeline.reporting.entries import StudyResult, Summary, results_table, summarise
from pipeline.reporting.figures import write_figures
from pipeline.reporting.page import write_page
from pipeline.reporting.tables import header

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

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def text_of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


@pytest.fixture(scope="module")
def folder(
    result: StudyResult,
    results: pd.DataFrame,
    summary: Summary,
    ledger: Ledger,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_figures(results, summary, folder / "figures")
    write_page(result, results, summary, ledger, folder)
    return folder


@pytest.fixture(scope="module")
def content(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(content: str) -> Page:
    return Page(content)


def test_every_element_is_closed(page: Page) -> None:
    assert page.open == []
    assert {"html", "head", "body", "table", "details"} <= {tag for tag, _ in page.tags}


def test_a_hostile_description_backbone_error_and_provenance_stay_text(page: Page, result: StudyResult) -> None:
    description = result.study.description
    assert "<script" in description
    assert description in page.text_of("p")
    assert any(description in text for text in page.text_of("li") if text.startswith("Missing"))
    assert any(description in text for text in page.text_of("footer"))
    assert any("onerror" in text for text in page.text_of("pre"))
    # Our own script, and no other; one picture; no attribute that runs anything.
    assert page.all("script") == [{}]
    assert len(page.all("img")) == 1
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_the_page_loads_nothing_from_the_network(page: Page, content: str) -> None:
    loaded = [value or "" for _, attributes in page.tags for name, value in attributes.items() if name in LOADING]
    assert loaded
    assert [value for value in loaded if not value.startswith(("data:", "#"))] == []
    styles = "".join(re.findall(r"<style>(.*?)</style>", content, re.S))
    script = "".join(re.findall(r"<script>(.*?)</script>", content, re.S))
    assert styles
    assert script
    for text in (styles, script):
        assert not re.search(r"https?:|url\(|@import|fetch|import\b", text)
    assert not {"iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}


def test_the_figure_stands_in_the_page_as_a_picture_with_a_description(page: Page, folder: Path) -> None:
    (picture,) = page.all("img")
    source = picture["src"] or ""
    assert source.startswith("data:image/svg+xml;base64,")
    assert base64.b64decode(source.partition(",")[2]) == (folder / "figures" / "scores.svg").read_bytes()
    assert picture["alt"]


def test_the_page_shows_every_run_and_links_it_to_its_provenance(
    page: Page, result: StudyResult, summary: Summary
) -> None:
    runs = [entry.run for entry in result.entries if entry.run is not None]
    links = [str(attributes["href"]) for attributes in page.all("a")]
    assert links == [f"#run-{run}" for run in runs]
    assert {attributes["id"] for attributes in page.all("details")} == {link[1:] for link in links}
    assert page.text_of("th")[: len(header(summary))] == header(summary)
    shown = "\n".join(page.text_of("td"))
    assert "sequential, from sts" in shown
    assert "0.800 ↑" in shown


def test_a_study_with_no_finished_run_has_a_page_too(result: StudyResult, ledger: Ledger, tmp_path: Path) -> None:
    entries = tuple(e.model_copy(update={"run": None, "error": "no memory"}) for e in result.entries)
    empty = result.model_copy(update={"entries": entries})
    results, summary = results_table(empty, ledger), summarise(empty, ledger)
    write_figures(results, summary, tmp_path / "figures")
    write_page(empty, results, summary, ledger, tmp_path)
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert sum(text.startswith("Missing: ") for text in page.text_of("li")) == len(entries)
    assert page.all("a") == []


def test_the_figures_are_the_same_for_the_same_numbers(
    results: pd.DataFrame, summary: Summary, folder: Path, tmp_path: Path
) -> None:
    write_figures(results, summary, tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["scores.png", "scores.svg"]
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (folder / "figures" / file.name).read_bytes()
