"""Deletion that reaches everything derived: state, ticks, bases and followers have nothing of it, and views are their SELECTs."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.spark_datasource.datasource import HeadwaterDataSource
from headwater.testing import Crash
from tests.raising import raises

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
SCHEMA = """
CREATE TOPIC people (id BIGINT, email STRING PRIVATE BY (id), country STRING, PRIMARY KEY (id));
CREATE TOPIC clicks (
  user BIGINT NOT NULL, ip STRING PRIVATE BY (user), n BIGINT PRIVATE BY (user), url STRING, at TIMESTAMP,
  WATERMARK FOR at AS at - INTERVAL '1 minute'
) WITH (partitions = 2, partition_by = 'user');
CREATE TOPIC plain (k BIGINT, v STRING) WITH (retention = '1 hour');
CREATE TOPIC visits (user BIGINT NOT NULL, ip STRING PRIVATE BY (user), page STRING) WITH (retention = '1 hour');
CREATE MATERIALIZED VIEW by_ip AS SELECT ip, count(*) AS c, sum(n) AS s FROM clicks GROUP BY ip;
CREATE MATERIALIZED VIEW mails AS SELECT c.url, p.email FROM clicks c JOIN people p ON c.user = p.id;
CREATE MATERIALIZED VIEW last_mail AS SELECT max(email) AS m, count(*) AS c FROM mails;
CREATE MATERIALIZED VIEW marked AS SELECT user, _forgotten AS gone, count(*) AS c FROM clicks GROUP BY user, _forgotten;
CREATE MATERIALIZED VIEW closed WITH (late = 'divert') AS
  SELECT window(at, '1 minute').start AS m, max(ip) AS ip FROM clicks GROUP BY window(at, '1 minute')
  EMIT ON WINDOW CLOSE;
CREATE MATERIALIZED VIEW pages AS SELECT page, count(*) AS c FROM visits GROUP BY page;
CREATE MATERIALIZED VIEW others AS SELECT v, count(*) AS c FROM plain GROUP BY v;
"""
VIEWS = ("by_ip", "mails", "last_mail", "marked", "closed", "pages", "others")
UNTOUCHED = ("pages", "others")
"""They read nothing that is private."""

LONG = os.environ.get("HEADWATER_LONG") == "1"

Open = Callable[..., Workspace]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_ws(tmp_path: Path, spark: Any, clock: ManualClock) -> Iterator[Open]:
    opened: list[Workspace] = []

    def again(name: str = "ws", **options: Any) -> Workspace:
        for ws in opened:
            ws.close()
        given = {"spark": spark, "settings": SETTINGS, "clock": clock, **options}
        opened.append(hw.open(tmp_path / name, **given))
        return opened[-1]

    yield again
    opened[-1].close()


def minute(n: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n)


def fill(ws: Workspace, since: int = 0, rows: int = 8) -> None:
    people = [
        {"id": n % 4, "email": f"mail-{n % 4}-secret", "country": "DE"} for n in range(since, since + rows)
    ]
    clicks = [
        {"user": n % 4, "ip": f"ip-{n % 4}-secret", "n": n, "url": f"/page-{n}.", "at": minute(n // 3)}
        for n in range(since, since + rows)
    ]
    visits = [{"user": n % 4, "ip": f"ip-{n % 4}-secret", "page": "home"} for n in range(3)]
    plain = [{"k": n, "v": "kept"} for n in range(3)]
    ws.append({"people": people, "clicks": clicks, "plain": plain, "visits": visits})


def holding(folder: Path, text: str) -> list[str]:
    """The files below a folder that hold a text, compressed ones decoded."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            shown = path.read_bytes()
            if path.suffix == ".parquet":
                shown += str(pq.read_table(path).to_pylist()).encode()
            if text.encode() in shown:
                found.append(str(path.relative_to(folder)))
    return found


def assert_whole(ws: Workspace) -> None:
    found = ws.verify()
    assert found.ok, found.differences


