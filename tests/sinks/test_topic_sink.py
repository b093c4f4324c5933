"""TOPIC: records and position in one commit of the log."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import headwater as hw
from headwater.core.errors import StorageError
from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Append, Log, Producer
from headwater.sinks.base.target import CheckpointConflictError, SinkError, Target, TargetShape
from headwater.sinks.topic.target import TopicTarget
from headwater.testing.sinks import SinkContract
from headwater.testing.sinks.sink_contract import row
from tests.raising import raises
from tests.sinks.changelogs import ChangelogContract
from tests.sinks.samples import (
    EVERYTHING,
    checkpoint_of,
    contents_at,
    everything,
    follow,
    same_rows,
    shape,
    upsert,
)


class Died(OSError):
    """The process died."""


def log_of(workspace: hw.Workspace) -> Log:
    """The log under a workspace."""
    return workspace.log


class TopicPlace(SinkContract):
    """What tests do to a topic of a workspace in a folder."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.path, self.aside, self.patch = tmp_path / "ws", tmp_path / "aside", monkeypatch
        self.ws = hw.open(self.path)
        declared = {"options": {"topic": "copy"}}
        log_of(self.ws).put_entry("sink", "follower", declared, expect=None)
        self.made: list[TopicTarget] = []
        yield
        self.ws.close()

    def make_target(self) -> Target:
        self.made.append(TopicTarget(log_of(self.ws), "copy", options={"partitions": 3}))
        return self.made[-1]

    @contextmanager
    def break_within(self) -> Iterator[None]:
        def fail(*_: Any) -> None:
            raise StorageError("the disk said no")

        with self.patch.context() as patch:
            patch.setattr(type(log_of(self.ws)), "append", fail)
            yield

    def take_down(self) -> None:
        self.down = self.break_within()
        self.down.__enter__()

    def bring_up(self) -> None:
        self.down.__exit__(None, None, None)

    def back_up(self) -> Path:
        shutil.copytree(self.path, self.aside)
        return self.aside

    def put_back(self, backup: Path) -> None:
        self.ws.close()
        shutil.rmtree(self.path)
        shutil.copytree(backup, self.path)
        self.ws = hw.open(self.path)
        for target in self.made:
            target._log = log_of(self.ws)

    def lose_stand(self) -> None:
        log = log_of(self.ws)
        known = log.producer("sink:follower")
        assert known is not None
        forget = Producer("sink:follower", known.sequence + 1, known.epoch, {})
        nothing = self.made[-1]._log.topic("copy").row_schema.empty_table().to_batches()
        log.append(Append({"copy": nothing}, forget))


class TestTopicUpserts(TopicPlace):
    def tamper(self) -> None:
        topic = self.ws.topic("copy")
        topic.append([{**row(1), "name": "tampered"}, {"region": "xx", "id": 9, "name": "foreign"}])
        topic.delete([{"region": "ch", "id": 2}])

    def refused_row(self, at: int) -> dict[str, Any]:
        return {**row(at), "region": None}

    def test_keys_with_null_are_keys(self) -> None:
        """Not here: they are refused."""


class TestTopicChangelog(TopicPlace, ChangelogContract):
    takes_all = True

    def tamper(self) -> None:
        foreign = {"region": "xx", "id": 9, "name": "foreign", "score": 0.0, "_weight": 1, "_tick": 1}
        self.ws.topic("copy").append([foreign])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """The log of a workspace in a folder."""
    with hw.open(tmp_path / "ws") as workspace:
        yield log_of(workspace)


def test_every_type_comes_back_bit_for_bit(log: Log) -> None:
    target = TopicTarget(log, "copy")
    target.prepare(TargetShape("s", "v", EVERYTHING, ("id",)))
    rows = everything()
    target.apply(upsert(rows, ("id",)), None, checkpoint_of(1, rows))
    assert same_rows(target.contents(), [rows])


