"""What a queue promises to those who use it, one by one."""

from __future__ import annotations

import asyncio
import shutil
import signal
import threading
import time
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
import headwater.queues.prefetch as window_module
import headwater.queues.queue_client as ledger_module
from headwater.core.clock import ManualClock
from headwater.core.errors import OtherHistoryError
from headwater.queues.message import Message
from headwater.queues.queue_state import LAPSED
from tests.raising import raises

COLUMNS = "id BIGINT, customer STRING"


def outbox(ws: hw.Workspace, count: int = 5, **options: Any) -> hw.Workspace:
    topic = ws.topic("outbox", COLUMNS, **options)
    topic.append([{"id": n, "customer": "ab"[n % 2]} for n in range(count)])
    return ws


def ids(messages: Any) -> list[int]:
    return [message.row["id"] for message in messages]


def test_workers_share_messages_and_an_acknowledged_one_never_comes_again(ws: hw.Workspace) -> None:
    outbox(ws)
    one, two = (ws.queue("emails", topic="outbox", worker=name) for name in ("one", "two"))
    mine, yours = one.receive(3), two.receive(10)
    assert (ids(mine), ids(yours)) == ([0, 1, 2], [3, 4])
    assert mine.rows.column_names == ["id", "customer"]
    one.ack(mine)
    two.ack(yours[0])
    assert not one.receive(10)
    two.nack(yours[1], error="no")
    (again,) = one.receive(10)
    assert (again.row["id"], again.deliveries, again.error) == (4, 2, "no")


def test_a_lease_that_runs_out_is_handed_to_another(ws: hw.Workspace, clock: ManualClock) -> None:
    outbox(ws, 2)
    one = ws.queue("emails", topic="outbox", worker="one", lease="10 seconds")
    first, second = one.receive(2)
    clock.advance("6 seconds")
    one.extend(second)
    clock.advance("6 seconds")
    two = ws.queue("emails", worker="two")
    got = two.receive(10)
    assert (ids(got), got[0].deliveries) == ([0], 2)
    with raises(hw.LeaseLostError, worker="one", holder="two", messages=["0-0"]):
        first.ack()
    second.ack()
    got[0].ack()
    assert one.standing().acknowledged == 2


def test_a_message_of_another_worker_or_queue_is_refused_and_stays(ws: hw.Workspace) -> None:
    outbox(ws, 1)
    one = ws.queue("emails", topic="outbox", worker="one")
    (message,) = one.receive()
    with pytest.raises(hw.LeaseLostError):
        ws.queue("emails", worker="two").ack(message)
    with raises(hw.UsageError, message_queue="emails", queue="letters"):
        ws.queue("letters", topic="outbox").ack(message)
    with raises(hw.UsageError, argument="messages", value="0-0"):
        one.ack("0-0")  # type: ignore[arg-type]
    with pytest.raises(hw.MessageNotFoundError):
        one.settle(["0-77@3"], "ack")
    with pytest.raises(hw.LeaseLostError):
        one.settle([f"0-0@{message.lease + 1}"], "ack")
    assert one.standing().leased == 1
    message.ack()


def test_what_is_not_there_or_differs_is_said(ws: hw.Workspace) -> None:
    outbox(ws, 1)
    with raises(hw.QueueNotFoundError, queue="emails"):
        ws.queue("emails")
    with pytest.raises(hw.TopicNotFoundError):
        ws.queue("emails", topic="inbox")
    with raises(hw.UsageError, option="leese"):
        ws.queue("emails", topic="outbox", leese="1 s")
    with raises(hw.SchemaError, topic="outbox", column="nobody"):
        ws.queue("emails", topic="outbox", key="nobody")
    with raises(hw.SchemaError, column="customer", reason="delay-type"):
        ws.queue("emails", topic="outbox", delay="customer")
    ws.queue("emails", topic="outbox", deliveries=3)
    with raises(hw.QueueExistsError, queue="emails", difference=["deliveries: 3, not 4"]):
        ws.queue("emails", topic="outbox", deliveries=4)
    with raises(hw.UsageError, argument="max", value=0):
        ws.queue("emails").receive(0)
    ws.topic("many", COLUMNS, partitions=2)
    with raises(hw.SchemaError, topic="many", reason="key-in-several-partitions"):
        ws.queue("ordered", topic="many", key="customer")
    queue = ws.queue("emails")
    ws.drop_queue("emails")
    with pytest.raises(hw.QueueNotFoundError):
        queue.receive()
    assert [queue.name for queue in ws.queues()] == []
    assert ws.cursors() == []


