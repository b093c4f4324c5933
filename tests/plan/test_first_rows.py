"""A query that asks for the first rows of a view or topic gets rows of it, and reads no more than it has to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from headwater.serving.query import relations
from headwater.testing import inspect_workspace
from tests.engine.workers import SETTINGS

pytestmark = pytest.mark.slow

ROWS = 20_000
NAMES = ("t", "k", "v", "counted")


@pytest.fixture
def ws(tmp_path: Path, spark: Any) -> Iterator[Workspace]:
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as opened:
        opened.sql(
            "CREATE TOPIC t (a BIGINT) WITH (partitions = 2);"
            "CREATE TOPIC k (id BIGINT, a BIGINT, PRIMARY KEY (id));"
            "CREATE MATERIALIZED VIEW v AS SELECT t.a, k.a AS b FROM t LEFT JOIN k ON t.a = k.id;"
            "CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM t"
        )
        for part in range(4):
            own = range(part * ROWS // 4, (part + 1) * ROWS // 4)
            opened.topic("t").append([{"a": n // 3} for n in own])
            opened.topic("k").append([{"id": n, "a": -n} for n in own])
            opened.topic("k").delete([{"id": n} for n in own if n % 5 == 0])
        yield opened


def test_the_first_rows_are_rows_of_it(ws: Workspace) -> None:
    check(ws, ("t", "k"))
    ws.run()
    check(ws, NAMES)


def check(ws: Workspace, names: tuple[str, ...]) -> None:
    for name in names:
        whole = Counter(map(str, ws.query(f"SELECT * FROM {name}").to_pylist()))
        for limit in (0, 1, 3, 7_000, 2 * ROWS):
            some = Counter(map(str, ws.query(f"SELECT * FROM {name} LIMIT {limit}").to_pylist()))
            assert some.total() == min(limit, whole.total())
            assert some <= whole
    assert ws.query("SELECT a FROM t WHERE a = 5 LIMIT 2").num_rows == 2
    assert ws.query("SELECT id FROM k WHERE a = -7 LIMIT 2").to_pylist() == [{"id": 7}]
    assert ws.query("SELECT id FROM k WHERE id = 5 LIMIT 2").num_rows == 0


def test_no_more_is_read_than_has_them(ws: Workspace) -> None:
    ws.run()
    views = inspect_workspace(ws).views
    found = relations(ws.log, views.store, views.store.latest(), None)
    for name in ("t", "k", "v"):
        assert 3 <= found[name].read(None, None, 3).num_rows < 3 * ROWS / 4
        assert found[name].read(None, None).num_rows > 3 * ROWS / 4
