"""Contract of waiting for new records, without polling."""

from __future__ import annotations

import threading
import time

from headwater.testing.contract.contract_base import Bench

LONG_MS = 20_000
"""Much longer than any test should wait, in milliseconds."""


class WaitingContract(Bench):
    """Tests of `wait`, `sequence` and `wait_commit`."""

    def test_what_is_there_already_is_not_waited_for(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(1))
        assert self.log.wait("clicks", {0: 0}, LONG_MS) is True

    def test_the_wait_ends_at_the_timeout(self) -> None:
        self.create("clicks")
        started = time.monotonic()
        assert self.log.wait("clicks", {0: 0}, 50) is False
        assert time.monotonic() - started >= 0.045

    def test_no_time_at_all_is_a_look(self) -> None:
        self.create("clicks")
        assert self.log.wait("clicks", {0: 0}, 0) is False
        self.append("clicks", self.numbers(1))
        assert self.log.wait("clicks", {0: 0}, 0) is True

    def woken(self) -> bool:
        """Whether an append wakes a thread that waits for it."""
        found: list[bool] = []
        ends = self.ends("clicks")
        waiter = threading.Thread(target=lambda: found.append(self.log.wait("clicks", ends, LONG_MS)))
        waiter.start()
        time.sleep(0.02)
        assert not found
        self.append("clicks", self.numbers(1))
        waiter.join(LONG_MS / 1e3)
        return found == [True]

    def test_an_append_from_another_thread_ends_the_wait(self) -> None:
        self.create("clicks")
        assert self.woken()

    def test_an_append_to_any_partition_ends_the_wait(self) -> None:
        self.create("clicks", partitions=3)
        for _ in range(3):
            assert self.woken()

    def test_an_append_to_another_topic_does_not(self) -> None:
        self.create("clicks")
        self.create("orders")
        found: list[bool] = []
        waiter = threading.Thread(target=lambda: found.append(self.log.wait("clicks", {0: 0}, 200)))
        waiter.start()
        self.append("orders", self.numbers(1))
        waiter.join()
        assert found == [False]

    def test_punctuation_ends_the_wait(self) -> None:
        self.create("clicks")
        self.log.punctuate("clicks", {0: 1})
        assert self.log.wait("clicks", {0: 0}, LONG_MS) is True

    def test_only_the_partitions_named_are_waited_for(self) -> None:
        self.create("clicks", partitions=2)
        (used,) = self.append("clicks", self.numbers(1)).positions["clicks"]
        assert self.log.wait("clicks", {1 - used: 0}, 0) is False

    def test_several_waiters_are_all_woken(self) -> None:
        self.create("clicks")
        found: list[bool] = []
        waiters = [
            threading.Thread(target=lambda: found.append(self.log.wait("clicks", {0: 0}, LONG_MS)))
            for _ in range(5)
        ]
        for waiter in waiters:
            waiter.start()
        self.append("clicks", self.numbers(1))
        for waiter in waiters:
            waiter.join(LONG_MS / 1e3)
        assert found == [True] * 5

    def test_every_kind_of_change_is_a_commit_with_a_higher_number(self) -> None:
        for change in (
            lambda: self.create("clicks"),
            lambda: self.append("clicks", self.numbers(2)),
            lambda: self.log.punctuate("clicks", {0: 1}),
            lambda: self.log.put_entry("view", "a", {}, expect=None),
            lambda: self.log.drop_entry("view", "a"),
            lambda: self.log.create_cursor("clicks", "mailer", {0: 0}, False),
            lambda: self.log.drop_topic("clicks"),
        ):
            before = self.log.sequence()
            assert self.log.wait_commit(before, 0) is False
            change()
            assert self.log.sequence() > before
            assert self.log.wait_commit(before, 0) is True

    def test_the_number_of_the_last_commit_is_that_of_its_records(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(2))
        assert set(self.column("clicks", "_sequence")) == {self.log.sequence()}

    def test_numbers_go_on_after_reopening(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(2))
        before = self.log.sequence()
        self.log = self.reopen(self.log)
        assert self.log.sequence() >= before
        self.append("clicks", self.numbers(2))
        assert self.log.sequence() > before

    def test_a_wait_for_any_commit_ends_at_the_timeout(self) -> None:
        started = time.monotonic()
        assert self.log.wait_commit(self.log.sequence(), 50) is False
        assert time.monotonic() - started >= 0.045

    def test_a_wait_for_any_commit_is_ended_by_each_kind(self) -> None:
        self.create("clicks")
        for change in (
            lambda: self.append("clicks", self.numbers(1)),
            lambda: self.create("orders"),
            lambda: self.log.put_entry("view", "a", {}, expect=None),
            lambda: self.log.drop_entry("view", "a"),
        ):
            found: list[bool] = []
            before = self.log.sequence()
            waiter = threading.Thread(
                target=lambda seen, into: into.append(self.log.wait_commit(seen, LONG_MS)),
                args=(before, found),
            )
            waiter.start()
            change()
            waiter.join(LONG_MS / 1e3)
            assert found == [True]

    def test_appends_from_several_threads_all_arrive(self) -> None:
        self.create("clicks", "n BIGINT, text STRING", partitions=2)

        def work(writer: int) -> None:
            for turn in range(20):
                self.append("clicks", [{"n": turn, "text": f"w{writer}"}])

        writers = [threading.Thread(target=work, args=(writer,)) for writer in range(4)]
        for thread in writers:
            thread.start()
        for thread in writers:
            thread.join()
        rows = self.all_rows("clicks")
        assert len(rows) == 80
        rows.sort(key=lambda row: row["_sequence"])
        for writer in range(4):
            assert [row["n"] for row in rows if row["text"] == f"w{writer}"] == list(range(20))
