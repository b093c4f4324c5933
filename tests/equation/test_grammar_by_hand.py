"""The equation for what random cases never have: other types as keys, and forms of SQL that are written by hand here."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw

pytestmark = [pytest.mark.slow, pytest.mark.long]

COLUMNS = "id BIGINT, a INT, b BIGINT, f FLOAT, big DECIMAL(38,10), s STRING, bin BINARY, tn TIMESTAMP_NTZ, sm SMALLINT, m MAP<STRING, INT>"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
VIEWS = {
    "keys": "SELECT f, bin, tn, count(*) AS n, max(big) AS x, grouping_id(f, bin, tn) AS level FROM {t} GROUP BY ROLLUP (f, bin, tn)",
    "windows": "SELECT window(tn, '2 hours', '1 hour', '10 minutes').start AS w, sum(big) AS x FROM {t} GROUP BY window(tn, '2 hours', '1 hour', '10 minutes')",
    "frequent": "SELECT a, percentile(b, 0.3, id + 1) AS x, mode(s) AS y, try_sum(sm) AS z FROM {t} GROUP BY a",
    "side_by_side": "SELECT * FROM (SELECT b, a, sm FROM {t}) PIVOT (max(sm) AS most, count(*) AS n FOR a IN (0, 1 AS one, 2))",
    "below": "SELECT * FROM (SELECT id, a, CAST(sm AS INT) AS sm FROM {t}) UNPIVOT INCLUDE NULLS (value FOR name IN (a, sm AS small))",
    "stacked": "SELECT id, stack(2, a, s, CAST(sm AS INT), 'k') AS (n, l) FROM {t}",
    "pairs": "SELECT id, k, v FROM {t} LATERAL VIEW OUTER explode(m) AS k, v",
    "casts": "SELECT t.id, o.id AS other FROM {t} t JOIN {o} o ON t.sm = o.b AND t.big > o.a",
    "texts": "SELECT t.id, o.id AS other FROM {t} t LEFT JOIN {o} o ON try_cast(t.s AS INT) = o.a",
    "floats": "SELECT t.id, o.id AS other FROM {t} t JOIN {o} o ON t.f = o.f AND t.bin <=> o.bin",
    "using": "SELECT a, t.id, o.id AS other FROM {t} t FULL JOIN {o} o USING (a)",
    "by_either": "SELECT coalesce(t.a, o.a) AS k, count(t.id) AS n, count(o.id) AS m FROM {t} t FULL JOIN {o} o ON t.a = o.a GROUP BY 1",
    "values": "SELECT t.id, v.n FROM {t} t JOIN (VALUES (0, 'zero'), (NULL, 'null')) AS v(a, n) ON t.a <=> v.a",
    "tuples": "SELECT id FROM {t} WHERE (a, b) IN (SELECT a, b FROM {o})",
    "flags": "SELECT id, EXISTS (SELECT 1 FROM {o} o WHERE o.a = t.a) AS e, a NOT IN (SELECT a FROM {o} WHERE b > 1) AS i FROM {t} t",
    "lateral": "SELECT t.id, l.n FROM {t} t, LATERAL (SELECT count(*) AS n FROM {o} o WHERE o.a = t.a) l",
    "tiles": "SELECT id, ntile(3) OVER (ORDER BY id, s) AS x, cume_dist() OVER (ORDER BY b) AS y, lag(b, 2, -1) OVER (PARTITION BY a ORDER BY id, s) AS z FROM {t}",
    "near": "SELECT id, count(*) OVER (PARTITION BY a ORDER BY b RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS x FROM {t}",
    "ranked": "SELECT * FROM (SELECT id, a, rank() OVER (PARTITION BY a ORDER BY f DESC NULLS LAST) AS n FROM {t}) WHERE n BETWEEN 2 AND 3",
}


def row(chance: random.Random, number: int) -> dict[str, Any]:
    def some(value: Any) -> Any:
        return None if chance.random() < 0.15 else value

    return {
        "id": number,
        "a": some(chance.randrange(-1, 3)),
        "b": some(chance.randrange(4)),
        "f": some(chance.choice([0.0, -0.0, float("nan"), 0.1])),
        "big": some(Decimal(chance.choice(["1", "-2.5", "99999.1234567891"]))),
        "s": some(chance.choice(["", "a", "A", "1", "2"])),
        "bin": some(chance.choice([b"", b"a", b"\x00\xff"])),
        "tn": some((NOON + timedelta(minutes=20 * chance.randrange(12))).replace(tzinfo=None)),
        "sm": some(chance.randrange(-3, 3)),
        "m": some([(k, some(chance.randrange(3))) for k in ("k", "l")[: chance.randrange(3)]]),
    }


def test_views_of_every_form_equal_their_select_at_every_tick(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(4)
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(f"CREATE TOPIC facts ({COLUMNS}); CREATE TOPIC rows ({COLUMNS}, PRIMARY KEY (id))")
        for number, (name, select) in enumerate(VIEWS.items()):
            t, o = ("rows", "facts") if number % 3 else ("facts", "rows")
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select.format(t=t, o=o)}")
        for _ in range(4):
            changed: list[dict[str, Any]] = [row(chance, chance.randrange(12)) for _ in range(8)]
            changed += [{"id": chance.randrange(12), "_op": "delete"} for _ in range(3)]
            ws.append({"rows": changed, "facts": [row(chance, chance.randrange(12)) for _ in range(3)]})
            assert ws.run().stopped == {}
            assert [d.message for d in ws.verify().differences] == []