def test_messages_of_one_key_are_handed_out_one_at_a_time(ws: hw.Workspace, clock: ManualClock) -> None:
    outbox(ws, 6, partitions=2, partition_by="customer")
    one, two = (ws.queue("emails", topic="outbox", key="customer", worker=w) for w in ("one", "two"))
    first = one.receive(10)
    assert sorted(ids(first)) == [0, 1]
    assert not two.receive(10)
    by_customer = {message.row["customer"]: message for message in first}
    by_customer["a"].ack()
    (second,) = two.receive(10)
    assert second.row["id"] == 2
    by_customer["b"].nack(delay="1 minute")
    assert not one.receive(10), "b waits for its first, which comes again"
    clock.advance("1 minute")
    assert sorted(ids(one.receive(10))) == [1, 2]


@pytest.mark.parametrize("kind", ["TIMESTAMP", "BIGINT"])
def test_a_delay_is_a_field_of_the_message(ws: hw.Workspace, clock: ManualClock, kind: str) -> None:
    now = datetime.fromtimestamp(clock.now_us() / 1e6, UTC)
    later = [now + timedelta(minutes=1), None] if kind == "TIMESTAMP" else [60, None]
    ws.topic("outbox", f"id BIGINT, later {kind}").append(
        [{"id": n, "later": moment} for n, moment in enumerate(later)]
    )
    queue = ws.queue("emails", topic="outbox", delay="later")
    assert (queue.standing().delayed, queue.standing().waiting) == (1, 1)
    assert ids(queue.receive(10)) == [1]
    clock.advance("61 seconds")
    assert ids(queue.receive(10)) == [0, 1]


def test_after_so_many_deliveries_a_message_is_dead(ws: hw.Workspace, clock: ManualClock) -> None:
    outbox(ws, 2)
    queue = ws.queue("emails", topic="outbox", deliveries=2, lease="10 seconds")
    bad, good = queue.receive(2)
    good.ack()
    bad.nack(error="no such address")
    (bad,) = queue.receive()
    clock.advance("11 seconds")  # this time its worker never comes back
    assert not queue.receive()
    (row,) = [row for batch in ws.topic("emails.dead").read() for row in batch.to_pylist()]
    assert (row["offset"], row["deliveries"], row["error"]) == (0, 2, LAPSED)
    assert row["row"] == '{"id":0,"customer":"a"}'
    assert queue.standing().dead == 1


def test_a_message_that_is_given_up_is_dead_at_once_and_frees_its_key(ws: hw.Workspace) -> None:
    ws.topic("outbox", "id BIGINT, customer STRING").append([{"id": n, "customer": "a"} for n in range(3)])
    queue = ws.queue("emails", topic="outbox", deliveries=5, key="customer")
    (first,) = queue.receive(3)
    with raises(hw.UsageError, reason="final-with-delay"):
        first.nack(final=True, delay="1 minute")
    with raises(hw.UsageError, argument="final", value="yes"):
        first.nack(final="yes")  # type: ignore[arg-type]
    first.nack(final=True, error="no such address")
    (letter,) = ws.dead().find("emails")
    assert (letter.letter.error, queue.standing().dead) == ("no such address", 1)
    (second,) = queue.receive(3)
    queue.settle([second.token], "nack", final=True)
    assert queue.standing().dead == 2
    assert ids(queue.receive(3)) == [2]
    ws.dead().replay("emails/0-0")
    assert [m.deliveries for m in ws.queue("emails").receive(3)] == [], "its key is held"


def test_of_many_workers_only_who_has_a_lease_can_settle_it(ws: hw.Workspace) -> None:
    """Whatever another does with it is refused, names who has it, and changes nothing."""
    outbox(ws, 1)
    ws.queue("emails", topic="outbox")
    one, two = ws.queue("emails", worker="one"), ws.queue("emails", worker="two")
    (message,) = one.receive()
    before = one.standing()
    for act in (
        lambda: two.ack(message),
        lambda: two.nack(message, delay="1 hour"),
        lambda: two.nack(message, final=True),
        lambda: two.release(message),
        lambda: two.extend(message, "1 hour"),
        lambda: two.receive(ack=message),
        lambda: two.settle([message.token], "ack"),
        lambda: two.settle([message.token], "nack", final=True),
    ):
        with raises(hw.LeaseLostError, worker="two", holder="one", messages=["0-0"]):
            act()
        assert one.standing() == before
    assert not message.settled
    message.ack()
    assert one.standing().acknowledged == 1


