"""The workspace: topics by SQL and by call, appends over several topics, transactions, upkeep."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.types import TIMESTAMP
from tests.raising import raises


def table(ws: hw.Workspace, text: str) -> list[dict[str, Any]]:
    found = ws.sql(text)
    assert found is not None
    return list(found.to_pylist())


def numbers(ws: hw.Workspace, topic: str) -> list[int]:
    return [n for batch in ws.topic(topic).read() for n in batch.column("n").to_pylist()]


def test_create_by_sql_and_by_call_is_the_same(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC clicks (user BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '10 minutes') "
           "WITH (partitions = 4, partition_by = 'user', retention = '7 days')")  # fmt: skip
    for schema in (
        "user BIGINT, at TIMESTAMP",
        pa.schema([("user", pa.int64()), ("at", pa.timestamp("ns"))]),
    ):
        topic = ws.topic(
            "clicks",
            schema,
            time="at",
            lateness="10 minutes",
            partitions=4,
            partition_by="user",
            retention="7 days",
        )
        assert topic.schema == pa.schema([("user", pa.int64()), ("at", TIMESTAMP)])
    assert [t.name for t in ws.topics()] == ["clicks"]


def test_a_topic_that_differs_is_refused_with_the_difference(ws: hw.Workspace) -> None:
    ws.topic("t", "a INT, b STRING")
    with pytest.raises(hw.TopicExistsError) as caught:
        ws.topic("t", "a BIGINT, c STRING", partitions=2)
    for line in ("- a INT", "+ a BIGINT", "- b STRING", "+ c STRING", "- partitions = 1", "+ partitions = 2"):
        assert line in caught.value.difference
        assert line in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"partitions": 3}, {"topic": "t", "reason": "no-schema"}),
        ({"schema": "a INT, PRIMARY KEY (a)", "key": "a"}, {"argument": "key", "reason": "given-twice"}),
        ({"schema": "a INT", "lateness": "1 minute"}, {"argument": "lateness", "reason": "no-time-column"}),
        ({"schema": "a INT", "retentoin": "1 day"}, {"option": "retentoin", "reason": "unknown-option"}),
        ({"schema": ["a"]}, {"argument": "schema", "value": ["a"]}),
        ({"schema": {"a": "INT"}}, {"argument": "schema", "value": {"a": "INT"}}),
        ({"schema": "a INT", "key": 7}, {"argument": "key", "value": 7}),
        ({"schema": "a INT", "key": [7]}, {"argument": "key", "value": [7]}),
        ({"schema": "a TIMESTAMP", "time": 5}, {"argument": "time", "value": 5}),
        ({"schema": "a TIMESTAMP", "time": "a", "lateness": 5}, {"argument": "lateness", "value": 5}),
        ({"schema": "a TIMESTAMP", "time": "a", "lateness": True}, {"argument": "lateness", "value": True}),
        ({"schema": "a INT", "partitions": 2.7}, {"argument": "partitions", "value": 2.7}),
        ({"schema": "a INT", "partition_by": 5}, {"option": "partition_by", "value": 5}),
    ],
)
def test_wrong_definitions(ws: hw.Workspace, arguments: dict[str, Any], facts: dict[str, Any]) -> None:
    with raises(hw.UsageError, **facts):
        ws.topic("t", **arguments)
    assert ws.topics() == []


def test_an_unknown_type_is_a_statement_error(ws: hw.Workspace) -> None:
    with raises(hw.StatementError):
        ws.topic("t", "a FROG")
    assert ws.topics() == []


@pytest.mark.parametrize(
    "options",
    ["retention = 7", "retention = true", "retention_bytes = 1.5", "partitions = 2.7", "partition_by = 5"],
)
def test_wrong_options_in_sql(ws: hw.Workspace, options: str) -> None:
    with pytest.raises(hw.UsageError):
        ws.sql(f"CREATE TOPIC t (a INT) WITH ({options})")
    assert ws.topics() == []


def test_what_is_no_text_is_a_usage_error(ws: hw.Workspace) -> None:
    with raises(hw.UsageError, argument="statement", value=None):
        ws.sql(None)  # type: ignore[arg-type]
    with raises(hw.UsageError, argument="topic", value=5):
        ws.topic(5)  # type: ignore[arg-type]
    with raises(hw.UsageError, argument="topic", value=5):
        ws.topic(5, "a INT")  # type: ignore[arg-type]


def test_create_again(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC t (a INT)")
    with raises(hw.TopicExistsError, topic="t", difference=[]):
        ws.sql("CREATE TOPIC t (a INT)")
    ws.sql("CREATE TOPIC IF NOT EXISTS t (a STRING)")
    ws.sql("CREATE OR REPLACE TOPIC t (a INT)")
    assert ws.topic("t").schema == pa.schema([("a", pa.int32())])


def test_or_replace_spares_records(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC t (a INT); CREATE OR REPLACE TOPIC t (a STRING)")
    ws.topic("t").append([{"a": "x"}])
    with raises(hw.TopicExistsError, topic="t", difference=["- a STRING", "+ a INT"]) as caught:
        ws.sql("CREATE OR REPLACE TOPIC t (a INT)")
    assert "without records" in (caught.value.hint or "")
    ws.sql("CREATE OR REPLACE TOPIC t (a STRING)")
    assert ws.topic("t").partitions()[0].rows == 1


def test_all_statements_are_read_before_the_first_is_run(ws: hw.Workspace) -> None:
    with pytest.raises(hw.StatementError):
        ws.sql("CREATE TOPIC t (a INT); CREATE TOPIC u (a FROG)")
    assert ws.topics() == []


def test_alter(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC t (n INT NOT NULL)")
    ws.topic("t").append([{"n": 1}])
    ws.sql("ALTER TOPIC t ADD COLUMN more STRING; ALTER TOPIC t ALTER COLUMN n TYPE BIGINT;"
           "ALTER TOPIC t ALTER COLUMN n DROP NOT NULL; ALTER TOPIC t SET (retention = '1 day')")  # fmt: skip
    ws.topic("t").append([{"n": None, "more": "x"}])
    (old, new) = [row for batch in ws.topic("t").read(columns=["n", "more"]) for row in batch.to_pylist()]
    assert (old, new) == ({"n": 1, "more": None}, {"n": None, "more": "x"})
    assert ws.topic("t").definition.retention_us == 86_400_000_000
    with raises(hw.SchemaError, topic="t", column="n", reason="not-wider"):
        ws.sql("ALTER TOPIC t ALTER COLUMN n TYPE INT")
    with pytest.raises(hw.TopicNotFoundError):
        ws.sql("ALTER TOPIC nothing ADD COLUMN more STRING")


def test_a_topic_that_is_read_is_dropped_only_with_cascade(ws: hw.Workspace) -> None:
    ws.topic("t", "n INT").cursor("mailer")
    with raises(hw.UsageError, topic="t", cursors=["mailer"]):
        ws.sql("DROP TOPIC t")
    ws.sql("DROP TOPIC t CASCADE; DROP TOPIC IF EXISTS t")
    with pytest.raises(hw.TopicNotFoundError):
        ws.sql("DROP TOPIC t")
    assert ws.cursors() == []


def test_show_describe_and_explain(ws: hw.Workspace) -> None:
    ws.sql(
        "CREATE TOPIC people (id BIGINT PRIMARY KEY, at TIMESTAMP, WATERMARK FOR at) WITH (cleanup = 'compact')"
    )
    ws.topic("people").append([{"id": 1, "at": datetime(2026, 1, 31, tzinfo=UTC)}])
    ws.topic("people").cursor("mailer", hold=True)
    (topic,) = table(ws, "SHOW TOPICS")
    assert (topic["topic"], topic["rows"], topic["key"], topic["time"]) == ("people", 1, "id", "at")
    (cursor,) = table(ws, "SHOW CURSORS")
    assert (cursor["cursor"], cursor["lag_rows"], cursor["hold"]) == ("mailer", 1, True)
    assert table(ws, "DESCRIBE people") == [
        {"column": "id", "type": "BIGINT", "nullable": False, "role": "key, partition"},
        {"column": "at", "type": "TIMESTAMP", "nullable": True, "role": "time"},
    ]
    facts = {row["property"]: row["value"] for row in table(ws, "EXPLAIN people")}
    assert facts["statement"] == ws.topic("people").definition.to_sql()
    assert "offsets 0 to 1" in facts["partition 0"]
    assert facts["cursor mailer"] == "0@0"


def test_an_append_over_topics_is_all_or_nothing(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC a (n INT); CREATE TOPIC b (n INT)")
    receipt = ws.append({"a": [{"n": 1}], "b": iter([{"n": 2}, {"n": 3}])})
    assert receipt.positions == {"a": {0: (0, 1)}, "b": {0: (0, 2)}}
    with pytest.raises(hw.BadRowError):
        ws.append({"a": [{"n": 9}], "b": [{"n": "x"}]})
    with pytest.raises(hw.BadRowError):
        ws.append({"a": iter([{"n": 9}]), "b": iter([{"n": "x"}])})
    with pytest.raises(hw.ConflictError):
        ws.append({"a": [{"n": 9}], "b": [{"n": 9}]}, expect={"b": 0})
    assert (numbers(ws, "a"), numbers(ws, "b")) == ([1], [2, 3])


def test_wrong_appends(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC a (n INT)")
    with raises(hw.UsageError, reason="not-a-mapping"):
        ws.append([{"n": 1}])  # type: ignore[arg-type]
    with raises(hw.UsageError, topic="b", reason="no-rows"):
        ws.append({"a": [{"n": 1}]}, expect={"b": 0})
    with pytest.raises(hw.TopicNotFoundError):
        ws.append({"b": [{"n": 1}]})
    wrong: Any
    for wrong in (5, "a", [("a", 0)]):
        with raises(hw.UsageError, argument="expect", value=wrong):
            ws.append({"a": [{"n": 1}]}, expect=wrong)
        with raises(hw.UsageError, argument="expect", value=wrong):
            ws.transaction(expect=wrong)
    for wrong in ("c", 5, ws.topic("a")):
        with raises(hw.UsageError, argument="commit", value=wrong):
            ws.append({"a": [{"n": 1}]}, commit=wrong)
        with raises(hw.UsageError, argument="commit", value=wrong):
            ws.transaction(commit=wrong)
    with raises(hw.UsageError, argument="expect", value="0"), ws.transaction(expect={"a": "0"}):  # type: ignore[dict-item]
        pass
    assert numbers(ws, "a") == []


def test_a_transaction_takes_expectations_in_numpys_numbers(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC a (n INT)")
    with ws.transaction(expect={"a": np.int64(0)}) as tx:
        tx.append("a", [{"n": 1}])
    with pytest.raises(hw.ConflictError), ws.transaction(expect={"a": {0: np.int64(0)}}) as tx:
        tx.append("a", [{"n": 2}])
    assert numbers(ws, "a") == [1]


def broken_halfway() -> Iterator[dict[str, Any]]:
    """Rows of which the first chunk fits."""
    yield from ({"n": n} for n in range(70_000))
    yield {"n": "x"}


@pytest.mark.parametrize("rows", [broken_halfway, lambda: [{"n": "x"}], lambda: pa.table({"m": [1]})])
def test_a_transaction_of_which_an_append_failed_is_not_committed(ws: hw.Workspace, rows: Any) -> None:
    ws.sql("CREATE TOPIC a (n INT)")

    def go_on() -> None:
        with ws.transaction() as tx:
            tx.append("a", [{"n": 1}])
            with pytest.raises(hw.BadRowError):
                tx.append("a", rows())
            with raises(hw.UsageError, reason="failed"):
                tx.append("a", [{"n": 2}])

    with raises(hw.UsageError, reason="failed") as caught:
        go_on()
    assert "topic 'a'" in (caught.value.detail or "")
    assert numbers(ws, "a") == []


def test_the_error_of_a_failed_append_leaves_the_block_as_it_is(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC a (n INT)")
    with pytest.raises(hw.BadRowError), ws.transaction() as tx:
        tx.append("a", [{"n": "x"}])


def test_a_transaction_takes_a_table_without_rows(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC a (n INT)")
    with ws.transaction() as tx:
        tx.append("a", pa.table({"n": pa.array([], pa.int32())}))
        tx.append("a", [{"n": 1}])
    assert numbers(ws, "a") == [1]
    with raises(hw.UsageError, column="n", expected="INT", actual="string"), ws.transaction() as tx:
        tx.append("a", pa.table({"n": pa.array([], pa.string())}))


def test_a_transaction_becomes_visible_at_its_end(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC a (n INT); CREATE TOPIC b (n INT)")
    with ws.transaction(producer="p", sequence=1) as tx:
        tx.append("a", [{"n": 1}])
        tx.append("b", ({"n": n} for n in range(3)))
        tx.append("a", [{"n": 2}])
        assert numbers(ws, "a") == []
    assert tx.receipt is not None
    assert tx.receipt.rows == 5
    assert (numbers(ws, "a"), numbers(ws, "b")) == ([1, 2], [0, 1, 2])
    with raises(hw.UsageError, reason="not-open"):
        tx.append("a", [{"n": 1}])


def test_a_transaction_that_an_exception_leaves_is_gone(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC a (n INT)")

    def leave() -> None:
        with ws.transaction() as tx:
            tx.append("a", [{"n": 1}])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    with pytest.raises(hw.ConflictError), ws.transaction(expect={"a": 5}) as tx:
        tx.append("a", [{"n": 1}])
    assert tx.receipt is None
    assert numbers(ws, "a") == []


def test_a_transaction_can_move_a_cursor(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC a (n INT); CREATE TOPIC b (n INT)")
    ws.append({"a": [{"n": n} for n in range(5)]})
    cursor = ws.topic("a").cursor("copy")
    with ws.transaction(commit=cursor) as tx:
        for batch in cursor.read(batch_rows=2):
            tx.append("b", batch.select(["n"]))
    assert cursor.position() == {0: 5}
    assert numbers(ws, "b") == [0, 1, 2, 3, 4]


def test_lag_and_its_forecast(ws: hw.Workspace, clock: ManualClock) -> None:
    ws.sql("CREATE TOPIC a (n INT) WITH (retention = '1 hour')")
    cursor = ws.topic("a").cursor("mailer")
    ws.topic("a").cursor("holder", hold=True)
    ws.append({"a": [{"n": n} for n in range(100)]})
    clock.advance("10 minutes")
    holder, mailer = ws.lag()
    assert (mailer.cursor, mailer.rows, mailer.seconds) == ("mailer", 100, 600.0)
    assert mailer.falls_off_at is not None
    assert (mailer.falls_off_at.timestamp() - clock.now_us() / 1e6) == pytest.approx(3_000)
    assert holder.falls_off_at is None
    cursor.commit({0: 100})
    assert [c.falls_off_at for c in ws.lag()] == [None, None]


def test_disk_space_is_known_where_there_is_a_disk(ws: hw.Workspace) -> None:
    assert (ws.lag().disk_free_bytes is None) == (ws.path is None)


def test_maintain_and_verify(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC a (n INT)")
    ws.append({"a": [{"n": n} for n in range(100)]})
    ws.maintain()
    seen: list[int] = []
    found = ws.verify(progress=seen.append)
    assert found.ok
    assert found.differences == ()
    assert seen
    assert seen[-1] == found.bytes_checked > 0


def test_verify_takes_a_name_or_some(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC ab (n INT); CREATE TOPIC b (n INT)")
    ws.append({"ab": [{"n": n} for n in range(100)], "b": [{"n": n} for n in range(100)]})
    ws.maintain()
    assert ws.verify("ab").bytes_checked == ws.verify(["ab"]).bytes_checked > 0
    for wrong in ("nothing", ["b", "nothing"]):
        with raises(hw.TopicNotFoundError, topic="nothing"):
            ws.verify(wrong)
    with pytest.raises(hw.UsageError):
        ws.verify([5])  # type: ignore[list-item]


def test_a_closed_workspace_says_so(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC a (n INT)")
    ws.close()
    with pytest.raises(hw.ClosedError):
        ws.sql("SHOW TOPICS")


def test_open_refuses_what_it_cannot_be(tmp_path: Path) -> None:
    with raises(hw.UsageError, argument="durability", value="maybe"):
        hw.open("memory:", durability="maybe")  # type: ignore[arg-type]
    with pytest.raises(hw.WorkspaceMissingError):
        hw.open(tmp_path / "nothing", create=False)
    assert not (tmp_path / "nothing").exists()
    wrong: Any
    for wrong in (None, 5, b"shop", ""):
        with raises(hw.UsageError, reason="not-a-path"):
            hw.open(wrong)
    file = tmp_path / "file"
    file.write_text("notes")
    for place in (file, file / "shop", file / "deep" / "shop"):
        with raises(hw.UsageError, file=str(file)):
            hw.open(place)
    assert file.read_text() == "notes"


def test_a_workspace_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    with hw.open(tmp_path / "w", durability="os") as ws:
        ws.topic("a", "n INT").append([{"n": 1}])
    with hw.open(tmp_path / "w", create=False) as ws:
        assert numbers(ws, "a") == [1]


@pytest.mark.parametrize("attempt", range(5))
def test_who_makes_a_workspace_at_the_same_time_as_others_makes_the_same_one(
    tmp_path: Path, attempt: int
) -> None:
    """Keys to private columns are found by its id."""
    together = threading.Barrier(8)

    def make(number: int) -> str:
        together.wait()
        with hw.open(tmp_path / "ws", durability="os") as ws:
            # as stores and engines make folders of their own there
            (tmp_path / "ws" / f"own-{number}").mkdir()
            return ws.log.identity

    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(make, range(8)))
    assert len(found) == 1
