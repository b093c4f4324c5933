"""Contract of topics: creating, altering, replacing and dropping them."""

from __future__ import annotations

import pyarrow as pa

from headwater.catalog.definitions import (
    add_column,
    alter_options,
    define_topic,
    drop_not_null,
    widen_column,
)
from headwater.core.clock import parse_span_us
from headwater.core.errors import ConflictError, TopicExistsError, TopicNotFoundError
from headwater.log.protocol import Append
from headwater.testing.contract.contract_base import KEYED, PLAIN, Bench, refused


class TopicContract(Bench):
    """Tests of `create_topic`, `alter_topic`, `replace_topic`, `drop_topic` and `topics`."""

    def test_a_new_log_has_no_topics(self) -> None:
        assert dict(self.log.topics()) == {}

    def test_a_topic_is_listed_as_it_was_defined(self) -> None:
        definition = self.create("clicks", "n BIGINT NOT NULL, text STRING", partitions=3, retention="7 days")
        assert dict(self.log.topics()) == {"clicks": definition}

    def test_a_topic_is_there_after_reopening(self) -> None:
        definition = self.create("clicks", KEYED, key="id", cleanup="compact", max_ahead=None)
        self.log = self.reopen(self.log)
        assert self.log.topics()["clicks"] == definition

    def test_a_second_topic_of_the_same_name_is_refused(self) -> None:
        definition = self.create("clicks")
        with refused(TopicExistsError):
            self.log.create_topic(definition)

    def test_a_new_topic_is_empty(self) -> None:
        self.create("clicks", partitions=2)
        for info in self.log.partitions("clicks").values():
            assert (info.first, info.end, info.rows) == (0, 0, 0)
            assert (info.watermark, info.last_appended_at, info.oldest_appended_at) == (None, None, None)

    def test_whatever_names_a_missing_topic_is_refused(self) -> None:
        log = self.log
        for call in (
            lambda: log.partitions("gone"),
            lambda: log.ends(["gone"]),
            lambda: list(log.read("gone", 0, 0, 1)),
            lambda: log.drop_topic("gone"),
            lambda: log.punctuate("gone", {0: 1}),
            lambda: log.watermark("gone", 0, 0),
            lambda: log.offset_at("gone", 0, 0, "appended"),
            lambda: log.create_cursor("gone", "c", {0: 0}, False),
            lambda: log.beat("gone", "g", "m", 1_000),
        ):
            with refused(TopicNotFoundError):
                call()

    def test_an_altered_topic_is_listed_as_altered_also_after_reopening(self) -> None:
        old = self.create("clicks")
        new = alter_options(old, {"retention": "1 day"})
        self.log.alter_topic(old, new)
        assert self.log.topics()["clicks"].retention_us == parse_span_us("1 day")
        self.log = self.reopen(self.log)
        assert self.log.topics()["clicks"] == new

    def test_altering_from_an_outdated_definition_is_a_conflict(self) -> None:
        old = self.create("clicks")
        newer = add_column(old, pa.field("a", pa.string()))
        self.log.alter_topic(old, newer)
        with refused(ConflictError) as refusal:
            self.log.alter_topic(old, add_column(old, pa.field("b", pa.string())))
        assert (refusal.error.topic, refusal.error.expected, refusal.error.actual) == ("clicks", old, newer)
        assert self.log.topics()["clicks"] == newer

    def test_old_records_have_null_in_an_added_column(self) -> None:
        old = self.create("clicks")
        self.append("clicks", self.numbers(2))
        self.log.alter_topic(old, add_column(old, pa.field("referrer", pa.string())))
        self.append("clicks", [{"n": 2, "text": "row 2", "referrer": "mail"}])
        assert self.column("clicks", "referrer") == [None, None, "mail"]
        assert self.column("clicks", "n") == [0, 1, 2]

    def test_old_records_are_read_in_a_widened_type(self) -> None:
        old = self.create("clicks", "n INT, x FLOAT, d DECIMAL(5,2)")
        self.append("clicks", [{"n": 2**31 - 1, "x": 0.5, "d": None}])
        new = widen_column(widen_column(old, "n", pa.int64()), "x", pa.float64())
        new = widen_column(new, "d", pa.decimal128(20, 4))
        self.log.alter_topic(old, new)
        self.append("clicks", [{"n": 2**40, "x": 0.1, "d": None}])
        table = self.table("clicks")
        assert table is not None
        assert table.schema.types[:3] == [pa.int64(), pa.float64(), pa.decimal128(20, 4)]
        assert table.column("n").to_pylist() == [2**31 - 1, 2**40]
        assert table.column("x").to_pylist() == [0.5, 0.1]

    def test_widening_the_routing_column_moves_no_key(self) -> None:
        old = self.create("clicks", "user INT, n BIGINT", partitions=4, partition_by="user")
        rows = [{"user": user, "n": 0} for user in range(50)]
        before = self.append("clicks", rows)
        self.log.alter_topic(old, widen_column(old, "user", pa.int64()))
        after = self.append("clicks", rows)
        for p, (first, end) in before.positions["clicks"].items():
            assert after.positions["clicks"][p] == (end, 2 * end - first)
        assert self.column("clicks", "user", 1)[: len(self.column("clicks", "user", 1)) // 2] == self.column(
            "clicks", "user", 1, before.positions["clicks"][1][1]
        )

    def test_a_column_made_nullable_takes_nulls_beside_old_records(self) -> None:
        old = self.create("clicks", "n BIGINT NOT NULL")
        self.append("clicks", [{"n": 1}])
        self.log.alter_topic(old, drop_not_null(old, "n"))
        self.append("clicks", [{"n": None}])
        assert self.column("clicks", "n") == [1, None]

    def test_schemas_that_changed_several_times_read_as_one_after_reopening(self) -> None:
        definition = self.create("clicks", "n SMALLINT")
        self.append("clicks", [{"n": 1}])
        second = widen_column(definition, "n", pa.int32())
        third = add_column(second, pa.field("a", pa.list_(pa.int64())))
        fourth = widen_column(third, "n", pa.int64())
        for old, new in ((definition, second), (second, third), (third, fourth)):
            self.log.alter_topic(old, new)
            self.append("clicks", [{"n": new.schema_version}])
        self.log = self.reopen(self.log)
        assert self.column("clicks", "n") == [1, 1, 2, 3]
        assert self.column("clicks", "a") == [None] * 4

    def test_rows_conformed_before_a_column_was_added_are_still_taken(self) -> None:
        old = self.create("clicks")
        early = self.batch("clicks", self.numbers(1))
        self.log.alter_topic(old, add_column(old, pa.field("referrer", pa.string())))
        self.log.append(Append({"clicks": [early]}))
        assert self.column("clicks", "referrer") == [None]

    def test_dropping_removes_records_cursors_and_groups(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(3))
        self.log.create_cursor("clicks", "mailer", {0: 1}, False)
        self.log.beat("clicks", "mailer", "m", 1_000)
        self.log.drop_topic("clicks")
        assert "clicks" not in self.log.topics()
        assert [c for c in self.log.cursors() if c.topic == "clicks"] == []

    def test_a_topic_made_again_starts_at_nothing(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(3))
        self.log.create_cursor("clicks", "mailer", {0: 1}, False)
        self.log.beat("clicks", "mailer", "m", 1_000)
        self.log.drop_topic("clicks")
        self.create("clicks", "other STRING")
        assert self.ends("clicks") == {0: 0}
        assert self.log.cursor("clicks", "mailer") is None
        assert self.log.group("clicks", "mailer") is None
        assert self.append("clicks", [{"other": "x"}]).positions == {"clicks": {0: (0, 1)}}
        self.log = self.reopen(self.log)
        assert self.column("clicks", "other") == ["x"]

    def test_dropping_one_topic_leaves_the_others(self) -> None:
        self.create("clicks")
        self.create("orders", PLAIN)
        self.append_all({"clicks": self.numbers(2), "orders": self.numbers(3)})
        self.log.drop_topic("clicks")
        assert self.column("orders", "n") == [0, 1, 2]

    def test_an_empty_topic_is_replaced_in_one_commit(self) -> None:
        old = self.create("clicks")
        new = define_topic("clicks", pa.schema([pa.field("other", pa.string())]), options={"partitions": 2})
        self.log.replace_topic(old, new)
        self.log = self.reopen(self.log)
        assert self.log.topic("clicks") == new
        assert sorted(self.log.partitions("clicks")) == [0, 1]
        self.append("clicks", [{"other": "a"}])
        assert [row["other"] for row in self.all_rows("clicks")] == ["a"]

    def test_a_topic_with_records_or_cursors_or_another_definition_is_not_replaced(self) -> None:
        new = define_topic("clicks", pa.schema([pa.field("other", pa.string())]))
        old = self.create("clicks")
        with refused(ConflictError):
            self.log.replace_topic(new, new)
        self.log.create_cursor("clicks", "mailer", {0: 0}, False)
        with refused(ConflictError):
            self.log.replace_topic(old, new)
        self.log.drop_cursor("clicks", "mailer")
        self.append("clicks", self.numbers(1))
        with refused(ConflictError):
            self.log.replace_topic(old, new)
        assert self.log.topic("clicks") == old
        assert len(self.all_rows("clicks")) == 1

    def test_rows_made_for_a_topic_do_not_go_to_a_later_one_of_its_name(self) -> None:
        self.create("clicks")
        made_for = self.log.topic("clicks").incarnation
        rows = self.batch("clicks", self.numbers(2))
        self.log.append(Append({"clicks": [rows]}, incarnations={"clicks": made_for}))
        self.log.drop_topic("clicks")
        self.create("clicks", "other STRING NOT NULL")
        self.log = self.reopen(self.log)
        with refused(TopicNotFoundError):
            self.log.append(Append({"clicks": [rows]}, incarnations={"clicks": made_for}))
        assert self.log.topic("clicks").incarnation != made_for
        assert self.all_rows("clicks") == []

    def test_a_stage_made_for_a_topic_does_not_go_to_a_later_one_of_its_name(self) -> None:
        self.create("clicks")
        stage = self.log.stage()
        stage.add("clicks", self.batch("clicks", self.numbers(2)), self.log.topic("clicks").incarnation)
        self.log.drop_topic("clicks")
        self.create("clicks", "other STRING NOT NULL")
        with refused(TopicNotFoundError):
            stage.commit()
        stage.abort()
        assert self.all_rows("clicks") == []

    def test_altering_a_topic_keeps_it_the_same_topic(self) -> None:
        self.create("clicks")
        before = self.log.topic("clicks")
        self.log.alter_topic(before, add_column(before, pa.field("more", pa.string())))
        assert self.log.topic("clicks").incarnation == before.incarnation
