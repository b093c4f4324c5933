"""What stories of sinks are made of: a view that is written tick by tick, a place outside, and processes that come and go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import pyarrow as pa

from headwater.core.clock import ManualClock
from headwater.core.errors import HeadwaterError
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.sinks.base.applier import Applier, Letters, OnError
from headwater.sinks.base.checksums import Tally, tally_all
from headwater.sinks.base.sink_verify import SinkCheck, check
from headwater.sinks.base.target import Mode, Target, TargetShape
from headwater.testing.faults import Crash
from headwater.testing.sinks.failing_target import UnsteadyTarget
from headwater.testing.sinks.scripted_feed import ScriptedFeed

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        pa.field("region", pa.string()),
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("score", pa.float64()),
    ]
)


def row(at: int, name: str | None = "a", score: float | None = None, region: str | None = "ch") -> Row:
    """A row of the view; unless its score is given, it follows from the name."""
    if score is None:
        score = sum(map(ord, name or "")) / 4
    return {"region": region, "id": at, "name": name, "score": score}


class SinkBench:
    """One test's view and place. Every test has a place of its own, which `make_target` connects to anew each time."""

    mode: ClassVar[Mode] = "upsert"
    schema: ClassVar[pa.Schema] = SCHEMA
    key: ClassVar[tuple[str, ...]] = ("region", "id")
    many: ClassVar[int] = 3_000
    """Rows that are more than a target writes one by one."""
    takes_null: ClassVar[bool] = True
    """Whether a row may have NULL in every column but its key."""
    takes_all: ClassVar[bool] = False
    """Whether no row of the schema is ever refused."""

    # --- what a kind of target says of itself ----------------------------------------------------------------------

    def make_target(self) -> Target:
        """A target at this test's place, as a process makes one when it starts."""
        raise NotImplementedError

    def break_within(self) -> AbstractContextManager[None]:
        """Until it is left, a change breaks off after something of it was written, with TargetDownError."""
        raise NotImplementedError

    def take_down(self) -> None:
        """Nobody answers at the place any more."""
        raise NotImplementedError

    def bring_up(self) -> None:
        """It answers again."""
        raise NotImplementedError

    def back_up(self) -> Any:
        """A backup of the place, position included."""
        raise NotImplementedError

    def put_back(self, backup: Any) -> None:
        """Put back a backup of the place."""
        raise NotImplementedError

    def tamper(self) -> None:
        """Change the row of ('ch', 1), remove that of ('ch', 2) and add another, by other means than the target."""
        raise NotImplementedError

    def lose_stand(self) -> None:
        """Remove what says where the place stands, and nothing else."""
        raise NotImplementedError

    def refused_row(self, at: int) -> Row:
        """A row of region 'bad' with this id that the place refuses from now on."""
        raise NotImplementedError

    def take_again(self, at: int) -> None:
        """Let the place take rows of region 'bad' with this id, if it is not the row's own fault that it does not."""

    # --- what tests are made of ------------------------------------------------------------------------------------

    def setup_method(self) -> None:
        """Called by pytest before each test."""
        self.clock = ManualClock()
        self.feed = ScriptedFeed(self.schema, self.clock)
        self.shape = TargetShape("follower", "view", self.schema, self.key, self.mode)
        self.letters: dict[int, Letters] = {}
        self._open: list[Applier] = []

    def teardown_method(self) -> None:
        """Called by pytest after each test."""
        for applier in self._open:
            applier.close()

    def start(self, *, on_error: OnError = "stop") -> Applier:
        """A process that follows the view."""
        self.target = UnsteadyTarget(self.make_target())
        applier = Applier(
            self.shape, self.target, self.feed, self.clock, on_error=on_error, letters=self._keep
        )
        self._open.append(applier)
        return applier

    def _keep(self, letters: Letters) -> None:
        self.letters.setdefault(letters.serial, letters)

    def catch_up(self, applier: Applier) -> None:
        """Bring the target up to the newest tick."""
        self.clock.advance("1 second")
        while applier.step():
            pass
        assert applier.status().tick == self.feed.now

    def run(self, *, on_error: OnError = "stop") -> Applier:
        """Start a process and bring the target up to the newest tick."""
        applier = self.start(on_error=on_error)
        self.catch_up(applier)
        return applier

    def delta(self, rows: list[Row]) -> Delta:
        """Rows of the view, each once."""
        return Delta.of(pa.RecordBatch.from_pylist(rows, schema=self.schema))

    def held(self, rows: list[Row]) -> Delta:
        """Rows of the view as the target should hold them."""
        return Delta.of(self.target.held(self.delta(rows).rows))

    def there(self) -> Delta:
        """What the target holds."""
        parts = []
        for batch in self.target.contents():
            if self.mode == "changelog":
                weights = batch.column("_weight").to_numpy()
                parts.append(Delta(batch.drop_columns(["_weight"]), weights))
            else:
                parts.append(Delta.of(batch))
        return concat(parts, self.held([]).rows.schema)

    def assert_holds(self, rows: list[Row] | None = None) -> None:
        """The target holds these rows, or those of the view, and its checksum is right."""
        expected = self.held(self.feed.rows() if rows is None else rows)
        there = self.there()
        rest = consolidate(concat([expected, there.negated()], expected.rows.schema))
        assert not len(rest), list(zip(rest.rows.to_pylist(), rest.weights.tolist(), strict=True))
        stand = self.target.stand()
        assert stand is not None
        weight = "_weight" if self.mode == "changelog" else None
        assert Tally(stand.checksum, stand.rows) == tally_all(self.target.contents(), weight)

    def check(self, applier: Applier, *, repair: bool = False) -> SinkCheck:
        """Verify the target."""
        return check(applier, self.feed, repair=repair)

    @contextmanager
    def crashing(self) -> Iterator[None]:
        """The process dies in this block."""
        try:
            yield
        except Crash:
            return
        raise AssertionError("the process did not crash")

    @contextmanager
    def failing(self, kind: type[HeadwaterError]) -> Iterator[list[HeadwaterError]]:
        """The block raises an error of this kind."""
        found: list[HeadwaterError] = []
        try:
            yield found
        except kind as error:
            found.append(error)
            return
        raise AssertionError(f"{kind.__name__} was not raised")
