"""Copies of private columns in other topics: as private as they are, by the same subject, or not made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.settings import LogSettings
from headwater.sql.statements import QueryText
from headwater.testing import inspect_workspace
from headwater.views.private_copies import copied_by_query, copied_by_view
from tests.raising import raises

pytestmark = pytest.mark.slow

SCHEMA = """
CREATE TOPIC people (id BIGINT, email STRING PRIVATE BY (id), country STRING, PRIMARY KEY (id));
CREATE TOPIC clicks (user BIGINT NOT NULL, ip STRING PRIVATE BY (user), url STRING);
"""


@pytest.fixture
def ws(tmp_path: Path, spark: Any) -> Iterator[hw.Workspace]:
    settings = LogSettings(durability="os", maintenance_every_ms=0)
    with hw.open(tmp_path / "ws", spark=spark, settings=settings) as ws:
        ws.sql(SCHEMA)
        yield ws


def fill(ws: hw.Workspace) -> None:
    ws.append(
        {
            "people": [{"id": n, "email": f"mail-{n}-secret", "country": "DE"} for n in range(3)],
            "clicks": [{"user": n % 3, "ip": f"ip-{n % 3}-secret", "url": f"/{n}"} for n in range(6)],
        }
    )


def rows(ws: hw.Workspace, topic: str) -> list[dict[str, Any]]:
    return [row for batch in ws.topic(topic).read() for row in batch.to_pylist()]


def test_a_sink_makes_its_topic_private_and_forgetting_reaches_it(ws: hw.Workspace, tmp_path: Path) -> None:
    ws.sql(
        """
        CREATE MATERIALIZED VIEW every AS SELECT user, lower(ip) AS address, url FROM clicks;
        CREATE MATERIALIZED VIEW latest AS
          SELECT e.user AS who, max(e.address) AS address, count(*) AS n FROM every e GROUP BY e.user;
        CREATE SINK copy FROM latest INTO TOPIC WITH (topic = 'copied', key = 'who');
        CREATE SINK story FROM every INTO TOPIC WITH (topic = 'told', mode = 'changelog')
        """
    )
    assert ws.topic("copied").definition.private == (("address", "who"),)
    assert ws.topic("told").definition.private == (("address", "user"),)
    fill(ws)
    ws.run()
    assert {row["address"] for row in rows(ws, "copied")} == {f"ip-{n}-secret" for n in range(3)}
    stored = [path.read_bytes() for path in (tmp_path / "ws" / "topics").rglob("*.arrow")]
    assert not any(b"-secret" in each for each in stored)

    done = ws.forget(1)
    for topic, who in (("copied", "who"), ("told", "user")):
        assert all((row["address"] is None) == (row[who] == 1) for row in rows(ws, topic)), "at once"
    assert {"copied", "told"} <= {place.name for place in done.places if place.kind == "log"}
    ws.run()
    assert ws.verify().ok
    assert ws.deletions()[0].done
    ws.sink("copy").rebuild()
    assert ws.topic("copied_2").definition.private == (("address", "who"),)
    done = ws.excise("clicks", "url = '/5'")
    assert {p.name for p in done.places if p.kind == "sink" and p.status == "scheduled"} == {"copy", "story"}
    assert "/5" in str(rows(ws, "told"))
    ws.run()
    assert "/5" not in str(rows(ws, "told")), "a copy in the log is excised too"


def test_a_topic_that_is_there_must_be_as_private(ws: hw.Workspace) -> None:
    ws.sql(
        "CREATE MATERIALIZED VIEW mails AS SELECT id, email, country FROM people;"
        "CREATE TOPIC plain (id BIGINT, email STRING, country STRING, PRIMARY KEY (id))"
    )
    with raises(hw.SinkError, sink="copy", topic="plain", reason="private"):
        ws.sql("CREATE SINK copy FROM mails INTO TOPIC WITH (topic = 'plain', key = 'id')")


def test_a_topic_that_is_dropped_is_made_again_as_private(ws: hw.Workspace) -> None:
    ws.sql(
        "CREATE MATERIALIZED VIEW mails AS SELECT id, email FROM people;"
        "CREATE SINK copy FROM mails INTO TOPIC WITH (topic = 'copied', key = 'id')"
    )
    ws.sql("DROP TOPIC copied")
    fill(ws)
    ws.run()
    assert ws.topic("copied").definition.private == (("email", "id"),)


def test_a_view_is_not_replaced_by_one_whose_private_values_would_be_copied_in_plain(
    ws: hw.Workspace,
) -> None:
    ws.sql(
        "CREATE MATERIALIZED VIEW v AS SELECT user, max(url) AS x FROM clicks GROUP BY user;"
        "CREATE MATERIALIZED VIEW higher AS SELECT user, x FROM v;"
        "CREATE SINK copy FROM higher INTO TOPIC WITH (topic = 'copied', key = 'user')"
    )
    replacing = "CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT user, {} AS x FROM clicks GROUP BY user"
    with raises(hw.StatementError, sink="copy", view="v", column="x"):
        ws.sql(replacing.format("max(ip)"))
    ws.sql(replacing.format("min(url)"))
    ws.sql("DROP SINK copy; DROP TOPIC copied")
    ws.sql(replacing.format("max(ip)"))
    ws.sql("CREATE SINK copy FROM higher INTO TOPIC WITH (topic = 'copied', key = 'user')")
    ws.sql(replacing.format("min(ip)"))


def test_columns_that_are_not_made_of_private_ones_are_copied_in_plain(ws: hw.Workspace) -> None:
    ws.sql(
        "CREATE MATERIALIZED VIEW urls AS SELECT url, count(ip) AS n FROM clicks WHERE user > 0 GROUP BY url"
    )
    with raises(hw.StatementError, sink="copy", view="urls", column="n"):
        ws.sql("CREATE SINK copy FROM urls INTO TOPIC WITH (topic = 'copied', key = 'url')")
    ws.sql(
        "CREATE MATERIALIZED VIEW counted AS SELECT url, count(*) AS n FROM clicks GROUP BY url;"
        "CREATE SINK copy FROM counted INTO TOPIC WITH (topic = 'copied', key = 'url')"
    )
    assert ws.topic("copied").definition.private == ()


def test_a_copy_by_a_query_is_as_private(ws: hw.Workspace) -> None:
    fill(ws)
    ws.sql("CREATE TOPIC again AS SELECT url, ip, user FROM clicks WHERE user < 2")
    assert ws.topic("again").definition.private == (("ip", "user"),)
    ws.sql("CREATE TOPIC countries AS SELECT id, country FROM people")
    assert ws.topic("countries").definition.private == ()
    with raises(hw.UsageError, topic="wrong"):
        ws.sql("CREATE TOPIC wrong AS SELECT ip, url FROM clicks")
    assert "wrong" not in {topic.name for topic in ws.topics()}
    ws.forget(1)
    assert {row["ip"] for row in rows(ws, "again")} == {"ip-0-secret", None}


JOINED = "FROM clicks c {how} JOIN people p ON c.user = p.id"
PROVEN: dict[str, dict[str, str | None]] = {
    "SELECT user, ip FROM clicks": {"ip": "user"},
    "SELECT ip, user AS who, user AS again FROM clicks": {"ip": "who"},
    "SELECT CAST(user AS STRING) AS user, ip FROM clicks": {"ip": None},
    "SELECT user * 2 AS user, ip FROM clicks": {"ip": None},
    "SELECT ip, count(*) AS n FROM clicks GROUP BY ip": {"ip": None},
    "SELECT user, ip, count(*) AS n FROM clicks GROUP BY user, ip": {"ip": "user"},
    "SELECT max(user) AS user, max(ip) AS ip FROM clicks": {"ip": None},
    f"SELECT c.user, c.ip, p.email {JOINED.format(how='')}": {"ip": "user", "email": "user"},
    f"SELECT c.user, c.ip || p.email AS both {JOINED.format(how='')}": {"both": "user"},
    f"SELECT c.user, c.ip, p.email {JOINED.format(how='LEFT')}": {"ip": "user", "email": "user"},
    f"SELECT p.id, c.ip, p.email {JOINED.format(how='LEFT')}": {"ip": None, "email": "id"},
    f"SELECT c.user, c.ip, p.email {JOINED.format(how='FULL')}": {"ip": "user", "email": None},
    "SELECT a.user, b.ip FROM clicks a JOIN clicks b ON a.url = b.url": {"ip": None},
    "SELECT user, ip AS x FROM clicks UNION ALL SELECT id, email FROM people": {"x": "user"},
    "SELECT user, ip AS x FROM clicks UNION ALL SELECT 1, email FROM people": {"x": None},
    "SELECT user, lag(ip) OVER (PARTITION BY user ORDER BY url) AS x FROM clicks": {"user": None, "x": None},
    "SELECT user, explode(split(ip, '-')) AS x FROM clicks": {"user": None, "x": None},
    "SELECT user, ip FROM (SELECT *, row_number() OVER (PARTITION BY url ORDER BY user) AS r FROM clicks) WHERE r = 1": {
        "ip": "user"
    },
    "SELECT id, country FROM people WHERE email IS NOT NULL": {},
    "SELECT url, EXISTS (SELECT 1 FROM people WHERE id = clicks.user) AS known FROM clicks": {},
}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path_factory.mktemp("known") / "ws", spark=spark) as ws:
        ws.sql(SCHEMA)
        ws.sql("CREATE MATERIALIZED VIEW passed AS SELECT user AS who, ip AS address FROM clicks")
        yield ws


@pytest.mark.parametrize("query", PROVEN)
def test_whose_values_a_column_has_is_proven_or_not_said(known: hw.Workspace, query: str) -> None:
    catalog = inspect_workspace(known).engine_context().catalog
    found = copied_by_query(known.log, catalog, QueryText(query))
    assert {one.column: one.by for one in found} == PROVEN[query]


def test_it_is_proven_through_views(known: hw.Workspace) -> None:
    views = inspect_workspace(known).views
    found = copied_by_view(known.log, views.tools().catalog, views.names.describe("passed"))
    assert [(one.column, one.by, one.subject) for one in found] == [("address", "who", "clicks.user")]
    query = QueryText("SELECT a.who, b.address FROM passed a JOIN passed b ON a.who = b.who")
    assert [one.by for one in copied_by_query(known.log, views.tools().catalog, query)] == ["who"]
    query = QueryText("SELECT a.who, b.address FROM passed a JOIN passed b ON a.address = b.address")
    assert [one.by for one in copied_by_query(known.log, views.tools().catalog, query)] == [None]
