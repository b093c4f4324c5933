"""What is written about deletions, and by whom: wrong words are refused before a key is destroyed, and the record of it stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import headwater as hw
from headwater.testing import Crash
from tests.events.accounts import decide, fold
from tests.raising import raises

OWN = ["_forgotten", "_excised", "_Excised", "_dead", "_claims", "_answers", "_queue_emails"]


def people(folder: Path) -> hw.Workspace:
    ws = hw.open(folder, durability="os")
    if "people" not in ws.log.topics():
        ws.topic("people", "id BIGINT NOT NULL, email STRING", private={"email": "id"})
        ws.topic("people").append([{"id": n, "email": f"{n}@x"} for n in range(3)])
    return ws


@pytest.mark.parametrize(
    "said",
    [{"reason": 7}, {"reason": "\ud800"}, {"by": 7}, {"by": "\udfff"}],
)
def test_what_cannot_be_recorded_is_refused_before_anything_is_done(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    with people(tmp_path / "ws") as ws:
        acts: list[Callable[[], Any]] = [
            lambda: ws.forget(1, **said),
            lambda: ws.excise("people", "id = 1", **said),
        ]
        ((argument, value),) = said.items()
        for act in acts:
            with raises(hw.UsageError, argument=argument, value=value):
                act()
        assert ws.deletions() == []
    with people(tmp_path / "ws") as ws:
        (one,) = [r for b in ws.topic("people").read() for r in b.to_pylist() if r["id"] == 1]
        assert one["email"] == "1@x"
        with raises(hw.UsageError, value="\ud800"):
            ws.forget("\ud800")


def test_a_line_that_was_once_written_with_another_reason_does_not_keep_the_workspace_closed(
    tmp_path: Path,
) -> None:
    with people(tmp_path / "ws") as ws:
        ws.log.keys.forget("1")
    (keys,) = (tmp_path / "ws.keys").iterdir()
    line = orjson.loads((keys / "forgotten").read_bytes())
    (keys / "forgotten").write_bytes(orjson.dumps({**line, "reason": 7}) + b"\n")
    with people(tmp_path / "ws") as ws:
        (told,) = [r for b in ws.topic("_forgotten").read() for r in b.to_pylist()]
        assert (told["subject"], told["reason"]) == ("1", "7")


@pytest.mark.parametrize("name", OWN)
def test_the_workspaces_own_topics_are_made_by_itself_alone(tmp_path: Path, name: str) -> None:
    """Else a key would be destroyed and nothing could say so."""
    with people(tmp_path / "ws") as ws:
        makes: list[Callable[[], Any]] = [
            lambda: ws.topic(name, "a BIGINT"),
            lambda: ws.sql(f"CREATE TOPIC {name} (a BIGINT)"),
            lambda: ws.sql(f"CREATE MATERIALIZED VIEW {name} AS SELECT 1 AS a"),
            lambda: hw.Aggregate(name, decide, fold),
        ]
        for make in makes:
            with pytest.raises(hw.HeadwaterError) as refused:
                make()
            assert refused.value.reason == "reserved-name"
        assert list(ws.log.topics()) == ["people"]


def test_the_record_of_a_deletion_stays_as_it_is(tmp_path: Path) -> None:
    with people(tmp_path / "ws") as ws:
        ws.forget(1)
        ws.excise("people", "id = 2")
        for topic in ("_forgotten", "_excised"):
            before = [r for b in ws.topic(topic).read() for r in b.to_pylist()]
            assert len(before) == 1
            statements = [
                f"DROP TOPIC {topic}",
                f"DROP TOPIC {topic} CASCADE",
                f"ALTER TOPIC {topic} ADD COLUMN a BIGINT",
                f"ALTER TOPIC {topic} SET (retention = '1 second')",
            ]
            for statement in statements:
                with raises(hw.UsageError, topic=topic, reason="record-of-deletions"):
                    ws.sql(statement)
            with raises(hw.UsageError, topic=topic, reason="system-topic"):
                ws.topic(topic).append([before[0]])
            with raises(hw.UsageError, topic=topic, reason="record-of-deletions"):
                ws.excise(topic, "number = 1")
            assert [r for b in ws.topic(topic).read() for r in b.to_pylist()] == before


def test_a_subject_of_a_topic_that_was_dropped_can_still_be_forgotten(tmp_path: Path) -> None:
    """A copy of the workspace may have its records, and the key is what would open them."""
    with people(tmp_path / "ws") as ws:
        (number,) = ws.log.keys.of(["1"])
        ws.sql("DROP TOPIC people")
        assert ws.forget(1).records == 0
        assert ws.log.keys.cipher(number) is None
        with raises(hw.UsageError, reason="no-private-columns"):
            ws.forget(99)


def test_an_excision_that_was_begun_on_a_topic_that_was_dropped_since_is_over(tmp_path: Path) -> None:
    """Neither does it keep the workspace closed, nor does it reach records of another topic of the name."""

    def begun(ws: hw.Workspace) -> None:
        """As a process leaves it that dies after its entry was written."""
        ws.sql("CREATE TOPIC plain (id BIGINT)")
        ws.topic("plain").append([{"id": n} for n in range(3)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ws.log, "excise", die)
            with pytest.raises(Crash):
                ws.excise("plain", "id = 1")

    def die(*_: object) -> None:
        raise Crash

    with hw.open(tmp_path / "ws", durability="os") as ws:
        begun(ws)
        ws.sql("DROP TOPIC plain")
    with hw.open(tmp_path / "ws", durability="os") as ws:
        assert [one.name for one in ws.deletions() if one.done] == ["excise-1"]
        begun(ws)
        ws.sql("DROP TOPIC plain; CREATE TOPIC plain (id BIGINT)")
        ws.topic("plain").append([{"id": n} for n in range(3)])
    with hw.open(tmp_path / "ws", durability="os") as ws:
        assert [r["id"] for b in ws.topic("plain").read() for r in b.to_pylist()] == [0, 1, 2]
        assert [one.done for one in ws.deletions()] == [True, True]
