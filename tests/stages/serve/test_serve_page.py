"""The page to try the models, in a real browser with a real server: what it shows is what the server says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

import httpx

from stages.serve.door import Limits
from stages.serve.serve import make_app
from stages.serve.shelf import StoreShelf
from tests.serving import served
from tests.stages.conftest import Shop

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FILM = "the film is very good"
PAIR = ("the film is good", "the song is awful")


@pytest.fixture(scope="module")
def address(shop: Shop) -> Iterator[str]:
    with served(make_app(StoreShelf.open(shop.store, ["films"], None, "fp32"), Limits())) as found:
        yield found


@pytest.mark.long
def test_the_page_works_below_a_path_of_a_proxy(browser: Browser, shop: Shop) -> None:
    app = make_app(StoreShelf.open(shop.store, ["films"], None, "fp32"), Limits())

    async def below_a_path(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if not scope["path"].startswith("/nlp/"):  # another program's
                await send({"type": "http.response.start", "status": 404, "headers": []})
                return await send({"type": "http.response.body", "body": b"{}"})
            scope = {**scope, "path": scope["path"].removeprefix("/nlp")}
        return await app(scope, receive, send)

    with served(below_a_path) as address, browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{address}/nlp/")
        page.locator("#model option").first.wait_for(state="attached")
        ask(page, FILM)
        page.get_by_text("good").first.wait_for()


@pytest.fixture
def show(browser: Browser, address: str) -> Iterator[Callable[..., Page]]:
    """Open the page; at the end it must have asked nobody but its server, and complained of nothing."""
    contexts, asked, complaints = [], [], []

    def opened(width: int = 1100, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        page.locator("#model option").first.wait_for(state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith((f"{address}/", "data:"))] == []
    assert [text for text in complaints if "status of 4" not in text] == []


def ask(page: Page, first: str, second: str | None = None, model: str = "films") -> None:
    page.locator("#model").select_option(page.locator(f"#model optgroup[label={model}] option").first.inner_text())
    page.fill("#first", first)
    if second is not None:
        page.fill("#second", second)
    page.click("#ask")
    page.locator("#ask:enabled").wait_for()


def cells(page: Page, table: str) -> list[list[str]]:
    return page.eval_on_selector_all(
        f"{table} tbody tr", "all => all.map(row => [...row.cells].map(cell => cell.textContent))"
    )


def test_the_page_shows_what_the_server_says(show: Callable[..., Page], address: str) -> None:
    page = show()
    listed = {each["name"]: each for each in httpx.get(f"{address}/models").json()["models"]}
    shown = page.locator("#model option").all_inner_texts()
    assert [text.rpartition(", run")[0] or text for text in shown] == [
        "{task}, {kind}, {metric} {dev:.3f} ({0:.3f} to {1:.3f})".format(*each["dev_interval"], **each)
        for each in sorted(listed.values(), key=lambda each: (each["task"], -each["best"], -each["dev"]))
    ]
    assert listed[page.locator("#model").input_value()]["best"]
    assert not page.locator("#second").is_visible()
    ask(page, FILM)
    found = httpx.post(f"{address}/models/films/explain", json={"inputs": FILM}, timeout=60).json()
    labels = [f"{each['label']} {each['score']:.3f}" for each in found["answer"]]
    assert [" ".join(text.split()) for text in page.locator(".answer > div").all_inner_texts()] == labels
    assert found["run"] in page.locator(".run").inner_text()
    assert page.locator(".words span").all_inner_texts() == FILM.split()
    sizes = [abs(float(row[2].replace("−", "-"))) for row in cells(page, ".words-table")]
    assert len(sizes) == len(found["words"]) and sizes == sorted(sizes, reverse=True)
    alone = {each["task"]: each["answer"][0] for each in found["singles"]}
    top = found["answer"][0]
    expected = []
    for each in found["without"]:
        name, rest = each["adapter"], each["answer"][0]
        change = next(label["score"] for label in each["answer"] if label["label"] == top["label"]) - top["score"]
        expected.append([
            name,
            f"{round(100 * found['mean_shares'][name])} %",
            f"{alone[name]['label']} {alone[name]['score']:.3f}" if name in alone else "–",
            f"{rest['label']} {rest['score']:.3f}",
            f"{'−' if change < 0 else '+'}{abs(change):.3f}",
        ])  # fmt: skip
    assert cells(page, ".adapters") == expected
    assert cells(page, "#others")[0][0] == "meals" and not page.locator("#others").is_visible()


def test_two_models_stand_side_by_side(show: Callable[..., Page]) -> None:
    page = show()
    page.get_by_role("button", name="Use an example").click()
    page.locator("#beside").select_option(page.locator("#beside optgroup[label=films] option").first.inner_text())
    page.locator("#first").press("Control+Enter")
    page.locator("#ask:enabled").wait_for()
    boxes = page.locator(".model").evaluate_all("all => all.map(each => each.getBoundingClientRect())")
    assert len(boxes) == 2 and boxes[0]["y"] == boxes[1]["y"] and boxes[0]["right"] < boxes[1]["x"]
    kinds = page.locator(".run").all_inner_texts()
    assert kinds[0].startswith("fusion films") and kinds[1].startswith("adapter films")


@pytest.mark.long
def test_a_pair_has_two_texts_and_an_adapter_no_shares(show: Callable[..., Page]) -> None:
    page = show()
    page.locator("#model").select_option(page.locator("#model optgroup[label=pairs] option").first.inner_text())
    assert page.locator("#second").is_visible()
    ask(page, *PAIR, model="pairs")
    assert page.locator(".answer > div").count() == 1
    assert page.locator(".answer dt").inner_text() == "score"
    assert not page.locator(".answer .bar").is_visible()
    assert [row[0] for row in cells(page, ".adapters")] == ["films", "meals", "pairs"]
    ask(page, FILM, model="meals")
    assert page.locator(".answer > div").count() == 2
    for part in (".adapters-part", ".shares-part"):
        assert not page.locator(part).is_visible()


def test_what_is_wrong_is_said_and_then_fixed(show: Callable[..., Page]) -> None:
    page = show()
    ask(page, "   ")
    alert = page.get_by_role("alert")
    assert "Write a text first" in alert.inner_text()
    assert not page.locator("#result").is_visible()
    ask(page, "very " * 40)
    assert not alert.is_visible()
    assert page.locator(".cut").inner_text() == "Cut: reads 24 of 42 tokens."
    ask(page, FILM)
    assert not page.locator(".cut").is_visible()


def test_a_text_that_is_html_stays_a_text_and_the_policy_stops_scripts(show: Callable[..., Page], address: str) -> None:
    page = show()
    ask(page, "<img src=x onerror=window.hostile=1> [MASK] film")
    assert page.evaluate("window.hostile") is None
    assert page.locator("#result img, #result script").count() == 0
    policed: list[str] = []
    other = page.context.new_page()
    other.on("console", lambda message: policed.append(message.text))
    other.goto(address)
    other.evaluate(
        """() => {
            const put = (tag, values) => document.body.append(Object.assign(document.createElement(tag), values));
            put('script', { textContent: 'window.hostile = 1' });
            put('img', { src: 'http://localhost:9/x.png' });
            fetch('http://localhost:9/x').catch(() => 0);
        }"""
    )
    other.wait_for_timeout(300)
    assert other.evaluate("window.hostile") is None
    assert len([text for text in policed if "Content Security Policy" in text]) >= 3


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 400, 1100])
def test_the_page_fits_and_can_be_read(show: Callable[..., Page], width: int, scheme: str) -> None:
    page = show(width, color_scheme=scheme)
    ask(page, FILM)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    # The darkest heat that there can be, over the page's own ground, against its ink: WCAG 2.2, level AA.
    contrast = page.evaluate(
        """() => {
            const cell = document.querySelector('.heat td');
            cell.style.backgroundColor = 'rgb(var(--heat) / 0.45)';
            const parse = text => text.match(/[\\d.]+/g).map(Number);
            const style = getComputedStyle(cell), [r, g, b, a] = parse(style.backgroundColor);
            const under = parse(getComputedStyle(document.body).backgroundColor);
            const mixed = [r, g, b].map((value, n) => a * value + (1 - a) * under[n]);
            const part = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
            const light = ([x, y, z]) => 0.2126 * part(x) + 0.7152 * part(y) + 0.0722 * part(z);
            const [one, two] = [light(mixed), light(parse(style.color))].sort((x, y) => y - x);
            return (one + 0.05) / (two + 0.05);
        }"""
    )
    assert contrast >= 4.5
