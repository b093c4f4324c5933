"""The events of the shop: visits, orders, payments and special offers. They depend on a seed, and on no clock.

Nothing is written here: `life()` yields events with their times, in seconds since the shop opened, and `play.py` carries
them out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from random import Random

CUSTOMERS = 400
PAST_ORDERS = 1_500
COUNTRIES = ("de", "ch", "at", "fr", "it", "nl")
CHANNELS = ("web", "app", "newsletter")
KINDS = {
    "lamp": ("light", "A lamp of brushed brass for long evenings"),
    "chair": ("furniture", "A chair of oiled oak that lasts"),
    "teapot": ("kitchen", "A teapot that does not drip"),
    "notebook": ("paper", "A notebook with paper that takes ink"),
    "blanket": ("home", "A blanket woven of undyed wool"),
    "kettle": ("kitchen", "A kettle that sings when it is done"),
    "shelf": ("furniture", "A shelf for books, and for what is no book"),
    "clock": ("home", "A clock that keeps its own time"),
}
MAKES = ("Aurora", "Borealis", "Cedar", "Delta", "Ember", "Fjord")
NEWCOMER = "Headwater fountain pen"
VISITS_A_SECOND = 15.0


@dataclass(frozen=True)
class Product:
    """One thing that the shop sells."""

    id: int
    name: str
    description: str
    category: str
    price: Decimal
    quantity: int
    reorder_at: int


@dataclass(frozen=True)
class Click:
    """A page view; by the shop's clock it happened at `occurred` and was sent at the action's time."""

    device: str
    clock_error: float
    customer: int
    product: int
    page: str
    channel: str
    occurred: float


@dataclass(frozen=True)
class Order:
    """An order; the stock is reduced in the same transaction."""

    id: int
    customer: int
    product: int
    quantity: int
    amount: Decimal


@dataclass(frozen=True)
class Payment:
    """Money for an order, `delay` seconds after it by the bank's clock; a refund gives it back."""

    id: int
    order: int
    amount: Decimal
    delay: float
    refund: bool = False


@dataclass(frozen=True)
class Cancel:
    """A cancellation of an order before its payment."""

    order: int
    product: int
    quantity: int


@dataclass(frozen=True)
class Move:
    """A customer moves to another country."""

    customer: int
    country: str


@dataclass(frozen=True)
class Reprice:
    """A product has another price and name from now on."""

    product: int
    name: str
    price: Decimal


@dataclass(frozen=True)
class Restock:
    """A delivery comes in."""

    product: int
    quantity: int


@dataclass(frozen=True)
class Arrival:
    """A product that was not in the catalogue."""

    product: Product


What = Click | Order | Payment | Cancel | Move | Reprice | Restock | Arrival


@dataclass(frozen=True)
class Action:
    """An event and its time; `note` is printed by the demo."""

    at: float
    what: What
    note: str = ""


def customers(seed: int) -> list[tuple[int, str, str]]:
    """Number, name and country of everybody who shops here."""
    chance = Random(f"{seed} customers")
    return [(n, f"Customer {n}", chance.choice(COUNTRIES)) for n in range(1, CUSTOMERS + 1)]


def products(seed: int) -> list[Product]:
    """The catalogue at the beginning."""
    chance = Random(f"{seed} products")
    names = [(make, kind) for kind in KINDS for make in MAKES]
    return [
        Product(
            id=n,
            name=f"{make} {kind}",
            description=KINDS[kind][1],
            category=KINDS[kind][0],
            price=Decimal(chance.randrange(900, 19_900)) / 100,
            quantity=chance.randrange(25, 120),
            reorder_at=20,
        )
        for n, (make, kind) in enumerate(names, 1)
    ]


def past_orders(seed: int) -> list[tuple[Order, float]]:
    """What was sold before the doors opened today, with how many seconds before; all of it is paid."""
    chance, catalogue = Random(f"{seed} past"), products(seed)
    sold = []
    for n in range(1, PAST_ORDERS + 1):
        product, quantity = chance.choice(catalogue), chance.choice((1, 1, 1, 2, 3))
        order = Order(n, chance.randint(1, CUSTOMERS), product.id, quantity, product.price * quantity)
        sold.append((order, chance.uniform(3_600, 30 * 86_400)))
    return sold


def life(seed: int, seconds: float | None = None) -> Iterator[Action]:
    """What happens, in order, for so many seconds or for ever. The same seed and seconds give the same."""
    return _Shop(seed, seconds or 120.0, endless=seconds is None).actions()


