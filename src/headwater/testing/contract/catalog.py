"""Contract of catalog entries: named documents that the log stores in addition to its topics."""

from __future__ import annotations

import threading
from typing import Any

from headwater.core.errors import ConflictError, TopicExistsError, UsageError
from headwater.testing.contract.contract_base import Bench, refused

DOCUMENT = {"query": "SELECT 1", "columns": [["n", "BIGINT", True]], "options": {"late": None}, "x": 1.5}


class CatalogContract(Bench):
    """Tests of `entries`, `put_entry` and `drop_entry`."""

    def test_a_new_log_has_no_entries(self) -> None:
        assert dict(self.log.entries("view")) == {}

    def test_an_entry_is_listed_as_it_was_put_also_after_reopening(self) -> None:
        put = self.log.put_entry("view", "revenue", DOCUMENT, expect=None)
        assert (put.kind, put.name, put.document) == ("view", "revenue", DOCUMENT)
        assert put.created_at == self.clock.now_us()
        assert put.sequence == self.log.sequence()
        assert dict(self.log.entries("view")) == {"revenue": put}
        self.log = self.reopen(self.log)
        assert dict(self.log.entries("view")) == {"revenue": put}

    def test_kinds_do_not_meet(self) -> None:
        view = self.log.put_entry("view", "a", {"n": 1}, expect=None)
        sink = self.log.put_entry("sink", "a", {"n": 2}, expect=None)
        assert dict(self.log.entries("view")) == {"a": view}
        assert dict(self.log.entries("sink")) == {"a": sink}
        self.log.drop_entry("view", "a")
        assert dict(self.log.entries("view")) == {}
        assert dict(self.log.entries("sink")) == {"a": sink}

    def test_each_put_is_a_commit_of_its_own(self) -> None:
        before = self.log.sequence()
        first = self.log.put_entry("view", "a", {}, expect=None)
        second = self.log.put_entry("view", "b", {}, expect=None)
        assert before < first.sequence < second.sequence == self.log.sequence()

    def test_a_second_entry_of_the_same_name_is_a_conflict(self) -> None:
        first = self.log.put_entry("view", "a", {"n": 1}, expect=None)
        with refused(ConflictError) as refusal:
            self.log.put_entry("view", "a", {"n": 2}, expect=None)
        assert (refusal.error.expected, refusal.error.actual) == (None, first.sequence)
        assert self.log.entries("view")["a"] == first

    def test_an_entry_is_replaced_by_who_has_seen_it(self) -> None:
        first = self.log.put_entry("view", "a", {"n": 1}, expect=None)
        second = self.log.put_entry("view", "a", {"n": 2}, expect=first.sequence)
        with refused(ConflictError) as refusal:
            self.log.put_entry("view", "a", {"n": 3}, expect=first.sequence)
        assert refusal.error.actual == second.sequence
        self.log = self.reopen(self.log)
        assert self.log.entries("view")["a"] == second

    def test_what_is_not_there_cannot_be_replaced(self) -> None:
        with refused(ConflictError):
            self.log.put_entry("view", "a", {}, expect=7)

    def test_a_dropped_entry_is_gone_also_after_reopening(self) -> None:
        self.log.put_entry("view", "a", {}, expect=None)
        self.log.put_entry("view", "b", {}, expect=None)
        self.log.drop_entry("view", "a")
        assert list(self.log.entries("view")) == ["b"]
        self.log = self.reopen(self.log)
        assert list(self.log.entries("view")) == ["b"]

    def test_dropping_what_is_not_there_or_not_the_one_expected_is_a_conflict(self) -> None:
        with refused(ConflictError):
            self.log.drop_entry("view", "a")
        first = self.log.put_entry("view", "a", {"n": 1}, expect=None)
        second = self.log.put_entry("view", "a", {"n": 2}, expect=first.sequence)
        with refused(ConflictError):
            self.log.drop_entry("view", "a", expect=first.sequence)
        self.log.drop_entry("view", "a", expect=second.sequence)
        assert dict(self.log.entries("view")) == {}

    def test_an_entry_made_again_is_another(self) -> None:
        first = self.log.put_entry("view", "a", {}, expect=None)
        self.log.drop_entry("view", "a")
        assert self.log.put_entry("view", "a", {}, expect=None).sequence > first.sequence

    def test_a_change_of_the_given_document_changes_no_entry(self) -> None:
        document: dict[str, Any] = {"reads": ["clicks"]}
        self.log.put_entry("view", "a", document, expect=None)
        document["reads"].append("orders")
        assert self.log.entries("view")["a"].document == {"reads": ["clicks"]}

    def test_only_plain_documents_are_taken(self) -> None:
        before = self.log.sequence()
        for document in ({"a": object()}, {"a": b"bytes"}, {1: "number"}, {"a": 2**70}):
            with refused(UsageError):
                self.log.put_entry("view", "a", document, expect=None)  # type: ignore[arg-type]
        assert self.log.sequence() == before

    def test_views_share_their_names_with_topics(self) -> None:
        self.create("clicks")
        self.log.put_entry("view", "revenue", {}, expect=None)
        with refused(TopicExistsError):
            self.log.put_entry("view", "Clicks", {}, expect=None)
        with refused(TopicExistsError):
            self.create("REVENUE")
        self.log.put_entry("sink", "clicks", {}, expect=None)
        self.log.drop_entry("view", "revenue")
        self.create("REVENUE")
        assert set(self.log.topics()) == {"REVENUE", "clicks"}

    def test_names_of_entries_ignore_case(self) -> None:
        first = self.log.put_entry("view", "Revenue", {"n": 1}, expect=None)
        assert self.log.entries("view")["REVENUE"] == first
        with refused(ConflictError):
            self.log.put_entry("view", "revenue", {}, expect=None)
        self.log.put_entry("view", "revenue", {"n": 2}, expect=first.sequence)
        assert list(self.log.entries("view")) == ["revenue"]
        self.log = self.reopen(self.log)
        self.log.drop_entry("view", "REVENUE")
        assert dict(self.log.entries("view")) == {}

    def test_entries_outlive_many_other_commits(self) -> None:
        self.create("clicks")
        put = self.log.put_entry("view", "a", DOCUMENT, expect=None)
        for n in range(40):
            self.append("clicks", self.numbers(3, start=n))
        self.log.maintain(force=True)
        self.log = self.reopen(self.log)
        assert dict(self.log.entries("view")) == {"a": put}

    def test_of_many_who_put_at_once_one_succeeds(self) -> None:
        outcomes: list[str] = []

        def work(name: str) -> None:
            try:
                self.log.put_entry("view", "a", {"by": name}, expect=None)
                outcomes.append(name)
            except ConflictError:
                pass

        threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes == [self.log.entries("view")["a"].document["by"]]
