"""The console as a person meets it: in a browser, by mouse and by keyboard."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

import headwater as hw
from headwater.web import tokens
from headwater.web.server import serve_in_thread
from headwater.web.server_settings import ServerSettings
from tests.web.browsing import chromium, page_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from pyspark.sql import SparkSession

MARKUP = "<img src=x onerror=alert(1)>"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

SHOP = """
    CREATE TOPIC orders (id BIGINT, country STRING, amount STRING);
    CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute');
    CREATE MATERIALIZED VIEW priced WITH (on_error = 'divert') AS
      SELECT id, country, CAST(amount AS INT) AS amount FROM orders;
    CREATE MATERIALIZED VIEW revenue AS SELECT country, sum(amount) AS revenue FROM priced GROUP BY country;
    CREATE MATERIALIZED VIEW pages AS SELECT url, count(*) AS n FROM clicks GROUP BY url;
    CREATE MATERIALIZED VIEW strict AS SELECT CAST(url AS INT) AS number FROM clicks;
    CREATE SINK copy FROM revenue INTO TOPIC WITH (topic = 'copied', key = 'country');
"""


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as made:
        yield made


@contextmanager
def made_shop(place: Path, spark: "SparkSession") -> Iterator[hw.Workspace]:
    with hw.open(place, spark=spark) as ws:
        ws.sql(SHOP)
        for n in range(1, 5):
            order(ws, n, "ch", str(n))
            click(ws, MARKUP, n)
            ws.run()
        order(ws, 5, "at", MARKUP)
        click(ws, "/late", -9)
        ws.run()
        yield ws


@pytest.fixture(scope="module")
def shop(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[hw.Workspace]:
    with made_shop(tmp_path_factory.mktemp("console") / "shop", spark) as ws:
        yield ws


@pytest.fixture(scope="module")
def address(shop: hw.Workspace) -> Iterator[str]:
    with serve_in_thread(shop, ServerSettings(port=0)) as found:
        yield found


def order(ws: hw.Workspace, number: int, country: str, amount: str) -> None:
    ws.topic("orders").append([{"id": number, "country": country, "amount": amount}])


def click(ws: hw.Workspace, url: str, minute: float) -> None:
    ws.topic("clicks").append([{"user": 7, "url": url, "at": NOON + timedelta(minutes=minute)}])


def cells(page: "Page") -> list[list[str]]:
    return [row.locator("td").all_inner_texts() for row in page.locator("main tbody tr").all()]


def see(page: "Page", text: str) -> None:
    page.get_by_text(text).first.wait_for()


# --- health --------------------------------------------------------------------------------------------------------


def test_the_header_is_not_green_without_an_engine_and_leads_to_what_is_wrong(
    browser: "Browser", spark: "SparkSession", tmp_path: Path
) -> None:
    with (
        made_shop(tmp_path / "shop", spark) as shop,
        serve_in_thread(shop, ServerSettings(port=0)) as address,
        page_of(browser, address) as page,
    ):
        shop.log.faults.report(
            "background", "alert notifications", "the receiver does not answer", "headwater doctor"
        )
        see(page, "engine not running")
        assert page.locator(".bar .dot").first.get_attribute("data-tone") == "warn"
        header = page.locator(".bar-health").first
        expect(header).to_have_text("2 unhealthy")
        assert header.get_attribute("data-tone") == "bad"
        expect(page.locator(".bar-health").nth(1)).to_have_text("1 row left out")
        header.click()
        see(page, "the receiver does not answer")
        see(page, "headwater doctor")
        see(page, "headwater dead list priced")
        shop.log.faults.clear("background", "alert notifications")
        expect(header).to_have_text("1 unhealthy")
        expect(page.get_by_text("the receiver does not answer")).to_have_count(0)


# --- pages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_opens(browser: "Browser", address: str, scheme: str) -> None:
    with page_of(browser, address, color_scheme=scheme) as page:
        page.locator(".node").first.wait_for()
        assert page.locator(".node").count() == 8
        assert page.locator(".edge").count() == 6
        for path, text in (
            ("#/ticks", "all views at one consistent cut"),
            ("#/dead", "priced/orders-0-4"),
            ("#/sql", "One SELECT"),
            ("#/topic/clicks", "7"),
            ("#/topic/clicks/time", "5 rows of 5, 1 late"),
            ("#/topic/clicks/about", "WATERMARK"),
            ("#/view/revenue", "1 row at tick"),
            ("#/view/priced/errors", "1 row at tick"),
            ("#/view/priced/about", "Ledger"),
            ("#/sink/copy", "CREATE SINK"),
            ("#/nowhere", "There is no page"),
        ):
            page.goto(address + path)
            see(page, text)
            expect(page.locator(".loading")).to_have_count(0)


def test_a_node_opens_its_detail_with_statement_rows_ledger_and_state(
    browser: "Browser", address: str
) -> None:
    with page_of(browser, address) as page:
        page.locator("[data-id='view:priced'].node").click()
        panel = page.get_by_role("dialog", name="view priced")
        panel.get_by_text("Ledger").wait_for()
        text = panel.inner_text()
        for part in (
            "CREATE MATERIALIZED VIEW priced",
            "Rows · 4",
            "contents",
            "Rows that failed · 1",
            MARKUP,
        ):
            assert part in text
        panel.get_by_role("link", name="Open").click()
        page.get_by_role("heading", name="priced").wait_for()
        assert panel.is_hidden()


def test_what_others_wrote_is_shown_as_they_wrote_it(browser: "Browser", address: str) -> None:
    with page_of(browser, address, "#/view/pages") as page:
        see(page, MARKUP)
        for path in (
            "#/topic/clicks",
            f"#/view/{MARKUP}",
            f"#/topic/{MARKUP}",
            "#/dead",
            "#/view/priced/errors",
        ):
            page.goto(address + path)
            see(page, MARKUP)
            assert page.locator("img[src='x']").count() == 0
        page.goto(address + "#/sql")
        page.locator("textarea").fill(f"SELECT '{MARKUP}' AS `{MARKUP}`")
        page.keyboard.press("Control+Enter")
        page.locator("main tbody tr").wait_for()
        assert cells(page) == [[MARKUP]]
        assert MARKUP in page.locator("main thead").inner_text()


def test_a_view_that_stopped_says_why_and_what_to_do(browser: "Browser", address: str) -> None:
    with page_of(browser, address, "#/view/strict") as page:
        alert = page.get_by_role("alert")
        alert.first.wait_for()
        assert "is stopped" in alert.first.inner_text()
        page.get_by_role("link", name="About").click()
        see(page, "headwater rebuild strict")


def test_sql_is_answered_as_a_table_and_a_plot_and_refused_with_a_hint(
    browser: "Browser", address: str
) -> None:
    with page_of(browser, address, "#/sql") as page:
        page.locator("textarea").fill("SELECT country, revenue FROM revenue WHERE country = 'ch'")
        page.get_by_role("button", name="Run").click()
        page.locator("main tbody tr").wait_for()
        assert cells(page) == [["ch", "10"]]
        page.get_by_role("button", name="Plot").click()
        page.get_by_role("img", name="revenue over country").wait_for()
        page.get_by_role("button", name="Table").click()
        page.locator("textarea").fill("SELECT 9007199254740993 AS beyond_what_a_browser_counts")
        page.keyboard.press("Control+Enter")
        see(page, "9007199254740993")
        page.locator("textarea").fill("SELECT * FROM revenu")
        page.get_by_role("button", name="Run").click()
        see(page, "did you mean revenue?")


# --- live ----------------------------------------------------------------------------------------------------------


def test_figures_and_tails_change_without_a_reload_and_nothing_moves(
    browser: "Browser", shop: hw.Workspace, address: str
) -> None:
    with page_of(browser, address) as page:
        node = page.locator("[data-id='topic:orders'].node")
        waiting = node.locator("b").nth(1)
        expect(waiting).to_have_text("0")
        places = "[...document.querySelectorAll('.node, .stat, .bar-item')].map((n) => JSON.stringify(n.getBoundingClientRect()))"
        before = page.evaluate(places)
        shop.topic("orders").append([{"id": n, "country": "it", "amount": "1"} for n in range(100, 4_321)])
        expect(waiting).to_have_text("4,221")
        assert page.evaluate(places) == before
        page.evaluate("window.same = true")
        page.goto(address + "#/topic/orders")
        page.locator("main tbody tr").first.wait_for()
        order(shop, 77_777, "fr", "5")
        page.get_by_role("cell", name="77777", exact=True).wait_for()
        page.keyboard.press("p")
        order(shop, 88_888, "fr", "5")
        see(page, "paused, 1 new row")
        assert page.get_by_role("cell", name="88888", exact=True).count() == 0
        page.get_by_role("button", name="Resume").click()
        page.get_by_role("cell", name="88888", exact=True).wait_for()
        page.goto(address + "#/view/revenue")
        see(page, "1 row at tick")
        shop.run()
        see(page, "3 rows at tick")
        assert page.evaluate("window.same") is True


def test_the_slider_goes_back_in_time_and_search_finds_rows(browser: "Browser", address: str) -> None:
    with page_of(browser, address, "#/view/revenue") as page:
        slider = page.get_by_label("Tick", exact=True)
        expect(slider).not_to_have_attribute("max", "0")
        slider.focus()
        page.keyboard.press("Home")
        see(page, "1 row at tick 1")
        assert cells(page) == [["ch", "1"]]
        page.keyboard.press("ArrowRight")
        see(page, "1 row at tick 2")
        assert cells(page) == [["ch", "3"]]
        assert page.get_by_role("button", name="Live").get_attribute("aria-pressed") == "false"
        page.get_by_role("button", name="Live").click()
        page.get_by_role("button", name="country").click()
        page.get_by_role("button", name="country").click()
        expect(page.locator("th").first).to_have_attribute("aria-sort", "descending")
        expect(page.get_by_role("button", name="country")).to_be_focused()
        page.get_by_label("Search rows").fill("CH")
        see(page, "match “CH”")
        assert cells(page)[0] == ["ch", "10"]
        page.get_by_label("Search rows").fill("nobody")
        see(page, "No matching rows.")


def test_a_tick_is_chosen_with_the_keys(browser: "Browser", address: str) -> None:
    with page_of(browser, address, "#/ticks") as page:
        page.locator(".phase").first.wait_for()
        page.get_by_label("Tick", exact=True).focus()
        page.keyboard.press("Home")
        page.get_by_role("heading", name="Tick 1", exact=True).wait_for()
        see(page, "Records read")


def test_a_dead_letter_is_corrected_and_replayed(
    browser: "Browser", spark: "SparkSession", tmp_path: Path
) -> None:
    with (
        made_shop(tmp_path / "shop", spark) as shop,
        serve_in_thread(shop, ServerSettings(port=0)) as address,
        page_of(browser, address, "#/dead") as page,
    ):
        page.get_by_role("button", name="priced/orders-0-4").click()
        panel = page.get_by_role("dialog", name="dead priced/orders-0-4")
        panel.get_by_role("button", name="Replay").click()
        panel.get_by_text("The row was rejected again.").wait_for()
        panel.locator("input[name='amount']").fill("41")
        panel.get_by_role("button", name="Replay", exact=True).click()
        see(page, "was replayed.")
        panel.get_by_text("edit by console").wait_for()
        see(page, "No open dead letters.")
        shop.run()
        assert {"country": "at", "revenue": 41} in shop.query("SELECT * FROM revenue").to_pylist()


def test_a_server_that_goes_away_and_comes_back_is_noticed(browser: "Browser", tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        with serve_in_thread(ws, ServerSettings(port=0)) as address:
            context = browser.new_context()
            page = context.new_page()
            page.goto(address)
            see(page, "No topics yet.")
            see(page, "live ·")
        see(page, "connection lost, reconnecting")
        port = int(address.rstrip("/").rpartition(":")[2])
        ws.sql("CREATE TOPIC clicks (user BIGINT)")
        with serve_in_thread(ws, ServerSettings(port=port)):
            page.locator(".node").wait_for()
            see(page, "live ·")
            context.close()


# --- by keyboard, in other themes, with a token -------------------------------------------------------------------


def test_all_of_it_is_reached_by_keyboard(browser: "Browser", address: str) -> None:
    with page_of(browser, address) as page:
        focused = "document.activeElement.dataset.id || document.activeElement.getAttribute('aria-label')"
        page.locator(".node").first.wait_for()
        page.locator("[data-id='topic:orders'].node").focus()
        for key, wanted in (
            ("ArrowRight", "view:priced"),
            ("ArrowRight", "view:revenue"),
            ("ArrowRight", "sink:copy"),
            ("ArrowLeft", "view:revenue"),
            ("ArrowLeft", "view:priced"),
        ):
            page.keyboard.press(key)
            assert page.evaluate(focused) == wanted
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        page.get_by_role("dialog", name="view priced").wait_for()
        page.keyboard.press("Escape")
        assert page.get_by_role("dialog", name="view priced").is_hidden()
        assert page.evaluate(focused) == "view:priced"
        page.keyboard.press("/")
        assert "Find" in page.evaluate(focused)
        page.keyboard.type("reven")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="revenue").wait_for()
        page.keyboard.press("/")
        assert page.evaluate(focused) == "Search rows"
        page.keyboard.press("Escape")
        page.keyboard.press("g")
        page.keyboard.press("t")
        page.get_by_role("heading", name="Ticks", exact=True).wait_for()
        page.keyboard.press("?")
        page.get_by_role("dialog", name="Keys").wait_for()
        page.keyboard.press("Escape")


def test_the_theme_is_switched_and_kept(browser: "Browser", address: str) -> None:
    with page_of(browser, address, color_scheme="light") as page:
        ground = "getComputedStyle(document.body).backgroundColor"
        bright = page.evaluate(ground)
        page.get_by_role("button", name="Theme: auto").click()
        assert page.evaluate(ground) == bright
        page.get_by_role("button", name="Theme: light").click()
        dark = page.evaluate(ground)
        assert dark != bright
        page.reload()
        assert page.evaluate(ground) == dark


def test_where_tokens_are_wanted_the_page_asks_for_one_and_keeps_it_in_the_tab(
    browser: "Browser", tmp_path: Path
) -> None:
    with hw.open(tmp_path / "ws") as ws:
        ws.sql("CREATE TOPIC clicks (user BIGINT)")
        secret = tokens.create(ws.log, "me", ["read"])
        with serve_in_thread(ws, ServerSettings(port=0)) as address, page_of(browser, address) as page:
            page.get_by_role("heading", name="This server requires a token").wait_for()
            assert page.locator(".node").count() == 0
            page.get_by_label("Token", exact=True).last.fill("hw_wrong")
            page.get_by_role("button", name="Sign in").click()
            see(page, "This token is not valid.")
            page.get_by_label("Token", exact=True).last.fill(secret)
            page.get_by_role("button", name="Sign in").click()
            page.locator(".node").wait_for()
            page.reload()
            page.locator(".node").wait_for()
            assert secret in page.evaluate("Object.values(sessionStorage)")
            assert page.evaluate("localStorage.length") <= 1