@dataclass
class _Shop:
    seed: int
    day: float
    """Seconds after which sales and removals come again, if it is endless."""
    endless: bool
    chance: Random = field(init=False)
    _due: list[tuple[float, int, Action]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = Random(f"{self.seed} life")
        self._ties = count()
        self._orders, self._payments = count(PAST_ORDERS + 1), count(PAST_ORDERS + 1)
        self._catalogue = {p.id: p for p in products(self.seed)}
        self._prices = {p.id: p.price for p in self._catalogue.values()}
        self._stock = {p.id: p.quantity for p in self._catalogue.values()}
        self._sale = (0, 0.0, 0.0)  # the product, from when, until when
        self._arrival = float("inf")  # of what is new in the catalogue

    def actions(self) -> Iterator[Action]:
        """Visits begin at random times; all that follows from them is put in its place."""
        now, days = 0.0, 0
        while True:
            if now >= days * self.day:
                if days and not self.endless:
                    break
                self._plan_day(days * self.day)
                days += 1
            busy = 2.5 if self._on_sale(now) else 1.0
            now += self.chance.expovariate(VISITS_A_SECOND * busy)
            yield from self._until(now)
            self._visit(now)
        yield from self._until(self.day)

    def _until(self, now: float) -> Iterator[Action]:
        while self._due and self._due[0][0] <= now:
            yield heapq.heappop(self._due)[2]

    def _at(self, when: float, what: What, note: str = "") -> None:
        heapq.heappush(self._due, (when, next(self._ties), Action(when, what, note)))

    def _on_sale(self, now: float) -> int | None:
        product, begin, end = self._sale
        return product if begin <= now < end else None

    # --- a day ----------------------------------------------------------------------------------------------------------

    def _plan_day(self, begin: float) -> None:
        """What comes once or twice: a sale, people who move, something new, money that belongs to nothing."""
        day, chance = self.day, self.chance
        star = self._catalogue[chance.randint(1, len(KINDS) * len(MAKES))]
        half = (star.price / 2).quantize(Decimal("0.01"))
        start, end = begin + 0.2 * day, begin + 0.45 * day
        self._sale = (star.id, start, end)
        self._at(
            start, Reprice(star.id, f"{star.name} (flash sale)", half), f"flash sale: {star.name} at {half}"
        )
        self._at(
            end, Reprice(star.id, star.name, star.price), f"the flash sale ends: {star.name} at {star.price}"
        )
        bulk = self._catalogue[star.id % len(self._catalogue) + 1]
        order = Order(
            next(self._orders), chance.randint(1, CUSTOMERS), bulk.id, bulk.quantity - 15, bulk.price * 10
        )
        self._at(begin + 0.12 * day, order, f"a company buys {order.quantity} of {bulk.name}: stock runs low")
        self._at(begin + 0.8 * day, Restock(bulk.id, 100), f"a delivery of {bulk.name}")
        for part in (0.15, 0.35, 0.55, 0.75):
            who, where = chance.randint(1, CUSTOMERS), chance.choice(COUNTRIES)
            self._at(begin + part * day, Move(who, where), f"customer {who} moves to {where}")
        if begin == 0:
            number = len(self._catalogue) + 1
            pen = Product(number, NEWCOMER, "A pen that never runs dry", "paper", Decimal("49.00"), 60, 20)
            self._prices[number], self._stock[number] = pen.price, pen.quantity
            self._arrival = 0.3 * day
            self._at(self._arrival, Arrival(pen), f"new in the catalogue: {NEWCOMER}")
        for part in (0.1, 0.6):
            stray = Payment(next(self._payments), 9_000_000 + len(self._due), Decimal("12.00"), 0)
            self._at(begin + part * day, stray, "a payment without an order")

    # --- a visit --------------------------------------------------------------------------------------------------------

    def _visit(self, now: float) -> None:
        """Some pages, by a device with a clock of its own; perhaps an order at the end of it."""
        chance = self.chance
        who = chance.randint(1, CUSTOMERS)
        device, channel = f"device-{who}", CHANNELS[who % len(CHANNELS)]
        error = Random(who).choice((0.0, 0.0, 0.0, -41.0, 7.5, 7_200.0, -86_400.0))
        wanted = self._on_sale(now)
        product = chance.randint(1, len(self._catalogue) + (now > self._arrival))
        if wanted is not None and chance.random() < 0.4:
            product = wanted
        buys = chance.random() < (0.4 if product == wanted else 0.25)
        pages = ["home", *["product"] * chance.randint(1, 4), *(["basket", "thanks"] if buys else [])]
        offline = chance.random() < 0.03  # in a tunnel: all of it is sent minutes later
        behind = chance.uniform(120, 600) if offline else 0.0
        moment = now
        for page in pages:
            moment += chance.uniform(0.2, 1.2)
            slow = chance.uniform(2, 6) if chance.random() < 0.05 else 0.05  # a bad network
            click = Click(device, error, who, product, page, channel, moment - behind)
            self._at(moment + slow, click)
        if buys and not offline:
            self._buy(moment, who, product)

    def _buy(self, now: float, who: int, product: int) -> None:
        chance, quantity = self.chance, self.chance.choice((1, 1, 1, 2, 3))
        price = self._prices[product]
        if self._on_sale(now) == product:
            price = (price / 2).quantize(Decimal("0.01"))
        order = Order(next(self._orders), who, product, quantity, price * quantity)
        self._at(now, order)
        self._stock[product] -= quantity
        if self._stock[product] < 20:
            self._stock[product] += 100
            self._at(now + chance.uniform(6, 15), Restock(product, 100))
        fate = chance.random()
        if fate < 0.06:
            self._at(now + chance.uniform(1, 8), Cancel(order.id, product, quantity))
        elif fate < 0.92:
            delay = 7_000.0 if chance.random() < 0.01 else 0.0  # by a bank that books it two hours later
            paid = Payment(next(self._payments), order.id, order.amount, delay)
            when = now + chance.uniform(0.5, 10)
            self._at(when, paid)
            if chance.random() < 0.05:
                back = Payment(next(self._payments), order.id, -order.amount, 0, refund=True)
                self._at(when + chance.uniform(1, 10), back)
