"""The page of a study shows its texts as text, whatever stands in them, and loads nothing from anywhere."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from pipeline.reporting.build import write_page
from pipeline.reporting.report import Report
from tests.pipeline.reporting.page_samples import HOSTILE, LOADING, Page, hostile, sample_report


def read(report: Report, folder: Path) -> str:
    write_page(report, folder)
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return sample_report(folder / "figures", hostile)


@pytest.fixture(scope="module")
def content(report: Report, folder: Path) -> str:
    return read(report, folder)


@pytest.fixture(scope="module")
def page(content: str) -> Page:
    return Page(content)


def test_every_element_is_closed(page: Page) -> None:
    assert page.open == []
    assert {"html", "head", "body", "table", "details", "figure", "svg"} <= {tag for tag, _ in page.tags}


def test_hostile_texts_stay_text(page: Page, report: Report) -> None:
    assert page.all("script") == [{}]
    assert len(page.all("img")) == len(report.figures)
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    shown = [text for _, text in page.texts]
    for text in (
        report.study.description,
        report.backbone,
        *report.advice,
        *report.cautions,
        *report.verdict,
        *report.summary,
        report.notes[0],
        *report.missing,
        *(table.title for table in report.tables),
        *report.tables[0].columns,
        *report.tables[0].notes,
        *(row[0].text for row in report.tables[0].rows),
        report.tables[0].rows[-1][1].warning,
        *(figure.caption for figure in report.figures),
        hostile("e" * 64),
        hostile("adapters_store/a"),
        hostile("2026-01-02T03:04:05+00:00"),
    ):
        assert HOSTILE in text
        assert [part for part in shown if text in part], text
    details = [
        attributes["title"]
        for _, attributes in page.tags
        if attributes.get("class") == "value" and "title" in attributes
    ]
    assert set(details) == {cell.detail for row in report.tables[0].rows for cell in row if cell.detail}


def test_the_page_loads_nothing_from_the_network(page: Page, content: str) -> None:
    loaded = [value or "" for _, attributes in page.tags for name, value in attributes.items() if name in LOADING]
    assert loaded
    assert [value for value in loaded if not value.startswith(("data:", "#"))] == []
    styles, script = (re.search(f"<{tag}>(.*?)</{tag}>", content, re.S) for tag in ("style", "script"))
    assert styles
    assert script
    for text in (styles[1], script[1]):
        assert not re.search(r"https?:|url\(|@import|fetch|import\b", text)
    assert not {"iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}


def test_the_policy_lets_the_pages_own_script_and_style_run_and_no_other(page: Page, content: str) -> None:
    policies = [a["content"] or "" for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    directives = dict(part.split(maxsplit=1) for part in policies[0].split("; "))
    assert directives["default-src"] == "'none'"
    assert directives["img-src"] == "data:"
    for tag in ("style", "script"):
        found = re.search(f"<{tag}>(.*?)</{tag}>", content, re.S)
        assert found
        digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        assert directives[f"{tag}-src"] == f"'sha256-{digest}'"
    # A hash does not cover these.
    assert not [name for _, attributes in page.tags for name in attributes if name == "style"]


def test_every_link_within_the_page_leads_to_one_element(page: Page) -> None:
    ids = [str(attributes["id"]) for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {unquote(str(a["href"])[1:]) for a in page.all("a") if str(a["href"]).startswith("#")}
    assert targets
    assert targets <= set(ids)
    labels = {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a}
    assert labels <= set(ids)


def test_every_run_has_its_provenance_and_is_linked(page: Page, report: Report) -> None:
    details = [a["id"] for a in page.all("details") if a.get("class") == "run"]
    assert details == ["usual", *(f"run-{run}" for run in report.records)]
    links = {a["href"] for a in page.all("a")}
    assert {f"#run-{run}" for run in report.records} <= links
    # A source that the report has no record of is named, and not linked.
    assert "#run-elsewhere-imdb-1" not in links
    assert any("imdb, run elsewhere-imdb-1" in text for text in page.text_of("p"))
    assert "yes, with" not in page.text_of("dd")
    assert any("with changes that were not committed" in text for text in page.text_of("dd"))
    assert any("pearson" in text for text in page.text_of("dt"))
    assert "0.2500, before training 0.7500" in page.text_of("dd")
    assert "0, 1" in page.text_of("dd")


def test_the_curve_of_a_run_is_a_picture_and_a_table(page: Page, report: Report) -> None:
    pictures = page.all("svg")
    assert len(pictures) == sum(len(curve) > 0 for curve in report.curves.values())
    assert len(page.all("circle")) == len(pictures)
    assert "epoch 2: 0.6000, kept" in page.text_of("title")
    # The highest score stands highest, and the epoch before any step has no loss.
    (path,) = {str(a["d"]) for a in page.all("path") if a.get("class") == "line"}
    assert min(map(int, path[1:].split()[1::2])) == int(path[1:].split()[5])
    assert {"-", "1.2500", "0.0001"} <= set(page.text_of("td"))


@pytest.mark.parametrize("scores", [[], [0.5], [0.5, 0.5], [None, 0.5], [None, None]])
def test_a_curve_may_be_short_flat_or_have_holes(scores: list[float | None], tmp_path: Path) -> None:
    report = sample_report(tmp_path / "figures")
    curve = pd.DataFrame({"epoch": range(len(scores)), "dev": scores}, dtype=float)
    page = Page(read(replace(report, curves=dict.fromkeys(report.records, curve)), tmp_path))
    assert len(page.all("svg")) == (len(report.records) if scores == [0.5, 0.5] else 0)
    assert not [a for a in page.all("circle") if "nan" in str(a)]


def test_figures_stand_in_the_page_as_pictures_with_a_description_and_their_numbers(
    page: Page, report: Report, folder: Path
) -> None:
    for picture, figure in zip(page.all("img"), report.figures, strict=True):
        source = str(picture["src"])
        assert source.startswith("data:image/svg+xml;base64,")
        assert base64.b64decode(source.partition(",")[2]) == (folder / "figures" / f"{figure.name}.svg").read_bytes()
        assert picture["alt"] == f"{figure.title}. {figure.caption}"
    assert [(a["width"], a["height"]) for a in page.all("img")] == [("213", "133"), ("800", "133")]
    assert [a.get("class") for a in page.all("figure")] == [None, "wide"]
    downloads = {a["download"]: str(a["href"]) for a in page.all("a") if "download" in a}
    assert set(downloads) == {"pareto.csv", "curves.csv"}
    content = base64.b64decode(downloads["pareto.csv"].partition(",")[2])
    assert content == (folder / "figures" / "pareto.csv").read_bytes()


def test_what_failed_is_said_above_the_tables_and_listed(page: Page) -> None:
    said = next(n for n, (_, text) in enumerate(page.texts) if text.startswith("1 cell has no run"))
    assert said < next(n for n, (tag, _) in enumerate(page.texts) if tag == "td")
    assert "#missing" in [a["href"] for a in page.all("a")]
    assert any(text.startswith("full sst seed 2: no memory") for text in page.text_of("li"))
    assert not any("Missing: " in text for _, text in page.texts)


def test_a_large_csv_stays_beside_the_page(tmp_path: Path) -> None:
    report = sample_report(tmp_path / "figures")
    (tmp_path / "figures/curves.csv").write_text("a,b\n" + "1,2\n" * 20_000)
    page = Page(read(report, tmp_path))
    assert [a["download"] for a in page.all("a") if "download" in a] == ["pareto.csv"]
    assert any("figures/curves.csv" in text for text in page.text_of("figcaption"))


def test_a_report_with_nothing_in_it_has_a_page_too(tmp_path: Path) -> None:
    full = sample_report(tmp_path / "figures")
    empty = Report(full.study, "nano", (), (), (), (), (), (), (), (), full.results.iloc[:0], {}, {})
    page = Page(read(empty, tmp_path))
    assert page.open == []
    assert [a["id"] for a in page.all("details")] == ["notes", "runs"]
    assert any("nothing to compare" in text for text in page.text_of("p"))