def test_log_readers_and_queues_read_the_same_topic(ws: hw.Workspace) -> None:
    outbox(ws)
    queues = [ws.queue(name, topic="outbox") for name in ("emails", "audit")]
    for queue in queues:
        queue.ack(queue.receive(2))
    cursor = ws.topic("outbox").cursor("reader")
    assert sum(batch.num_rows for batch in cursor.read()) == 5
    assert [ids(queue.receive(10)) for queue in queues] == [[2, 3, 4]] * 2


@pytest.mark.parametrize("key", [None, "customer"])
def test_partitions_take_turns_and_every_message_comes_once(ws: hw.Workspace, key: str | None) -> None:
    topic = ws.topic("outbox", COLUMNS, partitions=3, partition_by="customer")
    topic.append([{"id": n, "customer": str(n % 50)} for n in range(900)])
    workers = [ws.queue("emails", topic="outbox", key=key, worker=name) for name in "ab"]
    found: list[int] = []
    seen: dict[str, list[int]] = {}
    while len(found) < 900:
        for queue in workers:
            got = queue.receive(40)
            found += ids(got)
            for message in got:
                seen.setdefault(message.row["customer"], []).append(message.row["id"])
            queue.ack(got)
    assert sorted(found) == list(range(900))
    assert key is None or all(order == sorted(order) for order in seen.values())
    assert {message % 50 for message in found[:450]} == set(range(50))


def test_a_queue_begins_at_its_start_position(ws: hw.Workspace) -> None:
    outbox(ws)
    queue = ws.queue("emails", topic="outbox", start="latest")
    assert not queue.receive()
    assert queue.standing().waiting == 0
    ws.topic("outbox").append([{"id": 9, "customer": "z"}])
    assert ids(queue.receive(5)) == [9]


def test_punctuation_and_added_columns_are_no_obstacle(ws: hw.Workspace) -> None:
    topic = ws.topic("outbox", "id BIGINT, at TIMESTAMP NOT NULL", time="at", lateness="1 second")
    queue = ws.queue("emails", topic="outbox")
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    for n in range(3):
        topic.append([{"id": n, "at": moment}])
        topic.punctuate(moment + timedelta(minutes=n))
    queue.ack(queue.receive(2))
    ws.sql("ALTER TOPIC outbox ADD COLUMN note STRING")
    topic.append([{"id": 3, "at": moment, "note": "new"}])
    got = queue.receive(10)
    assert [row["note"] for row in got.rows.to_pylist()] == [None, "new"]
    queue.ack(got)
    assert not queue.receive(5)
    assert queue.standing().waiting == 0


def test_retention_keeps_what_a_queue_has_not_done(tmp_path: Path, clock: ManualClock) -> None:
    with hw.open(tmp_path / "ws", clock=clock) as ws:
        outbox(ws, 3, retention="1 hour")
        queue = ws.queue("emails", topic="outbox")
        queue.ack(queue.receive(1))
        clock.advance("2 hours")
        ws.maintain(force=True)
        assert ws.topic("outbox").partitions()[0].rows == 3
        queue.ack(queue.receive(10))
        clock.advance("1 second")
        assert not queue.receive()
        ws.maintain(force=True)
        assert ws.topic("outbox").partitions()[0].rows == 0


def test_messages_removed_by_force_count_as_done(tmp_path: Path, clock: ManualClock) -> None:
    with hw.open(tmp_path / "ws", clock=clock) as ws:
        outbox(ws, 3, retention="1 hour")
        queue = ws.queue("emails", topic="outbox", lease="1 minute")
        queue.receive(2)
        clock.advance("2 hours")
        ws.maintain(force=True, override_holds=True)
        ws.topic("outbox").append([{"id": 9, "customer": "z"}])
    with hw.open(tmp_path / "ws", clock=clock) as ws:
        queue = ws.queue("emails")
        assert ids(queue.receive(10)) == [9]
        assert (queue.standing().waiting, queue.standing().leased) == (0, 1)


