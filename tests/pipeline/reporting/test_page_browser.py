"""The page in a real browser: it sorts, its links lead somewhere, nothing leaves it, and it can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.reporting.build import write_page
from tests.pipeline.reporting.page_samples import HOSTILE, hostile, plain, sample_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """index.html of a plain report and of one with hostile texts."""
    made = {}
    for name, text in (("plain", plain), ("hostile", hostile)):
        folder = tmp_path_factory.mktemp(name)
        write_page(sample_report(folder / "figures", text), folder)
        made[name] = folder / "index.html"
    return made


class Opened:
    """A page with everything that it asked for or complained about; nothing but the file itself is let through."""

    def __init__(self, page: Page, file: Path) -> None:
        self.page, self.file = page, file
        self.requests: list[str] = []
        """What the page asked for, whether or not its policy let it."""
        self.left: list[str] = []
        """What would have left the browser."""
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.route("**/*", self._route)
        page.goto(file.as_uri())

    def _route(self, route: Route) -> None:
        if route.request.url == self.file.as_uri():
            route.continue_()
        else:
            self.left.append(route.request.url)
            route.abort()


@pytest.fixture
def show(browser: Browser, files: dict[str, Path]) -> Iterator[Callable[..., Opened]]:
    """Open a report: ``show("hostile", width=400, color_scheme="dark")``."""
    contexts = []

    def open_report(name: str | Path = "plain", width: int = 1280, **options: Any) -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        return Opened(context.new_page(), files[name] if isinstance(name, str) else name)

    yield open_report
    for context in contexts:
        context.close()


def sort(table: Locator, number: int) -> str | None:
    """Press the header once; what it then says of its order."""
    header = table.locator("thead th").nth(number)
    header.get_by_role("button").click()
    return header.get_attribute("aria-sort")


def rows(table: Locator) -> list[str]:
    return [text.strip() for text in table.locator("tbody th").all_inner_texts()]


ORIGINAL = ["full fine-tuning", "adapter", "Fusion", "ensemble", "weak"]


@pytest.mark.long
def test_a_header_sorts_by_number_up_then_down_then_not_and_holes_stay_last(show: Callable[..., Opened]) -> None:
    table = show().page.locator("#table-main table")
    assert rows(table) == ORIGINAL
    for _ in range(2):
        assert sort(table, 1) == "ascending"
        assert rows(table) == ["adapter", "weak", "full fine-tuning", "Fusion", "ensemble"]
        assert sort(table, 1) == "descending"
        assert rows(table) == ["Fusion", "full fine-tuning", "weak", "adapter", "ensemble"]
        assert sort(table, 1) == "none"
        assert rows(table) == ORIGINAL
    sort(table, 2)
    # As texts, 1,000 would stand before 80.
    assert rows(table) == ["full fine-tuning", "weak", "ensemble", "adapter", "Fusion"]


@pytest.mark.long
@pytest.mark.parametrize("key", ["Enter", " "])
def test_the_keyboard_sorts(show: Callable[..., Opened], key: str) -> None:
    page = show().page
    table = page.locator("#table-main table")
    table.get_by_role("button", name="sst").focus()
    page.keyboard.press(key)
    assert rows(table)[0] == "adapter"


def test_a_value_of_one_run_leads_to_the_run_and_opens_it(show: Callable[..., Opened]) -> None:
    page = show().page
    run = page.locator("[id='run-adapter-sst-1']")
    assert run.get_attribute("open") is None
    page.locator("#table-main").get_by_role("link", name="10,000").click()
    assert run.get_attribute("open") is not None
    assert page.url.endswith("#run-adapter-sst-1")
    assert run.locator("summary").evaluate("e => { const y = e.getBoundingClientRect().top; return y >= 0 && y < 900 }")
    assert run.get_by_text("1,234,567").is_visible()
    # The same link again, after the run was closed by hand.
    run.locator("summary").click()
    assert run.get_attribute("open") is None
    page.locator("#table-main").get_by_role("link", name="10,000").click()
    assert run.get_attribute("open") is not None


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ["plain", "hostile"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_leaves_the_page_and_nothing_goes_wrong(show: Callable[..., Opened], name: str, scheme: str) -> None:
    opened = show(name, color_scheme=scheme)
    page = opened.page
    for number in range(3):
        sort(page.locator("#table-main table"), number)
    page.eval_on_selector_all("details", "all => all.forEach(details => details.open = true)")
    page.eval_on_selector_all(".value", "all => all.forEach(value => value.click())")
    page.wait_for_load_state("networkidle")
    assert opened.requests == [opened.file.as_uri()]
    assert opened.left == []
    assert opened.complaints == []
    assert page.eval_on_selector_all("img", "all => all.map(i => i.complete && i.naturalWidth > 100)") == [True, True]


def test_what_would_leave_a_page_is_seen(show: Callable[..., Opened], tmp_path: Path) -> None:
    """The test above can fail."""
    leaky = tmp_path / "leaky.html"
    leaky.write_text("<img src='http://localhost:9/x.png'><script>console.log('hm'); boom()</script>", encoding="utf-8")
    opened = show(leaky)
    opened.page.wait_for_load_state("networkidle")
    assert opened.left == ["http://localhost:9/x.png"]
    assert opened.requests == [leaky.as_uri(), "http://localhost:9/x.png"]
    assert any("boom" in text for text in opened.complaints)
    assert "hm" in opened.complaints


def test_hostile_texts_are_inert_and_can_be_read(show: Callable[..., Opened]) -> None:
    opened = show("hostile")
    page = opened.page
    page.eval_on_selector_all("details", "all => all.forEach(details => details.open = true)")
    assert page.evaluate("window.hostile") is None
    assert page.locator("script").count() == 1
    assert page.locator("[onerror], img[src=x], a[href^=javascript]").count() == 0
    # Headers, cells, notes, runs: the text as it was written, template signs and all.
    squeezed = " ".join(HOSTILE.split())
    assert page.evaluate("document.body.textContent").count(squeezed) > 50
    page.locator("#table-main .value[title]").first.click()
    assert squeezed in page.locator("#card").inner_text()
    assert page.locator("#card *").evaluate_all("all => all.map(e => e.tagName)") == ["P", "UL", "LI", "A"]
    assert page.evaluate("window.hostile") is None
    assert opened.complaints == []


def test_the_policy_stops_what_would_get_past_the_escaping(show: Callable[..., Opened]) -> None:
    opened = show()
    opened.page.evaluate(
        """() => {
            const put = (tag, values) => document.body.append(Object.assign(document.createElement(tag), values));
            put('script', { textContent: 'window.hostile = 1' });
            put('script', { src: 'http://localhost:9/x.js' });
            put('img', { src: 'http://localhost:9/x.png' });
            put('div', { innerHTML: '<b onclick="window.hostile = 2">x</b>' });
            document.querySelector('b[onclick]').click();
            fetch('http://localhost:9/x').catch(() => 0);
        }"""
    )
    opened.page.wait_for_load_state("networkidle")
    assert opened.page.evaluate("window.hostile") is None
    assert len(opened.requests) > 1
    assert opened.left == []
    assert len([text for text in opened.complaints if "Content Security Policy" in text]) >= 4


def test_the_page_opens_with_the_answer_and_one_table_on_a_telephone_too(show: Callable[..., Opened]) -> None:
    page = show(width=390).page
    assert page.locator("#answer").get_by_text("Use the adapter.").is_visible()
    assert page.locator("#table-main .doubt").is_visible()
    assert page.locator("table:visible").count() == 1 and page.locator("img:visible").count() == 0
    links = page.locator("nav a").evaluate_all("all => all.map(a => a.getBoundingClientRect())")
    assert len({link["y"] for link in links}) == 1 and links[-1]["right"] <= 390
    page.get_by_role("link", name="Figures").click()
    assert page.locator("figure .scroll").first.evaluate("box => box.scrollWidth <= box.clientWidth")


@pytest.mark.long
@pytest.mark.parametrize("name", ["plain", "hostile"])
@pytest.mark.parametrize("width", [320, 400, 800, 1440])
def test_the_page_is_no_wider_than_the_window(show: Callable[..., Opened], name: str, width: int) -> None:
    page = show(name, width=width).page
    page.eval_on_selector_all("details", "all => all.forEach(details => details.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Tables that are wider scroll within their box.
    boxes = page.eval_on_selector_all(".scroll", "all => all.map(box => box.getBoundingClientRect().right)")
    assert boxes
    assert max(boxes) <= width
    if width == 400:
        assert page.eval_on_selector("#runs .scroll", "box => box.scrollWidth > box.clientWidth")
        assert page.eval_on_selector_all(
            "p, li, td, dd", "all => Math.min(...all.map(e => parseFloat(getComputedStyle(e).fontSize)))"
        ) >= 12  # fmt: skip
        page.locator("#table-main .value").first.click()
        box = page.locator("#card").bounding_box()
        assert box
        assert 0 <= box["x"] <= box["x"] + box["width"] <= width


CONTRASTS = """() => {
    const parse = text => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => {
        const part = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const ground = element => {
        for (let e = element; e; e = e.parentElement) {
            const colour = parse(getComputedStyle(e).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [NaN, NaN, NaN];
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest('script, title')) continue;
        const style = getComputedStyle(element);
        const colour = parse(element instanceof SVGElement ? style.fill : style.color);
        const [a, b] = [light(colour), light(ground(element))].sort((x, y) => y - x);
        found.push([(a + 0.05) / (b + 0.05), walker.currentNode.data.trim(), element.outerHTML.slice(0, 80)]);
    }
    return found;
}"""


@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_text_stands_out_from_its_ground(show: Callable[..., Opened], scheme: str) -> None:
    page = show(color_scheme=scheme).page
    page.eval_on_selector_all("details", "all => all.forEach(details => details.open = true)")
    page.locator("#table-main .value").first.click()
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 300
    # WCAG 2.2, level AA, for text of any size.
    assert [found for found in contrasts if not found[0] >= 4.5] == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def shown(table: Locator) -> list[str]:
    return [text.strip() for text in table.locator("tbody tr:visible > :first-child").all_inner_texts()]


def test_filters_keep_the_rows_of_a_method_a_task_and_a_cost(show: Callable[..., Opened]) -> None:
    page = show().page
    section, table = page.locator("#runs"), page.locator("#runs table").first
    assert not table.is_visible()
    page.get_by_role("link", name="Runs").click()
    assert len(shown(table)) == 12
    section.get_by_label("method").fill("FINE")
    assert shown(table) == ["full fine-tuning"] * 4
    section.get_by_label("target").select_option("sts")
    assert shown(table) == ["full fine-tuning"] * 2
    assert section.get_by_text("2 of 12").is_visible()
    section.get_by_label("column with limits").select_option(label="value")
    section.get_by_label("at least").fill("0.515")
    assert shown(table) == ["full fine-tuning"]
    # What is sorted stays filtered.
    sort(table, 2)
    assert shown(table) == ["full fine-tuning"]
    for label in ("method", "at least"):
        section.get_by_label(label).fill("")
    section.get_by_label("target").select_option("")
    assert len(shown(table)) == 12


@pytest.mark.long
def test_without_script_everything_is_there_and_no_button_is_dead(show: Callable[..., Opened]) -> None:
    page = show(java_script_enabled=False).page
    assert rows(page.locator("#table-main table")) == ORIGINAL
    assert page.get_by_role("button").count() == 0
    page.locator("#table-main").get_by_role("link", name="0.500 ± 0.002").click()
    assert page.url.endswith("#run-full-sst-1")
    assert page.locator("[id='run-full-sst-1'] summary").is_visible()
