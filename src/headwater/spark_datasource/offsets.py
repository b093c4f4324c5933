"""Positions of a streaming query in a topic or view, in the JSON form that Spark stores in the query's checkpoint.

    {"topic": "clicks", "incarnation": 3, "offsets": {"0": 17, "1": 4}, "commit": "1043-5f0c6c1b9e2d4a7b"}

`offsets` is the next offset of each partition. `incarnation` distinguishes the topic from a later topic of the same
name. `commit` is the last commit that the positions include, with its random id: in a restored older copy of the
workspace this number belongs to another commit, or to none. Checkpoints of earlier versions have no `commit`.

The first batch of a query needs more. Spark does not store where the query began: it asks for the initial offset again
when it plans that batch, and again when it repeats the batch after a crash, when 'latest' or 'earliest' may have
advanced. So the end offset of the first batch stores the query's start positions (`began`), and the initial offset is
marked (`initial`), so that `began` takes precedence over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import TopicNotFoundError, UsageError
from headwater.core.positions import Token
from headwater.log.commit_history import check_commit
from headwater.log.protocol import Log

Positions = Mapping[int, int]


@dataclass(frozen=True)
class StreamOffset:
    """The position of a query in its topic."""

    topic: str
    incarnation: int
    positions: Positions
    began: Positions | None = None
    initial: bool = False
    commit: Token | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form. Equal positions give equal texts, which is how Spark compares offsets."""
        plain: dict[str, Any] = {
            "topic": self.topic,
            "incarnation": self.incarnation,
            "offsets": _plain(self.positions),
        }
        if self.commit is not None:
            plain["commit"] = str(self.commit)
        if self.began is not None:
            plain["began"] = _plain(self.began)
        if self.initial:
            plain["initial"] = True
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> StreamOffset:
        """Return the offset that `to_json` encoded; UsageError for an offset of another source."""
        try:
            began = plain.get("began")
            return cls(
                plain["topic"],
                plain["incarnation"],
                _positions(plain["offsets"]),
                None if began is None else _positions(began),
                plain.get("initial", False),
                Token.parse(plain["commit"]) if "commit" in plain else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UsageError(
                "the checkpoint has positions of another source",
                detail=f"its positions are {plain!r}",
                hint="start the query with a checkpointLocation of its own",
                reason="other-source",
            ) from None

    def check(self, topic: TopicDefinition) -> None:
        """Raise UsageError or TopicNotFoundError if the query began in another topic than this one."""
        if self.topic != topic.name:
            raise UsageError(
                f"the checkpoint has positions of topic {self.topic!r}, but the query reads topic {topic.name!r}",
                hint="start the query with a checkpointLocation of its own",
                topic=topic.name,
                checkpoint_topic=self.topic,
            )
        if self.incarnation != topic.incarnation:
            raise TopicNotFoundError(
                f"topic {topic.name!r} was dropped and recreated after the query started",
                detail="the positions in the checkpoint are of the dropped topic",
                hint="start the query with a new checkpointLocation to read the new topic",
                reason="recreated",
                topic=topic.name,
            )

    def check_history(self, log: Log) -> None:
        """Raise OtherHistoryError if an older copy of the workspace was restored and has diverged from the query's history."""
        check_commit(log, self.commit, "the checkpoint of the query")


def batch_start(start: StreamOffset, end: StreamOffset) -> Positions:
    """Return the start positions of a batch that ends at `end`; correct also for a repetition of the query's first batch."""
    return end.began if start.initial and end.began is not None else start.positions


def _plain(positions: Positions) -> dict[str, int]:
    return {str(p): positions[p] for p in sorted(positions)}


def _positions(plain: Mapping[str, int]) -> dict[int, int]:
    return {int(p): int(at) for p, at in plain.items()}


@dataclass(frozen=True)
class ViewOffset:
    """The position of a query in the ticks of its view:

        {"view": "revenue", "tick": 41, "history": [7, 3], "id": "5f0c6c1b9e2d4a7b"}

    All ticks up to `tick` were read. `history` distinguishes the view from its state before a rebuild, and `id` the
    tick from another tick of its number in a restored older copy of the workspace. As with topics, the end of the first
    batch stores the query's start, which may be all rows at its tick (`snapshot`).
    """

    view: str
    tick: int
    history: tuple[int, int] | None = None
    snapshot: bool = False
    initial: bool = False
    began: tuple[int, bool] | None = None
    """In the end offset of a first batch: the tick at which the query begins, and whether with all rows at that tick."""
    id: str = ""

    @property
    def token(self) -> Token:
        """The token that identifies the tick."""
        return Token(self.tick, self.id)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form. Equal positions give equal texts, which is how Spark compares offsets."""
        plain: dict[str, Any] = {"view": self.view, "tick": self.tick}
        if self.history is not None:
            plain["history"] = list(self.history)
        if self.id:
            plain["id"] = self.id
        if self.began is not None:
            plain["began"] = {"tick": self.began[0], "snapshot": self.began[1]}
        if self.snapshot:
            plain["snapshot"] = True
        if self.initial:
            plain["initial"] = True
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> ViewOffset:
        """Return the offset that `to_json` encoded; UsageError for an offset of another source."""
        try:
            history, began = plain.get("history"), plain.get("began")
            return cls(
                plain["view"],
                int(plain["tick"]),
                None if history is None else (int(history[0]), int(history[1])),
                bool(plain.get("snapshot", False)),
                bool(plain.get("initial", False)),
                None if began is None else (int(began["tick"]), bool(began["snapshot"])),
                str(plain.get("id", "")),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            raise UsageError(
                "the checkpoint has positions of another source",
                detail=f"its positions are {plain!r}",
                hint="start the query with a checkpointLocation of its own",
                reason="other-source",
            ) from None

    def check(self, view: str) -> None:
        """Raise UsageError if the query began in another view than this one."""
        if self.view != view:
            raise UsageError(
                f"the checkpoint has positions of view {self.view!r}, but the query reads view {view!r}",
                hint="start the query with a checkpointLocation of its own",
                view=view,
                checkpoint_view=self.view,
            )


def view_batch_start(start: ViewOffset, end: ViewOffset) -> ViewOffset:
    """Return the start of a batch that ends at `end`; correct also for a repetition of the query's first batch."""
    if not start.initial or end.began is None:
        return start
    tick, snapshot = end.began
    return ViewOffset(end.view, tick, end.history, snapshot=snapshot, initial=True)
