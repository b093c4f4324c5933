"""A producer's repeated sequence through `topic.append`, `ws.append`, a transaction and HTTP: the same rows, or refused."""

from __future__ import annotations

import struct
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import orjson
import xxhash

import headwater as hw
from headwater import Workspace
from headwater.core.clock import ManualClock
from headwater.core.errors import SequenceReusedError
from headwater.core.settings import LogSettings
from headwater.log.embedded import EmbeddedLog
from headwater.web.problems import problem_of
from tests.raising import raises

PEOPLE = "id BIGINT NOT NULL, email STRING PRIVATE BY (id), note STRING"
NAN, ZERO = float("nan"), 0.0


def test_other_rows_under_a_known_sequence_are_refused_by_every_call(ws: Workspace) -> None:
    clicks = ws.topic("clicks", "user BIGINT, at TIMESTAMP, tags ARRAY<STRING>, score DOUBLE", partitions=3)
    ws.topic("orders", "n BIGINT")
    rows: list[dict[str, Any]] = [
        {
            "user": n,
            "at": datetime(2026, 1, 1, n % 24),
            "tags": ["a", str(n)],
            "score": [NAN, ZERO, None][n % 3],
        }
        for n in range(50)
    ]
    first = clicks.append(rows, producer="loader", sequence=1)
    assert clicks.append(rows[::-1], producer="loader", sequence=1) == first
    assert ws.append({"clicks": rows}, producer="loader", sequence=1, epoch=1) == first
    with ws.transaction(producer="loader", sequence=1, epoch=1) as tx:
        tx.append("clicks", rows[20:])
        tx.append("clicks", rows[:20])
    assert tx.receipt == first
    for change in (
        {"user": 99},
        {"at": datetime(2025, 1, 1)},
        {"tags": ["a0"]},
        {"tags": None},
        {"score": -0.0 if rows[1]["score"] is ZERO else 1.0},
    ):
        others = [rows[0], {**rows[1], **change}, *rows[2:]]
        with raises(SequenceReusedError, producer="loader", sequence=1, reason="other-values") as refused:
            clicks.append(others, producer="loader", sequence=1, epoch=1)
        assert problem_of(refused.value).status == 409
        with raises(SequenceReusedError, reason="other-values"):
            ws.append({"clicks": others}, producer="loader", sequence=1, epoch=1)
    with raises(SequenceReusedError, producer="loader", sequence=1, reason="other-count"):
        ws.append({"clicks": rows, "orders": [{"n": 1}]}, producer="loader", sequence=1, epoch=1)
    with (
        raises(SequenceReusedError, reason="other-count"),
        ws.transaction(producer="loader", sequence=1, epoch=1) as tx,
    ):
        tx.append("clicks", rows[1:])
    with raises(SequenceReusedError, expected=50, actual=0, reason="other-count"):
        clicks.append([], producer="loader", sequence=1, epoch=1)
    with raises(SequenceReusedError, reason="other-topics"):
        ws.append({"orders": [{"n": n} for n in range(50)]}, producer="loader", sequence=1, epoch=1)
    swapped = [{**rows[0], "user": rows[1]["user"]}, {**rows[1], "user": rows[0]["user"]}, *rows[2:]]
    with raises(SequenceReusedError, reason="other-values"):
        clicks.append(swapped, producer="loader", sequence=1, epoch=1)
    assert sum(part.rows for part in ws.log.partitions("clicks").values()) == 50
    assert not any(part.rows for part in ws.log.partitions("orders").values())


def test_a_topic_that_was_altered_since_has_its_rows_counted(ws: Workspace) -> None:
    topic = ws.topic("t", "n BIGINT")
    first = topic.append([{"n": 1}, {"n": 2}], producer="loader", sequence=1)
    ws.sql("ALTER TOPIC t ADD COLUMN note STRING")
    assert topic.append([{"n": 2}, {"n": 1}], producer="loader", sequence=1) == first
    with raises(SequenceReusedError, expected=2, actual=1, reason="other-count"):
        topic.append([{"n": 1}], producer="loader", sequence=1)


