"""Contract of backpressure: appends to a topic whose holding cursors are too far behind."""

from __future__ import annotations

from headwater.catalog.conform import conform
from headwater.core.errors import BacklogError
from headwater.log.protocol import Append, CursorMove
from headwater.log.topic_names import VIEWS_HOLD
from headwater.testing.contract.contract_base import Bench, refused


class BacklogContract(Bench):
    """Tests of `backlog_rows` and `when_behind`, and of relaxed appends, which are synced later."""

    def test_an_append_beyond_the_backlog_is_refused_as_a_whole(self) -> None:
        self.create("clicks", backlog_rows=5, when_behind="refuse")
        self.log.create_cursor("clicks", "mailer", {0: 0}, True)
        self.append("clicks", self.numbers(4))
        with refused(BacklogError) as refusal:
            self.append("clicks", self.numbers(2))
        error = refusal.error
        assert (error.topic, error.cursor, error.rows, error.backlog_rows) == ("clicks", "mailer", 4, 5)
        assert self.ends("clicks") == {0: 4}
        self.append("clicks", self.numbers(1))

    def test_a_cursor_that_moves_on_makes_room(self) -> None:
        self.create("clicks", backlog_rows=5, when_behind="refuse")
        self.log.create_cursor("clicks", "mailer", {0: 0}, True)
        self.append("clicks", self.numbers(5))
        self.log.move_cursor(CursorMove("clicks", "mailer", {0: 3}))
        self.append("clicks", self.numbers(3))
        assert self.ends("clicks") == {0: 8}

    def test_a_cursor_moved_in_the_append_itself_makes_room(self) -> None:
        self.create("clicks", backlog_rows=5, when_behind="refuse")
        self.log.create_cursor("clicks", "mailer", {0: 0}, True)
        self.append("clicks", self.numbers(5))
        rows = conform(self.numbers(5), self.log.topic("clicks"))
        self.log.append(Append({"clicks": [rows]}, moves=(CursorMove("clicks", "mailer", {0: 5}),)))
        assert self.ends("clicks") == {0: 10}

    def test_cursors_that_hold_nothing_and_those_of_views_do_not_count(self) -> None:
        self.create("clicks", backlog_rows=5, when_behind="refuse")
        self.log.create_cursor("clicks", "reader", {0: 0}, False)
        self.log.create_cursor("clicks", VIEWS_HOLD, {0: 0}, True)
        for _ in range(3):
            self.append("clicks", self.numbers(5))
        assert self.ends("clicks") == {0: 15}

    def test_what_is_held_of_the_workspaces_own_topics_is_not_overridden(self) -> None:
        self.create("_own", retention="1 hour")
        self.create("clicks", retention="1 hour")
        for topic in ("_own", "clicks"):
            self.log.create_cursor(topic, "held", {0: 0}, True)
            self.append(topic, self.numbers(2))
        self.clock.advance("2 hours")
        self.log.maintain(force=True, override_holds=True)
        assert [self.log.partitions(topic)[0].first for topic in ("_own", "clicks")] == [0, 2]

    def test_a_relaxed_append_is_visible_at_once(self) -> None:
        self.create("clicks")
        rows = conform(self.numbers(2), self.log.topic("clicks"))
        self.log.append(Append({"clicks": [rows]}, relaxed=True))
        assert self.ends("clicks") == {0: 2}
        self.append("clicks", self.numbers(1))
        assert self.ends("clicks") == {0: 3}
