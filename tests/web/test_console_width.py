"""The console on a narrow and a wide screen: every page keeps within it. Tables and the graph scroll in their own places."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

import headwater as hw
from headwater.web.server import serve_in_thread
from headwater.web.server_settings import ServerSettings
from tests.cli.busy_workspace import build
from tests.web.browsing import chromium, page_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PAGES = (
    "#/",
    "#/ticks",
    "#/dead",
    "#/health",
    "#/sql",
    "#/topic/clicks",
    "#/topic/clicks/time",
    "#/topic/customers/about",
    "#/view/revenue_by_country",
    "#/view/clicks_per_minute/late",
    "#/view/priced_orders/errors",
    "#/view/priced_orders/about",
    "#/view/urls_as_numbers",
    "#/view/urls_as_numbers/about",
    "#/source/catalogue",
    "#/sink/revenue_files",
    "#/nowhere",
)
BEYOND = """() => {
    const width = document.documentElement.clientWidth;
    const scrolls = (node) => {
        for (let at = node.parentElement; at && at.tagName !== "MAIN"; at = at.parentElement)
            if (getComputedStyle(at).overflowX !== "visible") return true;
        return false;
    };
    const wide = [...document.querySelectorAll("body *")].filter((node) => {
        const { left, right, width: own } = node.getBoundingClientRect();
        return own > 1 && right > width + 1 && left < width && !scrolls(node);
    });
    const main = document.querySelector("main");
    return [
        ...(document.documentElement.scrollWidth > width ? [`the page is ${document.documentElement.scrollWidth} wide`] : []),
        ...(main.scrollWidth > main.clientWidth ? [`main is ${main.scrollWidth} wide, and has ${main.clientWidth}`] : []),
        ...wide.slice(0, 5).map((node) => `${node.tagName} ${node.getAttribute("class")}: ${node.textContent.slice(0, 40)}`),
    ];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def address(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("busy")
    place = build(folder, spark, token=False)
    with hw.open(place, keys=folder / "keys") as ws, serve_in_thread(ws, ServerSettings(port=0)) as found:
        yield found


@pytest.mark.parametrize("width", [400, 1440])
def test_no_page_is_wider_than_the_screen(browser: "Browser", address: str, width: int) -> None:
    wrong = []
    with page_of(browser, address) as page:
        page.set_viewport_size({"width": width, "height": 900})
        for path in PAGES:
            page.goto(address + path)
            expect(page.locator(".link-state")).to_contain_text("live")
            expect(page.locator(".loading")).to_have_count(0)
            wrong += [f"{path}: {found}" for found in page.evaluate(BEYOND)]
        page.goto(address + "#/")
        page.locator("[data-id='view:priced_orders'].node").click()
        page.get_by_role("dialog", name="view priced_orders").get_by_text("Ledger").wait_for()
        wrong += [f"panel: {found}" for found in page.evaluate(BEYOND)]
    assert not wrong, "\n".join(wrong)
