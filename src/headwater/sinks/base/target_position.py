"""The last known checkpoint of a target, and whether the next changes can be applied on top of it."""

from __future__ import annotations

import pyarrow as pa
import xxhash

from headwater.core.positions import Token
from headwater.sinks.base.target import Delivering, Placed, SinkCheckpoint, Target, TargetShape
from headwater.sinks.base.view_feed import Point, SinkFeed


class TargetPosition:
    """The position of one target. It is unknown until the target was asked, and after an error."""

    def __init__(self, shape: TargetShape, target: Target, feed: SinkFeed) -> None:
        self.checkpoint: SinkCheckpoint | None = None
        self.reached = Token(0)
        """Tick up to which the target has everything: the tick of the checkpoint, or a later one without changes."""
        self.is_known = False
        self._shape = shape
        self._target = target
        self._feed = feed
        self._form = _form(shape, target)
        self._is_prepared = False
        self._last_delivered: Token | None = None

    def prepare(self) -> None:
        """Prepare the target, unless it is prepared."""
        if not self._is_prepared:
            self._target.prepare(self._shape)
            self._is_prepared = True

    def ask(self) -> None:
        """Read the checkpoint from the target."""
        self.checkpoint = self._target.checkpoint()
        self.reached = self.checkpoint.token if self.checkpoint is not None else Token(0)
        self._last_delivered = self._target.last_delivered() if isinstance(self._target, Delivering) else None

    def move(self, after: SinkCheckpoint) -> None:
        """Record that the target has advanced to a checkpoint."""
        self.checkpoint, self.reached, self._last_delivered = after, after.token, None

    def doubt(self) -> None:
        """Mark the position as unknown: the checkpoint is read again before anything else is done."""
        self.is_known = False

    def lose(self) -> None:
        """Mark the target as unprepared, too, after an error."""
        self.is_known = self._is_prepared = False

    def history(self, checkpoint: SinkCheckpoint) -> str | None:
        """Return the history of the view that a checkpoint belongs to; None if the checkpoint was written with another mode,
        key, column list or location."""
        history, _, form = checkpoint.history.rpartition("#")
        return history if form == self._form else None

    def checkpoint_at(self, point: Point) -> SinkCheckpoint:
        """Return the checkpoint of a target that equals the view at a point; its checksum is not filled in."""
        return SinkCheckpoint(point.tick, f"{point.history}#{self._form}", 0, id=point.id)

    def goes_on(self, point: Point) -> bool:
        """Whether the next changes can be applied on top of the checkpoint. The feed checks that the tick after it follows
        this very tick."""
        checkpoint, reached = self.checkpoint, self.reached
        is_of_view = checkpoint is not None and checkpoint.whole and self.history(checkpoint) == point.history
        is_this_tick = reached.number < point.tick or not reached.differs(point.id)
        if self._last_delivered is not None and not self._feed.has(self._last_delivered):
            return False  # the receiver, which cannot be read, was sent a tick of another history
        return is_of_view and reached.number <= point.tick and is_this_tick


def _form(shape: TargetShape, target: Target) -> str:
    """Return eight hexadecimal digits that identify location, mode, key and columns: a sink that is created again under its
    old name, with another key or table, does not resume from the old checkpoint."""
    place = target.place if isinstance(target, Placed) else ""
    text = f"{place}\n{shape.mode}\n{shape.key}\n{columns_text(shape.schema)}"
    return xxhash.xxh3_64_hexdigest(text.encode())[:8]


def columns_text(schema: pa.Schema) -> str:
    """Return columns with their types, as text."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)
