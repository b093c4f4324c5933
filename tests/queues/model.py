"""A queue as simple as it can be: a dict of messages. What the real one does is held against it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Item:
    """One message: what it is at, and since when or until when."""

    key: int
    at: str = "fresh"
    time: int = 0
    worker: str = ""
    deliveries: int = 0


class Model:
    """Messages of one partition by offset; `limit` deliveries, then dead. `in_order`: one of a key at a time."""

    def __init__(self, limit: int, *, in_order: bool) -> None:
        self.items: dict[int, Item] = {}
        self.limit = limit
        self.in_order = in_order

    def append(self, keys: list[int], due: list[int]) -> None:
        for key, moment in zip(keys, due, strict=True):
            self.items[len(self.items)] = Item(key, time=moment)

    def lapse(self, now: int) -> None:
        for item in self.items.values():
            if item.at == "leased" and item.time <= now:
                self._again(item, item.time)

    def _again(self, item: Item, due: int) -> None:
        item.at, item.time = ("dead", 0) if item.deliveries >= self.limit else ("waiting", due)

    def available(self, now: int) -> set[int]:
        ready = {n for n, i in self.items.items() if i.at in ("fresh", "waiting") and i.time <= now}
        if not self.in_order:
            return ready
        first: dict[int, int] = {}
        for number, item in self.items.items():
            if item.at not in ("done", "dead"):
                first.setdefault(item.key, number)
        held = {i.key for i in self.items.values() if i.at == "leased"}
        return {n for n in ready if first[self.items[n].key] == n and self.items[n].key not in held}

    def claim(self, number: int, worker: str, until: int) -> None:
        item = self.items[number]
        item.at, item.worker, item.time, item.deliveries = "leased", worker, until, item.deliveries + 1

    def holds(self, number: int, worker: str) -> bool:
        item = self.items[number]
        return item.at == "leased" and item.worker == worker

    def ack(self, number: int) -> None:
        self.items[number].at = "done"

    def nack(self, number: int, due: int) -> None:
        self._again(self.items[number], due)

    def give_up(self, number: int) -> None:
        self.items[number].at = "dead"

    def release(self, number: int, now: int) -> None:
        item = self.items[number]
        item.at, item.time, item.deliveries = "waiting", now, item.deliveries - 1

    def extend(self, number: int, until: int) -> None:
        self.items[number].time = until

    def count(self, *states: str) -> int:
        return sum(item.at in states for item in self.items.values())
