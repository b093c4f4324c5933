"""A cart: what is in it, and what was considered and then removed, both from one log.

    python examples/events/cart.py

A table of carts would have forgotten what was taken out. Events have not: the report was asked for later, and covers all carts
there ever were.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import headwater as hw
from headwater.events import Aggregate, Refused


@dataclass(frozen=True)
class ItemAdded:
    item: str
    quantity: int


@dataclass(frozen=True)
class ItemRemoved:
    item: str
    quantity: int


@dataclass(frozen=True)
class CheckedOut:
    pass


@dataclass(frozen=True)
class Add:
    item: str
    quantity: int = 1


@dataclass(frozen=True)
class Remove:
    item: str


@dataclass(frozen=True)
class CheckOut:
    pass


@dataclass(frozen=True)
class Cart:
    items: Mapping[str, int] = field(default_factory=dict)
    paid: bool = False


Command = Add | Remove | CheckOut
Event = ItemAdded | ItemRemoved | CheckedOut


def decide(cart: Cart, command: Command) -> Iterator[Event]:
    if cart.paid:
        raise Refused("the cart is already paid", paid=True)
    match command:
        case Add(item, quantity):
            if quantity < 1:
                raise Refused(f"{quantity} of {item} cannot be added", item=item, quantity=quantity)
            yield ItemAdded(item, quantity)
        case Remove(item):
            if item not in cart.items:
                raise Refused(f"{item} is not in the cart", item=item)
            yield ItemRemoved(item, cart.items[item])
        case CheckOut():
            if not cart.items:
                raise Refused("the cart is empty")
            yield CheckedOut()


def fold(cart: Cart, event: Event) -> Cart:
    match event:
        case ItemAdded(item, quantity):
            return Cart({**cart.items, item: cart.items.get(item, 0) + quantity}, cart.paid)
        case ItemRemoved(item):
            return Cart({name: count for name, count in cart.items.items() if name != item}, cart.paid)
        case CheckedOut():
            return Cart(cart.items, True)


cart = Aggregate("cart", decide, fold)

VIEWS = """
    CREATE MATERIALIZED VIEW IF NOT EXISTS contents AS
    SELECT aggregate_id AS cart, item,
           sum(CASE WHEN event = 'ItemAdded' THEN quantity ELSE -quantity END) AS quantity
    FROM cart WHERE item IS NOT NULL GROUP BY aggregate_id, item
    HAVING sum(CASE WHEN event = 'ItemAdded' THEN quantity ELSE -quantity END) > 0;

    CREATE MATERIALIZED VIEW IF NOT EXISTS considered AS
    SELECT removed.item, count(*) AS carts
    FROM (SELECT DISTINCT aggregate_id, item FROM cart WHERE event = 'ItemRemoved') removed
    LEFT ANTI JOIN contents ON contents.cart = removed.aggregate_id AND contents.item = removed.item
    GROUP BY removed.item
"""


def shop(ws: hw.Workspace) -> None:
    """Two people shop."""
    carts = ws.store(cart)
    for command in (Add("book"), Add("lamp", 2), Add("pen", 3), Remove("lamp"), Add("pen"), CheckOut()):
        carts.execute("ada's", command)
    for command in (Add("lamp"), Remove("lamp"), Add("book"), Remove("book"), Add("book", 2)):
        carts.execute("bob's", command)


def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as folder, hw.open(folder) as ws:
        shop(ws)
        for name in ("ada's", "bob's"):
            print(name, ws.store(cart).load(name).state)
        ws.sql(VIEWS)
        ws.run()
        print(ws.query("SELECT * FROM considered").to_pylist())


if __name__ == "__main__":
    main()
