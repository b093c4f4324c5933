"""Carries out the events of `life.py` at their times: orders into Postgres, clicks to Headwater over HTTP."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from urllib.parse import urlsplit

import psycopg

from . import life
from .life import Action, Arrival, Cancel, Click, Move, Order, Payment, Reprice, Restock

BATCH_SECONDS = 0.1
POST_SECONDS, STOP_SECONDS = 60.0, 5.0
"""For how long rejected clicks are sent again: while the shop is open, and afterwards."""


class Play:
    """The activity of the shop, in two threads: one writes to its database, one sends its visitors' clicks.

    `done` counts events by kind; `commits` has the time just before each order was committed, by its number.
    """

    def __init__(
        self, shop_url: str, web_url: str, seed: int, seconds: float | None, report: Callable[[str], None]
    ) -> None:
        self.done: Counter[str] = Counter()
        self.commits: dict[int, float] = {}
        self.failed: BaseException | None = None
        self._shop_url, self._web = shop_url, urlsplit(web_url)
        self._seed, self._actions, self._report = seed, life.life(seed, seconds), report
        self._clicks: deque[Action] = deque()
        self._over, self._stop = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._write, self._send)
        ]

    def start(self) -> None:
        """Open the shop."""
        self._began = time.monotonic()
        self._epoch = datetime.now(UTC)
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether all events were carried out."""
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def seconds(self) -> float:
        """Seconds since the shop opened."""
        return time.monotonic() - self._began

    def stop(self) -> None:
        """Close the shop; events in progress are completed."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (psycopg.Error, OSError, http.client.HTTPException, RuntimeError) as failure:
            self.failed = failure
            self._stop.set()
            self._over.set()

    def _due(self) -> Iterator[Action]:
        """Each action at its time."""
        for action in self._actions:
            if self._stop.wait(max(0.0, action.at - self.seconds)):
                return
            yield action

    # --- the database -----------------------------------------------------------------------------------------------

    def _write(self) -> None:
        try:
            with psycopg.connect(self._shop_url) as shop:
                for action in self._due():
                    if isinstance(action.what, Click):
                        self._clicks.append(action)
                        continue
                    self._carry_out(shop, action)
                    if action.note:
                        self._report(action.note)
        finally:
            self._over.set()

    def _carry_out(self, shop: psycopg.Connection, action: Action) -> None:
        """One action is one transaction."""
        now = datetime.now(UTC)
        match action.what:
            case Order(id=number, customer=who, product=product, quantity=quantity, amount=amount):
                shop.execute(
                    "INSERT INTO orders VALUES (%s, %s, %s, %s, %s, 'placed', %s)",
                    [number, who, product, quantity, amount, now],
                )
                shop.execute(
                    "UPDATE stock SET quantity = quantity - %s WHERE product_id = %s", [quantity, product]
                )
                self.commits[number] = time.monotonic()
            case Payment(id=number, order=order, amount=amount, delay=delay, refund=refund):
                paid_at = now + timedelta(seconds=delay)
                kind = "refund" if refund else "payment"
                shop.execute(
                    "INSERT INTO payments VALUES (%s, %s, %s, %s, %s)", [number, order, kind, amount, paid_at]
                )
                if refund:
                    shop.execute("UPDATE orders SET status = 'refunded' WHERE id = %s", [order])
            case Cancel(order=order, product=product, quantity=quantity):
                shop.execute("UPDATE orders SET status = 'cancelled' WHERE id = %s", [order])
                shop.execute(
                    "UPDATE stock SET quantity = quantity + %s WHERE product_id = %s", [quantity, product]
                )
            case Move(customer=who, country=country):
                shop.execute("UPDATE customers SET country = %s WHERE id = %s", [country, who])
            case Reprice(product=product, name=name, price=price):
                shop.execute(
                    "UPDATE products SET name = %s, price = %s WHERE id = %s", [name, price, product]
                )
            case Restock(product=product, quantity=quantity):
                shop.execute(
                    "UPDATE stock SET quantity = quantity + %s WHERE product_id = %s", [quantity, product]
                )
            case Arrival(product=product):
                _stock_up(shop, [product])
        shop.commit()
        what = type(action.what).__name__.lower()
        self.done["refund" if isinstance(action.what, Payment) and action.what.refund else what] += 1

    # --- the clicks --------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        number = 0
        connection = http.client.HTTPConnection(self._web.hostname or "", self._web.port, timeout=30)
        while True:
            over = self._over.wait(BATCH_SECONDS)
            batch = [self._clicks.popleft() for _ in range(len(self._clicks))]
            if batch:
                number += 1
                self._post(connection, number, batch)
                self.done["click"] += len(batch)
            elif over:
                break
        connection.close()

    def _post(self, connection: http.client.HTTPConnection, number: int, batch: list[Action]) -> None:
        """Send a batch until it is accepted; its idempotency key has it written once, however often it is sent."""
        body = "\n".join(json.dumps(self._row(action)) for action in batch).encode()
        headers = {
            "Content-Type": "application/x-ndjson",
            "Idempotency-Key": f"{self._epoch.isoformat()} {number}",
        }
        begun = time.monotonic()
        while True:
            try:
                connection.request("POST", "/topics/clicks", body, headers)
                answer = connection.getresponse()
                said = answer.read().decode(errors="replace")
                if answer.status < 300:
                    return
                if answer.status not in (429, 503):
                    raise RuntimeError(f"the server rejected clicks: {said}")
            except (OSError, http.client.HTTPException) as failure:
                connection.close()
                said = str(failure)
            if time.monotonic() > begun + (STOP_SECONDS if self._stop.is_set() else POST_SECONDS):
                raise RuntimeError(f"clicks could not be sent: {said}")
            time.sleep(0.2)

    def _row(self, action: Action) -> dict[str, object]:
        click = action.what
        assert isinstance(click, Click)
        skewed = self._epoch + timedelta(seconds=click.clock_error)
        return {
            "device_id": click.device,
            "customer_id": click.customer,
            "product_id": click.product,
            "page": click.page,
            "channel": click.channel,
            "occurred_at": (skewed + timedelta(seconds=click.occurred)).isoformat(),
            "sent_at": (skewed + timedelta(seconds=action.at)).isoformat(),
        }


def fill_tables(shop_url: str, schema: str, seed: int) -> None:
    """Create the shop's tables, with its customers, its catalogue and its past orders."""
    now = datetime.now(UTC)
    with psycopg.connect(shop_url) as shop:
        shop.execute(schema)
        with shop.cursor() as cursor:
            with cursor.copy("COPY customers FROM STDIN") as copy:
                for customer in life.customers(seed):
                    copy.write_row(customer)
            _stock_up(shop, life.products(seed))
            sold = life.past_orders(seed)
            with cursor.copy("COPY orders FROM STDIN") as copy:
                for order, ago in sold:
                    row = (order.id, order.customer, order.product, order.quantity, order.amount)
                    copy.write_row((*row, "placed", now - timedelta(seconds=ago)))
            with cursor.copy("COPY payments FROM STDIN") as copy:
                for order, ago in sold:
                    paid_at = now - timedelta(seconds=ago - 60)
                    copy.write_row((order.id, order.id, "payment", order.amount, paid_at))


def _stock_up(shop: psycopg.Connection, products: list[life.Product]) -> None:
    for p in products:
        shop.execute(
            "INSERT INTO products VALUES (%s, %s, %s, %s, %s)",
            [p.id, p.name, p.description, p.category, p.price],
        )
        shop.execute("INSERT INTO stock VALUES (%s, %s, %s)", [p.id, p.quantity, p.reorder_at])


def truth(shop_url: str) -> dict[str, list[tuple[str, Decimal, int]]]:
    """Return the result of a query of the shop's database, which the view must equal."""
    with psycopg.connect(shop_url) as shop:
        revenue = shop.execute(
            "SELECT c.country, sum(o.amount), count(*) FROM orders o JOIN customers c ON c.id = o.customer_id "
            "WHERE o.status = 'placed' GROUP BY c.country ORDER BY c.country"
        ).fetchall()
    return {"revenue": revenue}
