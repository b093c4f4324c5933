"""Base class of sink tests: a view that is written tick by tick, an external system, and processes that start and crash."""

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
    """Return a row of the view; the score, unless given, is derived from the name."""
    if score is None:
        score = sum(map(ord, name or "")) / 4
    return {"region": region, "id": at, "name": name, "score": score}


class SinkBench:
    """The view and the external system (the place) of one test. Every test has its own place, to which `make_target`
    connects again."""

    mode: ClassVar[Mode] = "upsert"
    schema: ClassVar[pa.Schema] = SCHEMA
    key: ClassVar[tuple[str, ...]] = ("region", "id")
    many: ClassVar[int] = 3_000
    """Number of rows that a target writes in bulk instead of one by one."""
    takes_null: ClassVar[bool] = True
    """Whether the target accepts NULL in every column but the key."""
    takes_all: ClassVar[bool] = False
    """Whether the target accepts every row of the schema."""

    # --- what a kind of target implements --------------------------------------------------------------------------

    def make_target(self) -> Target:
        """Return a target at this test's place, as a starting process creates it."""
        raise NotImplementedError

    def break_within(self) -> AbstractContextManager[None]:
        """Make changes fail with TargetDownError after a part was written, until the block ends."""
        raise NotImplementedError

    def take_down(self) -> None:
        """Make the place unreachable."""
        raise NotImplementedError

    def bring_up(self) -> None:
        """Make the place reachable again."""
        raise NotImplementedError

    def back_up(self) -> Any:
        """Return a backup of the place, checkpoint included."""
        raise NotImplementedError

    def put_back(self, backup: Any) -> None:
        """Restore a backup of the place."""
        raise NotImplementedError

    def tamper(self) -> None:
        """Change the row of ('ch', 1), remove that of ('ch', 2) and add another, without using the target."""
        raise NotImplementedError

    def lose_stand(self) -> None:
        """Remove the stored checkpoint of the place, and nothing else."""
        raise NotImplementedError

    def refused_row(self, at: int) -> Row:
        """Return a row of region 'bad' with this id, which the place rejects from now on."""
        raise NotImplementedError

    def take_again(self, at: int) -> None:
        """Make the place accept rows of region 'bad' with this id, unless the row itself is invalid."""

    # --- helpers of tests ------------------------------------------------------------------------------------------

    def setup_method(self) -> None:
        """Create the clock, feed and shape of a test; called by pytest."""
        self.clock = ManualClock()
        self.feed = ScriptedFeed(self.schema, self.clock)
        self.shape = TargetShape("follower", "view", self.schema, self.key, self.mode)
        self.letters: dict[int, Letters] = {}
        self._open: list[Applier] = []

    def teardown_method(self) -> None:
        """Close the appliers of a test; called by pytest."""
        for applier in self._open:
            applier.close()

    def start(self, *, on_error: OnError = "stop") -> Applier:
        """Start a process that writes the view's changes to the target."""
        self.target = UnsteadyTarget(self.make_target())
        applier = Applier(
            self.shape, self.target, self.feed, self.clock, on_error=on_error, letters=self._keep
        )
        self._open.append(applier)
        return applier

    def _keep(self, letters: Letters) -> None:
        self.letters.setdefault(letters.serial, letters)

    def catch_up(self, applier: Applier) -> None:
        """Advance the target to the newest tick."""
        self.clock.advance("1 second")
        while applier.step():
            pass
        assert applier.status().tick == self.feed.now

    def run(self, *, on_error: OnError = "stop") -> Applier:
        """Start a process and advance the target to the newest tick."""
        applier = self.start(on_error=on_error)
        self.catch_up(applier)
        return applier

    def delta(self, rows: list[Row]) -> Delta:
        """Return rows of the view as a Z-set, each with weight 1."""
        return Delta.of(pa.RecordBatch.from_pylist(rows, schema=self.schema))

    def held(self, rows: list[Row]) -> Delta:
        """Return rows of the view as a Z-set in the target's stored form."""
        return Delta.of(self.target.stored_form(self.delta(rows).rows))

    def there(self) -> Delta:
        """Return the target's contents as a Z-set."""
        parts = []
        for batch in self.target.contents():
            if self.mode == "changelog":
                weights = batch.column("_weight").to_numpy()
                parts.append(Delta(batch.drop_columns(["_weight"]), weights))
            else:
                parts.append(Delta.of(batch))
        return concat(parts, self.held([]).rows.schema)

    def assert_holds(self, rows: list[Row] | None = None) -> None:
        """Assert that the target has the given rows, by default the view's, and that its checksum matches."""
        expected = self.held(self.feed.rows() if rows is None else rows)
        there = self.there()
        rest = consolidate(concat([expected, there.negated()], expected.rows.schema))
        assert not len(rest), list(zip(rest.rows.to_pylist(), rest.weights.tolist(), strict=True))
        checkpoint = self.target.checkpoint()
        assert checkpoint is not None
        weight = "_weight" if self.mode == "changelog" else None
        assert Tally(checkpoint.checksum, checkpoint.rows) == tally_all(self.target.contents(), weight)

    def check(self, applier: Applier, *, repair: bool = False) -> SinkCheck:
        """Verify the target against the view."""
        return check(applier, self.feed, repair=repair)

    @contextmanager
    def crashing(self) -> Iterator[None]:
        """Assert that the process crashes in this block."""
        try:
            yield
        except Crash:
            return
        raise AssertionError("the process did not crash")

    @contextmanager
    def failing(self, kind: type[HeadwaterError]) -> Iterator[list[HeadwaterError]]:
        """Assert that the block raises an error of this class; yields a list with the error."""
        found: list[HeadwaterError] = []
        try:
            yield found
        except kind as error:
            found.append(error)
            return
        raise AssertionError(f"{kind.__name__} was not raised")