def test_a_forgotten_subject_is_gone_from_everything_derived(open_ws: Open, tmp_path: Path) -> None:
    ws = open_ws()
    ws.sql(SCHEMA)
    fill(ws)
    ws.run()
    out = tmp_path / "out"
    ws.sql(
        f"CREATE SINK log FROM mails INTO PARQUET WITH (path = '{out}/log', mode = 'changelog');"
        f"CREATE SINK now FROM by_ip INTO PARQUET WITH (path = '{out}/now', key = 'ip');"
        "CREATE SINK found FROM by_ip INTO SEARCH WITH (key = 'ip')"
    )
    fill(ws, since=8)
    before = ws.run().tick
    ws.sink("log").rebuild()  # a version from before is kept
    everywhere = holding(tmp_path, "ip-1-secret") + holding(tmp_path, "mail-1-secret")
    assert any("state/runs" in name for name in everywhere)
    assert any(name.startswith("out/") for name in everywhere)

    done = ws.forget(1, by="anna", reason="asked for it")
    assert not done.done
    assert done.records == 10
    scheduled = {(p.kind, p.name) for p in done.places if p.status == "scheduled"}
    assert scheduled == {("view", v) for v in VIEWS if v not in UNTOUCHED} | {
        ("ticks", "state"),
        ("sink", "log"),
        ("sink", "now"),
        ("sink", "found"),
    }
    read = [r for b in ws.topic("clicks").read(columns=["user", "ip", "_forgotten"]) for r in b.to_pylist()]
    assert all((r["ip"] is None) == r["_forgotten"] == (r["user"] == 1) for r in read)

    tick = ws.run().tick
    assert holding(tmp_path, "ip-1-secret") + holding(tmp_path, "mail-1-secret") == []
    assert holding(tmp_path, "ip-2-secret") != []
    assert ws.query("SELECT * FROM marked WHERE user = 1").to_pylist() == [{"user": 1, "gone": True, "c": 4}]
    assert ws.query("SELECT c, s FROM by_ip WHERE ip IS NULL").to_pylist() == [{"c": 4, "s": None}]
    assert ws.query("SELECT * FROM others").to_pylist() == [{"v": "kept", "c": 6}]
    assert {row["ip"] for row in ws.sink("found").search("*").to_pylist()} <= {
        None,
        *(f"ip-{n}-secret" for n in (0, 2, 3)),
    }
    (told,) = ws.deletions()
    assert told.done
    assert {p.name for p in told.places if p.status == "out of reach"} == {"backups"}
    assert all(p.at is not None for p in told.places if p.status == "done")

    # ticks from before are computed from the log as it reads now, and their changes are not kept
    assert ws.view("by_ip").changes(since=tick).num_rows == 0
    then = ws.query("SELECT ip, c FROM by_ip ORDER BY c DESC, ip", as_of=before)
    assert then.schema.metadata[b"headwater.rewritten"] == b"forget-1", (
        "it says that it is not what was shown then"
    )
    assert None in then.column("ip").to_pylist()
    assert "ip-1-secret" not in then.column("ip").to_pylist()
    with pytest.raises(hw.TickNotKeptError):
        ws.view("by_ip").changes(since=before - 1)

    fill(ws, since=16)
    ws.run()
    assert_whole(ws)
    assert "ip-1-secret" in ws.query("SELECT ip FROM by_ip").column("ip").to_pylist(), "they came back"


def test_an_older_copy_forgets_again_before_anything_is_readable(open_ws: Open, tmp_path: Path) -> None:
    ws = open_ws()
    ws.sql(SCHEMA)
    fill(ws)
    ws.run()
    ws.close()
    shutil.copytree(tmp_path / "ws", tmp_path / "copy")
    ws = open_ws()
    ws.forget(1)
    ws.run()
    ws.close()
    shutil.rmtree(tmp_path / "ws")
    shutil.copytree(tmp_path / "copy", tmp_path / "ws")

    by_ip = HeadwaterDataSource({"workspace": str(tmp_path / "ws"), "view": "by_ip"})
    # nor by a reader that opens no workspace
    with raises(hw.ViewUnavailableError, view="by_ip", reason="forgetting-pending"):
        by_ip.reader(by_ip.schema()).partitions()
    ws = open_ws()
    assert holding(tmp_path / "ws", "ip-1-secret") + holding(tmp_path / "ws", "mail-1-secret") == []
    with pytest.raises(hw.ViewUnavailableError):
        ws.query("SELECT * FROM by_ip")
    assert [d.of for d in ws.deletions()] == ["1"]
    ws.run()
    assert "ip-1-secret" not in ws.query("SELECT ip FROM by_ip").column("ip").to_pylist()
    # without its keys nothing private is shown, and nothing is taken for forgotten
    ws.close()
    with hw.open(tmp_path / "copy", settings=SETTINGS) as bare, pytest.raises(hw.KeyStoreError):
        list(bare.topic("clicks").read())


