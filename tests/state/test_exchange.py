"""Changes that go from one process to another: the same when they are read, and gone after the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headwater.errors import WorkspaceMissingError
from headwater.operators.delta import Delta
from headwater.state.exchange import Exchange
from headwater.state.layout import EXCHANGE, Origin, exchange_name, exchange_origin
from headwater.storage import Storage

ORIGIN = Origin(7, 3, "abc")


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    made = Exchange(Storage(tmp_path), exchange_name(ORIGIN, 2))
    made.create()
    return made


def change(*values: str | None) -> Delta:
    columns = [
        pa.array(values, pa.string()),
        pa.array([[len(v or "")] for v in values], pa.list_(pa.int64())),
    ]
    rows = pa.RecordBatch.from_arrays(columns, names=["_weight", "_weight"])
    return Delta(rows, np.arange(len(values), dtype=np.int64) - 1)


def test_changes_are_read_one_by_one_as_they_were_written(exchange: Exchange) -> None:
    whole = change("a", None, "", "b" * 100, "c")
    parts = [change("a", None), change(), Delta(whole.rows.slice(2, 2), whole.weights[2:4])]
    exchange.write("some", parts)
    for place, part in enumerate(parts):
        read = exchange.read("some", place, distinct=True)
        assert read.rows.equals(part.rows)
        assert read.weights.tolist() == part.weights.tolist()
        assert read.distinct


def test_a_file_is_written_once(exchange: Exchange) -> None:
    exchange.write("some", [change("a")])
    with pytest.raises(FileExistsError):
        exchange.write("some", [change("b")])


def test_what_was_read_stays_good_and_who_writes_later_is_told(exchange: Exchange, tmp_path: Path) -> None:
    exchange.write("some", [change("a")])
    read = exchange.read("some")
    exchange.remove()
    exchange.remove()
    assert list((tmp_path / EXCHANGE).iterdir()) == []
    assert read.rows.equals(change("a").rows)
    with pytest.raises(WorkspaceMissingError):
        exchange.write("more", [change("b")])
    with pytest.raises(WorkspaceMissingError):
        exchange.read("some")


def test_a_folder_says_who_made_it() -> None:
    assert exchange_origin(exchange_name(ORIGIN, 2)) == ORIGIN
    assert exchange_origin("something else") is None
