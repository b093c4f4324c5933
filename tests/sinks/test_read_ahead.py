"""Reading ahead gives what there is, in its order, and ends with whoever reads."""

import threading
from collections.abc import Iterator

import pytest

from headwater.sinks.base.read_ahead import ahead


class Broken(ValueError):
    """An error of the iterator that is read."""


def test_items_come_in_their_order() -> None:
    assert list(ahead(iter(range(100)))) == list(range(100))
    assert list(ahead(iter(()))) == []


def test_an_error_comes_in_its_place() -> None:
    def breaking() -> Iterator[int]:
        yield 1
        raise Broken

    items = ahead(breaking())
    assert next(items) == 1
    with pytest.raises(Broken):
        next(items)


def test_who_stops_reading_stops_the_thread() -> None:
    made: list[int] = []

    def counting() -> Iterator[int]:
        for number in range(10_000):
            made.append(number)
            yield number

    before = threading.active_count()
    items = ahead(counting())
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert len(made) < 10
    assert threading.active_count() == before
