"""The page over all studies: it has every study that was reported, and none that is broken takes it down."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.reporting.build import write_overview
from tests.pipeline.reporting.page_samples import HOSTILE, LOADING, Page, hostile, plain, sample_report


def written(reports: Path, name: str, finished: str = "2026-01-02T03:04:05+00:00", text=plain) -> None:
    report = sample_report(reports / name / "figures", text)
    records = {run: record.model_copy(update={"finished_at": finished}) for run, record in report.records.items()}
    (reports / name / "index.html").write_text("the page")
    study = report.study.model_copy(update={"name": name})
    write_overview(replace(report, study=study, records=records), reports / name)


def page_of(reports: Path) -> Page:
    return Page((reports / "index.html").read_text(encoding="utf-8"))


def test_every_study_is_listed_the_latest_first_with_its_advice(tmp_path: Path) -> None:
    written(tmp_path, "older", "2026-01-01T00:00:00+00:00")
    written(tmp_path, "newest", "2026-03-01T00:00:00+00:00")
    written(tmp_path, "newer", "2026-02-01T00:00:00+00:00")
    page = page_of(tmp_path)
    assert page.open == []
    assert [a["href"] for a in page.all("a")] == [f"{name}/index.html" for name in ("newest", "newer", "older")]
    assert page.text_of("time") == ["2026-03-01", "2026-02-01", "2026-01-01"]
    assert page.text_of("p").count("Use the adapter. It is cheap.") == 3
    assert sum("12 runs, 1 cell without a run." in text for text in page.text_of("p")) == 3


@pytest.mark.parametrize("content", [None, "", "{", '{"name": 3}', "[]"])
def test_a_study_without_a_readable_summary_has_a_link_and_the_way_out(content: str | None, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/index.html").write_text("old")
    if content is not None:
        (tmp_path / "broken/summary.json").write_text(content)
    (tmp_path / "runs/abc").mkdir(parents=True)
    written(tmp_path, "sound")
    page = page_of(tmp_path)
    assert [a["href"] for a in page.all("a")] == ["sound/index.html", "broken/index.html"]
    assert page.text_of("code") == ["python -m pipeline report --study broken"]


def test_texts_stay_texts_and_nothing_is_loaded_or_run(tmp_path: Path) -> None:
    written(tmp_path, "study", text=hostile)
    page = page_of(tmp_path)
    assert page.open == [] and not page.all("script") and not page.all("img")
    assert any(HOSTILE in text for text in page.text_of("p")) or HOSTILE.split("<")[0] in "".join(page.text_of("p"))
    loaded = [value or "" for _, attributes in page.tags for name, value in attributes.items() if name in LOADING]
    assert set(loaded) == {"data:,", "study/index.html"}
    assert "default-src 'none'" in str([a.get("content") for a in page.all("meta")])


def test_studies_that_end_at_once_are_all_there(tmp_path: Path) -> None:
    names = [f"study{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: written(tmp_path, name), names))
    assert {a["href"] for a in page_of(tmp_path).all("a")} == {f"{name}/index.html" for name in names}