def test_private_values_are_compared_by_a_code_that_goes_with_the_key(ws: Workspace) -> None:
    people = ws.topic("people", PEOPLE)
    rows = [{"id": n, "email": f"user-{n}@example.org", "note": "x"} for n in range(4)]
    first = people.append(rows, producer="loader", sequence=1)
    assert people.append(rows[::-1], producer="loader", sequence=1) == first
    with raises(SequenceReusedError, reason="other-values"):
        people.append([{**rows[0], "email": "other@example.org"}, *rows[1:]], producer="loader", sequence=1)
    ws.forget(0)
    assert people.append(rows, producer="loader", sequence=1) == first, "nobody can tell any more"
    with raises(SequenceReusedError, reason="other-values"):
        people.append([{**rows[0], "note": "y"}, *rows[1:]], producer="loader", sequence=1)
    if ws.path is not None:
        written = b"".join(path.read_bytes() for path in ws.path.rglob("*") if path.is_file())
        assert b"@example.org" not in written


def test_what_excised_rows_added_up_to_goes_with_them(ws: Workspace) -> None:
    people = ws.topic("people", "id BIGINT, pin BIGINT")
    first = people.append([{"id": 1, "pin": 1234}], producer="loader", sequence=1)
    other = ws.topic("others", "id BIGINT").append([{"id": 1}], producer="loader", sequence=2)
    ws.log.excise("people", {0: [0]})
    assert people.append([{"id": 2, "pin": 1}], producer="loader", sequence=1) == first
    with raises(SequenceReusedError, sequence=2):
        ws.topic("others").append([{"id": 2}], producer="loader", sequence=2)
    assert ws.topic("others").append([{"id": 1}], producer="loader", sequence=2) == other
    if ws.path is not None:
        state = cast(EmbeddedLog, ws.log).core.journal.state
        assert set(state.producers["loader"].sums) == {2}
        for path in [*(ws.path / "journal").iterdir(), *(ws.path / "checkpoints").iterdir()]:
            assert b'"sums":{"1"' not in path.read_bytes()


def test_receipts_of_older_workspaces_are_answered_as_they_were(tmp_path: Path) -> None:
    """A journal whose records have no sums is what an older version has written."""
    settings = LogSettings(durability="os", maintenance_every_ms=0)
    with hw.open(tmp_path / "ws", settings=settings, clock=ManualClock()) as ws:
        topic = ws.topic("t", "n BIGINT")
        first = topic.append([{"n": 1}], producer="loader", sequence=1)
    journal = tmp_path / "ws" / "journal" / "00000001.log"
    assert b'"sums"' in journal.read_bytes()
    _without_sums(journal, tmp_path / "ws" / "head")
    for _ in range(2):
        with hw.open(tmp_path / "ws", settings=settings, clock=ManualClock()) as ws:
            topic = ws.topic("t")
            assert topic.append([{"n": 2}], producer="loader", sequence=1) == first
            second = topic.append([{"n": 2}], producer="loader", sequence=2)
            with cast(EmbeddedLog, ws.log).core.exclusive():
                cast(EmbeddedLog, ws.log).core.checkpoint()
            with raises(SequenceReusedError, sequence=2):
                topic.append([{"n": 3}], producer="loader", sequence=2)
            assert topic.append([{"n": 2}], producer="loader", sequence=2) == second


def _without_sums(journal: Path, head: Path) -> None:
    data, at, made = journal.read_bytes(), 0, b""
    while at + 24 <= len(data):
        magic, length, _, text, _ = struct.unpack_from("<4sIQII", data, at)
        payload = data[at + 24 : at + 24 + length]
        record = orjson.loads(payload[:text])
        record.pop("sums", None)
        plain = orjson.dumps(record)
        body = plain + payload[text:]
        checksum = xxhash.xxh3_64_intdigest(body, seed=(len(body) << 32) | len(plain))
        piece = struct.pack("<4sIQII", magic, len(body), checksum, len(plain), 0) + body
        made += piece + bytes(-len(piece) % 8)
        at += (24 + length + 7) // 8 * 8
    journal.write_bytes(made)
    fields = struct.unpack("<4sIQQQ16s", head.read_bytes()[:48])
    body = struct.pack("<4sIQQQ16s", *fields[:3], len(made), len(made), fields[5])
    head.write_bytes(body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body)))
