"""Contract of producer watermarks: a topic's watermark is the minimum of its producers' watermarks, equal in every
partition."""

from __future__ import annotations

from headwater.core.clock import to_us
from headwater.core.errors import UsageError
from headwater.log.protocol import Producer, Promise
from headwater.testing.contract.contract_base import TIMED, Bench, minutes, refused


class PromisingContract(Bench):
    """Tests of `promise`, `retire` and `promises`, and of their effect on watermarks."""

    def create_feed(self, partitions: int = 1) -> None:
        """Create a topic with producer watermarks."""
        self.create(
            "feed", TIMED, time="at", lateness="1 minute", watermark="producers", partitions=partitions
        )

    def promise(self, producer: str, minute: float) -> None:
        """Set a producer's watermark to this many minutes after START."""
        self.log.promise("feed", producer, to_us(minutes(minute)))

    def level(self) -> float | None:
        """Return the watermark, which all partitions must share, in minutes after START."""
        (level,) = {info.watermark for info in self.log.partitions("feed").values()}
        return None if level is None else (level - to_us(minutes(0))) / 60e6

    def test_event_times_do_not_raise_the_watermark_of_producers_who_promise(self) -> None:
        self.create_feed()
        self.append("feed", [{"n": 1, "at": minutes(9)}, {"n": 2, "at": minutes(1)}])
        assert self.level() is None
        assert self.column("feed", "_watermark") == [None, None]
        self.promise("a", 3)
        self.append("feed", [{"n": 3, "at": minutes(99)}])
        assert self.column("feed", "_watermark", start=2) == [minutes(3)]
        assert self.log.offset_at("feed", 0, to_us(minutes(2)), "event") == 0
        assert self.log.offset_at("feed", 0, to_us(minutes(50)), "event") == 3

    def test_the_watermark_is_the_least_promise(self) -> None:
        self.create_feed(partitions=3)
        self.promise("a", 5)
        assert self.level() == 5
        self.promise("b", 3)
        assert self.level() == 5, "a newcomer never moves it back"
        self.promise("a", 9)
        assert self.level() == 5
        self.promise("b", 7)
        assert self.level() == 7
        self.promise("b", 20)
        assert self.level() == 9

    def test_a_promise_that_raises_nothing_takes_no_offset_but_is_a_commit(self) -> None:
        self.create_feed()
        self.promise("a", 5)
        before, ends = self.log.sequence(), self.ends("feed")
        self.promise("b", 2)
        assert self.ends("feed") == ends
        assert self.log.sequence() > before

    def test_a_lower_promise_of_a_producer_is_only_a_sign_of_life(self) -> None:
        self.create_feed()
        self.promise("a", 5)
        self.clock.advance("1 minute")
        self.promise("a", 2)
        assert self.log.promises("feed") == {"a": Promise(to_us(minutes(5)), self.clock.now_us())}

    def test_who_retires_is_not_waited_for(self) -> None:
        self.create_feed(partitions=2)
        self.promise("a", 5)
        self.promise("b", 3)
        self.promise("a", 9)
        assert self.log.retire("feed", "b")
        assert self.level() == 9
        assert set(self.log.promises("feed")) == {"a"}
        assert self.log.retire("feed", "a")
        assert (self.level(), self.log.promises("feed")) == (9, {})

    def test_retiring_who_is_not_there_says_so(self) -> None:
        self.create_feed()
        before = self.log.sequence()
        assert not self.log.retire("feed", "nobody")
        assert self.log.sequence() == before

    def test_who_retired_joins_again_with_what_it_promises_then(self) -> None:
        self.create_feed()
        self.promise("a", 5)
        self.promise("b", 8)
        self.log.retire("feed", "a")
        assert self.level() == 8
        self.promise("a", 6)
        self.promise("b", 10)
        assert self.level() == 8
        self.promise("a", 9)
        assert self.level() == 9

    def test_who_appends_in_its_own_name_holds_the_watermark_until_it_promises(self) -> None:
        self.create_feed()
        self.promise("a", 5)
        self.append("feed", [{"n": 1, "at": minutes(6)}], producer=Producer("b", 1))
        self.promise("a", 9)
        assert self.level() == 5
        assert self.log.promises("feed")["b"] == Promise(None, self.clock.now_us())
        self.promise("b", 7)
        assert self.level() == 7

    def test_rows_of_nobody_in_particular_hold_nothing(self) -> None:
        self.create_feed()
        self.append("feed", [{"n": 1, "at": minutes(6)}])
        self.promise("a", 9)
        assert self.level() == 9

    def test_an_append_is_a_sign_of_life(self) -> None:
        self.create_feed()
        self.promise("a", 5)
        self.clock.advance("1 minute")
        self.append("feed", [{"n": 1, "at": minutes(6)}], producer=Producer("a", 1))
        assert self.log.promises("feed") == {"a": Promise(to_us(minutes(5)), self.clock.now_us())}

    def test_a_silent_producer_expires_unless_it_was_heard_of_since(self) -> None:
        self.create_feed()
        self.promise("a", 9)
        self.promise("b", 5)
        since = self.clock.now_us()
        self.clock.advance("1 minute")
        self.promise("b", 5)
        assert not self.log.retire("feed", "b", silent_since=since)
        assert self.level() == 9
        assert self.log.retire("feed", "a", silent_since=since)
        assert set(self.log.promises("feed")) == {"b"}

    def test_punctuation_raises_such_a_topic_as_a_whole(self) -> None:
        self.create_feed(partitions=2)
        self.promise("a", 5)
        self.log.punctuate("feed", {0: to_us(minutes(30)), 1: to_us(minutes(30))})
        self.promise("a", 9)
        assert self.level() == 30

    def test_promises_and_watermarks_stay_the_same_after_reopening_and_sealing(self) -> None:
        self.create_feed(partitions=2)
        for turn in range(12):
            self.promise("ab"[turn % 2], turn)
            self.append("feed", [{"n": turn, "at": minutes(turn)}], producer=Producer("a", turn))
            if turn == 6:
                self.log.retire("feed", "b")

        def found() -> object:
            ends = self.ends("feed")
            marks = {p: [self.log.watermark("feed", p, o) for o in range(end + 1)] for p, end in ends.items()}
            return marks, self.log.promises("feed"), self.level()

        before = found()
        for _ in range(2):
            self.log.maintain(force=True)
            self.log = self.reopen(self.log)
            assert found() == before
        self.promise("a", 40)
        self.promise("b", 41)
        assert self.level() == 40

    def test_other_topics_take_no_promises(self) -> None:
        self.create("clicks", TIMED, time="at")
        with refused(UsageError):
            self.log.promise("clicks", "a", to_us(minutes(1)))
        with refused(UsageError):
            self.log.retire("clicks", "a")
        self.append("clicks", [{"n": 1, "at": minutes(6)}], producer=Producer("a", 1))
        assert self.log.promises("clicks") == {}

    def test_a_topic_made_anew_knows_no_producer(self) -> None:
        self.create_feed()
        self.promise("a", 5)
        self.log.drop_topic("feed")
        self.create_feed()
        assert (self.log.promises("feed"), self.level()) == ({}, None)
