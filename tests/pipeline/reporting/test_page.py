"""The page of a study shows its texts as text, whatever stands in them, and loads nothing from anywhere."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from pipeline.reporting.page import marked_columns, numeric_columns, sort_key, write_page
from pipeline.reporting.provenance import number_text, run_view
from pipeline.reporting.report import Cell, Report, Table
from pipeline.reporting.tables import MARKS
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
        *report.verdict,
        *report.summary,
        report.notes[0],
        *report.missing,
        *(table.title for table in report.tables),
        *report.tables[0].columns,
        *report.tables[0].notes,
        *(row[0].text for row in report.tables[0].rows),
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


@pytest.mark.parametrize(
    ("kind", "start", "label"),
    [
        ("adapter", {}, "Start selected among"),  # a warm start, which may have begun as a new adapter
        ("adapter", {"start": ["fresh"]}, "Built on"),  # continues its source
        ("fusion", {}, "Built on"),
    ],
)
def test_candidates_for_a_start_are_not_what_an_adapter_is_built_on(
    kind: str, start: dict[str, list[str]], label: str, tmp_path: Path
) -> None:
    report = sample_report(tmp_path / "figures")
    fusion = report.records["fusion-sst-1"]
    record = fusion.model_copy(update={"kind": kind, "identity": fusion.identity | start})
    view = run_view(record, None, "row")
    assert view["sources"] == label
    page = Page(read(replace(report, records={record.run: record}), tmp_path))
    assert [text for text in page.text_of("p") if text.startswith(label)]
    assert ("start candidate, run elsewhere-imdb-1" in dict(view["groups"]["Identity"])) == (label != "Built on")


def test_the_curve_of_a_run_is_a_picture_and_a_table(page: Page, report: Report) -> None:
    pictures = page.all("svg")
    assert len(pictures) == len(report.curves)
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


def test_what_most_runs_have_in_common_stands_once(tmp_path: Path) -> None:
    report = sample_report(tmp_path / "figures")
    other = report.records["full-sst-1"]
    recipe = other.own.recipe
    assert recipe is not None
    score = other.own.model_copy(update={"recipe": recipe.model_copy(update={"epochs": 77})})
    records = {**report.records, "full-sst-1": other.model_copy(update={"scores": {**other.scores, "sst": score}})}
    page = read(replace(report, records=records), tmp_path)
    usual, first = re.findall(r'<details class="run" id="(?:usual|run-full-sst-1)"[^>]*>(.*?)</details>', page, re.S)
    assert "<dt>epochs</dt><dd>3</dd>" in usual and "<dt>learning rate</dt>" in usual
    assert "<dt>epochs</dt><dd>77</dd>" in first and "<dt>learning rate</dt>" not in first
    assert page.count("<dt>learning rate</dt>") == page.count("<dt>epochs</dt><dd>3</dd>") == 1


def test_the_highest_score_is_bold_and_named_for_those_who_cannot_see_it(tmp_path: Path) -> None:
    page = Page(read(sample_report(tmp_path / "figures"), tmp_path))
    assert [a["class"] for a in page.all("td") if "best" in str(a.get("class"))] == ["number best"]
    assert page.text_of("span").count("highest") == 1


def test_a_large_csv_stays_beside_the_page(tmp_path: Path) -> None:
    report = sample_report(tmp_path / "figures")
    (tmp_path / "figures/curves.csv").write_text("a,b\n" + "1,2\n" * 20_000)
    page = Page(read(report, tmp_path))
    assert [a["download"] for a in page.all("a") if "download" in a] == ["pareto.csv"]
    assert any("figures/curves.csv" in text for text in page.text_of("figcaption"))


def test_marks_are_named_for_those_who_cannot_see_them(tmp_path: Path) -> None:
    page = Page(read(sample_report(tmp_path / "figures"), tmp_path))
    words = [verdict for verdict in MARKS if verdict]
    # In the table, and beside the mark in the legend of the one table that has marks.
    assert sorted(text for text in page.text_of("span") if text in words) == sorted(words * 2)
    assert sorted(text for text in page.text_of("span") if text in "↑↓→") == sorted("↑↓→" * 2)


def test_a_report_with_nothing_in_it_has_a_page_too(tmp_path: Path) -> None:
    full = sample_report(tmp_path / "figures")
    empty = Report(full.study, "nano", (), (), (), (), (), (), full.results.iloc[:0], {}, {})
    page = Page(read(empty, tmp_path))
    assert page.open == []
    assert page.all("details") == []
    assert any("nothing to compare" in text for text in page.text_of("p"))


def test_the_same_report_gives_the_same_page_but_for_the_date(report: Report, folder: Path, content: str) -> None:
    def undated(text: str) -> str:
        return re.sub(r"Written [^<]*", "", text)

    assert undated(read(report, folder)) == undated(content)
    assert undated(content) != content


@pytest.mark.parametrize(
    ("cell", "key"),
    [
        (Cell("0.512 ± 0.004", 0.512), {"data-number": "0.512"}),
        (Cell("1,234"), {}),
        (Cell("1,234", 1234), {}),
        (Cell("1,234", 1234, verdict="better"), {"data-number": "1234"}),
        (Cell("−0.5"), {}),
        (Cell("zero", 0), {"data-number": "0"}),
        (Cell("full"), {}),
        (Cell("full", "full"), {}),
        (Cell("10 %", "010"), {"data-text": "010"}),
        (Cell("10", "10"), {"data-text": "10"}),
        (Cell("2 of 3"), {}),
        (Cell("-"), {}),
        (Cell("nothing", ""), {"data-text": ""}),
        (Cell(""), {}),
        (Cell("failed", float("nan")), {"data-text": ""}),
        (Cell("nan"), {}),
    ],
)
def test_a_cell_has_a_key_where_its_text_does_not_say_it(cell: Cell, key: dict[str, str]) -> None:
    assert sort_key(cell) == key


def test_columns_of_numbers_and_of_marks_are_found() -> None:
    rows = (
        (Cell("1"), Cell("0.5", 0.5), Cell("BERT"), Cell("-"), Cell("0.1", 0.1, verdict="better")),
        (Cell("2"), Cell("-"), Cell("7"), Cell("-"), Cell("0.2", 0.2)),
    )
    table = Table("t", "T", ("a", "b", "c", "d", "e"), rows)
    assert numeric_columns(table) == [False, True, False, True, True]
    assert marked_columns(table) == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"),
        (1234.56, "1,235"),
        (12.34, "12.3"),
        (1.5, "1.5"),
        (0.01234567, "0.01235"),
        (1e-5, "1e-05"),
        (3.0, "3"),
        (0.0, "0"),
        (float("nan"), "-"),
    ],
)
def test_numbers_have_the_digits_a_reader_has_use_for(value: float, text: str) -> None:
    assert number_text(value) == text
    assert number_text(0.5, 4) == "0.5000"