def test_many_delayed_messages_do_not_hide_those_that_are_due(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_module, "BLOCKED_MAX", 10)
    monkeypatch.setattr(window_module, "CHUNK_ROWS", 8)
    ws.topic("outbox", "id BIGINT, later BIGINT").append(
        [{"id": n, "later": 0 if n == 99 else 60} for n in range(100)]
    )
    queue = ws.queue("emails", topic="outbox", delay="later")
    assert ids(queue.receive(5)) == [99]
    assert queue.standing().delayed == 99


def test_an_acknowledgement_that_is_lost_takes_nothing_with_it(ws: hw.Workspace, clock: ManualClock) -> None:
    outbox(ws, 2)
    queue = ws.queue("emails", topic="outbox", lease="10 seconds")
    old = queue.receive(1)
    clock.advance("11 seconds")
    with pytest.raises(hw.LeaseLostError):
        queue.receive(1, ack=old)
    assert queue.standing().leased == 0
    assert ids(queue.receive(5)) == [0, 1]


def test_opening_costs_what_is_open(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "CHECKPOINT_OPS", 20)
    with hw.open(tmp_path / "ws", clock=clock) as ws:
        outbox(ws, 200)
        queue = ws.queue("emails", topic="outbox")
        kept = queue.receive(1)
        for number in range(100):
            if number == 50:
                ws.maintain(force=True)  # a segment ends here, and only whole ones are removed
            clock.advance("1 millisecond")
            queue.ack(queue.receive(1))
        before = queue.standing()
        clock.advance("2 hours")
        ws.maintain(force=True)
        bounds = ws.log.partitions("_queue_emails")[0]
        assert bounds.first > 0, "records that a checkpoint has taken in are removed"
        assert bounds.rows < 150
    with hw.open(tmp_path / "ws", clock=clock) as ws:
        queue = ws.queue("emails")
        assert queue.standing().acknowledged == before.acknowledged
        assert ids(queue.receive(1)) == ids(kept), "its lease has run out meanwhile"


def test_a_receive_waits_for_messages_of_other_processes(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws, hw.open(tmp_path / "ws") as other:
        outbox(ws, 0)
        queue = ws.queue("emails", topic="outbox")
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.extend(ids(queue.receive(5, wait=30))))
        thread.start()
        other.topic("outbox").append([{"id": 4, "customer": "a"}])
        thread.join()
        assert found == [4]


def test_a_with_block_acknowledges_or_gives_back(ws: hw.Workspace) -> None:
    outbox(ws, 2)
    queue = ws.queue("emails", topic="outbox")
    messages = iter(queue)
    with next(messages) as message:
        assert message.op is None
    with pytest.raises(RuntimeError), next(messages):
        raise RuntimeError("broken")
    (again,) = queue.receive(5)
    assert (again.row["id"], again.error) == (1, "RuntimeError: broken")


def test_an_error_in_a_with_block_is_heard_of_though_the_lease_is_lost(
    ws: hw.Workspace, clock: ManualClock
) -> None:
    outbox(ws, 1)
    queue = ws.queue("emails", topic="outbox", lease="10 seconds")
    (message,) = queue.receive(1)
    clock.advance("11 seconds")
    with pytest.raises(RuntimeError), message:
        raise RuntimeError("broken")


def test_what_was_not_begun_is_given_back_as_if_it_had_not_been_handed_out(
    ws: hw.Workspace, clock: ManualClock
) -> None:
    outbox(ws, 4)
    queue = ws.queue("emails", topic="outbox", lease="10 seconds", deliveries=1)
    first, *others = queue.receive(4)
    queue.release(others)
    assert queue.standing().dead == 0
    again = ws.queue("emails").receive(4)
    assert ([message.deliveries for message in again], ids(again)) == ([1, 1, 1], [1, 2, 3])
    with pytest.raises(hw.LeaseLostError):
        others[0].release()
    ws.queue("emails", worker=again.queue.worker).settle([again[0].token], "release")
    clock.advance("11 seconds")
    with pytest.raises(hw.LeaseLostError):
        queue.receive(5, ack=first)  # what it was handed out nobody has seen: that is no delivery either
    assert (ids(queue.receive(5)), queue.standing().dead) == ([1], 3)