def test_a_base_has_nothing_of_it_and_records_stay_for_views(
    open_ws: Open, tmp_path: Path, clock: ManualClock
) -> None:
    ws = open_ws()
    ws.sql(SCHEMA)
    ws.sql("ALTER TOPIC clicks SET (retention = '1 hour')")
    fill(ws)
    ws.run()
    ws.maintain()
    clock.advance("2 hours")
    fill(ws, since=8)
    ws.run()
    report = ws.maintain()
    assert {(w.topic, w.status) for w in report.waiting} == {("clicks", "private")}
    assert ws.topic("clicks").partitions()[0].first == 0
    for topic in ("plain", "visits"):
        assert ws.topic(topic).partitions()[0].first > 0, "others are removed, and have a base"
    assert holding(tmp_path / "ws" / "bases", "ip-1-secret") != []
    ws.forget("1")
    ws.run()
    assert holding(tmp_path / "ws", "ip-1-secret") == []
    shutil.rmtree(tmp_path / "ws" / "state")
    ws = open_ws()
    ws.run()
    assert ws.query("SELECT * FROM others").to_pylist() == [{"v": "kept", "c": 6}]
    assert ws.query("SELECT * FROM pages").to_pylist() == [{"page": "home", "c": 6}]
    assert_whole(ws)
    with raises(hw.UsageError, topic="plain", view="others"):
        ws.excise("plain", "k = 1")
    # what came after the base is excised, and the base stays
    ws.topic("plain").append([{"k": 77, "v": "kept"}, {"k": 78, "v": "kept"}])
    ws.run()
    ws.excise("plain", "k = 77")
    ws.run()
    assert ws.query("SELECT * FROM others").to_pylist() == [{"v": "kept", "c": 7}]
    shutil.rmtree(tmp_path / "ws" / "state")
    ws = open_ws()
    ws.run()
    assert ws.query("SELECT * FROM others").to_pylist() == [{"v": "kept", "c": 7}]


def test_excised_records_were_never_there(open_ws: Open, tmp_path: Path) -> None:
    ws = open_ws()
    ws.sql(SCHEMA)
    fill(ws)
    ws.run()
    ends = {p: i.end for p, i in ws.topic("clicks").partitions().items()}
    marks = {p: ws.topic("clicks").watermark(p) for p in ends}
    done = ws.excise(
        "clicks", "url IN ('/page-1.', '/page-2.') OR ip LIKE '%-3-%'", by="bert", reason="a test"
    )
    assert done.records == 4
    tick = ws.run().tick
    assert {p: i.end for p, i in ws.topic("clicks").partitions().items()} == ends
    assert {p: ws.topic("clicks").watermark(p) for p in ends} == marks
    assert holding(tmp_path / "ws", "/page-1.") == []
    assert ws.query("SELECT sum(c) AS c FROM by_ip").to_pylist() == [{"c": 4}]
    assert ws.query("SELECT sum(c) AS c FROM by_ip", as_of=tick - 1).to_pylist() == [{"c": 4}]
    (audit,) = ws.query("SELECT * FROM _excised").to_pylist()
    assert audit["condition"] == "url IN (?, ?) OR ip LIKE ?"
    assert (audit["topic"], audit["records"], audit["who"], audit["reason"]) == (
        "clicks",
        4,
        "bert",
        "a test",
    )
    # a record of a table brings the one before it back
    ws.topic("people").append([{"id": 0, "email": "other", "country": "FR"}])
    ws.run()
    ws.excise("people", "email = 'other'")
    ws.run()
    assert "other" not in str(ws.query("SELECT email FROM mails").to_pylist())
    assert_whole(ws)


