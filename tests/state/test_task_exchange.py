"""Changes that go from one process to another: the same when they are read, and gone after the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headwater.core.errors import WorkspaceMissingError
from headwater.core.storage import Storage
from headwater.operators.zset.delta import Delta
from headwater.state.state_files import EXCHANGE, FileOrigin, exchange_name, exchange_origin
from headwater.state.task_exchange import Exchange

ORIGIN = FileOrigin(7, 3, "abc")


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
    exchange.write("input-0.arrow", parts)
    for place, part in enumerate(parts):
        read = exchange.read("input-0.arrow", place, distinct=True)
        assert read.rows.equals(part.rows)
        assert read.weights.tolist() == part.weights.tolist()
        assert read.distinct


def test_a_file_is_written_once(exchange: Exchange) -> None:
    exchange.write("input-0.arrow", [change("a")])
    with pytest.raises(FileExistsError):
        exchange.write("input-0.arrow", [change("b")])


def test_what_was_read_stays_good_and_who_writes_later_is_told(exchange: Exchange, tmp_path: Path) -> None:
    exchange.write("input-0.arrow", [change("a")])
    read = exchange.read("input-0.arrow")
    exchange.remove()
    exchange.remove()
    assert list((tmp_path / EXCHANGE).iterdir()) == []
    assert read.rows.equals(change("a").rows)
    with pytest.raises(WorkspaceMissingError):
        exchange.write("input-1.arrow", [change("b")])
    with pytest.raises(WorkspaceMissingError):
        exchange.read("input-0.arrow")


def test_a_folder_says_who_made_it() -> None:
    assert exchange_origin(exchange_name(ORIGIN, 2)) == ORIGIN
    assert exchange_origin("something else") is None
