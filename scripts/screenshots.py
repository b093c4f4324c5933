"""Pictures of the console for the documentation: a small shop that is busy, seen by a browser without a window.

`make screenshots` writes docs/images/console-*.png. It needs Chromium, which `scripts/environment dev` installs on Debian.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headwater as hw
from headwater.web.server import serve_in_thread
from headwater.web.server_settings import ServerSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).parent.parent / "docs" / "images"
BYTES_MAX = 150_000
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
COUNTRIES = ("ch", "de", "fr", "it", "at", "nl", "se")
PRODUCTS = ("kettle", "lamp", "notebook", "chair", "rope", "mug", "clock", "basket")
PAGES = ("/", "/basket", "/product/7", "/product/12", "/search", "/account")

SHOP = """
CREATE TOPIC customers (id BIGINT, name STRING, country STRING, PRIMARY KEY (id));
CREATE TOPIC orders (
  id BIGINT, customer_id BIGINT, product STRING, amount STRING, at TIMESTAMP,
  WATERMARK FOR at AS at - INTERVAL '5 seconds'
);
CREATE TOPIC clicks (
  user BIGINT, url STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '2 seconds'
);
CREATE SOURCE catalogue FROM FILES WITH (path = '{drop}', topic = 'products', format = 'csv', columns = 'sku STRING, title STRING, price DOUBLE', key = 'sku');
CREATE MATERIALIZED VIEW priced_orders WITH (on_error = 'divert') AS
  SELECT id, customer_id, product, CAST(amount AS DECIMAL(10, 2)) AS amount FROM orders;
CREATE MATERIALIZED VIEW revenue AS
  SELECT c.country, sum(o.amount) AS revenue, count(*) AS orders
  FROM priced_orders o JOIN customers c ON o.customer_id = c.id
  GROUP BY c.country;
CREATE MATERIALIZED VIEW clicks_by_page WITH (late = 'divert') AS
  SELECT window(at, '5 seconds') AS w, url, count(*) AS n FROM clicks
  GROUP BY window(at, '5 seconds'), url EMIT ON WINDOW CLOSE;
CREATE MATERIALIZED VIEW top_products AS
  SELECT p.title, max(p.price) AS price, count(*) AS sold FROM orders o JOIN products p ON o.product = p.sku
  GROUP BY p.title;
CREATE MATERIALIZED VIEW best_countries AS SELECT country, revenue FROM revenue WHERE revenue > 1000;
CREATE MATERIALIZED VIEW order_sizes AS SELECT id, CAST(amount AS DOUBLE) AS amount FROM orders;
CREATE SINK revenue_files FROM revenue INTO PARQUET WITH (path = '{out}/revenue', key = 'country');
CREATE SINK product_search FROM top_products INTO SEARCH WITH (key = 'title', text = 'title');
CREATE SINK best_hook FROM best_countries INTO WEBHOOK WITH (url = 'http://127.0.0.1:9/hook', key = 'country');
"""


def make_shop(ws: hw.Workspace, folder: Path) -> None:
    """Declare everything."""
    drop, out = folder / "catalogue", folder / "out"
    drop.mkdir(parents=True)
    lines = [f"{sku},{sku.title()} No. {n},{9.5 * n + 4:.2f}" for n, sku in enumerate(PRODUCTS, start=1)]
    (drop / "products.csv").write_text("sku,title,price\n" + "\n".join(lines) + "\n", encoding="utf-8")
    ws.sql(SHOP.format(drop=drop, out=out))
    people = [{"id": n, "name": f"Customer {n}", "country": COUNTRIES[n % 7]} for n in range(200)]
    ws.topic("customers").append(people)


class Visitors:
    """People who click and buy, some of them with a connection that is slow."""

    def __init__(self, ws: hw.Workspace, seed: int = 7) -> None:
        self._ws = ws
        self._random = random.Random(seed)
        self._orders = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def step(self, clicks: int = 12) -> None:
        """What happens within a moment."""
        chance, now = self._random, datetime.now(UTC)
        rows = []
        for _ in range(clicks):
            delay = chance.expovariate(1.6) if chance.random() < 0.95 else chance.uniform(3, 9)
            at = now - timedelta(seconds=delay)
            rows.append({"user": chance.randrange(200), "url": chance.choice(PAGES), "at": at})
        self._ws.topic("clicks").append(rows)
        orders = [self._order(now) for _ in range(chance.randrange(4))]
        if orders:
            self._ws.topic("orders").append(orders)

    def _order(self, now: datetime) -> dict[str, Any]:
        self._orders += 1
        amount = f"{self._random.uniform(5, 240):.2f}" if self._orders % 90 != 89 else "twelve"
        who, what = self._random.randrange(200), self._random.choice(PRODUCTS)
        return {"id": self._orders, "customer_id": who, "product": what, "amount": amount, "at": now}

    def _run(self) -> None:
        while not self._stop.wait(0.12):
            self.step()

    def __enter__(self) -> Visitors:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def shop() -> Iterator[tuple[hw.Workspace, str]]:
    """A shop at work, and the address of its console."""
    with tempfile.TemporaryDirectory(prefix="headwater-shop-") as name:
        with hw.open(Path(name) / "shop") as ws:
            make_shop(ws, Path(name))
            with Visitors(ws), contextlib.ExitStack() as stack:
                runner = ws.start(every="300 ms")
                stack.callback(runner.stop)
                yield ws, stack.enter_context(serve_in_thread(ws, ServerSettings(port=0)))


def picture(page: Page, name: str) -> None:
    """Save what is seen."""
    page.wait_for_timeout(700)
    file = IMAGES / f"console-{name}.png"
    page.screenshot(path=str(file))
    size = file.stat().st_size
    print(f"{file.relative_to(IMAGES.parent.parent)}  {size:,} bytes")
    if size > BYTES_MAX:
        raise SystemExit(f"{file.name} has {size:,} bytes, and may have {BYTES_MAX:,}")


def take_pictures(browser: Browser, address: str) -> None:
    """The main pages, in light and in dark."""
    for scheme in ("light", "dark"):
        dark: Any = scheme
        page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=dark)
        page.goto(address)
        page.wait_for_selector(".node")
        page.wait_for_timeout(12_000)
        picture(page, f"flow-{scheme}")
        page.set_viewport_size({"width": 1280, "height": 800})
        if scheme == "light":
            page.goto(address + "#/topic/clicks/time")
            page.wait_for_selector(".points")
            picture(page, "event-time")
            page.goto(address + "#/view/revenue")
            page.wait_for_selector(".contents table")
            page.get_by_label("Tick", exact=True).focus()
            for _ in range(12):
                page.keyboard.press("ArrowLeft")
            picture(page, "view")
        else:
            page.goto(address + "#/ticks")
            page.wait_for_selector(".phase")
            picture(page, "ticks")
        page.close()


def main() -> None:
    """Make the pictures, or serve the shop to be looked at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--serve", action="store_true", help="serve the shop until Ctrl-C, and take no pictures"
    )
    options = parser.parse_args()
    with shop() as (_, address):
        print(address, flush=True)
        if options.serve:
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    time.sleep(60)
            return
        from playwright.sync_api import sync_playwright

        IMAGES.mkdir(parents=True, exist_ok=True)
        time.sleep(25)
        with sync_playwright() as p:
            found = shutil.which("chromium") or p.chromium.executable_path
            browser = p.chromium.launch(executable_path=found, args=list(ARGUMENTS))
            take_pictures(browser, address)
            browser.close()


if __name__ == "__main__":
    main()