@pytest.mark.parametrize(
    ("wrong", "kind", "facts"),
    [
        (lambda ws: ws.forget(99), hw.UsageError, {"reason": "no-values"}),
        (lambda ws: ws.forget(None), hw.UsageError, {"argument": "subject", "value": None}),
        (lambda ws: ws.excise("nope", "k = 1"), hw.TopicNotFoundError, {"topic": "nope"}),
        (lambda ws: ws.excise("plain", "nope = 1"), hw.StatementError, {"name": "nope"}),
        (
            lambda ws: ws.excise("plain", "k = 1; DROP TOPIC plain"),
            hw.StatementError,
            {"reason": "not-one-condition"},
        ),
        (lambda ws: ws.excise("plain", "k = 12345"), hw.UsageError, {"topic": "plain"}),
        (lambda ws: ws.excise("plain", ""), hw.UsageError, {"reason": "no-condition"}),
    ],
)
def test_wrong_input_changes_nothing(
    open_ws: Open, wrong: Callable[[Workspace], Any], kind: type[hw.HeadwaterError], facts: dict[str, Any]
) -> None:
    ws = open_ws()
    ws.sql(
        "CREATE TOPIC plain (k BIGINT, v STRING); CREATE TOPIC p (u BIGINT NOT NULL, e STRING PRIVATE BY (u))"
    )
    ws.topic("plain").append([{"k": 1, "v": "x"}])
    before = ws.log.sequence()
    with raises(kind, **facts):
        wrong(ws)
    assert (ws.log.sequence(), ws.deletions()) == (before, [])


def test_no_copy_of_private_values_is_made_in_plain(open_ws: Open, tmp_path: Path) -> None:
    ws = open_ws()
    ws.sql(SCHEMA)
    with raises(hw.StatementError, sink="copy", view="by_ip"):
        ws.sql("CREATE SINK copy FROM by_ip INTO TOPIC WITH (topic = 'copied', key = 'ip')")
    with raises(hw.StatementError, alert="a", view="by_ip"):
        ws.sql("CREATE ALERT a ON by_ip WHEN c > 3 NOTIFY TOPIC WITH (topic = 'told')")
    with raises(hw.UsageError, topic="copied") as refused:
        ws.sql("CREATE TOPIC copied AS SELECT * FROM mails")
    assert "add people.id to the SELECT" in str(refused.value.hint)
    with raises(hw.StatementError, sink="d", view="by_ip"):
        ws.sql(
            f"CREATE SINK d FROM by_ip INTO PARQUET WITH (path = '{tmp_path}/d', key = 'ip', on_error = 'divert')"
        )
    ws.sql(
        "CREATE MATERIALIZED VIEW latest AS SELECT user, max(ip) AS ip FROM clicks GROUP BY user;"
        "CREATE TOPIC copied (user BIGINT, ip STRING PRIVATE BY (user), PRIMARY KEY (user)) WITH (cleanup = 'compact');"
        "CREATE SINK copy FROM latest INTO TOPIC WITH (topic = 'copied', key = 'user')"
    )
    fill(ws)
    ws.run()
    ws.sink("copy").rebuild()
    assert "ip-1-secret" in str([b.to_pylist() for b in ws.topic("copied_2").read()])
    assert all("state" in name for name in holding(tmp_path / "ws", "ip-1-secret"))
    ws.forget(1)
    ws.run()
    assert holding(tmp_path / "ws", "ip-1-secret") == []
    assert "ip-1-secret" not in str([b.to_pylist() for b in ws.topic("copied_2").read()])


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.long) for s in range(1, 12))])
def test_the_equation_holds_after_any_history(open_ws: Open, seed: int) -> None:
    """Appends, forgettings, excisions, upkeep, ticks and new processes in any order: every view is its SELECT over the log
    as it now reads, at the newest tick and at earlier ones."""
    chance = random.Random(seed)
    ws = open_ws()
    ws.sql(SCHEMA)
    at, ticks, deleted = 0, list[int](), 0
    for step in range(24):
        act = chance.choice(["append", "append", "tick", "tick", "forget", "excise", "upkeep", "open"])
        if act == "append":
            fill(ws, since=at, rows=chance.randint(1, 6))
            at += 6
        elif act == "tick":
            ticks.append(ws.run(tick_rows=chance.choice([None, 3])).tick)
            if LONG or step % 8 == 0:
                assert_whole(ws)
        elif act in ("forget", "excise"):
            url = f"url = '/page-{chance.randrange(at + 1)}.' OR n % 7 = {chance.randrange(7)}"
            with suppress(hw.UsageError):  # nothing is there to be deleted
                ws.forget(chance.randrange(4)) if act == "forget" else ws.excise("clicks", url)
                deleted += 1
        elif act == "upkeep":
            ws.maintain()
        else:
            ws = open_ws()
    fill(ws, since=at)
    newest = ws.run().tick
    assert deleted
    assert_whole(ws)
    users = {r["user"] for r in ws.query("SELECT user FROM marked WHERE gone").to_pylist()}
    for tick in [*ticks[-2:], newest]:
        seen = ws.query("SELECT ip, c FROM by_ip", as_of=tick).to_pylist()
        read = {row["ip"] for row in read_clicks(ws)}
        assert {row["ip"] for row in seen} <= read, "no tick shows what the log does not"
    assert all(row["ip"] is None for row in read_clicks(ws) if row["_forgotten"])
    assert users == {row["user"] for row in read_clicks(ws) if row["_forgotten"]}


