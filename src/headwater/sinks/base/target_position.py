"""Where a target stands, as it was last heard of, and whether that says what is to come next."""

from __future__ import annotations

import pyarrow as pa
import xxhash

from headwater.core.positions import Token
from headwater.sinks.base.target import Delivering, Placed, SinkCheckpoint, Target, TargetShape
from headwater.sinks.base.view_feed import Point, SinkFeed


class TargetPosition:
    """The position of one target. It is not known before the target was asked, nor after something went wrong."""

    def __init__(self, shape: TargetShape, target: Target, feed: SinkFeed) -> None:
        self.stand: SinkCheckpoint | None = None
        self.reached = Token(0)
        """The tick that nothing is missing of: that of the stand, or a later one that changed nothing."""
        self.is_known = False
        self._shape = shape
        self._target = target
        self._feed = feed
        self._form = _form(shape, target)
        self._is_prepared = False
        self._handed: Token | None = None

    def prepare(self) -> None:
        """Prepare the target, unless that was done."""
        if not self._is_prepared:
            self._target.prepare(self._shape)
            self._is_prepared = True

    def ask(self) -> None:
        """Ask the target where it stands."""
        self.stand = self._target.stand()
        self.reached = self.stand.token if self.stand is not None else Token(0)
        self._handed = self._target.handed() if isinstance(self._target, Delivering) else None

    def move(self, after: SinkCheckpoint) -> None:
        """The target has been brought there."""
        self.stand, self.reached, self._handed = after, after.token, None

    def doubt(self) -> None:
        """Ask the target anew before anything else is done."""
        self.is_known = False

    def lose(self) -> None:
        """Prepare the target anew, too: something went wrong."""
        self.is_known = self._is_prepared = False

    def history(self, stand: SinkCheckpoint) -> str | None:
        """Which history of the view a stand is of; None if it is of rows in another form, or of another place."""
        history, _, form = stand.history.rpartition("#")
        return history if form == self._form else None

    def stand_at(self, point: Point) -> SinkCheckpoint:
        """The stand of a target that is level with the view there; its checksum is not filled in."""
        return SinkCheckpoint(point.tick, f"{point.history}#{self._form}", 0, id=point.id)

    def goes_on(self, point: Point) -> bool:
        """Whether the stand says what is to come next. Whether the tick after it follows that very tick is for the feed to see."""
        stand, reached = self.stand, self.reached
        is_of_view = stand is not None and stand.whole and self.history(stand) == point.history
        is_this_tick = reached.number < point.tick or not reached.differs(point.id)
        if self._handed is not None and not self._feed.has(self._handed):
            return False  # who cannot be asked was given a tick of another history
        return is_of_view and reached.number <= point.tick and is_this_tick


def _form(shape: TargetShape, target: Target) -> str:
    """Eight digits for what a position stands for beside the tick: a sink that is made anew under its old name, with another
    key or table, does not go on from where the old one was."""
    place = target.place if isinstance(target, Placed) else ""
    text = f"{place}\n{shape.mode}\n{shape.key}\n{columns_text(shape.schema)}"
    return xxhash.xxh3_64_hexdigest(text.encode())[:8]


def columns_text(schema: pa.Schema) -> str:
    """Columns with their types, as text."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)
