"""Contract of deletions, which remove the deleted data and nothing else: private columns and their keys, and excised
records."""

from __future__ import annotations

import dataclasses
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headwater.catalog.definitions import add_column, define_topic, widen_column
from headwater.core.errors import SchemaError, UsageError
from headwater.testing.contract.contract_base import PLAIN, Bench, columns, minutes, refused

PRIVATE = "user BIGINT NOT NULL, email STRING, url STRING"
EVERY_KIND = (
    "user BIGINT NOT NULL, a TINYINT, b BIGINT, c DOUBLE, d DECIMAL(12,3), e STRING, f BINARY, g DATE, "
    "h TIMESTAMP, i BOOLEAN, j FLOAT"
)


class DeletingContract(Bench):
    """Tests of private columns, `keys.forget` and `excise`."""

    def private(self, schema: str = PRIVATE, by: str = "user", **options: Any) -> None:
        """Create a topic whose `email` is private, or, without an `email`, every column but the subject's."""
        own = columns(schema)
        hidden = ["email"] if "email" in own.names else [n for n in own.names if n != by]
        made = define_topic("people", own, options=options, private=dict.fromkeys(hidden, by))
        self.log.create_topic(made)

    def people(self, *users: int, start: int = 0) -> None:
        """Append a row for each of the users."""
        rows = [{"user": u, "email": f"{u}@{start + n}", "url": "/"} for n, u in enumerate(users)]
        self.append("people", rows)

    # ---- private columns

    def test_private_values_of_every_type_are_read_as_they_were_written(self) -> None:
        self.private(EVERY_KIND)
        row = {
            "user": 1,
            "a": -7,
            "b": 1 << 62,
            "c": 0.1,
            "d": Decimal("-12.340"),
            "e": "ü",
            "f": b"\x00\xff",
            "g": date(1968, 2, 29),
            "h": minutes(-1e9 / 60),
            "i": False,
            "j": 1.5,
        }
        empty = {**dict.fromkeys(row), "user": 2}
        self.append("people", [row, empty, {**row, "c": float("inf"), "e": "", "f": b""}])
        self.log = self.reopen(self.log)
        table = self.table("people", columns=list(row))
        assert table is not None
        assert table.to_pylist() == [row, empty, {**row, "c": float("inf"), "e": "", "f": b""}]
        assert table.schema.types == [f.type for f in self.log.topic("people").schema]

    def test_a_private_column_may_be_added_and_widened(self) -> None:
        self.create("people", "user BIGINT NOT NULL, url STRING")
        self.append("people", [{"user": 1, "url": "/"}])
        old = self.log.topic("people")
        self.log.alter_topic(old, add_column(old, pa.field("n", pa.int32()), "user"))
        self.append("people", [{"user": 1, "url": "/", "n": 5}])
        old = self.log.topic("people")
        self.log.alter_topic(old, widen_column(old, "n", pa.int64()))
        self.append("people", [{"user": 1, "url": "/", "n": 1 << 40}])
        assert self.column("people", "n") == [None, 5, 1 << 40]
        self.log.keys.forget("1")
        assert self.column("people", "n") == [None, None, None]
        assert self.column("people", "_forgotten") == [False, True, True]

    def test_only_what_is_read_as_a_value_alone_may_be_private(self) -> None:
        schema = columns("user BIGINT NOT NULL, email STRING, at TIMESTAMP")
        wrong: list[dict[str, Any]] = [
            {"key": ("user",), "private": {"user": "user"}},
            {"options": {"partition_by": "email"}, "private": {"email": "user"}},
            {"time": "at", "private": {"at": "user"}},
            {"private": {"email": "nobody"}},
            {"private": {"email": "email"}},
            {"private": {"user": "email"}},
            {"private": {"email": "at"}},
        ]
        for options in wrong:
            with refused(SchemaError):
                define_topic("people", schema, **options)

    def test_a_topic_without_private_columns_has_no_forgotten(self) -> None:
        self.create("clicks", PLAIN)
        self.append("clicks", self.numbers(1))
        with refused(UsageError):
            self.table("clicks", columns=["_forgotten"])

    # ---- forgetting

    def test_what_was_forgotten_reads_null_and_says_so(self) -> None:
        self.private()
        self.people(1, 2, 1)
        assert self.log.keys.forget("1", "anna", "asked for it").number == 1
        self.log = self.reopen(self.log)
        assert self.column("people", "email") == [None, "2@1", None]
        assert self.column("people", "_forgotten") == [True, False, True]
        assert self.column("people", "url") == ["/", "/", "/"]
        (one,) = self.log.keys.forgotten()
        assert (one.subject, one.who, one.reason) == ("1", "anna", "asked for it")

    def test_what_comes_after_a_forgetting_has_another_key(self) -> None:
        self.private()
        self.people(1)
        self.log.keys.forget("1")
        self.people(1, start=5)
        self.log = self.reopen(self.log)
        assert self.column("people", "email") == [None, "1@5"]
        assert self.log.keys.forget("1").number == 2
        assert self.column("people", "email") == [None, None]

    def test_one_key_is_for_all_topics(self) -> None:
        self.private()
        made = define_topic("mails", columns("who STRING NOT NULL, text STRING"), private={"text": "who"})
        self.log.create_topic(made)
        self.people(7)
        self.append("mails", [{"who": "7", "text": "hello"}, {"who": "8", "text": "world"}])
        self.log.keys.forget("7")
        assert (self.column("people", "email"), self.column("mails", "text")) == ([None], [None, "world"])

    def test_nothing_is_forgotten_of_who_has_nothing(self) -> None:
        self.private()
        self.append("people", [{"user": 1, "email": None, "url": "/"}])
        for _ in range(2):
            with refused(UsageError):
                self.log.keys.forget("1")
        self.people(1)
        self.log.keys.forget("1")
        with refused(UsageError) as again:
            self.log.keys.forget("1")
        assert "already" in again.error.message

    def test_upkeep_needs_no_key(self) -> None:
        own = columns("id BIGINT NOT NULL, email STRING")
        made = define_topic(
            "people", own, key=("id",), options={"cleanup": "compact"}, private={"email": "id"}
        )
        self.log.create_topic(made)
        for round_ in range(3):
            self.append("people", [{"id": n, "email": f"{n}@{round_}"} for n in range(3)])
        self.append("people", [{"id": 2, "_op": "delete"}])
        self.log.keys.forget("1")
        self.log.maintain(force=True)
        found = self.table("people", columns=["id", "email", "_op", "_forgotten"])
        assert found is not None
        assert [tuple(row.values()) for row in found.to_pylist()] == [
            (0, "0@2", "upsert", False),
            (1, None, "upsert", True),
            (2, None, "delete", False),
        ]

    def test_a_stage_encrypts_too(self) -> None:
        self.private()
        stage = self.log.stage()
        stage.add("people", self.batch("people", [{"user": 1, "email": "a", "url": "/"}]))
        stage.commit()
        assert self.column("people", "email") == ["a"]
        self.log.keys.forget("1")
        assert self.column("people", "email") == [None]

    # ---- excision

    def test_excised_records_are_gaps(self) -> None:
        self.create("clicks", PLAIN, partitions=2, partition_by="n")
        self.append("clicks", self.numbers(20))
        offsets = {p: self.column("clicks", "_offset", p) for p in (0, 1)}
        before, ends = self.all_rows("clicks"), self.ends("clicks")
        gone = {0: offsets[0][1:4], 1: [offsets[1][-1]]}
        assert self.log.excise("clicks", gone) == 4
        assert self.log.excise("clicks", gone) == 0
        self.log = self.reopen(self.log)
        left = [o for o in offsets[0] if o not in gone[0]]
        assert self.column("clicks", "_offset", 0) == left
        assert self.column("clicks", "_offset", 1) == offsets[1][:-1]
        assert self.ends("clicks") == ends
        assert [r for r in before if r in self.all_rows("clicks")] == self.all_rows("clicks")
        self.append("clicks", self.numbers(2, start=50))
        assert len(self.all_rows("clicks")) == 18

    def test_everything_may_be_excised(self) -> None:
        self.create("clicks", PLAIN)
        self.append("clicks", self.numbers(3))
        assert self.log.excise("clicks", {0: [0, 1, 2]}) == 3
        assert (self.all_rows("clicks"), self.ends("clicks")) == ([], {0: 3})
        self.append("clicks", self.numbers(1))
        assert self.column("clicks", "_offset") == [3]

    def test_watermarks_stay_when_their_records_go(self) -> None:
        self.create("clicks", "n BIGINT, at TIMESTAMP", time="at", lateness="1 minute")
        rows = [{"n": n, "at": minutes(at)} for n, at in enumerate([1, 9, 3, 20, 4])]
        self.append("clicks", rows)
        self.log.punctuate("clicks", {0: int(minutes(30).timestamp() * 1e6)})
        self.append("clicks", rows)
        marks = [self.log.watermark("clicks", 0, offset) for offset in range(12)]
        own = dict(zip(self.column("clicks", "_offset"), self.column("clicks", "_watermark"), strict=True))
        self.log.excise("clicks", {0: [1, 3, 6, 8]})
        self.log = self.reopen(self.log)
        assert [self.log.watermark("clicks", 0, offset) for offset in range(12)] == marks
        left = self.column("clicks", "_offset")
        assert self.column("clicks", "_watermark") == [own[offset] for offset in left]

    def test_an_event_sourced_topic_keeps_every_record(self) -> None:
        self.create("accounts", "account STRING NOT NULL, n BIGINT", versioned_by="account")
        self.append("accounts", [{"account": "a", "n": 1}])
        with refused(UsageError):
            self.log.excise("accounts", {0: [0]})

    def test_a_private_topic_reads_the_same_after_upkeep(self) -> None:
        self.private()
        self.people(1, 2, 3)
        self.log.excise("people", {0: [1]})
        old = self.log.topic("people")
        self.log.alter_topic(old, dataclasses.replace(old, retention_us=86_400_000_000))
        self.log.maintain(force=True)
        assert self.column("people", "email") == ["1@0", "3@2"]
