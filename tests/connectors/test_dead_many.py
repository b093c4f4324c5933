"""Very many dead letters of a view: what is shown of them is chosen as columns, and is the same as if all were read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.connectors.dead_letter_store.letter_store import Letter
from headwater.connectors.dead_letters.dead_letters import DeadLetters
from headwater.connectors.dead_letters.dead_views import ViewLetterStore
from headwater.engine.row_errors.diverted_rows import ERRORS
from headwater.log.protocol import Log
from headwater.views.dead_letter_actions import with_dropped

ROWS = 2_000
"""Of each of two topics, in two partitions, with few moments among them."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with hw.open(tmp_path / "w", durability="os") as ws:
        ws.sql("CREATE TOPIC orders (id BIGINT); CREATE TOPIC old_orders (id BIGINT)")
        yield ws.log


class Errors(ViewLetterStore):
    """The letters of two views with the same errors, which are given."""

    def __init__(self, log: Log, errors: pa.Table) -> None:
        reads = SimpleNamespace(contents=lambda name: errors)
        here = SimpleNamespace(store=SimpleNamespace(latest=lambda: 1), reads=reads)
        super().__init__(log, lambda: here)  # type: ignore[arg-type,return-value]
        self.made = 0

    def owners(self) -> list[str]:
        return ["sums", "totals"]

    def _letters(self, owner: str, errors: pa.Table, topics: Any) -> list[Letter]:
        self.made += errors.num_rows
        return super()._letters(owner, errors, topics)


def errors_of(count: int) -> pa.Table:
    number = list(range(count))
    columns = {
        "_topic": [("orders", "old_orders")[n % 2] for n in number],
        "_partition": [n // 2 % 2 for n in number],
        "_offset": [n // 4 for n in number],
        "_appended_at": [n // 100 for n in number],
        "_error": ["no number"] * count,
        "_row": ["{}"] * count,
    }
    arrays = [
        pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type) for f in ERRORS
    ]
    return pa.Table.from_arrays(arrays, schema=ERRORS)


def test_the_newest_are_the_same_as_of_all_of_them(log: Log) -> None:
    errors = errors_of(2 * ROWS)
    store = Errors(log, pa.concat_tables([errors, errors.slice(2 * ROWS - 10)]))  # some fail twice
    dead = DeadLetters(log, (store,))
    dead.drop(["sums/orders-0-999", "sums/orders-1-998", "totals/orders-0-999"])
    for state in ("open", "all", "dropped"):
        for of in (None, "sums"):
            whole = dead.find(of, state)
            store.made = 0
            page = dead.page(of, state, 20)
            assert [one.id for one in page.letters] == [one.id for one in whole[:20]]
            assert page.total == len(whole)
            assert store.made <= 50
    counted = {owner: (states["open"], states["dropped"]) for (owner, _), states in dead.counts().items()}
    assert counted == {"sums": (2 * ROWS - 2, 2), "totals": (2 * ROWS - 1, 1)}


def test_those_that_were_dropped_are_counted_as_columns(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = errors_of(2 * ROWS)
    dead = DeadLetters(log, (Errors(log, errors),))
    dead.drop(["sums/orders-0-999", "sums/old_orders-1-998", "sums/orders-0-1", "totals/orders-0-7"])
    dead.drop("sums/orders-1-1")
    accounts = {name: {"failed": ROWS, "dropped": 0} for name in ("orders", "old_orders")}
    monkeypatch.delattr("headwater.views.dead_letter_actions.letter_of")  # which is of one row
    assert with_dropped(log, "sums", accounts, lambda: errors) == {
        "orders": {"failed": ROWS - 3, "dropped": 3},
        "old_orders": {"failed": ROWS - 1, "dropped": 1},
    }
    assert accounts["orders"]["dropped"] == 0
    for none in (ERRORS.empty_table(), pa.Table.from_batches([], ERRORS), errors.slice(100, 4)):
        assert with_dropped(log, "sums", accounts, lambda none=none: none) == accounts  # type: ignore[misc]
        assert DeadLetters(log, (Errors(log, none),)).page(limit=3).total == 2 * none.num_rows
