"""Contract of cursors: named consumer positions that the log stores."""

from __future__ import annotations

from headwater.core.errors import ConflictError, FencedError, UsageError
from headwater.core.positions import Receipt
from headwater.log.protocol import CursorInfo, CursorMove, Producer
from headwater.testing.contract.contract_base import Bench, refused


class CursorContract(Bench):
    """Tests of `cursor`, `cursors`, `create_cursor`, `move_cursor`, `drop_cursor`, and of moves inside an append."""

    def stored(self, name: str = "mailer", topic: str = "clicks") -> CursorInfo:
        """Return a cursor, which must exist."""
        cursor = self.log.cursor(topic, name)
        assert cursor is not None
        return cursor

    def test_an_unknown_cursor_is_none(self) -> None:
        self.create("clicks")
        assert self.log.cursor("clicks", "mailer") is None

    def test_a_cursor_is_stored_as_created(self) -> None:
        self.create("clicks", partitions=2)
        created = self.log.create_cursor("clicks", "mailer", {0: 3, 1: 4}, True)
        assert created == self.stored()
        assert (created.topic, created.name, created.positions) == ("clicks", "mailer", {0: 3, 1: 4})
        assert (created.hold, created.lost, created.committed_at, created.history) == (True, 0, None, ())

    def test_creating_again_keeps_the_positions_and_takes_the_hold(self) -> None:
        self.create("clicks")
        self.log.create_cursor("clicks", "mailer", {0: 3}, False)
        assert self.log.create_cursor("clicks", "mailer", {0: 0}, True) == self.stored()
        assert (self.stored().positions, self.stored().hold) == ({0: 3}, True)

    def test_a_move_is_stored_with_its_time(self) -> None:
        self.create("clicks", partitions=2)
        self.log.create_cursor("clicks", "mailer", {0: 0, 1: 0}, False)
        self.clock.advance("1 minute")
        self.log.move_cursor(CursorMove("clicks", "mailer", {0: 5, 1: 2}))
        assert (self.stored().positions, self.stored().committed_at) == ({0: 5, 1: 2}, self.clock.now_us())

    def test_a_move_leaves_partitions_that_it_does_not_name(self) -> None:
        self.create("clicks", partitions=2)
        self.log.create_cursor("clicks", "mailer", {0: 1, 1: 2}, False)
        self.log.move_cursor(CursorMove("clicks", "mailer", {1: 9}))
        assert self.stored().positions == {0: 1, 1: 9}

    def test_a_cursor_can_move_back(self) -> None:
        self.create("clicks")
        self.log.create_cursor("clicks", "mailer", {0: 9}, False)
        self.log.move_cursor(CursorMove("clicks", "mailer", {0: 2}))
        assert self.stored().positions == {0: 2}

    def test_lost_rows_add_up(self) -> None:
        self.create("clicks")
        self.log.create_cursor("clicks", "mailer", {0: 0}, False)
        self.log.move_cursor(CursorMove("clicks", "mailer", {0: 5}, lost=3))
        self.log.move_cursor(CursorMove("clicks", "mailer", {0: 9}, lost=4))
        assert self.stored().lost == 7

    def test_the_history_ends_with_the_latest_commit(self) -> None:
        self.create("clicks", partitions=2)
        self.log.create_cursor("clicks", "mailer", {0: 0, 1: 0}, False)
        for turn in range(1, 30):
            self.clock.advance("1 second")
            self.log.move_cursor(CursorMove("clicks", "mailer", {0: turn, 1: 1}))
        history = self.stored().history
        assert history[-1] == (self.clock.now_us(), 30)
        assert 2 <= len(history) < 29
        assert list(history) == sorted(history)

    def test_cursors_are_there_after_reopening(self) -> None:
        self.create("clicks", partitions=2)
        self.log.create_cursor("clicks", "mailer", {0: 0, 1: 0}, True)
        self.log.move_cursor(CursorMove("clicks", "mailer", {0: 5}, lost=1))
        before = self.stored()
        self.log = self.reopen(self.log)
        assert self.stored() == before

    def test_cursors_are_listed_by_topic_and_over_all(self) -> None:
        self.create("clicks")
        self.create("orders")
        for topic, name in (("clicks", "a"), ("clicks", "b"), ("orders", "a")):
            self.log.create_cursor(topic, name, {0: 0}, False)
        assert sorted((c.topic, c.name) for c in self.log.cursors()) == [
            ("clicks", "a"),
            ("clicks", "b"),
            ("orders", "a"),
        ]
        assert sorted(c.name for c in self.log.cursors("clicks")) == ["a", "b"]

    def test_a_dropped_cursor_is_gone_with_its_group(self) -> None:
        self.create("clicks")
        self.log.create_cursor("clicks", "mailer", {0: 0}, False)
        self.log.beat("clicks", "mailer", "m", 1_000)
        self.log.drop_cursor("clicks", "mailer")
        assert self.log.cursor("clicks", "mailer") is None
        assert self.log.group("clicks", "mailer") is None

    def test_moving_a_cursor_that_is_not_there_is_a_usage_error(self) -> None:
        self.create("clicks")
        with refused(UsageError):
            self.log.move_cursor(CursorMove("clicks", "mailer", {0: 0}))
        assert self.log.cursor("clicks", "mailer") is None

    def test_moving_in_a_partition_that_is_not_there_is_a_usage_error(self) -> None:
        self.create("clicks")
        self.log.create_cursor("clicks", "mailer", {0: 0}, False)
        with refused(UsageError):
            self.log.move_cursor(CursorMove("clicks", "mailer", {3: 0}))

    def test_a_cursor_moves_in_the_commit_of_an_append(self) -> None:
        self.create("clicks")
        self.create("orders")
        self.append("clicks", self.numbers(5))
        self.log.create_cursor("clicks", "mailer", {0: 0}, False)
        self.append_all({"orders": self.numbers(1)}, moves=(CursorMove("clicks", "mailer", {0: 5}),))
        self.log = self.reopen(self.log)
        assert self.stored().positions == {0: 5}
        assert self.ends("orders") == {0: 1}

    def test_a_move_without_rows_is_a_commit_of_its_own(self) -> None:
        self.create("clicks")
        self.log.create_cursor("clicks", "mailer", {0: 0}, False)
        assert self.append_all({}, moves=(CursorMove("clicks", "mailer", {0: 4}),)) == Receipt({})
        assert self.stored().positions == {0: 4}

    def test_a_refused_append_moves_nothing(self) -> None:
        self.create("clicks")
        self.log.create_cursor("clicks", "mailer", {0: 0}, False)
        move = CursorMove("clicks", "mailer", {0: 5})
        with refused(ConflictError):
            self.append_all({"clicks": self.numbers(1)}, expect={"clicks": 7}, moves=(move,))
        assert self.stored().positions == {0: 0}

    def test_a_refused_move_writes_nothing(self) -> None:
        self.create("clicks")
        self.create("orders")
        self.log.create_cursor("clicks", "mailer", {0: 0}, False)
        self.log.beat("clicks", "mailer", "owner", 1_000)
        move = CursorMove("clicks", "mailer", {0: 5}, member="stranger")
        with refused(FencedError):
            self.append_all({"orders": self.numbers(1)}, producer=Producer("p", 1), moves=(move,))
        assert self.ends("orders") == {0: 0}
        assert self.append("orders", self.numbers(2), producer=Producer("p", 1)).rows == 2

    def test_a_repeated_sequence_does_not_move_again(self) -> None:
        self.create("clicks")
        self.log.create_cursor("clicks", "mailer", {0: 0}, False)
        move = CursorMove("clicks", "mailer", {0: 5}, lost=1)
        for _ in range(2):
            self.append_all({"clicks": self.numbers(1)}, producer=Producer("p", 1), moves=(move,))
        assert self.stored().lost == 1

    def test_several_cursors_move_in_one_append(self) -> None:
        self.create("clicks")
        self.create("orders")
        self.log.create_cursor("clicks", "mailer", {0: 0}, False)
        self.log.create_cursor("orders", "mailer", {0: 0}, False)
        moves = (CursorMove("clicks", "mailer", {0: 1}), CursorMove("orders", "mailer", {0: 2}))
        self.append_all({"orders": self.numbers(2)}, moves=moves)
        assert (self.stored().positions, self.stored(topic="orders").positions) == ({0: 1}, {0: 2})