def read_clicks(ws: Workspace) -> list[dict[str, Any]]:
    columns = ["user", "ip", "_forgotten"]
    return [row for batch in ws.topic("clicks").read(columns=columns) for row in batch.to_pylist()]


def die(*_: object) -> None:
    raise Crash


def test_a_crash_between_the_tick_and_its_end_is_made_good(
    open_ws: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws = open_ws()
    ws.sql(
        "CREATE TOPIC people (id BIGINT, email STRING PRIVATE BY (id), PRIMARY KEY (id));"
        "CREATE MATERIALIZED VIEW mails AS SELECT email, count(*) AS c FROM people GROUP BY email"
    )
    ws.topic("people").append([{"id": n, "email": f"mail-{n}-secret"} for n in range(3)])
    ws.run()
    for part in ("without", "_say"):
        ws.forget(0 if part == "without" else 1)
        with monkeypatch.context() as patch:
            patch.setattr(f"headwater.engine.deletion.rebuild_after_delete.{part}", die)
            with pytest.raises(Crash):
                ws.run()
        assert not ws.deletions()[-1].done
        ws = open_ws()
        ws.run()
        assert ws.deletions()[-1].done
        assert holding(tmp_path / "ws", "mail-0-secret") == []
    assert holding(tmp_path / "ws", "mail-1-secret") == []
    assert ws.query("SELECT * FROM mails ORDER BY email").to_pylist() == [
        {"email": None, "c": 2},
        {"email": "mail-2-secret", "c": 1},
    ]


@pytest.mark.parametrize("what", ["forget", "excise"])
@pytest.mark.parametrize("kept", ["note, _valid_to FROM notes.versions", "note FROM notes"])
def test_tables_whose_records_were_removed_have_nothing_of_them_left(
    what: str, kept: str, open_ws: Open, clock: ManualClock, tmp_path: Path
) -> None:
    ws = open_ws()
    ws.sql(
        "CREATE TOPIC notes (id BIGINT, owner BIGINT NOT NULL, note STRING PRIVATE BY (owner), PRIMARY KEY (id)) "
        "WITH (retention = '1 hour');"
        f"CREATE MATERIALIZED VIEW told AS SELECT id, {kept}"
    )
    ws.topic("notes").append([{"id": n, "owner": 7, "note": "old-secret"} for n in (1, 2)])
    ws.run()
    ws.maintain()  # what comes now is in another segment
    clock.advance("2 hours")
    ws.topic("notes").append([{"id": 1, "owner": 7, "note": "new-secret"}])
    ws.run()
    assert ws.maintain(override_holds=True).rows_removed == 2
    if what == "forget":
        ws.forget(7)
    else:
        ws.excise("notes", "note = 'new-secret'")
    ws.run()
    gone = "secret" if what == "forget" else "new-secret"
    assert holding(tmp_path / "ws", gone) == []
