"""The log is put back and the state is not, or the other way round: ticks that cover other commits are made anew."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import headwater as hw
from headwater.core.errors import OtherHistoryError, TickNotKeptError
from headwater.spark_datasource.datasource import HeadwaterDataSource
from headwater.spark_datasource.view_reader import ViewStreamReader
from headwater.testing import inspect_workspace
from tests.equation.play import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEWS = """
CREATE TOPIC orders (country STRING, amount BIGINT);
CREATE MATERIALIZED VIEW revenue AS SELECT country, sum(amount) AS total FROM orders GROUP BY country;
"""


def order(ws: hw.Workspace, country: str, amount: int) -> None:
    ws.topic("orders").append([{"country": country, "amount": amount}])


def totals(ws: hw.Workspace) -> dict[str, int]:
    return {row["country"]: row["total"] for row in ws.query("SELECT * FROM revenue").to_pylist()}


def stream(ws: hw.Workspace) -> ViewStreamReader:
    """The source of a Spark query that follows the view."""
    made = HeadwaterDataSource({"workspace": str(ws.path), "view": "revenue", "changes": "true"})
    reader = made.streamReader(made.schema())
    assert isinstance(reader, ViewStreamReader)
    return reader


def test_what_is_put_back_alone_is_not_gone_on_from(tmp_path: Path, spark: SparkSession) -> None:
    folder, copy, newer = tmp_path / "ws", tmp_path / "copy", tmp_path / "newer"

    def opened() -> Any:
        return hw.open(folder, settings=SETTINGS, spark=spark)

    with opened() as ws:
        ws.sql(VIEWS)
        order(ws, "ch", 1)
        first = ws.run().tick
    shutil.copytree(folder, copy)
    with opened() as ws:
        for amount in (10, 20):
            order(ws, "de", amount)
            ws.run()
        reader = stream(ws)
        seen = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert seen["id"]
        assert reader.latestOffset(seen, ReadAllAvailable()) == seen
        token = str(inspect_workspace(ws).manifest().token)  # type: ignore[union-attr]
    shutil.move(folder, newer)

    # the log of the copy, and the state of what came after it: it covers commits that are not there, or others
    for more in (0, 3):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(copy, folder)
        shutil.rmtree(folder / "state")
        shutil.copytree(newer / "state", folder / "state")
        with opened() as ws:
            for amount in range(more):
                order(ws, "fr", amount)
            ws.run()
            assert ws.verify().ok
            assert totals(ws) == ({"ch": 1, "fr": 3} if more else {"ch": 1})
            with pytest.raises(TickNotKeptError):
                ws.view("revenue").changes(token)
            assert len(ws.view("revenue").changes(follow=True, timeout=0).__next__()) == len(totals(ws))

    # the whole copy, which comes to the number that Spark has seen, and past it
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    with opened() as ws:
        for _ in range(4):
            with pytest.raises(TickNotKeptError):
                stream(ws).latestOffset(seen, ReadAllAvailable())
            order(ws, "fr", 5)
            assert ws.run().tick > first
        with pytest.raises(OtherHistoryError):
            stream(ws).latestOffset(seen, ReadAllAvailable())
        with pytest.raises(OtherHistoryError):
            stream(ws).partitions({**seen, "tick": first}, seen)
        assert totals(ws) == {"ch": 1, "fr": 20}