def test_an_error_is_a_text_that_can_be_kept(ws: hw.Workspace) -> None:
    outbox(ws, 1)
    queue = ws.queue("emails", topic="outbox")
    (message,) = queue.receive(1)
    with raises(hw.UsageError, argument="error"):
        message.nack(error=ValueError())  # type: ignore[arg-type]
    assert queue.standing().leased == 1
    message.nack(error="no such file: \udcff" + "x" * 10_000)
    (again,) = queue.receive(1)
    assert again.error is not None
    assert (again.error[:16], len(again.error)) == ("no such file: ?x", 2_003)
    with raises(hw.UsageError, argument="handler", value="send"):
        queue.work("send")  # type: ignore[arg-type]
    with raises(hw.UsageError, argument="wait", value=-1):
        queue.receive(1, wait=-1)


def test_stopping_hands_back_what_no_handler_has_seen(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        outbox(ws, 6)
        queue = ws.queue("emails", topic="outbox", deliveries=1)
        begun, may_end = threading.Event(), threading.Event()

        def handle(message: Message) -> None:
            begun.set()
            may_end.wait()

        worker = queue.work(handle, max=6)
        begun.wait()
        worker.stop_soon()
        may_end.set()
        assert worker.wait().handled == 1
        assert (queue.standing().waiting, queue.standing().dead) == (5, 0)
        assert [message.deliveries for message in queue.receive(6)] == [1] * 5


def test_a_fault_of_the_program_ends_the_work_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hw.open(tmp_path / "ws") as ws:
        queue = outbox(ws).queue("emails", topic="outbox")
        monkeypatch.setattr(queue, "receive", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            queue.work(print).wait(20)


def test_a_call_that_is_cancelled_leaves_its_messages_to_others(tmp_path: Path) -> None:
    async def main(queue: Any) -> None:
        call = asyncio.ensure_future(queue.aio.receive(5, wait=5))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        while queue.standing().delivered < 5 or queue.standing().leased:
            await asyncio.sleep(0.01)
        (message,) = await queue.aio.receive(1)
        await queue.aio.release(message)

    with hw.open(tmp_path / "ws") as ws:
        queue = outbox(ws).queue("emails", topic="outbox", deliveries=1)
        asyncio.run(main(queue))
        assert (queue.standing().waiting, queue.standing().dead) == (5, 0)


def test_handlers_work_and_stop_gracefully(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        outbox(ws, 40)
        queue = ws.queue("emails", topic="outbox", lease="1 second", deliveries=2)
        seen: list[int] = []

        def handle(message: Message) -> None:
            seen.append(message.row["id"])
            if message.row["id"] == 7:
                raise ValueError("no such address")

        report = queue.work(handle, threads=3, max=4, delay="1 ms", idle=1).wait()
        assert (report.handled, report.failed) == (39, 2)
        assert sorted(seen) == sorted([*range(40), 7])
        assert (queue.standing().acknowledged, queue.standing().dead) == (39, 1)
        (letter,) = ws.dead().find("emails")
        assert letter.letter.error == "ValueError: no such address"
        waits = 'headwater_dead_letters{kind="queue",owner="emails"}'
        assert f"{waits} 1.0" in ws.metrics()
        ws.dead().drop(letter.letter.id)
        assert f"{waits} 0.0" in ws.metrics()


def test_ctrl_c_waits_for_what_is_being_handled_and_takes_no_more(tmp_path: Path) -> None:
    """Also at the end of a `with` block, and when the workspace is closed, though the wait before it was interrupted."""
    for closes in ("block", "workspace"):
        with hw.open(tmp_path / closes) as ws:
            outbox(ws, 2)
            queue, begun, over = ws.queue("emails", topic="outbox"), threading.Event(), list[int]()

            def handle(message: Message, begun: threading.Event = begun, over: list[int] = over) -> None:
                begun.set()
                time.sleep(0.7)
                over.append(message.row["id"])

            def interrupt(begun: threading.Event = begun) -> None:
                begun.wait(20)
                time.sleep(0.2)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

            threading.Thread(target=interrupt, daemon=True).start()
            worker = queue.work(handle)
            with pytest.raises(KeyboardInterrupt), worker if closes == "block" else nullcontext():
                worker.wait()
            if closes == "workspace":
                ws.close()
            assert over == [0]
        with hw.open(tmp_path / closes) as ws:
            standing = ws.queue("emails").standing()
            assert (standing.acknowledged, standing.leased, standing.waiting) == (1, 0, 1)


def test_the_lease_is_extended_while_a_handler_runs(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        outbox(ws, 1)
        queue = ws.queue("emails", topic="outbox", lease="2 s")
        started, may_end = threading.Event(), threading.Event()

        def handle(message: Message) -> None:
            started.set()
            may_end.wait()

        with queue.work(handle):
            started.wait()
            # other workers get nothing for longer than the lease is
            assert not ws.queue("emails").receive(1, wait=2.5)
            may_end.set()
        assert (queue.standing().acknowledged, queue.standing().lapsed) == (1, 0)


def test_asyncio(tmp_path: Path) -> None:
    async def main() -> list[int]:
        with hw.open(tmp_path / "ws") as ws:
            outbox(ws, 3)
            queue = ws.queue("emails", topic="outbox")
            found = []
            async for message in queue:
                found.append(message.row["id"])
                await queue.aio.ack(message)
                if len(found) == 2:
                    break
            waiting = asyncio.ensure_future(queue.aio.receive(5, wait=0))
            (last,) = await waiting
            await queue.aio.extend(last)
            await queue.aio.nack(last, error="later")
            done = asyncio.Event()

            async def handle(message: Message) -> None:
                found.append(message.row["id"])
                done.set()

            work = asyncio.ensure_future(queue.aio.work(handle, tasks=2))
            await done.wait()
            while queue.standing().acknowledged < 3:
                await asyncio.sleep(0)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return found

    assert asyncio.run(main()) == [0, 1, 2]


def test_work_that_is_cancelled_after_its_message_was_settled_ends_quietly(tmp_path: Path) -> None:
    async def main() -> None:
        with hw.open(tmp_path / "ws") as ws:
            outbox(ws, 1)
            queue, begun = ws.queue("emails", topic="outbox"), asyncio.Event()

            async def handle(message: Message) -> None:
                await queue.aio.ack(message)
                begun.set()
                await asyncio.Event().wait()

            work = asyncio.ensure_future(queue.aio.work(handle))
            await begun.wait()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert queue.standing().acknowledged == 1

    asyncio.run(main())


def test_dead_messages_are_shown_edited_dropped_and_replayed(tmp_path: Path, clock: ManualClock) -> None:
    with hw.open(tmp_path / "ws", clock=clock) as ws:
        outbox(ws, 3)
        queue = ws.queue("emails", topic="outbox", deliveries=1)
        queue.nack(queue.receive(3), error="refused")
        dead = ws.dead()
        listed = dead.list(of="emails")
        assert sorted(listed["letter"].to_pylist()) == ["emails/0-0", "emails/0-1", "emails/0-2"]
        assert set(listed["kind"].to_pylist()) == {"queue"}
        dead.edit("emails/0-1", {"customer": "corrected"}, by="anna")
        assert dead.drop("emails/0-0", by="anna") == ("emails/0-0",)
        assert dead.replay(["emails/0-1", "emails/0-2"], by="anna").taken == ("emails/0-1", "emails/0-2")
        assert dead.replay("emails/0-1").before == ("emails/0-1",)
        got = queue.receive(5)
        assert [m.row["customer"] for m in got] == ["corrected", "a"]
        assert [m.deliveries for m in got] == [1, 1]
        got[0].ack()
        got[1].nack(error="again")
        assert dead.list(of="emails")["letter"].to_pylist() == ["emails/0-2"]
        assert dead.show("emails/0-0").state == "dropped"
        assert dead.show("emails/0-1").state == "replayed"
        assert dead.counts()["emails", "queue"]["open"] == 1


def test_a_token_of_a_lease_in_another_history_settles_nothing(tmp_path: Path) -> None:
    folder, copy = tmp_path / "shop", tmp_path / "copy"
    with hw.open(folder, durability="os") as ws:
        outbox(ws, 2)
        ws.queue("emails", topic="outbox", worker="one")
    shutil.copytree(folder, copy)
    with hw.open(folder, durability="os") as ws:
        (message,) = ws.queue("emails", worker="one").receive()
        token = message.token
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    with hw.open(folder, durability="os") as ws:
        queue = ws.queue("emails", worker="one")
        (again,) = queue.receive()
        assert (again.id, again.lease) == (message.id, message.lease)
        with raises(OtherHistoryError, token=token.partition("~")[2]):
            queue.settle([token], "ack")
        assert queue.standing().leased == 1
        queue.settle([again.token], "ack")
        assert queue.standing().leased == 0
