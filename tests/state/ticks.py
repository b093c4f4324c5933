"""Small ticks for the tests of the state: runs of numbers, and a view that holds them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.core.clock import ManualClock
from headwater.core.storage import Storage
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run, arrange
from headwater.state.manifest import Manifest, ViewState, encode_schema
from headwater.state.run_refs import RunRef
from headwater.state.store import StateStore

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])
VIEW = "numbers"
CONTENTS = "numbers@1/out"


def run_of(weights: Mapping[int, int]) -> Run:
    """Numbers with their weights, arranged by the number."""
    numbers = list(weights)
    rows = pa.RecordBatch.from_arrays(
        [pa.array(numbers, pa.int64()), pa.array([f"row {n}" for n in numbers])], schema=SCHEMA
    )
    return arrange(Delta(rows, np.array(list(weights.values()), dtype=np.int64)), [0])


def some_ref(rows: int = 1, file: str = "000000000001-1-a.runs", offset: int = 64) -> RunRef:
    """A reference to nothing."""
    return RunRef(file, offset, 640, rows, 0, 2**64, (1, 1), "0123456789abcdef", 16 * rows)


class Engine:
    """A store and the little that an engine does with it: tick n adds what it is given to one view."""

    def __init__(self, storage: Storage, clock: ManualClock | None = None, epoch: int = 1) -> None:
        self.storage = storage
        self.clock = clock or ManualClock()
        self.store = StateStore(storage, self.clock)
        self.epoch = epoch

    def prepare(self, weights: Mapping[int, int], **changes: Any) -> Manifest:
        """The manifest of the next tick, with its runs flushed."""
        before = self.store.latest()
        tick = before.tick + 1 if before else 1
        run = run_of(weights)
        writer = self.store.begin(tick, self.epoch)
        ref = writer.add(run, ticks=(tick, tick))
        change = writer.add(run, ticks=(tick, tick))
        writer.flush()
        refs = (before.arrangements[CONTENTS] if before else ()) + (ref,)
        facts: dict[str, Any] = {
            "tick": tick,
            "epoch": self.epoch,
            "committed_at": self.store.commit_time(before),
            "sequence": 10 * tick,
            "positions": {"clicks": {0: tick, 1: 2 * tick}, "orders": {0: 5}},
            "arrangements": {CONTENTS: refs},
            "views": {VIEW: ViewState(VIEW, 1, "live", CONTENTS, encode_schema(SCHEMA), change=change)},
        }
        return Manifest(**(facts | changes))

    def tick(self, weights: Mapping[int, int], **changes: Any) -> Manifest:
        """Make a tick."""
        manifest = self.prepare(weights, **changes)
        self.store.commit(manifest)
        self.clock.advance("1 second")
        return manifest

    def ticks(self, count: int) -> Sequence[Manifest]:
        """Make several; the number of each is its row."""
        latest = self.store.latest()
        start = latest.tick if latest else 0
        return [self.tick({start + n: 1}) for n in range(1, count + 1)]