def test_rows_are_records_and_rows_that_go_are_tombstones(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        target = TopicTarget(log_of(ws), "copy")
        target.prepare(shape())
        one, two = contents_at(1).slice(0, 1), contents_at(1).slice(1, 1)
        target.apply(upsert(one, ("id",)), None, checkpoint_of(1, one))
        target.apply(upsert(two, ("id",), one), checkpoint_of(1, one), checkpoint_of(2, two))
        records = [r for batch in ws.topic("copy").read("earliest") for r in batch.to_pylist()]
        assert [(r["id"], r["word"], r["_op"]) for r in records] == [
            (one["id"][0].as_py(), one["word"][0].as_py(), "upsert"),
            (one["id"][0].as_py(), None, "delete"),
            (two["id"][0].as_py(), two["word"][0].as_py(), "upsert"),
        ]
        assert ws.topic("copy").definition.cleanup == "compact"


def test_a_changelog_has_weights_and_ticks(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        target = TopicTarget(log_of(ws), "copy")
        target.prepare(shape(mode="changelog"))
        follow(target, range(1, 4))
        records = [r for batch in ws.topic("copy").read("earliest") for r in batch.to_pylist()]
        assert {r["_tick"] for r in records} == {1, 2, 3}
        assert sum(r["_weight"] for r in records) == contents_at(3).num_rows


def test_two_levels_at_one_tick_are_both_written(log: Log) -> None:
    target = TopicTarget(log, "copy")
    target.prepare(shape())
    checkpoint = follow(target, range(1, 3))
    assert checkpoint is not None
    again = checkpoint_of(2, contents_at(1))
    target.apply(upsert(contents_at(1), ("id",), contents_at(2)), checkpoint, again)
    assert target.checkpoint() == again
    assert same_rows(target.contents(), [contents_at(1)])


def test_one_that_was_overtaken_between_looking_and_writing_is_told(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, other = TopicTarget(log, "copy"), TopicTarget(log, "copy")
    target.prepare(shape())
    other.prepare(shape())
    checkpoint = follow(target, range(1, 3))
    records = target._records

    def overtaken(*arguments: Any) -> Any:
        follow(other, range(3, 4))
        return records(*arguments)

    monkeypatch.setattr(target, "_records", overtaken)
    with pytest.raises(CheckpointConflictError) as caught:
        target.apply(upsert(contents_at(9), ("id",)), checkpoint, checkpoint_of(3, contents_at(9)))
    assert caught.value.found == other.checkpoint()
    assert same_rows(other.contents(), [contents_at(3)])


def test_what_a_dead_process_wrote_and_did_not_publish_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hw.open(tmp_path) as ws, hw.open(tmp_path) as others:
        target, dying = TopicTarget(log_of(ws), "copy"), TopicTarget(log_of(others), "copy")
        for each in (target, dying):
            each.prepare(shape(mode="changelog"))
        checkpoint = follow(dying, range(1, 3))
        assert target.checkpoint() == checkpoint

        def die(*_: object, **__: object) -> None:
            raise Died

        monkeypatch.setattr(cast(EmbeddedLog, log_of(others)).core.flusher, "flush", die)
        with pytest.raises(Died):
            follow(dying, range(3, 4))
        found = target.checkpoint()
        assert found is not None
        assert found.tick == 3
        follow(target, range(4, 6))
        records = [r for batch in ws.topic("copy").read("earliest") for r in batch.to_pylist()]
        assert sum(r["_weight"] for r in records) == contents_at(5).num_rows


def test_a_topic_that_was_made_anew_is_filled_anew(log: Log) -> None:
    target = TopicTarget(log, "copy")
    target.prepare(shape())
    follow(target, range(1, 4))
    log.drop_topic("copy")
    target.prepare(shape())
    assert target.checkpoint() is None
    follow(target, range(1, 3))
    assert same_rows(target.contents(), [contents_at(2)])


@pytest.mark.parametrize(
    ("declared", "reason", "shown"),
    [
        ("id BIGINT, word STRING, n BIGINT", "key", "(id)"),
        ("id BIGINT, word STRING, PRIMARY KEY (id)", "columns", "id int64, word string;"),
        ("id BIGINT, word STRING, n INT, PRIMARY KEY (id)", "columns", "id int64, word string, n int32;"),
    ],
)
def test_a_topic_that_does_not_fit_is_refused_with_why(
    tmp_path: Path, declared: str, reason: str, shown: str
) -> None:
    with hw.open(tmp_path) as ws:
        ws.sql(f"CREATE TOPIC copy ({declared})")
        with raises(SinkError, topic="copy", reason=reason) as caught:
            TopicTarget(log_of(ws), "copy").prepare(shape())
        assert shown in str(caught.value.detail)


def test_a_topic_that_forgets_is_refused(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        ws.sql(
            "CREATE TOPIC copy (id BIGINT, word STRING, n BIGINT, PRIMARY KEY (id)) WITH (retention = '1 day')"
        )
        with raises(SinkError, topic="copy", reason="retention"):
            TopicTarget(log_of(ws), "copy").prepare(shape())
