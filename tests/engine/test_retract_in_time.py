"""Deletions from views that leave rows out, wait for windows to close, or have let go of what they showed: only what is touched is computed
again, and every view is its SELECT, with its late rows and its errors."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from tests.engine.test_deletions_in_views import holding
from tests.engine.test_retract import assert_whole, mended, open_ws

__all__ = ["open_ws"]

pytestmark = pytest.mark.slow

LONG = os.environ.get("HEADWATER_LONG") == "1"
START = datetime(2026, 1, 1, tzinfo=UTC)
TOPICS = "".join(
    f"CREATE TOPIC {name} (k BIGINT NOT NULL, v BIGINT, at TIMESTAMP, x DOUBLE, name STRING, "
    "secret STRING PRIVATE BY (k), WATERMARK FOR at AS at - INTERVAL '10 seconds') WITH (partitions = 2);"
    for name in ("a", "b")
)
W = "window(at, '20 seconds')"
TUMBLING = f"SELECT k, {W} AS w, count(*) AS n, max(name) AS m, sum(x) AS s FROM a GROUP BY k, {W}"
PATTERN = """SELECT * FROM a MATCH_RECOGNIZE (PARTITION BY k ORDER BY at MEASURES FIRST(p.at) AS since, sum(q.v) AS s
    PATTERN (p q+ r) WITHIN INTERVAL 1 MINUTE DEFINE p AS v > 3, q AS q.v <= p.v, r AS v > 4)"""
JOIN = """SELECT a.k, a.at, a.name, b.name AS other FROM a {kind} JOIN b ON a.k = b.k
    AND b.at BETWEEN a.at - INTERVAL '10' SECONDS AND a.at + INTERVAL '20' SECONDS"""
CLOSE = "EMIT ON WINDOW CLOSE"
MENDED = {
    "closed": ("", f"{TUMBLING} {CLOSE}"),
    "diverted": ("late = 'divert'", TUMBLING),
    "dropped": (
        "late = 'drop'",
        f"SELECT {W} AS w, percentile_approx(v, 0.5) AS p, count(*) AS n FROM a GROUP BY {W}",
    ),
    "final": ("late = 'divert'", f"{TUMBLING} {CLOSE}"),
    "hopping": (
        "late = 'drop'",
        "SELECT window(at, '20 seconds', '10 seconds') AS w, k, sum(v) AS s FROM a GROUP BY 1, 2",
    ),
    "some": ("correct_for = '20 seconds'", f"SELECT {W} AS w, percentile(v, 0.5) AS p FROM a GROUP BY {W}"),
    "stays": (
        "late = 'drop'",
        "SELECT k, session_window(at, '7 seconds') AS w, count(*) AS n FROM a GROUP BY 1, 2",
    ),
    "sliding": (
        "late = 'drop'",
        "SELECT k, at, v, sum(v) OVER (PARTITION BY k ORDER BY at RANGE BETWEEN INTERVAL '20' SECONDS PRECEDING AND CURRENT ROW) AS s FROM a",
    ),
    "near": ("late = 'drop'", JOIN.format(kind="LEFT")),
    "near_once": ("late = 'divert'", f"{JOIN.format(kind='LEFT')} {CLOSE}"),
    "falls": ("late = 'drop'", PATTERN),
    "falls_once": ("late = 'divert'", f"{PATTERN} {CLOSE}"),
    "refusing": ("on_error = 'divert'", "SELECT k, max(100 div v) AS d, count(*) AS n FROM a GROUP BY k"),
    "last_secret": ("late = 'drop'", f"SELECT k, {W} AS w, max(secret) AS m FROM a GROUP BY k, {W} {CLOSE}"),
}
BUILT_ANEW = {
    "listed": (
        "late = 'drop'",
        "SELECT k, session_window(at, '7 seconds') AS w, array_agg(v ORDER BY at, v) AS l FROM a GROUP BY 1, 2",
    ),
}
VIEWS = {**MENDED, **BUILT_ANEW}


def with_views(ws: Workspace) -> Workspace:
    ws.sql(TOPICS)
    for name, (options, query) in VIEWS.items():
        ws.sql(f"CREATE MATERIALIZED VIEW {name} {f'WITH ({options})' if options else ''} AS {query}")
    return ws


class Feed:
    """Rows whose times go on, some of which come late."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 0

    def rows(self, number: int) -> list[dict[str, Any]]:
        self.now += self.chance.randrange(25)
        return [
            {
                "k": self.chance.randrange(3),
                "v": self.chance.randrange(6),
                "at": START + timedelta(seconds=self.now - self.chance.randrange(60 if late else 8)),
                "x": self.chance.random(),
                "name": f"name-{self.chance.randrange(10**6)}-",
                "secret": f"secret-{self.chance.randrange(10**6)}-",
            }
            for late in (self.chance.random() < 0.3 for _ in range(number))
        ]


def test_only_what_is_touched_is_computed_again(open_ws: Any, tmp_path: Path) -> None:
    ws, feed = with_views(open_ws()), Feed(random.Random(4))
    wrong = {
        "k": 1,
        "v": 0,
        "at": START + timedelta(seconds=5),
        "x": 1.0,
        "name": "wrong-",
        "secret": "wrong-s",
    }
    ws.append({"a": [wrong], "b": [wrong]})
    for _ in range(12):
        ws.append({"a": feed.rows(8), "b": feed.rows(4)})
        ws.run()
    ws.append({"a": [{**wrong, "v": 3}]})  # which is late by now
    ws.run()
    assert {"wrong-"} < {row["name"] for row in ws.query("SELECT name FROM diverted.late").to_pylist()}
    assert holding(tmp_path / "ws", "wrong-") != []
    ws.excise("a", "name = 'wrong-'")
    ws.append({"a": feed.rows(3)})
    ws.run()
    assert mended(ws, "excise-1") == (set(MENDED), set(BUILT_ANEW))
    ws.excise("b", "name = 'wrong-'")
    ws.run()
    assert mended(ws, "excise-2") == ({"near", "near_once"}, set())
    assert_whole(ws)
    assert holding(tmp_path / "ws", "wrong-") == []
    assert ws.forget(1).records
    ws.run()
    assert "last_secret" in mended(ws, "forget-1")[0]
    assert_whole(ws)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.long) for s in range(1, 10))])
def test_views_in_time_are_their_selects_after_any_deletions(open_ws: Any, seed: int) -> None:
    chance = random.Random(seed)
    ws, feed = with_views(open_ws()), Feed(chance)
    for step in range(40 if LONG else 16):
        act = chance.choice(["append"] * 3 + ["tick"] * 3 + ["excise", "excise", "open", "forget"])
        if act == "append":
            ws.append({"a": feed.rows(chance.randint(1, 8)), "b": feed.rows(chance.randint(1, 4))})
        elif act == "tick":
            ws.run(tick_rows=chance.choice([None, 6]))
        elif act == "open":
            ws = open_ws()
        else:
            with suppress(hw.UsageError):
                if act == "forget" and step > 8:
                    ws.forget(chance.randrange(3))
                else:
                    ws.excise(
                        chance.choice("aab"), f"v = {chance.randrange(6)} AND k = {chance.randrange(3)}"
                    )
                ws.run()
                if LONG:
                    assert_whole(ws)
    ws.append({"a": feed.rows(6), "b": feed.rows(6)})
    ws.excise("a", f"_offset % 5 = {chance.randrange(5)}")
    ws.run()
    assert_whole(ws)
