"""Where a streaming query is in a topic, in the form in which Spark keeps it in the query's checkpoint.

    {"topic": "clicks", "incarnation": 3, "offsets": {"0": 17, "1": 4}, "commit": "1043-5f0c6c1b9e2d4a7b"}

`offsets` is the next offset of each partition. `incarnation` tells the topic from a later one of its name. `commit` is the last
commit up to which the positions go, with its random id: in an older copy of the workspace that was put back the number is that of
another commit, or of none. It is missing in the checkpoints of earlier versions.

A query's first batch needs more. Spark does not keep where the query began: it asks for the initial offset again when
it plans that batch, and again when it repeats it after a crash, by which time 'latest' or 'earliest' is elsewhere. So
the end of the first batch carries the beginning (`began`), and the initial offset says of itself that it is one
(`initial`), so that it gives way.
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
    """A position of a query in its topic."""

    topic: str
    incarnation: int
    positions: Positions
    began: Positions | None = None
    initial: bool = False
    commit: Token | None = None

    def to_json(self) -> dict[str, Any]:
        """The plain form. Equal positions give equal texts, which is how Spark compares them."""
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
        """The offset that `to_json` wrote; UsageError for one that another source wrote."""
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
                "the checkpoint holds positions of another source",
                detail=f"found {plain!r}",
                hint="start the query with a checkpointLocation of its own",
            ) from None

    def check(self, topic: TopicDefinition) -> None:
        """Refuse to go on in another topic than the one in which the query began."""
        if self.topic != topic.name:
            raise UsageError(
                f"the checkpoint holds positions of topic {self.topic!r}, and the query reads topic {topic.name!r}",
                hint="start the query with a checkpointLocation of its own",
            )
        if self.incarnation != topic.incarnation:
            raise TopicNotFoundError(
                f"topic {topic.name!r} was dropped and made again since this query began to read it",
                detail="the positions in the checkpoint are those of the topic that is gone",
                hint="start the query with a new checkpointLocation to read the new topic",
                topic=topic.name,
            )

    def check_history(self, log: Log) -> None:
        """Refuse to go on where an older copy of the workspace was put back, and has gone on in another way."""
        check_commit(log, self.commit, "the checkpoint of the query")


def batch_start(start: StreamOffset, end: StreamOffset) -> Positions:
    """Where a batch that ends at `end` begins, also when it is a repetition of the query's first."""
    return end.began if start.initial and end.began is not None else start.positions


def _plain(positions: Positions) -> dict[str, int]:
    return {str(p): positions[p] for p in sorted(positions)}


def _positions(plain: Mapping[str, int]) -> dict[int, int]:
    return {int(p): int(at) for p, at in plain.items()}


@dataclass(frozen=True)
class ViewOffset:
    """A position of a query in the ticks of its view:

        {"view": "revenue", "tick": 41, "history": [7, 3], "id": "5f0c6c1b9e2d4a7b"}

    All ticks up to `tick` were read. `history` tells the view from what it was before it was built anew, and `id` the tick from
    another one of its number, in an older copy of the workspace that was put back. As with
    topics, the end of the first batch carries the beginning, and that may be all rows at its tick (`snapshot`).
    """

    view: str
    tick: int
    history: tuple[int, int] | None = None
    snapshot: bool = False
    initial: bool = False
    began: tuple[int, bool] | None = None
    """Of the end of a first batch: the tick at which it begins, and whether with all rows at it."""
    id: str = ""

    @property
    def token(self) -> Token:
        """What names the tick."""
        return Token(self.tick, self.id)

    def to_json(self) -> dict[str, Any]:
        """The plain form. Equal positions give equal texts, which is how Spark compares them."""
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
        """The offset that `to_json` wrote; UsageError for one that another source wrote."""
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
                "the checkpoint holds positions of another source",
                detail=f"found {plain!r}",
                hint="start the query with a checkpointLocation of its own",
            ) from None

    def check(self, view: str) -> None:
        """Refuse to go on in another view than the one in which the query began."""
        if self.view != view:
            raise UsageError(
                f"the checkpoint holds positions of view {self.view!r}, and the query reads view {view!r}",
                hint="start the query with a checkpointLocation of its own",
            )


def view_batch_start(start: ViewOffset, end: ViewOffset) -> ViewOffset:
    """Where a batch that ends at `end` begins, also when it is a repetition of the query's first."""
    if not start.initial or end.began is None:
        return start
    tick, snapshot = end.began
    return ViewOffset(end.view, tick, end.history, snapshot=snapshot, initial=True)
