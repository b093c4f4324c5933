"""Contract of idempotent producers: a retry returns the first receipt, and an older epoch is fenced."""

from __future__ import annotations

import pyarrow as pa

from headwater.catalog.definitions import add_column
from headwater.core.errors import AlreadyWrittenError, ConflictError, FencedError, SequenceReusedError
from headwater.core.positions import Receipt
from headwater.log.protocol import Append, Producer, ProducerInfo
from headwater.testing.contract.contract_base import Bench, refused

RECEIPTS_MAX = 1_000


class ProducingContract(Bench):
    """Tests of `append` with a producer."""

    def produce(self, sequence: int, epoch: int = 0, name: str = "loader", rows: int = 1) -> str:
        """Append rows as a producer, and return the text of the receipt."""
        return str(self.append("clicks", self.numbers(rows), producer=Producer(name, sequence, epoch)))

    def test_a_repeated_sequence_is_answered_with_the_first_receipt(self) -> None:
        self.create("clicks")
        first = self.produce(17, rows=3)
        self.produce(18)
        assert self.produce(17, rows=3) == first
        assert first.startswith("clicks:0@0-3~")
        assert self.ends("clicks") == {0: 4}

    def test_a_repeated_sequence_with_other_rows_is_refused(self) -> None:
        self.create("clicks", partitions=2)
        self.create("orders")
        rows = self.numbers(5)
        first = self.append("clicks", rows, producer=Producer("loader", 17))
        for _ in range(2):
            for topic, others in (
                ("clicks", rows[:4]),
                ("clicks", [*rows[:4], rows[0]]),
                ("clicks", []),
                ("orders", rows),
            ):
                with refused(SequenceReusedError) as refusal:
                    self.append(topic, others, producer=Producer("loader", 17))
                error = refusal.error
                assert (error.producer, error.sequence, error.receipt) == ("loader", 17, str(first))
                assert isinstance(error, ConflictError)
                assert not error.retryable
            batches = [self.batch("clicks", part) for part in (rows[3:], rows[:3])]
            again = Append({"clicks": batches}, Producer("loader", 17))
            assert self.log.append(again) == first, "the order of rows and batches does not matter"
            self.log = self.reopen(self.log)
        assert sum(self.ends("clicks").values()) == 5
        assert self.ends("orders") == {0: 0}

    def test_a_producer_may_ask_to_be_answered_whatever_its_rows_are(self) -> None:
        self.create("clicks")
        first = self.append("clicks", self.numbers(3), producer=Producer("loader", 1, exact=False))
        again = Producer("loader", 1, exact=False)
        assert self.append("clicks", self.numbers(5), producer=again) == first
        assert (
            self.append("clicks", self.numbers(5), producer=Producer("loader", 1)) == first
        )  # the first append was not exact, so its rows cannot be compared
        assert self.ends("clicks") == {0: 3}

    def test_a_repeat_with_other_rows_is_refused_by_a_stage_too(self) -> None:
        self.create("clicks", partitions=2, partition_by="n")
        producer, rows = Producer("loader", 1), self.numbers(60_000)

        def write(given: list[dict[str, int]]) -> Receipt:
            stage = self.log.stage(producer)
            for start in range(0, len(given), 7_000):
                stage.add("clicks", self.batch("clicks", given[start : start + 7_000]))
            return stage.commit(producer=producer)

        first = write(rows)
        assert write(rows[::-1]) == first
        assert self.append("clicks", rows, producer=producer) == first
        for others in (rows[:-1], [*rows[:-1], {"n": -1, "text": "-1"}]):
            with refused(SequenceReusedError):
                write(others)
        assert sum(self.ends("clicks").values()) == len(rows)

    def test_a_repeat_after_the_topic_was_altered_is_answered(self) -> None:
        self.create("clicks")
        first = self.produce(1, rows=3)
        before = self.log.topic("clicks")
        self.log.alter_topic(before, add_column(before, pa.field("s", pa.string())))
        assert self.produce(1, rows=3) == first
        with refused(SequenceReusedError):
            self.produce(1, rows=2)

    def test_a_repeated_sequence_is_known_after_reopening(self) -> None:
        self.create("clicks", partitions=2, partition_by="n")
        first = self.produce(17, rows=30)
        self.log = self.reopen(self.log)
        assert self.produce(17, rows=30) == first
        assert sum(self.ends("clicks").values()) == 30

    def test_a_producer_is_known_by_its_last_sequence_and_note_also_after_reopening(self) -> None:
        self.create("clicks")
        assert self.log.producer("loader") is None
        stand = {"file": "a.csv", "byte": 17}
        self.append("clicks", self.numbers(3), producer=Producer("loader", 1, 2, stand))
        self.produce(4, epoch=2)
        for _ in range(2):
            assert self.log.producer("loader") == ProducerInfo(4, 2, stand)
            self.log = self.reopen(self.log)
        self.log.append(Append({}, Producer("loader", 9, 2, {"file": "b.csv"})))
        assert self.log.producer("loader") == ProducerInfo(9, 2, {"file": "b.csv"})
        assert self.ends("clicks") == {0: 4}

    def test_a_note_that_comes_with_a_repeated_sequence_is_not_taken(self) -> None:
        self.create("clicks")
        for byte in (17, 99):
            self.append("clicks", self.numbers(3), producer=Producer("loader", 1, 0, {"byte": byte}))
        assert self.log.producer("loader") == ProducerInfo(1, 0, {"byte": 17})

    def test_sequences_may_have_gaps(self) -> None:
        self.create("clicks")
        for sequence in (0, 1, 5, 100):
            self.produce(sequence)
        assert self.ends("clicks") == {0: 4}

    def test_a_sequence_in_a_gap_is_refused_as_already_written(self) -> None:
        self.create("clicks")
        self.produce(1)
        self.produce(5)
        with refused(AlreadyWrittenError) as refusal:
            self.produce(3)
        error = refusal.error
        assert (error.producer, error.sequence, error.last) == ("loader", 3, 5)
        assert self.ends("clicks") == {0: 2}

    def test_the_latest_receipts_are_kept_and_older_ones_are_not(self) -> None:
        self.create("clicks")
        for sequence in range(RECEIPTS_MAX + 1):
            self.produce(sequence)
        with refused(AlreadyWrittenError):
            self.produce(0)
        assert self.produce(1).startswith("clicks:0@1-2~")
        self.log = self.reopen(self.log)
        assert self.produce(RECEIPTS_MAX).startswith(f"clicks:0@{RECEIPTS_MAX}-{RECEIPTS_MAX + 1}~")
        with refused(AlreadyWrittenError):
            self.produce(0)

    def test_producers_do_not_know_each_other(self) -> None:
        self.create("clicks")
        self.produce(1, name="a")
        self.produce(1, name="b")
        assert self.ends("clicks") == {0: 2}

    def test_a_producer_is_one_over_all_topics(self) -> None:
        self.create("clicks")
        self.create("orders")
        first = self.produce(1)
        with refused(SequenceReusedError) as refusal:
            self.append("orders", self.numbers(1), producer=Producer("loader", 1))
        assert refusal.error.receipt == first
        assert self.ends("orders") == {0: 0}

    def test_an_older_epoch_is_fenced(self) -> None:
        self.create("clicks")
        self.produce(1, epoch=1)
        self.produce(2, epoch=2)
        with refused(FencedError):
            self.produce(3, epoch=1)
        assert self.ends("clicks") == {0: 2}

    def test_an_older_epoch_stays_fenced_after_reopening(self) -> None:
        self.create("clicks")
        self.produce(2, epoch=2)
        self.log = self.reopen(self.log)
        with refused(FencedError):
            self.produce(3, epoch=1)

    def test_an_older_epoch_is_fenced_also_when_it_repeats(self) -> None:
        self.create("clicks")
        self.produce(1, epoch=1)
        self.produce(2, epoch=2)
        with refused(FencedError):
            self.produce(1, epoch=1)

    def test_sequences_go_on_over_epochs(self) -> None:
        self.create("clicks")
        first = self.produce(7, epoch=1)
        assert self.produce(7, epoch=2) == first
        self.produce(8, epoch=2)
        with refused(AlreadyWrittenError):
            self.produce(6, epoch=2)

    def test_a_repeat_by_a_newer_epoch_fences_the_older_one_too(self) -> None:
        self.create("clicks")
        self.produce(7, epoch=1)
        self.produce(7, epoch=2)
        self.log = self.reopen(self.log)
        with refused(FencedError):
            self.produce(8, epoch=1)

    def test_a_fenced_producer_hears_of_that_before_any_conflict(self) -> None:
        self.create("clicks")
        self.produce(1, epoch=2)
        with refused(FencedError):
            self.append("clicks", self.numbers(1), expect=0, producer=Producer("loader", 2, 1))

    def test_a_repeat_is_answered_though_its_expectation_has_passed(self) -> None:
        self.create("clicks")
        producer = Producer("loader", 1)
        first = self.append("clicks", self.numbers(2), expect=0, producer=producer)
        assert self.append("clicks", self.numbers(2), expect=0, producer=producer) == first

    def test_a_refused_append_leaves_the_sequence_free(self) -> None:
        self.create("clicks")
        with refused(ConflictError):
            self.append("clicks", self.numbers(1), expect=5, producer=Producer("loader", 1, epoch=3))
        assert self.produce(1, epoch=0).startswith("clicks:0@0-1~")

    def test_receipts_over_several_topics_are_repeated_whole(self) -> None:
        self.create("clicks")
        self.create("orders")
        rows = {"clicks": self.numbers(2), "orders": self.numbers(3)}
        first = self.append_all(rows, producer=Producer("loader", 1))
        self.log = self.reopen(self.log)
        assert self.append_all(rows, producer=Producer("loader", 1)) == first
        assert first.positions == {"clicks": {0: (0, 2)}, "orders": {0: (0, 3)}}
