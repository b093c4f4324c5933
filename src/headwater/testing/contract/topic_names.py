"""Contract of topic names: they are case-insensitive."""

from __future__ import annotations

import dataclasses

from headwater.core.errors import TopicExistsError, TopicNotFoundError, UsageError
from headwater.log.protocol import Append, CursorMove
from headwater.testing.contract.contract_base import PLAIN, TIMED, Bench, minutes, refused


class NameContract(Bench):
    """Tests of topic names in different cases."""

    def test_a_topic_that_differs_by_case_alone_is_refused(self) -> None:
        self.create("clicks")
        with refused(TopicExistsError) as refusal:
            self.create("Clicks")
        assert "'clicks'" in refusal.error.message
        assert refusal.error.hint
        assert list(self.log.topics()) == ["clicks"]

    def test_a_topic_is_found_in_any_case_and_has_the_name_it_was_given(self) -> None:
        self.create("Clicks")
        assert self.log.topic("clicks").name == "Clicks"
        topics = self.log.topics()
        assert "CLICKS" in topics
        assert topics["cLiCkS"].name == "Clicks"
        assert topics.get("click") is None
        assert list(topics) == ["Clicks"]

    def test_every_call_takes_a_name_in_any_case(self) -> None:
        self.create("Clicks", TIMED, time="at")
        log = self.log
        rows = self.batch("clicks", [{"n": 1, "at": minutes(0)}])
        made_for = {"CLICKS": log.topic("CLICKS").incarnation}
        receipt = log.append(Append({"CLICKS": [rows]}, expect={"clicks": 0}, incarnations=made_for))
        assert receipt.positions == {"Clicks": {0: (0, 1)}}
        stage = log.stage()
        stage.add("cLICKS", rows, made_for["CLICKS"])
        assert stage.commit(expect={"CLICKS": {0: 1}}).positions == {"Clicks": {0: (1, 2)}}
        log.punctuate("clicks", {0: 5})
        assert log.ends(["clicks"]) == {"clicks": {0: 3}}
        assert log.cut(["CLICKS"])[1] == {"CLICKS": {0: 3}}
        assert log.partitions("clicks")[0].end == 3
        assert [b.num_rows for b in log.read("CLICKS", 0, 0, 1)] == [1]
        assert log.offset_at("clicks", 0, 0, "appended") == 0
        assert log.appended_at("clicks", 0, 0) == self.clock.now_us()
        assert log.watermark("clicks", 0, 3) is not None
        assert log.wait("clicks", {0: 0}, 0) is True
        assert log.create_cursor("clicks", "mailer", {0: 0}, False).topic == "Clicks"
        log.move_cursor(CursorMove("CLICKS", "mailer", {0: 1}))
        log.append(Append({}, moves=(CursorMove("clickS", "mailer", {0: 2}),)))
        assert [dict(c.positions) for c in log.cursors("clicks")] == [{0: 2}]
        cursor = log.cursor("CLICKS", "mailer")
        assert cursor is not None
        assert (cursor.topic, dict(cursor.positions)) == ("Clicks", {0: 2})
        assert log.beat("clicks", "mailer", "m", 1_000).topic == "Clicks"
        assert log.release("CLICKS", "mailer", "m", [0]).topic == "Clicks"
        assert log.group("clicks", "mailer") is not None
        log.leave("clicks", "mailer", "m")
        log.drop_cursor("CLICKS", "mailer")
        assert log.cursors() == []
        assert list(log.verify(["clicks"]))
        log.drop_topic("CLICKS")
        assert dict(log.topics()) == {}

    def test_one_topic_under_two_names_in_an_append_is_refused(self) -> None:
        self.create("Clicks", PLAIN)
        rows = self.batch("Clicks", self.numbers(1))
        with refused(UsageError):
            self.log.append(Append({"Clicks": [rows], "clicks": [rows]}))
        assert self.ends("Clicks") == {0: 0}

    def test_a_replaced_topic_may_be_spelled_anew(self) -> None:
        old = self.create("clicks")
        self.log.replace_topic(old, dataclasses.replace(old, name="Clicks"))
        self.log = self.reopen(self.log)
        assert list(self.log.topics()) == ["Clicks"]

    def test_a_name_that_is_not_there_is_told_with_those_that_are(self) -> None:
        self.create("clicks")
        with refused(TopicNotFoundError) as refusal:
            self.log.topic("orders")
        assert "clicks" in (refusal.error.hint or "")
